package ownership

import (
	"cmp"
	"container/list"
	"slices"
	"strings"
	"time"

	"github.com/balefire/balefire/proto"
)

// A gone is a task whose cell went to another home. Until that has answered, the
// note holds the cell: nobody acts on it here, and it is sent again.
type gone struct {
	task     proto.TaskID
	queue    string
	home     proto.PeerID
	gen      uint64
	notAfter int64
	lease    *proto.Lease // nil once the new home has it
	origin   proto.PeerID // of its lane, zero: all
	key      string
	behind   proto.TaskID // its predecessor in its lane
	blocked  bool         // its lane stands still
	sent     time.Duration
	wasSent  bool
	wished   time.Duration // a wish to cancel was sent after it last
	refused  string        // why the new home did not take it when it was sent last
	going    *list.Element
}

func (g *gone) record() *proto.Moved {
	m := &proto.Moved{Task: g.task[:], Queue: g.queue, Home: g.home[:], Generation: g.gen, NotAfterMs: g.notAfter, Lease: g.lease, Key: g.key, Origin: g.laneKey().originBytes(), Blocked: g.blocked}
	if !g.behind.IsZero() {
		m.Behind = g.behind[:]
	}
	return m
}

func (g *gone) laneKey() laneKey { return laneKey{g.origin, g.key} }

// loadMoved takes a note that was found at start.
func (h *Home) loadMoved(m *proto.Moved) {
	g := &gone{queue: m.Queue, gen: m.Generation, notAfter: m.NotAfterMs, lease: m.Lease, key: m.Key, blocked: m.Blocked}
	copy(g.task[:], m.Task)
	copy(g.origin[:], m.Origin)
	copy(g.behind[:], m.Behind)
	copy(g.home[:], m.Home)
	h.moved[g.task] = g
	if g.lease != nil {
		g.going = h.going.PushBack(g)
	}
}

// relink finds the last of each lane that is on its way, after a start.
func (h *Home) relink() {
	followed := map[proto.TaskID]bool{}
	for e := h.going.Front(); e != nil; e = e.Next() {
		followed[e.Value.(*gone).behind] = true
	}
	for e := h.going.Front(); e != nil; e = e.Next() {
		if g := e.Value.(*gone); g.key != "" && !followed[g.task] {
			h.queue(g.queue).lane(g.laneKey()).last = g
		}
	}
}

// HandOff gives a queue to another home: first the queue, which takes nothing new
// here from now on, then, as fast as the other answers, each task that is here.
// Owners go on working and are told where their home went when they speak next.
func (h *Home) HandOff(name string, to proto.PeerID, now Now) (Output, error) {
	o := h.step(now)
	q := h.queues[name]
	if to == h.self || !q.known() || !q.here(h.self) {
		return h.done(), nil
	}
	s := h.stateOf(q)
	s.Generation, s.Home, s.SeizedFrom = s.Generation+1, slices.Clone(to[:]), nil
	s.ChangedMs = later(s, now)
	if err := h.convey(s, q.root, Deed{From: h.self}); err != nil {
		return *o, err
	}
	h.yield(q, s)
	o.put(queueKey(name), s)
	h.yieldAll()
	return h.done(), nil
}

// Seize makes this node the home of a queue whose home is gone. A person decided
// that, and gave up what only the old home knows. The higher generation voids the
// old home's claim to the queue: when it comes back it hands over what it still
// has. No task forks: the cell of each is at one node all the time.
func (h *Home) Seize(name string, from proto.PeerID, now Now) (Output, error) {
	o := h.step(now)
	q := h.queues[name]
	if q == nil {
		q = newQueue(name)
	}
	s := h.stateOf(q)
	if h.cfg.flaw != seizeQuiet {
		s.Generation++
	}
	s.Home, s.SeizedFrom, s.ChangedMs = slices.Clone(h.self[:]), slices.Clone(from[:]), later(s, now)
	root := q.root
	if q.state == nil {
		root = h.made[name].Root
	}
	if err := h.convey(s, root, Deed{From: from, Seized: true, Admin: true}); err != nil {
		return *o, err
	}
	if h.queues[name] == nil {
		h.keep(q)
	}
	h.take(q, s)
	o.put(queueKey(name), s)
	o.Events = append(o.Events, Event{Kind: EventSeized, Queue: name, Peer: from})
	h.settleAll(q)
	return h.done(), nil
}

// Learn takes what another node says about a queue, if deeds prove it: the lower root is
// right, of one root the higher generation. It reports whether that was news.
func (h *Home) Learn(m *proto.QueueState, now Now) (bool, Output) {
	h.step(now)
	news := h.learn(m)
	return news, h.done()
}

