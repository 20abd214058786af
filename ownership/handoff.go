package ownership

import (
	"cmp"
	"container/list"
	"slices"
	"strings"
	"time"

	"github.com/balefire/balefire/proto"
)

// A handoffEntry is a task whose cell went to another home. Until that has answered, the
// note holds the cell: nobody acts on it here, and it is sent again.
type handoffEntry struct {
	task        proto.TaskID
	queue       string
	home        proto.PeerID
	gen         uint64
	notAfter    int64
	lease       *proto.Lease // nil once the new home has it
	origin      proto.PeerID // of its lane, zero: all
	key         string
	predecessor proto.TaskID // its predecessor in its lane
	blocked     bool         // its lane stands still
	sentAt      time.Duration
	wasSent     bool
	cancelSent  time.Duration // a wish to cancel was sent after it last
	refused     string        // why the new home did not take it when it was sent last
	elem        *list.Element
}

func (entry *handoffEntry) record() *proto.Moved {
	m := &proto.Moved{Task: entry.task[:], Queue: entry.queue, Home: entry.home[:], Generation: entry.gen, NotAfterMs: entry.notAfter, Lease: entry.lease, Key: entry.key, Origin: entry.laneKey().originBytes(), Blocked: entry.blocked}
	if !entry.predecessor.IsZero() {
		m.Behind = entry.predecessor[:]
	}
	return m
}

func (entry *handoffEntry) laneKey() laneKey { return laneKey{entry.origin, entry.key} }

// loadMoved takes a note that was found at start.
func (h *Home) loadMoved(m *proto.Moved) {
	entry := &handoffEntry{queue: m.Queue, gen: m.Generation, notAfter: m.NotAfterMs, lease: m.Lease, key: m.Key, blocked: m.Blocked}
	copy(entry.task[:], m.Task)
	copy(entry.origin[:], m.Origin)
	copy(entry.predecessor[:], m.Behind)
	copy(entry.home[:], m.Home)
	h.moved[entry.task] = entry
	if entry.lease != nil {
		entry.elem = h.handoffs.PushBack(entry)
	}
}

// restoreLaneTails finds the last of each lane that is on its way, after a start.
func (h *Home) restoreLaneTails() {
	followed := map[proto.TaskID]bool{}
	for e := h.handoffs.Front(); e != nil; e = e.Next() {
		followed[e.Value.(*handoffEntry).predecessor] = true
	}
	for e := h.handoffs.Front(); e != nil; e = e.Next() {
		if entry := e.Value.(*handoffEntry); entry.key != "" && !followed[entry.task] {
			h.queue(entry.queue).lane(entry.laneKey()).lastMoved = entry
		}
	}
}

// HandOff gives a queue to another home: first the queue, which takes nothing new
// here from now on, then, as fast as the other answers, each task that is here.
// Owners go on working and are told where their home went when they speak next.
func (h *Home) HandOff(name string, to proto.PeerID, now Now) (Output, error) {
	o := h.beginInput(now)
	q := h.queues[name]
	if to == h.self || !q.known() || !q.isHome(h.self) {
		return h.endInput(), nil
	}
	s := h.stateOf(q)
	s.Generation, s.Home, s.SeizedFrom = s.Generation+1, slices.Clone(to[:]), nil
	s.ChangedMs = nextChangedMs(s, now)
	if err := h.signDeed(s, q.root, Deed{From: h.self}); err != nil {
		return *o, err
	}
	h.relinquish(q, s)
	o.put(queueKey(name), s)
	h.moveOut()
	return h.endInput(), nil
}

// Seize makes this node the home of a queue whose home is gone. A person decided
// that, and gave up what only the old home knows. The higher generation voids the
// old home's claim to the queue: when it comes back it hands over what it still
// has. No task forks: the cell of each is at one node all the time.
func (h *Home) Seize(name string, from proto.PeerID, now Now) (Output, error) {
	o := h.beginInput(now)
	q := h.queues[name]
	if q == nil {
		q = newQueue(name)
	}
	s := h.stateOf(q)
	if h.cfg.mutation != seizeQuiet {
		s.Generation++
	}
	s.Home, s.SeizedFrom, s.ChangedMs = slices.Clone(h.self[:]), slices.Clone(from[:]), nextChangedMs(s, now)
	root := q.root
	if q.state == nil {
		root = h.creations[name].Root
	}
	if err := h.signDeed(s, root, Deed{From: from, Seized: true, Admin: true}); err != nil {
		return *o, err
	}
	if h.queues[name] == nil {
		h.addQueue(q)
	}
	h.setState(q, s)
	o.put(queueKey(name), s)
	o.Events = append(o.Events, Event{Kind: EventSeized, Queue: name, Peer: from})
	h.rescheduleAll(q)
	return h.endInput(), nil
}

