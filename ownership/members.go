package ownership

import (
	"slices"
	"time"

	"github.com/balefire/balefire/ownership/dispatch"
	"github.com/balefire/balefire/proto"
)

// A Node is what this home knows about a node that could own tasks. It is a hint; the lease
// decides.
type Node struct {
	dispatch.Member
	BootID proto.BootID // zero: unknown; a grant is only for this start
}

// members are the nodes that could own tasks.
type members struct {
	byPeer map[proto.PeerID]*node
	order  []proto.PeerID // the keys of byPeer, in the order in which they were added
}

type node struct {
	known   Node
	backoff map[string]time.Duration // by kind, empty for all: nothing is granted before this time of Mono
	stale   int                      // grants that it declined as stale since it took one
}

func (all *members) set(n Node) {
	if all.byPeer[n.Peer] == nil {
		all.byPeer[n.Peer] = &node{backoff: map[string]time.Duration{}}
		all.order = append(all.order, n.Peer)
	}
	all.byPeer[n.Peer].known = n
}

// backOff stops granting tasks of a kind, or of all kinds, to a node until a time of Mono.
func (all *members) backOff(p proto.PeerID, kind string, until time.Duration) {
	if n := all.byPeer[p]; n != nil {
		n.backoff[kind] = until
	}
}

// maxStale is how many grants in a row a node may decline as stale before it is granted nothing of
// their kinds for a while. It may be told a higher epoch of a task by any member, so that a few
// must not keep the tasks of others from it.
const maxStale = 16

// declinedStale records that a node declined a grant as stale.
func (all *members) declinedStale(p proto.PeerID, kind string, until time.Duration) {
	if n := all.byPeer[p]; n != nil {
		if n.stale++; n.stale >= maxStale {
			all.backOff(p, kind, until)
		}
	}
}

// took records that a node took a grant.
func (all *members) took(p proto.PeerID) {
	if n := all.byPeer[p]; n != nil {
		n.stale = 0
	}
}

// backedOff reports whether nothing of a kind is granted to p at a time of Mono.
func (all *members) backedOff(p proto.PeerID, kind string, at time.Duration) bool {
	n := all.byPeer[p]
	return n != nil && (at < n.backoff[kind] || at < n.backoff[""])
}

// of combines the settings of a queue with the state of the nodes.
func (all *members) of(s *proto.QueueState) (found []*dispatch.Member) {
	add := func(p proto.PeerID, settings *proto.QueueMember) {
		n := all.byPeer[p]
		if n == nil {
			return
		}
		m := n.known.Member
		if settings != nil {
			m.Limit, m.Weight = int(settings.Concurrency), settings.Weight
			m.Draining = m.Draining || settings.Draining
			if settings.Priority > 0 {
				m.Priority = settings.Priority
			}
		}
		if dispatch.HasAll(m.Labels, s.GetLabels()) {
			found = append(found, &m)
		}
	}
	for _, settings := range s.GetMembers() {
		if p, err := proto.PeerIDFrom(settings.Peer); err == nil {
			add(p, settings)
		}
	}
	if len(s.GetMembers()) == 0 {
		for _, p := range all.order {
			add(p, nil)
		}
	}
	return found
}

// refreshMembers rebuilds the members of q after a change of its settings or of a node.
func (q *queue) refreshMembers(all *members) {
	if !q.membersStale {
		return
	}
	before := q.members
	q.membersStale, q.members = false, all.of(q.title.state)
	if !slices.EqualFunc(before, q.members, dispatch.ServeAlike) {
		q.stuck = stuckShapes{}
	}
}

// anyTakes reports whether q has a member that may be granted a task of some kind.
func (q *queue) anyTakes(all *members) bool {
	q.refreshMembers(all)
	return q.usage.BelowLimit(q.limits) && dispatch.AnyTakes(q.members, q.usage, q.limits)
}

// served reports whether a live member could run ts when it has a free slot.
func (ts *taskState) served(all *members) bool {
	ts.mem.queue.refreshMembers(all)
	return slices.ContainsFunc(ts.mem.queue.members, ts.servedBy)
}

// servedBy reports whether m could run ts when it has a free slot.
func (ts *taskState) servedBy(m *dispatch.Member) bool {
	return m.Alive && slices.Contains(m.Kinds, ts.task.Kind) && dispatch.HasAll(m.Labels, ts.task.Options.GetRequire())
}

// SetNode updates what is known about a node.
func (h *Home) SetNode(n Node, now Now) Output {
	h.beginInput(now)
	h.members.set(n)
	for _, q := range h.order {
		q.membersStale = true
	}
	return h.endInput()
}
