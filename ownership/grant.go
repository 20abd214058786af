package ownership

import (
	"slices"

	"github.com/balefire/balefire/fair"
	"github.com/balefire/balefire/ownership/dispatch"
	"github.com/balefire/balefire/proto"
)

// grantAll grants what can be granted now. A grant is in the batch before it is sent.
func (h *Home) grantAll() {
	for _, q := range h.order {
		if q.idle() {
			q.stuck = stuckShapes{}
			continue
		}
		h.promoteDue(q)
		if !q.title.state.GetPaused() {
			h.grantSome(q)
		}
	}
}

// maxLooks is how many shapes of tasks that no node could take are looked at again with an
// input, and how many others of a class at most. The rest has its turn with the next inputs.
const maxLooks = 64

// grantSome grants tasks of q, shared among the classes, until no node has a free slot.
func (h *Home) grantSome(q *queue) {
	if !q.anyTakes(&h.members) {
		return
	}
	var stuck [fair.Classes]int // shapes that were looked at for nothing
	q.stuck.forget(maxLooks)
	for q.anyTakes(&h.members) && !h.out.full() { // the rest is granted with the next input
		var first [fair.Classes]*taskState
		var waits [fair.Classes]bool
		for class := range first {
			first[class] = q.ready[class].firstExcept(q.stuck.shapes)
			waits[class] = first[class] != nil && stuck[class] < 2*maxLooks
		}
		class := q.picker.Next(waits)
		if class < 0 {
			return
		}
		ts := first[class]
		if h.now.Wall > ts.task.NotAfter {
			ts.mem.dueAt = h.now.Mono + h.cfg.Scan // the next scan ends it, unless the clock goes back
			h.reschedule(ts)
			continue
		}
		if ts.mayHaveRun() {
			ts.mem.dueAt = h.now.Mono + h.cfg.Scan // the next scan ends it
			h.reschedule(ts)
			continue
		}
		among := exceptLastOwner(h.candidates(q, ts), ts)
		if len(among) == 0 {
			q.stuck.add(shapeOf(ts), ts.served(&h.members))
			if stuck[class]++; stuck[class] == 2*maxLooks {
				q.ready[class].took(ts) // next time others are first
			}
			continue
		}
		if q.picker.Took(class, waits) {
			h.rescued++
		}
		q.ready[class].took(ts)
		h.grant(ts, among[q.strategy.Pick(ts.dispatchTask(), among)].Peer)
	}
}

// selfOnlyIfInactive leaves only this node while it believes that it is suspect or isolated
// (I16). It may grant to itself: the record is here, and the epoch fences it.
func (h *Home) selfOnlyIfInactive(among []dispatch.Candidate) []dispatch.Candidate {
	if h.active {
		return among
	}
	return slices.DeleteFunc(among, func(d dispatch.Candidate) bool { return d.Peer != h.self })
}

// exceptLastOwner leaves out the node that lost the task last, unless it is the only one.
func exceptLastOwner(among []dispatch.Candidate, ts *taskState) []dispatch.Candidate {
	if len(among) < 2 || !ts.mem.lapsed {
		return among
	}
	return slices.DeleteFunc(among, func(d dispatch.Candidate) bool { return d.Peer == ts.owner })
}

// grant grants ts to p under the next epoch.
func (h *Home) grant(ts *taskState, p proto.PeerID) {
	if ts.mem.lapsed && ts.mayHaveCrashed() {
		ts.abandons++
	}
	if ts.mem.lapsed {
		ts.lost = ts.lost || !ts.task.atMostOnce() // which starts only with a permit of its newest lease
		ts.recordGrantEnd("the lease ran out", h.now.Wall)
	}
	ts.epoch = h.epochs.next()
	ts.owner, ts.token, ts.boot = p, h.cfg.token(), h.members.byPeer[p].known.BootID
	ts.state, ts.released = proto.Accepted, false
	ts.mem.lapsed, ts.mem.acked, ts.mem.silentSince = false, false, 0
	ts.mem.leaseUntil = h.now.Mono + h.period(ts)
	ts.mem.grantUntil = h.now.Mono + maxGrantDelay*h.period(ts)
	ts.recordGrant(h.now.Wall)
	h.reschedule(ts)
	h.put(ts)
	h.sendGrant(ts)
	h.event(EventGranted, ts, p, "")
}

func (h *Home) sendGrant(ts *taskState) {
	ts.mem.sentAt = h.now.Mono
	g := &proto.Grant{
		Claim: ts.claim().message(), Queue: ts.task.Queue, LeaseMs: uint32(h.period(ts).Milliseconds()), Mode: ts.task.Mode,
		OnLostLease: ts.mem.queue.title.state.GetOnLostLease(), Attempt: ts.attempts + ts.abandons + 1, LeftMs: max(ts.task.NotAfter-h.now.Wall, 0),
	}
	h.out.send(ts.owner, proto.TypeGrant, g)
}

// maxGrantDelay is how many lease durations a task waits for a grant to reach its owner while
// another member could take it.
const maxGrantDelay = 4

// DelayGrant notes that the link to the owner is slow: a grant is on its way there, or waits
// for others. Its lease continues meanwhile.
func (h *Home) DelayGrant(m *proto.Grant, now Now) {
	k, ok := claimFrom(m.GetClaim())
	ts := h.tasks[k.task]
	if !ok || ts == nil || ts.epoch != k.epoch || !ts.leased() || ts.mem.acked {
		return
	}
	ts.mem.queue.refreshMembers(&h.members)
	other := func(m *dispatch.Member) bool { return m.Peer != ts.owner && !m.Draining && ts.servedBy(m) }
	if now.Mono < ts.mem.grantUntil || !slices.ContainsFunc(ts.mem.queue.members, other) {
		ts.mem.leaseUntil = max(ts.mem.leaseUntil, now.Mono+h.period(ts))
	}
}
