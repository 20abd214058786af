package dispatch

import (
	"cmp"
	"slices"

	"github.com/balefire/balefire/proto"
)

// A Member is a node as the home of a queue sees it: what the node reports about itself,
// combined with the settings of the queue.
type Member struct {
	Peer     proto.PeerID
	Alive    bool     // for long enough to be trusted with work
	Draining bool     // gets no new tasks
	Kinds    []string // kinds that it has handlers for
	Labels   []string // key=value or key
	Slots    int      // for handlers; 0: unknown, treated as 1
	Busy     int      // slots that are busy with other tasks than those of this home, as last reported by the node
	Load     uint32   // load of the machine in permille, as last reported by the node
	Priority uint32   // higher first
	Weight   uint32   // weight in round robin; 0: 1
	Limit    int      // tasks of this queue at a time; 0: the limit of the queue
}

// A Task is what a choice depends on.
type Task struct {
	Kind   string
	Labels []string // that a node must have
	Prefer []string // preferred labels: nodes with all of them come first
}

// Limits bounds how many tasks of a queue are owned at a time. Zero means no limit.
type Limits struct {
	Queue int
	Node  int // on each node
	Kinds map[string]KindLimit
}

// A KindLimit bounds the tasks of one kind, for example calls of a language model that are
// billed individually.
type KindLimit struct {
	Queue int
	Node  int
}

// A Candidate is a member that may get the task.
type Candidate struct {
	*Member
	Free int // free slots; not positive: it gets the task ahead
}

// Eligible appends to dst the members that may get t, in their order, also ahead of a free
// slot. If any have the preferred labels, only those are returned.
func Eligible(dst []Candidate, t *Task, members []*Member, u *Usage, l Limits) []Candidate {
	k := l.Kinds[t.Kind]
	if !u.BelowLimit(l) || k.Queue > 0 && u.kind[t.Kind] >= k.Queue {
		return dst
	}
	from, preferred := len(dst), 0
	for _, m := range members {
		c := Candidate{Member: m, Free: m.free(u)}
		switch {
		case !m.takes(u, l):
			continue
		case !slices.Contains(m.Kinds, t.Kind), !HasAll(m.Labels, t.Labels):
			continue
		case k.Node > 0 && u.ownedOf(m.Peer, t.Kind) >= k.Node:
			continue
		}
		if len(t.Prefer) > 0 && HasAll(m.Labels, t.Prefer) {
			preferred++
		}
		dst = append(dst, c)
	}
	if preferred == 0 {
		return dst
	}
	kept := slices.DeleteFunc(dst[from:], func(c Candidate) bool { return !HasAll(c.Labels, t.Prefer) })
	return dst[:from+len(kept)]
}

// FreeFirst returns those of all that have a free slot, or all if none has one.
func FreeFirst(all []Candidate) []Candidate {
	full := func(c Candidate) bool { return c.Free <= 0 }
	if !slices.ContainsFunc(all, func(c Candidate) bool { return !full(c) }) {
		return all
	}
	return slices.DeleteFunc(all, full)
}

// AnyTakes reports whether any of the members may get a task of some kind.
func AnyTakes(members []*Member, u *Usage, l Limits) bool {
	return slices.ContainsFunc(members, func(m *Member) bool { return m.takes(u, l) })
}

// ServeAlike reports whether two members are the same node and serve the same tasks when they are
// idle.
func ServeAlike(a, b *Member) bool {
	return a.Peer == b.Peer && a.Alive == b.Alive && a.Draining == b.Draining && slices.Equal(a.Kinds, b.Kinds) && slices.Equal(a.Labels, b.Labels)
}

// free returns how many slots of m are free.
func (m *Member) free(u *Usage) int { return max(m.Slots, 1) - m.Busy - u.OwnedBy(m.Peer) }

// takes reports whether m may get a task of some kind.
func (m *Member) takes(u *Usage, l Limits) bool {
	limit, x := cmp.Or(m.Limit, l.Node), u.of(m.Peer)
	return m.Alive && !m.Draining && m.free(u)+x.early > 0 && (limit <= 0 || x.owned < limit)
}

// HasAll reports whether a node with the labels have has all that are wanted.
func HasAll(have, want []string) bool {
	return !slices.ContainsFunc(want, func(w string) bool { return !slices.Contains(have, w) })
}
