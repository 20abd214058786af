package main

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// queryFlags are the flags that select tasks.
type queryFlags struct {
	states        []string
	before, since string
	all, paged    bool
	sort          string
	reverse       bool
	q             wire.Query
}

// sorts are the columns that a list of tasks can be sorted by, in addition to age.
var sorts = map[string]func(a, b wire.Task) int{
	"state":    func(a, b wire.Task) int { return cmp.Compare(a.State, b.State) },
	"kind":     func(a, b wire.Task) int { return cmp.Compare(a.Kind, b.Kind) },
	"class":    func(a, b wire.Task) int { return cmp.Compare(classOrder(a.Class), classOrder(b.Class)) },
	"peer":     func(a, b wire.Task) int { return cmp.Compare(a.Peer, b.Peer) },
	"attempts": func(a, b wire.Task) int { return cmp.Compare(a.Attempts, b.Attempts) },
}

const (
	sortAge  = "age"
	maxLimit = 1000 // entries of a page
)

// sortNames are the values of --sort.
func sortNames() []string { return append([]string{sortAge}, slices.Sorted(maps.Keys(sorts))...) }

// classOrder orders classes by urgency, the most urgent first.
func classOrder(name string) int {
	return slices.Index([]string{"critical", "high", "normal", "low"}, name)
}

// add adds the flags to a command; a list also gets flags for pages.
func (f *queryFlags) add(c *cobra.Command, list bool) {
	fs := c.Flags()
	fs.StringSliceVar(&f.states, "state", nil, "only these states, like success,failed")
	fs.StringVar(&f.q.Role, "role", "", "only tasks of which this node is home or owner")
	fs.StringVar(&f.q.Peer, "peer", "", "only tasks to or from this peer")
	fs.StringVar(&f.q.Kind, "kind", "", "only this kind")
	fs.StringVar(&f.q.Label, "label", "", "only tasks with this label, key=value")
	fs.StringVar(&f.before, "before", "", "only tasks created before this: an age like 7d, or a time")
	fs.StringVar(&f.since, "since", "", "only tasks created after this: an age like 1h, or a time")
	if f.paged = list; list {
		fs.IntVar(&f.q.Limit, "limit", 50, "entries per page, at most 1000")
		fs.StringVar(&f.q.Cursor, "cursor", "", "continue after this page")
		fs.BoolVar(&f.all, "all", false, "all pages")
		fs.StringVar(&f.sort, "sort", sortAge, "sort by "+joinOr(sortNames())+"; by age means newest first")
		fs.BoolVar(&f.reverse, "reverse", false, "reverse the order: by age means oldest first")
	}
}

// chosen reports whether any flag selects tasks.
func (f *queryFlags) chosen(cmd *cobra.Command) bool {
	for _, flag := range []string{"state", "role", "peer", "kind", "label", "before", "since"} {
		if cmd.Flags().Changed(flag) {
			return true
		}
	}
	return false
}

// ids returns the named tasks, or the ids of those that the flags select among the tasks of
// this home in a state that may accepts, without those that were repeated.
func (f *queryFlags) ids(cmd *cobra.Command, w *app, named []string, may func(proto.TaskState) bool) ([]string, error) {
	switch {
	case len(named) > 0 && f.chosen(cmd):
		return nil, usage("give either ids or flags that select tasks, not both")
	case len(named) > 0:
		return named, nil
	case !f.chosen(cmd):
		return nil, usage("no tasks selected: give ids, or flags that select some, like --peer, --kind or --since")
	}
	q, err := f.query(w.clock.Now())
	if err != nil {
		return nil, err
	}
	if q.Role == wire.RoleOwner {
		return nil, usage("--role owner: %s is for tasks of which this node is the home", cmd.CommandPath())
	}
	q.Role = wire.RoleHome
	if len(q.States) == 0 {
		q.States = taskStates(may)
	}
	for _, s := range q.States {
		if allowed := taskStates(may); !slices.Contains(allowed, s) {
			return nil, usage("--state %s: %s accepts only %s", s, cmd.CommandPath(), strings.Join(allowed, ", "))
		}
	}
	c, err := w.node()
	if err != nil {
		return nil, err
	}
	f.all = true
	page, err := f.pages(cmd.Context(), w, q, c.Tasks)
	var ids []string
	for _, t := range page.Items {
		if t.RedrivenAs == "" {
			ids = append(ids, t.ID)
		}
	}
	return ids, err
}

// query parses the flags.
func (f *queryFlags) query(now time.Time) (wire.Query, error) {
	q := f.q
	for _, name := range f.states {
		s, err := proto.ParseTaskState(name)
		if err != nil {
			return q, usage("--state: %w", err)
		}
		q.States = append(q.States, s.Name())
	}
	if q.Role != "" && q.Role != "home" && q.Role != "owner" {
		return q, usage("--role %.20q: it must be home or owner", q.Role)
	}
	if f.sort != "" && !slices.Contains(sortNames(), f.sort) {
		return q, usage("--sort %.20q: it must be %s", f.sort, joinOr(sortNames()))
	}
	if f.paged && (q.Limit < 1 || q.Limit > maxLimit) {
		return q, usage("--limit %d: it must be 1 to %d entries per page; --all fetches all pages", q.Limit, maxLimit)
	}
	q.Oldest = f.reverse && f.sort == sortAge
	var err error
	if q.Before, err = parsePast("before", f.before, now); err != nil {
		return q, err
	}
	q.After, err = parsePast("since", f.since, now)
	return q, err
}

// pages fetches one page of a list, or with --all all pages as one.
func (f *queryFlags) pages(ctx context.Context, w *app, q wire.Query, fetch func(context.Context, wire.Query) (wire.Page[wire.Task], error)) (wire.Page[wire.Task], error) {
	ctx, cancel := w.withTimeout(ctx)
	defer cancel()
	if f.all {
		q.Limit = maxLimit
	}
	page, err := fetch(ctx, q)
	for f.all && err == nil && page.Next != "" {
		q.Cursor = page.Next
		var more wire.Page[wire.Task]
		more, err = fetch(ctx, q)
		page.Items, page.Next = append(page.Items, more.Items...), more.Next
	}
	if page.Items == nil {
		page.Items = []wire.Task{}
	}
	if by := sorts[f.sort]; by != nil {
		slices.SortStableFunc(page.Items, by)
		if f.reverse {
			slices.Reverse(page.Items)
		}
	}
	return page, err
}

// joinOr joins choices: a, b or c.
func joinOr(words []string) string {
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}