// Learn takes what another node says about a queue, if deeds prove it: the lower root is
// right, of one root the higher generation. It reports whether that was news.
func (h *Home) Learn(m *proto.QueueState, now Now) (bool, Output) {
	h.beginInput(now)
	news := h.learn(m)
	return news, h.endInput()
}

func (h *Home) learn(m *proto.QueueState) bool {
	if m.GetName() == "" || len(m.GetHome()) != len(h.self) {
		return false
	}
	q := h.queues[m.Name]
	if q == nil {
		q = newQueue(m.Name) // it is kept if there is such a queue
	}
	x := h.assess(q, m)
	if !x.valid && h.supersedes(m, x, q) {
		h.out.Events = append(h.out.Events, Event{Kind: EventForged, Queue: m.Name, Peer: proto.PeerID(m.Home), Cause: "it says that it is the home of the queue, and no deeds prove that"})
		return false
	}
	if !h.supersedes(m, x, q) {
		h.mergeDeeds(q, m, x)
		return false
	}
	b, err := proto.Encode(nil, m)
	s := new(proto.QueueState)
	if err == nil {
		err = proto.Decode(b, s)
	}
	if err != nil {
		return false
	}
	s.Deeds, s.Root = signedOf(x.deeds), nil
	if !h.trimToFit(s) {
		h.out.Events = append(h.out.Events, Event{Kind: EventForged, Queue: m.Name, Peer: proto.PeerID(m.Home), Cause: "more than one node may say of queues: " + h.errFull(s).Error()})
		return false
	}
	if h.queues[m.Name] == nil {
		h.addQueue(q)
	}
	h.reportCreatedTwice(q, x.deeds)
	h.relinquish(q, s)
	h.out.put(queueKey(m.Name), s)
	return true
}

// relinquish makes s the state of q. If another node is its home now, nothing of it is
// granted here any more.
func (h *Home) relinquish(q *queue, s *proto.QueueState) {
	was := q.isHome(h.self)
	h.setState(q, s)
	if q.isHome(h.self) == was {
		return
	}
	q.announced = false
	if was {
		q.handedOff = true
		var p proto.PeerID
		copy(p[:], s.Home)
		h.out.Events = append(h.out.Events, Event{Kind: EventYielded, Queue: q.name, Peer: p})
	}
	h.rescheduleAll(q)
}

func (h *Home) rescheduleAll(q *queue) {
	for e := h.live.Front(); e != nil; e = e.Next() {
		if ts := e.Value.(*taskState); ts.mem.queue == q {
			h.reschedule(ts)
		}
	}
}

// moveOut moves tasks of queues whose home is elsewhere, as many as may be under
// way.
func (h *Home) moveOut() {
	for e := h.live.Front(); e != nil && h.handoffs.Len() < h.cfg.HandoffWindow && !h.out.full(); {
		ts := e.Value.(*taskState)
		e = e.Next()
		if q := ts.mem.queue; !q.isHome(h.self) {
			var to proto.PeerID
			copy(to[:], q.state.Home)
			h.moveTask(ts, to)
		}
	}
	h.resendHandoffs()
}

// moveTask takes the cell of c away from here, for a new home. That is written before
// the handoff is sent: at no time do two homes act on a cell.
func (h *Home) moveTask(ts *taskState, to proto.PeerID) {
	h.unlinkSuccessors(ts)
	entry := &handoffEntry{task: ts.task.ID, queue: ts.task.Queue, home: to, gen: ts.gen + 1, notAfter: ts.task.NotAfter}
	if l := ts.mem.lane; l != nil {
		if l.lastMoved != nil && l.lastMoved.lease != nil && h.moved[l.lastMoved.task] == l.lastMoved {
			entry.predecessor = l.lastMoved.task // it is still on its way
		}
		l.lastMoved, entry.origin, entry.key, entry.blocked = entry, l.key.origin, l.key.key, l.blocked
	}
	if h.cfg.mutation == movedActs {
		if h.moved[entry.task] != nil {
			return
		}
		m := ts.record()
		m.Generation = entry.gen
		entry.lease = copyLease(m)
		entry.elem = h.handoffs.PushBack(entry)
		h.moved[entry.task] = entry
		return
	}
	ts.gen = entry.gen
	entry.lease = copyLease(ts.record())
	h.remove(ts)
	h.moved[entry.task] = entry
	entry.elem = h.handoffs.PushBack(entry)
	h.out.put(taskKey(keyMoved, entry.task), entry.record())
	h.out.drop(taskKey(keyLease, entry.task))
	h.event(EventMovedOut, ts, to, "")
}

