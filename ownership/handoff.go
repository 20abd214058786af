package ownership

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// HandOff gives a queue to another home: first the queue, after which nothing new is
// granted here, then its tasks, as fast as the other home confirms them. Owners keep
// working and learn the new home with their next message. Of another name it is the name
// alone that goes.
func (h *Home) HandOff(name string, to proto.PeerID, now Now) (Output, error) {
	h.beginInput(now)
	t := h.titles.byName[name]
	if to == h.self || !t.known() || !t.isHome(h.self) {
		return h.endInput(), nil
	}
	s, err := h.titles.handedOff(t, to, now)
	if err != nil {
		return h.out, err
	}
	h.titles.set(t, s, &h.out)
	h.refresh(name)
	h.moveOut()
	return h.endInput(), nil
}

// MayMove returns why a queue, or another name, cannot be given to another home now, and changes
// nothing.
func (h *Home) MayMove(name string, to proto.PeerID, now Now) error {
	t := h.titles.byName[name]
	if to == h.self || !t.known() || !t.isHome(h.self) {
		return nil // HandOff does nothing
	}
	_, err := h.titles.handedOff(t, to, now)
	return err
}

// Seize makes this node the home of a queue whose home is lost. An operator decides that,
// and gives up what only the old home knows. The higher generation invalidates the old
// home's claim to the queue: when it comes back it hands over what it still has. No task is
// duplicated: at any time one node has its state.
func (h *Home) Seize(name string, from proto.PeerID, now Now) (Output, error) {
	h.beginInput(now)
	if err := h.titles.seize(name, from, now, &h.out); err != nil {
		return h.out, err
	}
	h.refresh(name)
	return h.endInput(), nil
}

// Learn takes a queue state from another node if deeds prove it. The lower root wins; with
// the same root, the higher generation. It reports whether the state was news.
func (h *Home) Learn(m *proto.QueueState, now Now) (bool, Output) {
	h.beginInput(now)
	news := h.learn(m)
	return news, h.endInput()
}

func (h *Home) learn(m *proto.QueueState) bool {
	news := h.titles.learn(m, &h.out)
	h.refresh(m.GetName())
	return news
}

// refresh applies what has become of a name to its queue. If the home has changed, tasks of
// it are granted here from now on, or not any more.
func (h *Home) refresh(name string) {
	if !h.titles.byName[name].known() || !proto.NamesQueue(name) {
		return
	}
	q := h.queue(name)
	was := (&title{state: q.applied}).isHome(h.self)
	h.apply(q)
	if q.title.isHome(h.self) == was {
		return
	}
	q.handedOff = q.handedOff || was
	for ts := range each[*taskState](&q.tasks) {
		h.reschedule(ts)
	}
}

// moveOut moves tasks of queues whose home is elsewhere, as many as may be in transit to
// each home: one that takes none delays only its own.
func (h *Home) moveOut() {
	inTransit := map[proto.PeerID]int{}
	for entry := range each[*handoffEntry](&h.transit.open) {
		inTransit[entry.home]++
	}
	for _, q := range h.order {
		if q.title.isHome(h.self) {
			continue
		}
		to := proto.PeerID(q.title.state.Home)
		for e := q.tasks.Front(); e != nil && inTransit[to] < h.cfg.HandoffWindow && !h.out.full(); inTransit[to]++ {
			ts := e.Value.(*taskState)
			e = e.Next()
			h.moveTask(ts, to)
		}
	}
	h.resendHandoffs()
}

// moveTask moves the state of a task to a new home. That is written before the handoff is
// sent: the state is never active at two homes.
func (h *Home) moveTask(ts *taskState, to proto.PeerID) {
	if ts.gen > 1 && ts.mem.lane != nil {
		h.transit.unlink(ts.task.ID, &h.out)
	}
	entry := &handoffEntry{task: ts.task.ID, queue: ts.task.Queue, home: to, gen: ts.gen + 1, notAfter: ts.task.NotAfter}
	if l := ts.mem.lane; l != nil {
		if l.lastMoved != nil && l.lastMoved.lease != nil && h.transit.byID[l.lastMoved.task] == l.lastMoved {
			entry.predecessor = l.lastMoved.task // it is still in transit
		}
		l.lastMoved, entry.origin, entry.key, entry.blocked = entry, l.key.origin, l.key.key, l.blocked
	}
	ts.gen = entry.gen
	entry.lease = proto.Clone(ts.record())
	h.remove(ts)
	h.transit.add(entry, &h.out)
	h.out.drop(taskKey(keyLease, entry.task))
	h.event(EventMovedOut, ts, to, "")
}

