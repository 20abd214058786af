package backlog

import (
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// A Span selects the tasks for [Backlog.Page] and their order.
type Span struct {
	From    proto.TaskID // where to begin; zero: at the first
	With    bool         // From itself is included
	Oldest  bool         // oldest first; default newest first
	Sets    []Set        // default all
	Results bool         // include ended results that no task shares the id of
}

// holds reports whether id is within the span.
func (s Span) holds(id proto.TaskID) bool {
	if s.From.IsZero() {
		return true
	}
	c := s.Compare(id, s.From)
	return c > 0 || c == 0 && s.With
}

// Compare orders two ids as the span does.
func (s Span) Compare(a, b proto.TaskID) int {
	if s.Oldest {
		return a.Compare(b)
	}
	return b.Compare(a)
}

// pageStep is how many ids Page selects at once.
const pageStep = 1024

// Page returns up to limit tasks that match, nil all, from any set in the order
// of their ids, which is by age. next is the last task considered, zero at the
// end; a page before the end may be short or empty. A task that ends between two
// pages is neither omitted nor returned twice.
func (b *Backlog) Page(s Span, limit int, match func(Key, *proto.Record) bool) (found []Listed, next proto.TaskID, err error) {
	if limit <= 0 {
		return nil, next, nil
	}
	for read := 0; read < listBudget; {
		ids := b.firsts(s)
		for i, id := range ids {
			s.From, s.With = id, false
			read++
			l, ok, err := b.listed(s, TaskKey(id))
			if err != nil {
				return nil, next, fmt.Errorf("list: %w", err)
			}
			if !ok || match != nil && !match(l.Key, l.Record) {
				continue
			}
			if found = append(found, l); len(found) < limit {
				continue
			}
			if i == len(ids)-1 && len(ids) < pageStep {
				return found, next, nil
			}
			return found, id, nil
		}
		if len(ids) < pageStep {
			return found, proto.TaskID{}, nil
		}
	}
	return found, s.From, nil
}

// listed reads one entry of a page; ok is false if it no longer exists, or is in
// another set by now.
func (b *Backlog) listed(s Span, k Key) (l Listed, ok bool, err error) {
	r, set, err := b.Get(k)
	if s.Results && errors.Is(err, ErrNotFound) {
		k.Part = PartResult
		r, set, err = b.Get(k)
	}
	switch {
	case errors.Is(err, ErrNotFound):
		return l, false, nil
	case errors.Is(err, store.ErrCorrupt):
		b.cfg.Damaged(k.append(nil, kindInitial), err)
		return l, false, nil
	case err != nil:
		return l, false, err
	}
	return Listed{Key: k, Record: r}, s.on(set), nil
}

// on reports whether the span includes a set.
func (s Span) on(sh Set) bool { return len(s.Sets) == 0 || slices.Contains(s.Sets, sh) }

// firsts returns the first ids of a span, at most pageStep, in order.
func (b *Backlog) firsts(s Span) []proto.TaskID {
	first := make([]proto.TaskID, 0, 2*pageStep)
	trim := func() {
		slices.SortFunc(first, s.Compare)
		first = slices.Compact(first)
		first = first[:min(len(first), pageStep)]
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	full := false
	for id := range b.ids(s) {
		if !s.holds(id) || full && s.Compare(id, first[pageStep-1]) >= 0 {
			continue
		}
		if first = append(first, id); len(first) == cap(first) {
			trim()
			full = len(first) == pageStep
		}
	}
	trim()
	return first
}

// ids yields the ids of the tasks in the sets of s, in no order. The caller holds
// mu.
func (b *Backlog) ids(s Span) iter.Seq[proto.TaskID] {
	return func(yield func(proto.TaskID) bool) {
		if s.on(Live) {
			for k, e := range b.entries {
				if k.Part == PartTask && e.place != adding && !yield(k.ID) {
					return
				}
			}
		}
		for _, set := range []struct {
			name Set
			of   *endedSet
		}{{Done, &b.done}, {Dead, &b.dead}} {
			if !s.on(set.name) {
				continue
			}
			for _, m := range set.of.entries {
				if !yield(m.key.ID) {
					return
				}
			}
		}
	}
}