// unlinkSuccessors lets nobody wait for c any more who went when c did before. It came back since,
// and goes behind all others of its lane now: they would wait for each other.
func (h *Home) unlinkSuccessors(ts *taskState) {
	if ts.gen <= 1 || ts.mem.lane == nil {
		return
	}
	for e := h.handoffs.Front(); e != nil; e = e.Next() {
		if entry := e.Value.(*handoffEntry); entry.predecessor == ts.task.ID {
			entry.predecessor = proto.TaskID{}
			h.out.put(taskKey(keyMoved, entry.task), entry.record())
		}
	}
}

func copyLease(m *proto.Lease) *proto.Lease {
	b, err := proto.Encode(nil, m)
	out := new(proto.Lease)
	if err == nil {
		err = proto.Decode(b, out)
	}
	if err != nil {
		panic("ownership: a cell that cannot be copied: " + err.Error())
	}
	return out
}

// resendHandoffs sends what was not answered, and what is new: first the deeds of the
// queue, which say that the tasks may come.
func (h *Home) resendHandoffs() {
	for _, q := range h.order {
		if q.announced || q.isHome(h.self) || q.announcedAt > 0 && h.now.Mono-q.announcedAt < h.cfg.Heartbeat {
			continue
		}
		q.announcedAt = max(h.now.Mono, 1)
		m := &proto.Handoff{Queue: h.stateOf(q), Blocks: q.blocks()}
		var to proto.PeerID
		copy(to[:], q.state.Home)
		h.out.send(to, proto.TypeHandoff, m)
	}
	for e := h.handoffs.Front(); e != nil; e = e.Next() {
		entry := e.Value.(*handoffEntry)
		if entry.wasSent && h.now.Mono-entry.sentAt < h.cfg.Heartbeat {
			continue
		}
		entry.sentAt, entry.wasSent = h.now.Mono, true
		m := &proto.Handoff{Lease: entry.lease}
		if b := h.moved[entry.predecessor]; b != nil && b.lease != nil && b.home == entry.home {
			m.Behind, m.BehindGeneration = slices.Clone(entry.predecessor[:]), b.gen
		}
		if entry.blocked {
			m.Blocks = []*proto.LaneBlock{{Queue: entry.queue, Key: entry.key, Origin: entry.laneKey().originBytes()}}
		}
		if q := h.queue(entry.queue); q.state != nil && !q.announced { // whoever takes the task knows whose the queue is
			m.Queue = h.stateOf(q)
		}
		h.out.send(entry.home, proto.TypeHandoff, m)
	}
}

// blocks are the lanes of q that stand still, in the order of their keys.
func (q *queue) blocks() (out []*proto.LaneBlock) {
	var all []*lane
	for _, l := range q.lanes {
		if l.blocked {
			all = append(all, l)
		}
	}
	slices.SortFunc(all, func(a, b *lane) int {
		return cmp.Or(strings.Compare(a.key.key, b.key.key), a.key.origin.Compare(b.key.origin))
	})
	for _, l := range all[:min(len(all), proto.MaxGroup-1)] { // the answer names each, and the queue
		out = append(out, blockOf(q.name, l))
	}
	return out
}