// resendHandoffs sends what is new or not confirmed: first the deeds of the queues, which
// authorize the tasks.
func (h *Home) resendHandoffs() {
	for _, t := range h.titles.order {
		if t.announced || t.isHome(h.self) || t.announcedAt > 0 && h.now.Mono-t.announcedAt < h.cfg.Heartbeat {
			continue
		}
		if !proto.NamesQueue(t.name) && !t.wasGivenBy(h.self) {
			continue
		}
		t.announcedAt = max(h.now.Mono, 1)
		m := &proto.Handoff{Queue: h.titles.stateOf(t)}
		if q := h.queues[t.name]; q != nil {
			m.Blocks = q.blocks()
		}
		h.out.send(proto.PeerID(t.state.Home), proto.TypeHandoff, m)
	}
	h.transit.resend(h.now, h.cfg.Heartbeat, func(queue string) *proto.QueueState {
		if t := h.titles.byName[queue]; t.known() && !t.announced { // the node that takes the task must know the home of its queue
			return h.titles.stateOf(t)
		}
		return nil
	}, &h.out)
}

// allBlocked returns the blocked lanes of q, ordered by key.
func (q *queue) allBlocked() (all []*lane) {
	for _, l := range q.lanes {
		if l.blocked {
			all = append(all, l)
		}
	}
	slices.SortFunc(all, func(a, b *lane) int {
		return cmp.Or(strings.Compare(a.key.key, b.key.key), a.key.origin.Compare(b.key.origin))
	})
	return all
}

// blocks returns as many blocked lanes of q as one message has.
func (q *queue) blocks() (out []*proto.LaneBlock) {
	all := q.allBlocked()
	for _, l := range all[:min(len(all), proto.MaxGroup-1)] { // the answer lists each of them, and the queue
		out = append(out, blockOf(q.title.name, l))
	}
	return out
}

// takeBlock blocks a lane that was blocked at from. The home takes those of the whole
// queue; with a task comes that of its own lane, wherever it goes. It returns why the lane is
// not blocked here now.
func (h *Home) takeBlock(from proto.PeerID, m *proto.Handoff, b *proto.LaneBlock, t Task) (refused string) {
	q, key := h.queues[b.Queue], laneKeyFrom(b.Origin, b.Key)
	switch {
	case !h.titles.wasHome(b.Queue, from):
		return "a lane of a queue that it was never the home of"
	case m.Lease == nil && !q.title.isHome(h.self):
		return "a lane of a queue whose home is elsewhere"
	case m.Lease != nil && (b.Queue != t.Queue || b.Key != t.Key || len(b.Origin) > 0 && string(b.Origin) != string(t.Origin[:])):
		return "a lane, with a task of another"
	}
	if l := q.lanes[key]; l != nil && l.blocked {
		return ""
	}
	if q.blockedLanes >= maxBlockedLanes {
		return fmt.Sprintf("a blocked lane: %d of the queue are blocked, and no more are taken from former homes", q.blockedLanes)
	}
	l, head := q.lane(key), proto.TaskID{}
	copy(head[:], b.Task)
	q.block(l, head)
	h.out.put(blockKey(b.Queue, key), b)
	return ""
}

// OnHandoff takes a task, or a queue state, from an old home. t is the task as described by
// its record in the message; the driver has checked the signature of its origin.
func (h *Home) OnHandoff(from proto.PeerID, m *proto.Handoff, t Task, now Now) Output {
	o := h.beginInput(now)
	given := m.Queue != nil && h.titles.mayGiveQueue(from, m.Queue, o)
	if given {
		h.learn(m.Queue)
	}
	var lanes []*proto.Moved // of the queue, now blocked here too
	for _, b := range m.GetBlocks() {
		if m.Lease != nil && h.wasHere(t.ID, m.Lease.Generation) {
			break // the lane may have been unblocked since
		}
		refused := h.takeBlock(from, m, b, t)
		if refused != "" {
			h.out.ignored(t.ID, from, proto.Seq{}, refused)
		}
		if refused != "" && m.Lease != nil && h.titles.wasHome(t.Queue, from) { // without its lane the task would overtake others
			o.send(from, proto.TypeHandedOff, refusedHandoff(m.Lease, proto.CodeBusy, refused))
			return h.endInput()
		}
		if refused == "" && b.Queue == m.GetQueue().GetName() && len(lanes) < proto.MaxGroup-1 {
			lanes = append(lanes, &proto.Moved{Queue: b.Queue, Generation: m.Queue.Generation, Key: b.Key, Origin: b.Origin, Blocked: true})
		}
	}
	reply := &proto.Moved{}
	switch {
	case m.Queue != nil && !given && (m.Lease == nil || !h.cfg.MayBeHome(h.self)):
		return h.endInput() // its home keeps it and sends it again
	case m.Lease == nil && m.Queue != nil:
		reply.Queue, reply.Generation = m.Queue.Name, m.Queue.Generation
	case m.Lease != nil && !h.titles.wasHome(t.Queue, from):
		h.out.Events = append(h.out.Events, Event{Kind: EventForged, Task: t.ID, Queue: t.Queue, Peer: from, Cause: wire.LeaseNeverHome, TaskKind: t.Kind, Class: t.Class})
		return h.endInput()
	case m.Lease != nil && !h.titles.byName[t.Queue].known():
		h.out.ignored(t.ID, from, proto.Seq{}, "it hands over a task of an unknown queue")
		return h.endInput()
	case m.Lease == nil || string(m.Lease.Task) != string(t.ID[:]) || m.Lease.State.Terminal() || m.Lease.Generation < 2 || m.Lease.EpochBoot > now.plausibleBoot():
		h.out.ignored(t.ID, from, proto.Seq{}, "it hands over what is not the state of this task")
		return h.endInput()
	default:
		if !h.admit(from, m, t) {
			return h.endInput()
		}
		reply.Task, reply.Generation = slices.Clone(t.ID[:]), m.Lease.Generation
	}
	o.send(from, proto.TypeHandedOff, &proto.HandedOff{Moved: append([]*proto.Moved{reply}, lanes...)})
	return h.endInput()
}

