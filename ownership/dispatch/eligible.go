package dispatch

import (
	"slices"

	"github.com/balefire/balefire/proto"
)

// A Member is a node as the home of a queue sees it: what the node says of itself,
// and what the queue's settings say of it.
type Member struct {
	Peer     proto.PeerID
	Alive    bool     // and so for long enough to be trusted with work
	Draining bool     // is given nothing new
	Kinds    []string // that it has handlers for
	Labels   []string // key=value or key
	Slots    int      // for handlers; 0: not known, taken as 1
	Busy     int      // of them, as the node said last
	Load     uint32   // permille of the machine, as the node said last
	Priority uint32   // higher first
	Weight   uint32   // share in a round; 0: 1
	Limit    int      // tasks of this queue at a time; 0: the queue's
}

// A Task is what a choice needs to know of a task.
type Task struct {
	Kind   string
	Labels []string // that a node must have
	Prefer []string // that it should have: nodes with all of them go first
}

// Limits bound how much of a queue is owned at a time. Zero means no limit.
type Limits struct {
	Queue int
	Node  int // on each node
	Kinds map[string]KindLimit
}

// A KindLimit bounds the tasks of one kind, as for calls of a language model that
// is paid by the call.
type KindLimit struct {
	Queue int
	Node  int
}

// A Usage counts what is owned now.
type Usage struct {
	all      int
	node     map[proto.PeerID]int
	kind     map[string]int
	nodeKind map[nodeKind]int
}

type nodeKind struct {
	peer proto.PeerID
	kind string
}

// NewUsage returns the usage of an idle queue.
func NewUsage() *Usage {
	return &Usage{node: map[proto.PeerID]int{}, kind: map[string]int{}, nodeKind: map[nodeKind]int{}}
}

// Add counts n more tasks of a kind on a node, or fewer.
func (u *Usage) Add(p proto.PeerID, kind string, n int) {
	u.all += n
	bump(u.node, p, n)
	bump(u.kind, kind, n)
	bump(u.nodeKind, nodeKind{p, kind}, n)
}

func bump[K comparable](m map[K]int, k K, n int) {
	if m[k] += n; m[k] == 0 {
		delete(m, k)
	}
}

// All returns how many tasks are owned.
func (u *Usage) All() int { return u.all }

// OwnedBy returns how many of them p owns.
func (u *Usage) OwnedBy(p proto.PeerID) int { return u.node[p] }

// BelowLimit reports whether the queue's own limit lets any task be granted.
func (u *Usage) BelowLimit(l Limits) bool { return l.Queue <= 0 || u.all < l.Queue }

// A Candidate is a member that may be given the task.
type Candidate struct {
	*Member
	Owned int // tasks of this queue that it owns
	Free  int // slots
}

// Eligible returns the members that may be given t, in their order, those with the
// preferred labels alone if there are any. It appends to dst.
func Eligible(dst []Candidate, t *Task, members []*Member, u *Usage, l Limits) []Candidate {
	k := l.Kinds[t.Kind]
	if !u.BelowLimit(l) || k.Queue > 0 && u.kind[t.Kind] >= k.Queue {
		return dst
	}
	from, preferred := len(dst), 0
	for _, m := range members {
		c := Candidate{Member: m, Owned: u.node[m.Peer]}
		c.Free = max(m.Slots, 1) - max(m.Busy, c.Owned)
		limit := m.Limit
		if limit == 0 {
			limit = l.Node
		}
		switch {
		case !m.Alive, m.Draining, c.Free <= 0, limit > 0 && c.Owned >= limit:
			continue
		case !slices.Contains(m.Kinds, t.Kind), !hasAll(m.Labels, t.Labels):
			continue
		case k.Node > 0 && u.nodeKind[nodeKind{m.Peer, t.Kind}] >= k.Node:
			continue
		}
		if len(t.Prefer) > 0 && hasAll(m.Labels, t.Prefer) {
			preferred++
		}
		dst = append(dst, c)
	}
	if preferred == 0 {
		return dst
	}
	kept := slices.DeleteFunc(dst[from:], func(c Candidate) bool { return !hasAll(c.Labels, t.Prefer) })
	return dst[:from+len(kept)]
}

func hasAll(have, want []string) bool {
	for _, w := range want {
		if !slices.Contains(have, w) {
			return false
		}
	}
	return true
}