// OnHandoff takes a task, or word of a queue, from an old home. t is the task as its
// record in the message says. The driver has checked that it is signed by its origin.
func (h *Home) OnHandoff(from proto.PeerID, m *proto.Handoff, t Task, now Now) Output {
	o := h.beginInput(now)
	given := m.Queue != nil && h.mayGiveQueue(from, m.Queue)
	if given {
		h.learn(m.Queue)
	}
	var lanes []*proto.Moved // of the queue: they stand still here now
	for _, b := range m.GetBlocks() {
		if !h.queues[b.Queue].wasHome(from) && h.cfg.mutation != handoffUnproven {
			h.ignored(t.ID, from, proto.Seq{}, "a lane of a queue that it was never the home of")
			continue
		}
		l := h.queue(b.Queue).lane(laneKeyFrom(b.Origin, b.Key))
		if l.deadHead.IsZero() {
			copy(l.deadHead[:], b.Task)
		}
		if !l.blocked {
			l.blocked = true
			h.out.put(blockKey(b.Queue, l.key), b)
		}
		if b.Queue == m.GetQueue().GetName() && len(lanes) < proto.MaxGroup-1 {
			lanes = append(lanes, &proto.Moved{Queue: b.Queue, Generation: m.Queue.Generation, Key: b.Key, Origin: b.Origin, Blocked: true})
		}
	}
	reply := &proto.Moved{}
	switch {
	case m.Lease == nil && m.Queue != nil && !given:
		return h.endInput() // its home keeps it, and says so again
	case m.Lease == nil && m.Queue != nil:
		reply.Queue, reply.Generation = m.Queue.Name, m.Queue.Generation
	case m.Lease != nil && !h.mayHandOff(from, t):
		h.out.Events = append(h.out.Events, Event{Kind: EventForged, Task: t.ID, Queue: t.Queue, Peer: from, Cause: "it hands a task over that it was never the home of"})
		return h.endInput()
	case m.Lease != nil && !h.queues[t.Queue].known():
		h.ignored(t.ID, from, proto.Seq{}, "it hands over a task of a queue that nobody has told of")
		return h.endInput()
	case m.Lease == nil || string(m.Lease.Task) != string(t.ID[:]) || m.Lease.State.Terminal() || m.Lease.Generation < 2 || m.Lease.EpochBoot > maxBoot:
		h.ignored(t.ID, from, proto.Seq{}, "it hands over what is no cell of this task")
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

// admit takes the cell of a handoff, unless that was done before. It reports
// whether the sender may stop sending it.
func (h *Home) admit(from proto.PeerID, m *proto.Handoff, t Task) bool {
	gen, loose := m.Lease.Generation, h.cfg.mutation == generationUnchecked
	old := h.cells[t.ID]
	if entry := h.moved[t.ID]; entry != nil && entry.gen >= gen && !loose || h.ended[t.ID] != nil && !loose || old != nil && old.gen >= gen {
		h.ignored(t.ID, from, proto.Seq{}, "a copy: it has been here")
		return true
	}
	if b, err := proto.TaskIDFrom(m.Behind); err == nil && !h.hasSeen(b, m.BehindGeneration) {
		h.ignored(t.ID, from, proto.Seq{}, "the one before it in its lane has not come")
		return false // its lane comes in order
	}
	if old != nil { // only a disk that was rolled back still has it
		h.event(EventConflict, old, from, "a later generation of the task came")
		h.remove(old)
	}
	if entry := h.moved[t.ID]; entry != nil {
		if entry.elem != nil {
			h.handoffs.Remove(entry.elem)
		}
		entry.lease = nil
		delete(h.moved, t.ID)
		h.out.drop(taskKey(keyMoved, t.ID))
	}
	if e := h.ended[t.ID]; e != nil {
		h.ends.Remove(e)
		delete(h.ended, t.ID)
	}
	ts := taskStateOf(t, copyLease(m.Lease))
	if ts.epoch.Boot >= h.boot {
		h.raiseBoot(ts.epoch.Boot)
	}
	ts.mem.acked, ts.mem.leaseUntil = true, h.now.Mono+h.period(ts)
	h.insert(ts)
	h.put(ts)
	h.event(EventMovedIn, ts, from, "")
	if ts.cancel && ts.free() && h.cfg.mutation != cancelForgotten {
		h.end(ts, End{State: proto.Cancelled, Reason: "cancelled before it started"})
		return true
	}
	if t.Denied != "" { // what the queue does not take does not come in by another home either
		if !ts.free() {
			h.sendCancel(ts)
		}
		h.end(ts, End{State: proto.DeadLetter, Reason: "DENIED: " + t.Denied})
		return true
	}
	if ts.cancel && !ts.free() {
		h.sendCancel(ts)
	}
	if ts.leased() {
		h.requestStatus(ts)
		h.sendStatusRequests(true)
	}
	return true
}

// hasSeen reports whether a task of this generation is here, went on from here, or has
// ended here.
func (h *Home) hasSeen(id proto.TaskID, gen uint64) bool {
	if ts := h.cells[id]; ts != nil {
		return ts.gen >= gen
	}
	if entry := h.moved[id]; entry != nil {
		return entry.gen > gen
	}
	return h.ended[id] != nil
}

// OnHandedOff notes that the new home has what was handed over.
func (h *Home) OnHandedOff(from proto.PeerID, m *proto.HandedOff, now Now) Output {
	h.beginInput(now)
	for _, a := range m.GetMoved() {
		if len(a.Task) == 0 {
			if q := h.queues[a.Queue]; q != nil && q.state != nil && string(q.state.Home) == string(from[:]) && a.Generation >= q.state.Generation {
				h.forgetBlock(q, laneKeyFrom(a.Origin, a.Key))
				q.announced = len(q.blocks()) == 0 // one that began since it was told is told next
			} else {
				h.ignored(proto.TaskID{}, from, proto.Seq{}, "it answers for a queue that did not go there")
			}
			continue
		}
		id, err := proto.TaskIDFrom(a.Task)
		entry := h.moved[id]
		if err != nil || entry == nil || entry.home != from || a.Generation < entry.gen || entry.lease == nil {
			h.ignored(id, from, proto.Seq{}, "it answers for a task that did not go there, or did before")
			continue
		}
		entry.lease = nil
		h.handoffs.Remove(entry.elem)
		entry.elem = nil
		if q := h.queues[entry.queue]; entry.key != "" && q.lanes[entry.laneKey()] != nil {
			h.rescheduleHead(q, q.lanes[entry.laneKey()]) // it may have been the last of its lane
		}
		h.out.put(taskKey(keyMoved, id), entry.record())
		h.out.HandedOff = append(h.out.HandedOff, id)
	}
	for _, a := range m.GetRefused() {
		h.handoffRefused(from, a)
	}
	h.moveOut()
	return h.endInput()
}

// handoffRefused notes why the new home does not take a task now. It is sent again. That
// its body is not there yet is no refusal: the body goes first.
func (h *Home) handoffRefused(from proto.PeerID, a *proto.HandoffRefused) {
	id, err := proto.TaskIDFrom(a.Task)
	entry := h.moved[id]
	if err != nil || entry == nil || entry.home != from || a.Generation != entry.gen || entry.lease == nil {
		h.ignored(id, from, proto.Seq{}, "it refuses a task that is not on its way there")
		return
	}
	cause := proto.Clip(strings.TrimSuffix(a.Code.Name()+": "+a.Reason, ": "), proto.MaxReason)
	if a.Code == proto.CodeNeedBody || cause == entry.refused {
		return
	}
	entry.refused = cause
	h.out.Events = append(h.out.Events, Event{Kind: EventNotTaken, Task: id, Queue: entry.queue, Peer: from, Cause: cause})
}

// forgetBlock drops a lane that stands still once the new home has said that it does so
// there: if the queue comes back here, that home says whether it still does.
func (h *Home) forgetBlock(q *queue, key laneKey) {
	if l := q.lanes[key]; key.key != "" && l != nil && l.blocked && !q.isHome(h.self) {
		h.unblock(q, l)
	}
}

// PendingHandoffs returns how many tasks are on their way to another home, or still to go.
func (h *Home) PendingHandoffs() int {
	n := h.handoffs.Len()
	for e := h.live.Front(); e != nil; e = e.Next() {
		if ts := e.Value.(*taskState); !ts.mem.queue.isHome(h.self) {
			n++
		}
	}
	return n
}

// forgetMoved drops the notes that no copy of a message can ask for.
func (h *Home) forgetMoved() {
	if h.now.Mono-h.sweptAt < 10*time.Minute {
		return
	}
	var old []proto.TaskID
	for id, entry := range h.moved {
		if entry.lease == nil && h.now.past(h.cfg.resultDeadline(entry.notAfter)+h.cfg.Skew.Milliseconds()) {
			old = append(old, id)
		}
	}
	slices.SortFunc(old, proto.TaskID.Compare)
	for _, id := range old {
		if h.out.full() {
			return // the rest at the next scan
		}
		delete(h.moved, id)
		h.out.drop(taskKey(keyMoved, id))
	}
	h.sweptAt = h.now.Mono
}
