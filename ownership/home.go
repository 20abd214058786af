package ownership

import (
	"container/list"
	"crypto/sha256"
	"slices"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// A Home decides about the tasks of its queues: which node is granted a lease, which
// messages count, how a task ends.
//
// After [NewHome] it is given what is on disk, in the order in which tasks came
// ([Home.Load], then [Home.Restore] for each task), then [Home.Begin] once, then inputs.
type Home struct {
	cfg     Config
	self    proto.PeerID
	now     Now
	out     Output // of the current input
	epochs  epochs
	active  bool   // this node believes that it is neither suspect nor isolated
	rescued uint64 // low tasks granted because they had waited too long

	tasks     map[proto.TaskID]*taskState
	live      *list.List // of *taskState, in the order in which they came
	queues    map[string]*queue
	order     []*queue // in the order in which they were added
	members   members
	transit   transit
	handedOff []proto.TaskID // given to Restore though their new homes have confirmed them
	ended     endedTasks
	titles    titles

	lastScan       *Now         // nil: none
	statusRequests []*taskState // whose owners get a Status at the end of this input
}

// NewHome returns the home of node self, whose boot number is boot. Epochs of earlier boots
// are below those of this one.
func NewHome(self proto.PeerID, boot uint64, cfg Config) *Home {
	cfg = cfg.withDefaults()
	return &Home{
		cfg: cfg, self: self, epochs: epochs{boot: boot}, active: true,
		titles: titles{cfg: cfg, self: self, byName: map[string]*title{}, creations: map[string]proof{}, usage: map[proto.PeerID]*homeUsage{}},
		tasks:  map[proto.TaskID]*taskState{}, live: list.New(), queues: map[string]*queue{}, members: members{byPeer: map[proto.PeerID]*node{}},
		transit: transit{byID: map[proto.TaskID]*handoffEntry{}}, ended: endedTasks{byID: map[proto.TaskID]*list.Element{}},
	}
}

// beginInput begins an input.
func (h *Home) beginInput(now Now) *Output {
	h.now, h.out = now, Output{}
	return &h.out
}

// endInput ends an input: it grants what has become free.
func (h *Home) endInput() Output {
	h.grantAll()
	return h.out
}

func (h *Home) event(kind EventKind, ts *taskState, peer proto.PeerID, cause wire.LeaseCause) {
	h.emit(Event{Kind: kind, Peer: peer, Epoch: ts.epoch, Cause: cause}, ts)
}

// emit emits an event of ts.
func (h *Home) emit(e Event, ts *taskState) {
	e.Task, e.Queue = ts.task.ID, ts.task.Queue
	h.out.Events = append(h.out.Events, e.of(ts))
}

// homeRecords creates the empty records of a home, by the prefixes of their keys.
var homeRecords = map[byte]func() proto.Body{
	keyLease:    func() proto.Body { return new(proto.Lease) },
	keyMoved:    func() proto.Body { return new(proto.Moved) },
	keyQueue:    func() proto.Body { return new(proto.QueueState) },
	keyCreation: func() proto.Body { return new(proto.Signed) },
	keyBlock:    func() proto.Body { return new(proto.LaneBlock) },
	keyHomeBoot: func() proto.Body { return new(proto.HomeMark) },
}

// Load takes a record of the Leases bucket that was found at start. It returns the records
// of live tasks, which are for [Home.Restore].
func (h *Home) Load(key string, val []byte) (live *proto.Lease, err error) {
	if key == "" || homeRecords[key[0]] == nil {
		return nil, nil
	}
	record := homeRecords[key[0]]()
	if err := proto.Decode(val, record); err != nil {
		return nil, err
	}
	switch m := record.(type) {
	case *proto.Lease:
		if !m.State.Terminal() {
			return m, nil
		}
		h.ended.load(m)
	case *proto.Moved:
		h.transit.load(m)
	case *proto.QueueState:
		h.titles.accept(h.titles.named(m.Name), m)
		if proto.NamesQueue(m.Name) {
			h.apply(h.queue(m.Name))
		}
	case *proto.Signed:
		for _, d := range h.titles.proofs([]*proto.Signed{m}) {
			h.titles.creations[d.Queue] = d
		}
	case *proto.LaneBlock:
		q, head := h.queue(m.Queue), proto.TaskID{}
		copy(head[:], m.Task)
		q.block(q.lane(laneKeyFrom(m.Origin, m.Key)), head)
	case *proto.HomeMark:
		if string(m.Home) == string(h.self[:]) {
			h.epochs.raise(m.Boot)
		}
	}
	return nil, nil
}

// Restore takes a task that was found at start, in the order in which tasks came, with its
// record if it has one. A lease gets one full period from now.
func (h *Home) Restore(t Task, m *proto.Lease, now Now) {
	h.now = now
	if entry := h.transit.byID[t.ID]; entry != nil && entry.lease == nil {
		h.handedOff = append(h.handedOff, t.ID)
	}
	if h.ended.find(t.ID) != nil || h.transit.byID[t.ID] != nil || h.tasks[t.ID] != nil {
		return
	}
	ts := &taskState{task: t, state: proto.Pending, gen: 1}
	if m != nil {
		ts = taskStateOf(t, m)
		h.epochs.raise(ts.epoch.Boot) // the disk may be older than its clock suggests
	}
	ts.mem.acked = true // its owner is asked; the grant is not sent again
	ts.mem.leaseUntil = now.Mono + h.period(ts)
	ts.cancel = ts.cancel || t.Cancelled
	h.insert(ts)
}

// Begin makes the boot number of this start durable and asks the owners of all leases for
// their status (RUNNING without an owner, S20). It ends what was cancelled and has no owner,
// and reports tasks again that another home has taken: both are still here if the last start
// ended too early. It comes after the last Restore.
func (h *Home) Begin(now Now) Output {
	o := h.beginInput(now)
	h.epochs.put(o, h.self)
	o.HandedOff, h.handedOff = h.handedOff, nil
	h.lastScan = &now
	for _, entry := range h.transit.tails() {
		h.queue(entry.queue).lane(entry.laneKey()).lastMoved = entry
	}
	for ts := range each[*taskState](h.live) {
		switch {
		case ts.cancel && ts.free():
			h.end(ts, ts.endCancelled())
		case ts.leased():
			h.requestStatus(ts)
		}
	}
	h.sendStatusRequests(true)
	return h.endInput()
}

// Add takes a task whose record is durable here. A known one is left unchanged.
func (h *Home) Add(t Task, now Now) Output {
	h.beginInput(now)
	if h.tasks[t.ID] == nil && h.ended.find(t.ID) == nil && h.transit.byID[t.ID] == nil {
		ts := &taskState{task: t, state: proto.Pending, gen: 1}
		ts.mem.leaseUntil = now.Mono + h.cfg.Lease // used only if it may have run
		h.insert(ts)
		if t.Cancelled {
			h.cancelTask(ts, false)
		}
	}
	return h.endInput()
}

// mayHaveRun reports whether the task may be started only once and may have been: its
// record may have been lost when the store was restored from an older copy. Such a task is
// not granted. A scan ends it one lease after it was taken up; until then an owner may
// deliver its result, and members may report that its queue has another home.
func (ts *taskState) mayHaveRun() bool {
	return ts.task.atMostOnce() && (ts.task.MayHaveRun == PresentBeforeLoss || ts.task.MayHaveRun == CreatedBeforeLoss && ts.gen == 1)
}

// insert adds ts to all indexes.
func (h *Home) insert(ts *taskState) {
	h.tasks[ts.task.ID] = ts
	ts.mem.live = h.live.PushBack(ts)
	ts.mem.queue = h.queue(ts.task.Queue)
	ts.mem.inQueue = ts.mem.queue.tasks.PushBack(ts)
	if ts.task.Key != "" {
		ts.mem.lane = ts.mem.queue.lane(ts.mem.queue.laneOf(&ts.task))
		ts.mem.lane.add(ts)
	}
	h.reschedule(ts)
}

// remove removes ts from all indexes and reschedules the next task of its lane.
func (h *Home) remove(ts *taskState) {
	delete(h.tasks, ts.task.ID)
	h.live.Remove(ts.mem.live)
	ts.mem.queue.tasks.Remove(ts.mem.inQueue)
	ts.mem.queue.unready(ts)
	ts.updateUsage(false, h.now.Mono)
	if l := ts.mem.lane; l != nil {
		l.remove(ts)
		h.rescheduleHead(ts.mem.queue, l)
	}
}

// rescheduleHead reschedules the head of a lane.
func (h *Home) rescheduleHead(q *queue, l *lane) {
	if len(l.tasks) > 0 {
		h.reschedule(l.tasks[0])
	} else if !l.blocked && (l.lastMoved == nil || l.lastMoved.lease == nil) {
		delete(q.lanes, l.key)
	}
}

// reschedule places ts where it belongs after a change, and with it the heads of a shared
// lane that this affects.
func (h *Home) reschedule(ts *taskState) {
	h.rescheduleOne(ts)
	if !ts.sharesLane() {
		return
	}
	for _, x := range slices.Clone(ts.mem.lane.heads()) {
		waits := x.mem.recheckAt > h.now.Mono && x.untilDue(h.now) > 0
		if x != ts && !waits && (x.mem.ready != nil) != x.isNext(h.now, &h.members) {
			h.rescheduleOne(x)
		}
	}
}

// rescheduleOne places ts among the ready tasks, among those that wait for a time, or
// nowhere.
func (h *Home) rescheduleOne(ts *taskState) {
	q := ts.mem.queue
	ts.updateUsage(ts.leased(), h.now.Mono)
	switch {
	case ts.leased(), ts.state.Terminal(), ts.permitted(), ts.cancel && !ts.free(), !ts.isNext(h.now, &h.members), !q.title.isHome(h.self):
		q.unready(ts)
	case ts.untilDue(h.now) > 0:
		q.unready(ts)
		q.wait(ts, h.now.Mono+min(ts.untilDue(h.now), h.cfg.Lease)) // the wall clock may be wrong now: check again
	default:
		q.makeReady(ts)
	}
}

// put writes the record of ts.
func (h *Home) put(ts *taskState) { h.out.put(taskKey(keyLease, ts.task.ID), ts.record()) }

// end ends ts in the batch of this output.
func (h *Home) end(ts *taskState, e End) {
	if ts.state.Terminal() {
		return
	}
	e.Task, e.Grants = ts.task.ID, ts.grants
	e.Reason = proto.Clip(e.Reason, proto.MaxReason)
	h.remove(ts)
	ts.state, ts.reason = e.State, e.Reason
	m := ts.record()
	m.Digest = e.Digest
	h.out.put(taskKey(keyLease, ts.task.ID), m)
	h.out.Ends = append(h.out.Ends, e)
	h.emit(Event{Kind: EventEnded, Peer: e.From, Epoch: ts.epoch, State: e.State, Cause: wire.LeaseCause(e.Cause.Name()), Detail: e.Reason}, ts)
	h.ended.add(&endedTask{
		task: ts.task.ID, gen: ts.gen, state: e.State, epoch: ts.epoch, owner: ts.owner, digest: e.Digest,
		notAfter: ts.task.NotAfter, fromHandoff: ts.gen > 1,
	})
	good := e.State == proto.Success || e.State == proto.Cancelled
	if l := ts.mem.lane; l != nil && ts.task.Block && !good {
		ts.mem.queue.block(l, ts.task.ID)
		ts.mem.queue.lanes[l.key] = l
		ts.mem.queue.title.announced = false
		for _, t := range l.tasks {
			ts.mem.queue.unready(t)
		}
		key := blockKey(ts.task.Queue, l.key)
		h.out.Ends[len(h.out.Ends)-1].block = key
		h.out.put(key, blockOf(ts.task.Queue, l))
		h.emit(Event{Kind: EventBlocked, Peer: ts.owner, Epoch: ts.epoch, State: e.State}, ts)
	}
}

// blockKey uses a digest: queue, origin and key together may exceed the longest key of the
// store.
func blockKey(queue string, k laneKey) string {
	sum := sha256.Sum256([]byte(queue + "\x00" + string(k.origin[:]) + k.key))
	return string(rune(keyBlock)) + string(sum[:])
}

// Unblock unblocks the lanes of an ordering key, of any origin, at an operator's request.
// It reports whether there was one here.
func (h *Home) Unblock(queue, key string, now Now) (bool, Output) {
	h.beginInput(now)
	q, unblocked := h.queues[queue], false
	if q == nil {
		return false, h.out
	}
	for _, l := range q.allBlocked() {
		if l.key.key == key {
			h.unblock(q, l)
			unblocked = true
		}
	}
	return unblocked, h.endInput()
}

func (h *Home) unblock(q *queue, l *lane) {
	l.blocked = false
	q.blockedLanes--
	h.out.drop(blockKey(q.title.name, l.key))
	h.rescheduleHead(q, l)
}

// A Location tells where a task is, as far as a home knows.
type Location byte

// The locations.
const (
	LocationUnknown Location = iota // not here, or ended
	LocationHere
	LocationMoved // at another home
)

// Cancel ends a task that no node works on, and asks the owner of any other to stop it; hard:
// to kill it at once. A cancel for a task that went to another home is forwarded there; it
// may be lost, so it must be repeated until the task has ended.
func (h *Home) Cancel(id proto.TaskID, hard bool, now Now) (Location, Output) {
	h.beginInput(now)
	where := h.cancel(id, hard)
	return where, h.endInput()
}

func (h *Home) cancel(id proto.TaskID, hard bool) Location {
	if ts := h.tasks[id]; ts != nil {
		h.cancelTask(ts, hard)
		return LocationHere
	}
	if h.transit.cancel(id, hard, h.now, h.cfg.Heartbeat, &h.out) {
		return LocationMoved
	}
	return LocationUnknown
}

func (h *Home) cancelTask(ts *taskState, hard bool) {
	switch {
	case ts.free():
		h.end(ts, ts.endCancelled())
	case !ts.cancel || hard && !ts.cancelHard:
		ts.cancel, ts.cancelHard = true, ts.cancelHard || hard
		h.put(ts)
		h.reschedule(ts)
		h.sendCancel(ts)
	}
}

// OnCancel takes a cancel forwarded by an earlier home.
func (h *Home) OnCancel(from proto.PeerID, m *proto.Cancel, now Now) Output {
	h.beginInput(now)
	id, err := proto.TaskIDFrom(m.GetTask())
	if err != nil {
		return h.endInput()
	}
	ts, entry := h.tasks[id], h.transit.byID[id]
	switch {
	case ts != nil && h.titles.wasHome(ts.task.Queue, from), entry != nil && h.titles.wasHome(entry.queue, from):
		h.cancel(id, m.GetHard())
	case ts != nil || entry != nil:
		h.out.ignored(id, from, proto.Seq{}, "a cancel from a node that was never the home")
	}
	return h.endInput()
}

func (h *Home) sendCancel(ts *taskState) {
	ts.mem.sentAt = h.now.Mono
	h.out.send(ts.owner, proto.TypeCancel, &proto.Cancel{Task: slices.Clone(ts.task.ID[:]), Hard: ts.cancelHard, Reason: "cancelled at its home"})
}

// SetClass changes the class of a task, which matters while it waits. It reports whether
// the task is here and has not ended.
func (h *Home) SetClass(id proto.TaskID, class proto.Class, now Now) (bool, Output) {
	h.beginInput(now)
	ts := h.tasks[id]
	if ts == nil {
		return false, h.out
	}
	ts.mem.queue.unready(ts)
	ts.class, ts.task.Class = class, class
	h.put(ts)
	h.reschedule(ts)
	return true, h.endInput()
}

// SetActive sets whether this node believes that it is neither suspect nor isolated. An
// inactive home grants only to itself and reclaims no lease (I16).
func (h *Home) SetActive(on bool, now Now) Output {
	h.beginInput(now)
	if h.active != on {
		for _, q := range h.order {
			q.stuck = stuckShapes{} // what only other nodes can take
		}
	}
	h.active = on
	return h.endInput()
}

// period returns the lease duration of ts.
func (h *Home) period(ts *taskState) time.Duration {
	if q := h.queues[ts.task.Queue]; q != nil && q.title.state.GetLeaseMs() > 0 {
		return time.Duration(q.title.state.LeaseMs) * time.Millisecond
	}
	return h.cfg.Lease
}