func (h *Home) learn(m *proto.QueueState) bool {
	if m.GetName() == "" || len(m.GetHome()) != len(h.self) {
		return false
	}
	q := h.queues[m.Name]
	if q == nil {
		q = newQueue(m.Name) // it is kept if there is such a queue
	}
	x := h.weigh(q, m)
	if !x.right && h.newer(m, x, q) {
		h.out.Events = append(h.out.Events, Event{Kind: EventForged, Queue: m.Name, Peer: proto.PeerID(m.Home), Cause: "it says that it is the home of the queue, and no deeds prove that"})
		return false
	}
	if !h.newer(m, x, q) {
		h.keepDeeds(q, m, x)
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
	if !h.fit(s) {
		h.out.Events = append(h.out.Events, Event{Kind: EventForged, Queue: m.Name, Peer: proto.PeerID(m.Home), Cause: "more than one node may say of queues: " + h.errFull(s).Error()})
		return false
	}
	if h.queues[m.Name] == nil {
		h.keep(q)
	}
	h.twice(q, x.deeds)
	h.yield(q, s)
	h.out.put(queueKey(m.Name), s)
	return true
}

// yield makes s the state of q. If another node is its home now, nothing of it is
// granted here any more.
func (h *Home) yield(q *queue, s *proto.QueueState) {
	was := q.here(h.self)
	h.take(q, s)
	if q.here(h.self) == was {
		return
	}
	q.told = false
	if was {
		q.gave = true
		var p proto.PeerID
		copy(p[:], s.Home)
		h.out.Events = append(h.out.Events, Event{Kind: EventYielded, Queue: q.name, Peer: p})
	}
	h.settleAll(q)
}

func (h *Home) settleAll(q *queue) {
	for e := h.live.Front(); e != nil; e = e.Next() {
		if c := e.Value.(*cell); c.place.queue == q {
			h.settle(c)
		}
	}
}

// yieldAll moves tasks of queues whose home is elsewhere, as many as may be under
// way.
func (h *Home) yieldAll() {
	for e := h.live.Front(); e != nil && h.going.Len() < h.cfg.HandoffWindow && !h.out.full(); {
		c := e.Value.(*cell)
		e = e.Next()
		if q := c.place.queue; !q.here(h.self) {
			var to proto.PeerID
			copy(to[:], q.state.Home)
			h.move(c, to)
		}
	}
	h.resendGone()
}

// move takes the cell of c away from here, for a new home. That is written before
// the handoff is sent: at no time do two homes act on a cell.
func (h *Home) move(c *cell, to proto.PeerID) {
	h.unlink(c)
	g := &gone{task: c.task.ID, queue: c.task.Queue, home: to, gen: c.gen + 1, notAfter: c.task.NotAfter}
	if l := c.place.lane; l != nil {
		if l.last != nil && l.last.lease != nil && h.moved[l.last.task] == l.last {
			g.behind = l.last.task // it is still on its way
		}
		l.last, g.origin, g.key, g.blocked = g, l.key.origin, l.key.key, l.blocked
	}
	if h.cfg.flaw == movedActs {
		if h.moved[g.task] != nil {
			return
		}
		m := c.record()
		m.Generation = g.gen
		g.lease = copyLease(m)
		g.going = h.going.PushBack(g)
		h.moved[g.task] = g
		return
	}
	c.gen = g.gen
	g.lease = copyLease(c.record())
	h.remove(c)
	h.moved[g.task] = g
	g.going = h.going.PushBack(g)
	h.out.put(taskKey(keyMoved, g.task), g.record())
	h.out.drop(taskKey(keyLease, g.task))
	h.event(EventMovedOut, c, to, "")
}

// unlink lets nobody wait for c any more who went when c did before. It came back since,
// and goes behind all others of its lane now: they would wait for each other.
func (h *Home) unlink(c *cell) {
	if c.gen <= 1 || c.place.lane == nil {
		return
	}
	for e := h.going.Front(); e != nil; e = e.Next() {
		if g := e.Value.(*gone); g.behind == c.task.ID {
			g.behind = proto.TaskID{}
			h.out.put(taskKey(keyMoved, g.task), g.record())
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

// resendGone sends what was not answered, and what is new: first the deeds of the
// queue, which say that the tasks may come.
func (h *Home) resendGone() {
	for _, q := range h.order {
		if q.told || q.here(h.self) || q.asked > 0 && h.now.Mono-q.asked < h.cfg.Heartbeat {
			continue
		}
		q.asked = max(h.now.Mono, 1)
		m := &proto.Handoff{Queue: h.stateOf(q), Blocks: q.blocks()}
		var to proto.PeerID
		copy(to[:], q.state.Home)
		h.out.send(to, proto.TypeHandoff, m)
	}
	for e := h.going.Front(); e != nil; e = e.Next() {
		g := e.Value.(*gone)
		if g.wasSent && h.now.Mono-g.sent < h.cfg.Heartbeat {
			continue
		}
		g.sent, g.wasSent = h.now.Mono, true
		m := &proto.Handoff{Lease: g.lease}
		if b := h.moved[g.behind]; b != nil && b.lease != nil && b.home == g.home {
			m.Behind, m.BehindGeneration = slices.Clone(g.behind[:]), b.gen
		}
		if g.blocked {
			m.Blocks = []*proto.LaneBlock{{Queue: g.queue, Key: g.key, Origin: g.laneKey().originBytes()}}
		}
		if q := h.queue(g.queue); q.state != nil && !q.told { // whoever takes the task knows whose the queue is
			m.Queue = h.stateOf(q)
		}
		h.out.send(g.home, proto.TypeHandoff, m)
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
	o := h.step(now)
	given := m.Queue != nil && h.mayGive(from, m.Queue)
	if given {
		h.learn(m.Queue)
	}
	var lanes []*proto.Moved // of the queue: they stand still here now
	for _, b := range m.GetBlocks() {
		if !h.queues[b.Queue].had(from) && h.cfg.flaw != moverUnproven {
			h.unheeded(t.ID, from, proto.Seq{}, "a lane of a queue that it was never the home of")
			continue
		}
		l := h.queue(b.Queue).lane(laneKeyFrom(b.Origin, b.Key))
		if l.died.IsZero() {
			copy(l.died[:], b.Task)
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
		return h.done() // its home keeps it, and says so again
	case m.Lease == nil && m.Queue != nil:
		reply.Queue, reply.Generation = m.Queue.Name, m.Queue.Generation
	case m.Lease != nil && !h.mayMove(from, t):
		h.out.Events = append(h.out.Events, Event{Kind: EventForged, Task: t.ID, Queue: t.Queue, Peer: from, Cause: "it hands a task over that it was never the home of"})
		return h.done()
	case m.Lease != nil && !h.queues[t.Queue].known():
		h.unheeded(t.ID, from, proto.Seq{}, "it hands over a task of a queue that nobody has told of")
		return h.done()
	case m.Lease == nil || string(m.Lease.Task) != string(t.ID[:]) || m.Lease.State.Terminal() || m.Lease.Generation < 2 || m.Lease.EpochBoot > maxBoot:
		h.unheeded(t.ID, from, proto.Seq{}, "it hands over what is no cell of this task")
		return h.done()
	default:
		if !h.admit(from, m, t) {
			return h.done()
		}
		reply.Task, reply.Generation = slices.Clone(t.ID[:]), m.Lease.Generation
	}
	o.send(from, proto.TypeHandedOff, &proto.HandedOff{Moved: append([]*proto.Moved{reply}, lanes...)})
	return h.done()
}

// admit takes the cell of a handoff, unless that was done before. It reports
// whether the sender may stop sending it.
func (h *Home) admit(from proto.PeerID, m *proto.Handoff, t Task) bool {
	gen, loose := m.Lease.Generation, h.cfg.flaw == generationUnchecked
	old := h.cells[t.ID]
	if g := h.moved[t.ID]; g != nil && g.gen >= gen && !loose || h.ended[t.ID] != nil && !loose || old != nil && old.gen >= gen {
		h.unheeded(t.ID, from, proto.Seq{}, "a copy: it has been here")
		return true
	}
	if b, err := proto.TaskIDFrom(m.Behind); err == nil && !h.met(b, m.BehindGeneration) {
		h.unheeded(t.ID, from, proto.Seq{}, "the one before it in its lane has not come")
		return false // its lane comes in order
	}
	if old != nil { // only a disk that was rolled back still has it
		h.event(EventConflict, old, from, "a later generation of the task came")
		h.remove(old)
	}
	if g := h.moved[t.ID]; g != nil {
		if g.going != nil {
			h.going.Remove(g.going)
		}
		g.lease = nil
		delete(h.moved, t.ID)
		h.out.drop(taskKey(keyMoved, t.ID))
	}
	if e := h.ended[t.ID]; e != nil {
		h.ends.Remove(e)
		delete(h.ended, t.ID)
	}
	c := cellOf(t, copyLease(m.Lease))
	if c.epoch.Boot >= h.boot {
		h.raise(c.epoch.Boot)
	}
	c.place.taken, c.place.until = true, h.now.Mono+h.period(c)
	h.insert(c)
	h.put(c)
	h.event(EventMovedIn, c, from, "")
	if c.cancel && c.free() && h.cfg.flaw != cancelForgotten {
		h.end(c, End{State: proto.Cancelled, Reason: "cancelled before it started"})
		return true
	}
	if t.Denied != "" { // what the queue does not take does not come in by another home either
		if !c.free() {
			h.sendCancel(c)
		}
		h.end(c, End{State: proto.DeadLetter, Reason: "DENIED: " + t.Denied})
		return true
	}
	if c.cancel && !c.free() {
		h.sendCancel(c)
	}
	if c.leased() {
		h.ask(c)
		h.sendAsked(true)
	}
	return true
}

// met reports whether a task of this generation is here, went on from here, or has
// ended here.
func (h *Home) met(id proto.TaskID, gen uint64) bool {
	if c := h.cells[id]; c != nil {
		return c.gen >= gen
	}
	if g := h.moved[id]; g != nil {
		return g.gen > gen
	}
	return h.ended[id] != nil
}

// OnHandedOff notes that the new home has what was handed over.
func (h *Home) OnHandedOff(from proto.PeerID, m *proto.HandedOff, now Now) Output {
	h.step(now)
	for _, a := range m.GetMoved() {
		if len(a.Task) == 0 {
			if q := h.queues[a.Queue]; q != nil && q.state != nil && string(q.state.Home) == string(from[:]) && a.Generation >= q.state.Generation {
				h.forgetBlock(q, laneKeyFrom(a.Origin, a.Key))
				q.told = len(q.blocks()) == 0 // one that began since it was told is told next
			} else {
				h.unheeded(proto.TaskID{}, from, proto.Seq{}, "it answers for a queue that did not go there")
			}
			continue
		}
		id, err := proto.TaskIDFrom(a.Task)
		g := h.moved[id]
		if err != nil || g == nil || g.home != from || a.Generation < g.gen || g.lease == nil {
			h.unheeded(id, from, proto.Seq{}, "it answers for a task that did not go there, or did before")
			continue
		}
		g.lease = nil
		h.going.Remove(g.going)
		g.going = nil
		if q := h.queues[g.queue]; g.key != "" && q.lanes[g.laneKey()] != nil {
			h.wake(q, q.lanes[g.laneKey()]) // it may have been the last of its lane
		}
		h.out.put(taskKey(keyMoved, id), g.record())
		h.out.Gone = append(h.out.Gone, id)
	}
	for _, a := range m.GetRefused() {
		h.handoffRefused(from, a)
	}
	h.yieldAll()
	return h.done()
}

// handoffRefused notes why the new home does not take a task now. It is sent again. That
// its body is not there yet is no refusal: the body goes first.
func (h *Home) handoffRefused(from proto.PeerID, a *proto.HandoffRefused) {
	id, err := proto.TaskIDFrom(a.Task)
	g := h.moved[id]
	if err != nil || g == nil || g.home != from || a.Generation != g.gen || g.lease == nil {
		h.unheeded(id, from, proto.Seq{}, "it refuses a task that is not on its way there")
		return
	}
	cause := proto.Clip(strings.TrimSuffix(a.Code.Name()+": "+a.Reason, ": "), proto.MaxReason)
	if a.Code == proto.CodeNeedBody || cause == g.refused {
		return
	}
	g.refused = cause
	h.out.Events = append(h.out.Events, Event{Kind: EventNotTaken, Task: id, Queue: g.queue, Peer: from, Cause: cause})
}

// forgetBlock drops a lane that stands still once the new home has said that it does so
// there: if the queue comes back here, that home says whether it still does.
func (h *Home) forgetBlock(q *queue, key laneKey) {
	if l := q.lanes[key]; key.key != "" && l != nil && l.blocked && !q.here(h.self) {
		h.unblock(q, l)
	}
}

// Going returns how many tasks are on their way to another home, or still to go.
func (h *Home) Going() int {
	n := h.going.Len()
	for e := h.live.Front(); e != nil; e = e.Next() {
		if c := e.Value.(*cell); !c.place.queue.here(h.self) {
			n++
		}
	}
	return n
}

// forgetMoved drops the notes that no copy of a message can ask for.
func (h *Home) forgetMoved() {
	if h.now.Mono-h.swept < 10*time.Minute {
		return
	}
	var old []proto.TaskID
	for id, g := range h.moved {
		if g.lease == nil && h.now.past(h.cfg.lastWord(g.notAfter)+h.cfg.Skew.Milliseconds()) {
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
	h.swept = h.now.Mono
}
