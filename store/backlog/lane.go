package backlog

import (
	"slices"

	"github.com/balefire/balefire/proto"
)

// A lane holds the entries of one ordering key in their order. Only the first may
// be taken. A dead entry whose followers must wait for a person stays in its lane
// and blocks it.
type lane struct {
	name    string
	entries []*entry
}

// laneNamed returns the lane with this name and creates it if needed.
func (b *Backlog) laneNamed(name string) *lane {
	l := b.lanes[name]
	if l == nil {
		l = &lane{name: name}
		b.lanes[name] = l
	}
	return l
}

func (l *lane) join(e *entry) {
	e.lane = l
	l.entries = append(l.entries, e)
}

// admits reports whether e may be processed now.
func (l *lane) admits(e *entry) bool { return l.entries[0] == e }

// leaveLane removes an ended entry from its lane and admits the next one.
func (b *Backlog) leaveLane(e *entry) {
	l := e.lane
	if l == nil {
		return
	}
	e.lane = nil
	if l.entries[0] == e {
		l.entries[0] = nil
		l.entries = l.entries[1:]
	} else {
		i := slices.Index(l.entries, e)
		l.entries = slices.Delete(l.entries, i, i+1)
	}
	b.advance(l)
}

// advance admits the first entry of l, if it was queued behind, and deletes an
// empty lane.
func (b *Backlog) advance(l *lane) {
	switch {
	case len(l.entries) == 0:
		delete(b.lanes, l.name)
	case l.entries[0].place == queuedBehind && !l.entries[0].busy:
		b.enqueue(l.entries[0])
	}
}

// blocks returns the lane that the dead entry blocks, empty if none.
func (b *Backlog) blocks(k Key, r *proto.Record) string {
	if r.GetOnDead() != "block" || r.Status == StatusRedriven {
		return ""
	}
	return b.cfg.Lane(k, r)
}

// laneOf returns the lane that the dead entry blocks in memory, empty if none.
func (b *Backlog) laneOf(k Key) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	for name, l := range b.lanes {
		if l.blocker(k) >= 0 {
			return name
		}
	}
	return ""
}

// blocker returns the index of the dead entry that blocks l, -1 if it does not.
func (l *lane) blocker(k Key) int {
	return slices.IndexFunc(l.entries, func(e *entry) bool { return e.place == blocking && e.key == k })
}

// unblock removes a dead entry that blocks the lane.
func (b *Backlog) unblock(name string, k Key) {
	l := b.lanes[name]
	if l == nil {
		return
	}
	if i := l.blocker(k); i >= 0 {
		b.leaveLane(l.entries[i])
	}
}