// admit takes the task of a handoff, unless it did before. It reports whether the sender
// may stop sending it.
func (h *Home) admit(from proto.PeerID, m *proto.Handoff, t Task) bool {
	gen := m.Lease.Generation
	old := h.tasks[t.ID]
	if h.wasHere(t.ID, gen) {
		h.out.ignored(t.ID, from, proto.Seq{}, "a copy: the task was here before")
		return true
	}
	if b, err := proto.TaskIDFrom(m.Behind); err == nil && !h.hasSeen(b, m.BehindGeneration) {
		h.out.ignored(t.ID, from, proto.Seq{}, "its predecessor in the lane has not arrived")
		return false // the tasks of a lane arrive in order
	}
	if old != nil { // only after a rollback of the disk is it still here
		h.event(EventConflict, old, from, wire.LeaseNewGeneration)
		h.remove(old)
	}
	h.transit.remove(t.ID, &h.out)
	h.ended.remove(t.ID)
	ts := taskStateOf(t, proto.Clone(m.Lease))
	if h.epochs.raise(ts.epoch.Boot) {
		h.epochs.put(&h.out, h.self)
	}
	ts.mem.acked, ts.mem.leaseUntil = true, h.now.Mono+h.period(ts)
	h.insert(ts)
	h.put(ts)
	h.event(EventMovedIn, ts, from, "")
	if ts.cancel && ts.free() {
		h.end(ts, ts.endCancelled())
		return true
	}
	if ts.leased() { // first, since its owner takes a cancel only from the home that it knows
		h.requestStatus(ts)
		h.sendStatusRequests(true)
	}
	if t.Denied != "" { // what the queue rejects is not accepted from another home either
		if !ts.free() {
			h.sendCancel(ts)
		}
		h.end(ts, End{State: proto.DeadLetter, Cause: proto.TaskRefused, Code: proto.CodeDenied, Reason: t.Denied})
		return true
	}
	if ts.cancel && !ts.free() {
		h.sendCancel(ts)
	}
	return true
}

// wasHere reports whether this or a later generation of a task is or was here.
func (h *Home) wasHere(id proto.TaskID, gen uint64) bool {
	entry, ts := h.transit.byID[id], h.tasks[id]
	return entry != nil && entry.gen >= gen || h.ended.find(id) != nil || ts != nil && ts.gen >= gen
}

// hasSeen reports whether the task with this generation is here, moved on from here, or
// ended here.
func (h *Home) hasSeen(id proto.TaskID, gen uint64) bool {
	if ts := h.tasks[id]; ts != nil {
		return ts.gen >= gen
	}
	if entry := h.transit.byID[id]; entry != nil {
		return entry.gen > gen
	}
	return h.ended.find(id) != nil
}

// queueTaken notes that the new home of a name knows it, or a blocked lane of its queue. If the
// queue comes back, that home reports whether the lane still is blocked.
func (h *Home) queueTaken(from proto.PeerID, a *proto.Moved) {
	t, q := h.titles.byName[a.Queue], h.queues[a.Queue]
	if !t.known() || string(t.state.Home) != string(from[:]) || a.Generation < t.state.Generation {
		h.out.ignored(proto.TaskID{}, from, proto.Seq{}, "it confirms a queue that was not handed to it")
		return
	}
	if t.announced = true; q == nil {
		return
	}
	if l := q.lanes[laneKeyFrom(a.Origin, a.Key)]; a.Key != "" && l != nil && l.blocked && !t.isHome(h.self) {
		h.unblock(q, l)
	}
	t.announced = q.blockedLanes == 0 // lanes blocked since then are announced next
}

// OnHandedOff notes what the new home has taken.
func (h *Home) OnHandedOff(from proto.PeerID, m *proto.HandedOff, now Now) Output {
	h.beginInput(now)
	for _, a := range m.GetMoved() {
		if len(a.Task) == 0 {
			h.queueTaken(from, a)
			continue
		}
		entry := h.transit.confirm(from, a, &h.out)
		if entry == nil || entry.key == "" {
			continue
		}
		if q := h.queues[entry.queue]; q.lanes[entry.laneKey()] != nil {
			h.rescheduleHead(q, q.lanes[entry.laneKey()]) // it may have been the last of its lane
		}
	}
	for _, a := range m.GetRefused() {
		h.transit.refuse(from, a, &h.out)
	}
	h.moveOut()
	return h.endInput()
}
