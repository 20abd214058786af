package ownership

import (
	"container/list"
	"crypto/sha256"
	"slices"
	"strings"
	"time"

	"github.com/balefire/balefire/proto"
)

// A Home decides about the tasks whose cells are here: who is granted a lease,
// whose word counts, how a task ends.
//
// After [NewHome] it is given what is on disk, in the order of birth ([Home.Load],
// then [Home.Restore] for each task), then [Home.Begin] once, then inputs.
type Home struct {
	cfg     Config
	self    proto.PeerID
	now     Now
	out     Output // of the input that is looked at
	boot    uint64 // of the epochs of this start
	counter uint64 // of the newest epoch
	active  bool   // this node believes that it is neither suspect nor isolated

	cells  map[proto.TaskID]*cell
	live   *list.List // of *cell, in the order of birth
	queues map[string]*queue
	order  []*queue // the queues as they were met
	nodes  map[proto.PeerID]*node
	peers  []proto.PeerID // of the nodes, in the order in which they were met
	moved  map[proto.TaskID]*gone
	going  *list.List // of *gone: handed over and not answered
	endings
	titles

	scan   guard
	asking []*cell // whose owners are asked by Status at the end of this input
	marks
}

// endings are the tasks that ended here, as far as they are remembered.
type endings struct {
	ended map[proto.TaskID]*list.Element
	ends  *list.List // of *ended, oldest first
}

// titles say who is the home of what.
type titles struct {
	made map[string]proven         // by name: the deeds of queues that this node, an admin, signed first
	paid map[proto.PeerID]*account // what the queues of each home take up
}

// marks tell owners which of their old leases they may forget.
type marks struct {
	settled map[proto.PeerID]proto.Seq
	newest  proto.Seq     // of those who are not in settled
	swept   time.Duration // when old notes were looked for
}

// A guard watches the clocks between two scans.
type guard struct {
	last Now
	met  bool
}

// NewHome returns the home of node self, whose start has the number boot. Epochs of
// an earlier start are below those of this one.
func NewHome(self proto.PeerID, boot uint64, cfg Config) *Home {
	if cfg.flaw == epochVolatile {
		boot = 1
	}
	return &Home{
		cfg: cfg.withDefaults(), self: self, boot: boot, active: true,
		cells: map[proto.TaskID]*cell{}, live: list.New(), queues: map[string]*queue{}, nodes: map[proto.PeerID]*node{},
		titles: titles{map[string]proven{}, map[proto.PeerID]*account{}}, moved: map[proto.TaskID]*gone{}, going: list.New(), endings: endings{map[proto.TaskID]*list.Element{}, list.New()},
	}
}

// step begins an input.
func (h *Home) step(now Now) *Output {
	h.now, h.out = now, Output{}
	return &h.out
}

// done ends an input: what became free is granted.
func (h *Home) done() Output {
	h.grantAll()
	return h.out
}

func (h *Home) event(kind EventKind, c *cell, peer proto.PeerID, cause string) {
	h.out.Events = append(h.out.Events, Event{Kind: kind, Task: c.task.ID, Queue: c.task.Queue, Peer: peer, Epoch: c.epoch, Cause: cause})
}

// Load takes a record of the bucket of leases that was found at start, but for the
// cells of live tasks, which [Home.Restore] takes: those it returns.
func (h *Home) Load(key string, val []byte) (live *proto.Lease, err error) {
	if key == "" {
		return nil, nil
	}
	switch key[0] {
	case keyLease:
		m := new(proto.Lease)
		if err := proto.Decode(val, m); err != nil {
			return nil, err
		}
		if !m.State.Terminal() {
			return m, nil
		}
		e := &ended{
			gen: m.Generation, state: m.State, epoch: proto.Seq{Boot: m.EpochBoot, Counter: m.EpochCounter},
			digest: m.Digest, notAfter: m.NotAfterMs, handed: m.Generation > 1,
		}
		copy(e.task[:], m.Task)
		copy(e.owner[:], m.Owner)
		h.remember(e)
	case keyMoved:
		m := new(proto.Moved)
		if err := proto.Decode(val, m); err != nil {
			return nil, err
		}
		h.loadMoved(m)
	case keyQueue:
		m := new(proto.QueueState)
		if err := proto.Decode(val, m); err != nil {
			return nil, err
		}
		h.take(h.queue(m.Name), m)
	case keyMade:
		m := new(proto.Signed)
		if err := proto.Decode(val, m); err != nil {
			return nil, err
		}
		for _, d := range h.recall([]*proto.Signed{m}) {
			h.made[d.Queue] = d
		}
	case keyBlock:
		m := new(proto.LaneBlock)
		if err := proto.Decode(val, m); err != nil {
			return nil, err
		}
		l := h.queue(m.Queue).lane(laneKeyFrom(m.Origin, m.Key))
		l.blocked = true
		copy(l.died[:], m.Task)
	case keyMark:
		m := new(proto.HomeMark)
		if err := proto.Decode(val, m); err != nil {
			return nil, err
		}
		if string(m.Home) == string(h.self[:]) && h.cfg.flaw != epochVolatile {
			h.boot = max(h.boot, m.Boot+1)
		}
	}
	return nil, nil
}

// Restore takes a task that was found at start, in the order of birth, with its
// cell if one was written. A lease gets one full period from now.
func (h *Home) Restore(t Task, m *proto.Lease, now Now) {
	h.now = now
	if h.ended[t.ID] != nil || h.moved[t.ID] != nil || h.cells[t.ID] != nil {
		return
	}
	c := &cell{task: t, state: proto.Pending, gen: 1}
	if m != nil {
		c = cellOf(t, m)
		if c.epoch.Boot >= h.boot && h.cfg.flaw != epochVolatile {
			h.boot, h.counter = c.epoch.Boot+1, 0 // a disk that is older than its clock says
		}
	}
	c.place.taken = true // its owner is asked, the grant is not sent again
	c.place.until = now.Mono + h.period(c)
	if h.cfg.flaw == periodSkipped {
		c.place.until = now.Mono
	}
	h.insert(c)
}

// Begin makes the number of this start durable and asks the owners of all leases
// what they do (RUNNING without an owner, S20). It comes after the last Restore.
func (h *Home) Begin(now Now) Output {
	o := h.step(now)
	o.put(markKey(h.self), &proto.HomeMark{Home: h.self[:], Boot: h.boot})
	h.scan = guard{last: now, met: true}
	h.relink()
	for e := h.live.Front(); e != nil; e = e.Next() {
		if c := e.Value.(*cell); c.leased() {
			h.ask(c)
		}
	}
	h.sendAsked(true)
	return h.done()
}

func markKey(p proto.PeerID) string { return string(rune(keyMark)) + string(p[:]) }

// Add takes a task whose record is durable here. One that is known is left alone.
func (h *Home) Add(t Task, now Now) Output {
	h.step(now)
	if h.cells[t.ID] == nil && h.ended[t.ID] == nil && h.moved[t.ID] == nil {
		c := &cell{task: t, state: proto.Pending, gen: 1}
		c.place.until = now.Mono + h.cfg.Lease // for a doubtful one
		h.insert(c)
	}
	return h.done()
}

// doubtful reports whether c may be started once only and may have been, which this
// home would know if its store were not restored from an older copy. It is not granted:
// a scan ends it, a lease after it was taken up: an owner may bring its result till then,
// and members may say that its queue has another home.
func (c *cell) doubtful() bool {
	return c.task.once() && (c.task.Doubt == HereBefore || c.task.Doubt == MadeBefore && c.gen == 1)
}

// insert puts a cell in its places.
func (h *Home) insert(c *cell) {
	h.cells[c.task.ID] = c
	c.place.live = h.live.PushBack(c)
	c.place.queue = h.queue(c.task.Queue)
	if c.task.Key != "" {
		c.place.lane = c.place.queue.lane(c.place.queue.laneOf(&c.task))
		c.place.lane.add(c)
	}
	h.settle(c)
}

// remove takes a cell out of its places and lets the next of its lane come.
func (h *Home) remove(c *cell) {
	delete(h.cells, c.task.ID)
	h.live.Remove(c.place.live)
	c.place.queue.unready(c)
	h.count(c, false)
	if l := c.place.lane; l != nil {
		l.remove(c)
		h.wake(c.place.queue, l)
	}
}

// wake settles the head of a lane.
func (h *Home) wake(q *queue, l *lane) {
	if len(l.tasks) > 0 {
		h.settle(l.tasks[0])
		if h.cfg.flaw == laneEarly && len(l.tasks) > 1 {
			h.settle(l.tasks[1])
		}
	} else if !l.blocked && (l.last == nil || l.last.lease == nil) {
		delete(q.lanes, l.key)
	}
}

// settle puts c where it belongs after a change, and with it those of its lane whose turn
// it may be now, or not any more.
func (h *Home) settle(c *cell) {
	h.settleOne(c)
	if !c.sharesLane() {
		return
	}
	for _, x := range slices.Clone(c.place.lane.heads()) {
		waits := x.place.look > h.now.Mono && h.untilDue(x) > 0
		if x != c && !waits && (x.place.ready != nil) != h.next(x) {
			h.settleOne(x)
		}
	}
}

// settleOne puts c among the ready ones, those that wait for a time, or nowhere.
func (h *Home) settleOne(c *cell) {
	q := c.place.queue
	q.unready(c)
	h.count(c, c.leased())
	switch {
	case c.leased(), c.state.Terminal(), c.permitted() && h.cfg.flaw != onceReclaimed, c.cancel && !c.free():
		return
	case !h.next(c):
		return
	case !q.here(h.self):
		return
	case h.untilDue(c) > 0:
		q.wait(c, h.now.Mono+min(h.untilDue(c), h.cfg.Lease)) // the wall clock may be wrong now: it is asked again
		return
	}
	q.makeReady(c)
}

// untilDue is how long c must not be granted yet: after a failed attempt by the
// monotonic clock, before its first one by the wall clock.
func (h *Home) untilDue(c *cell) time.Duration {
	d := c.place.due - h.now.Mono
	if c.epoch == (proto.Seq{}) {
		d = max(d, time.Duration(c.task.NotBefore-h.now.Wall)*time.Millisecond)
	}
	return max(d, 0)
}

// count keeps the usage of c's queue.
func (h *Home) count(c *cell, owned bool) {
	if owned != c.place.owned {
		c.place.owned = owned
		n := -1
		if owned {
			n = 1
		}
		c.place.queue.usage.Add(c.owner, c.task.Kind, n)
	}
}

// put writes c.
func (h *Home) put(c *cell) { h.out.put(taskKey(keyLease, c.task.ID), c.record()) }

// end ends c in the batch of this output.
func (h *Home) end(c *cell, e End) {
	if c.state.Terminal() {
		return
	}
	e.Task, e.Queue, e.Grants = c.task.ID, c.task.Queue, c.grants
	e.Reason = proto.Clip(e.Reason, proto.MaxReason)
	h.remove(c)
	c.state, c.reason = e.State, e.Reason
	m := c.record()
	m.Digest = e.Digest
	h.out.put(taskKey(keyLease, c.task.ID), m)
	h.out.Ends = append(h.out.Ends, e)
	h.event(EventEnded, c, e.From, strings.TrimSuffix(e.State.Name()+": "+e.Reason, ": "))
	h.remember(&ended{
		task: c.task.ID, gen: c.gen, state: e.State, epoch: c.epoch, owner: c.owner, digest: e.Digest,
		notAfter: c.task.NotAfter, handed: c.gen > 1,
	})
	good := e.State == proto.Success || e.State == proto.Cancelled
	if l := c.place.lane; l != nil && c.task.Block && !good && h.cfg.flaw != blockIgnored {
		l.blocked, l.died = true, c.task.ID
		c.place.queue.lanes[l.key] = l
		c.place.queue.told = false
		for _, t := range l.tasks {
			c.place.queue.unready(t)
		}
		key := blockKey(c.task.Queue, l.key)
		h.out.Ends[len(h.out.Ends)-1].block = key
		h.out.put(key, blockOf(c.task.Queue, l))
		h.event(EventBlocked, c, c.owner, "its head ended as "+e.State.Name())
	}
}

// blockKey is a digest: queue, origin and key together may be longer than a key of the store.
func blockKey(queue string, k laneKey) string {
	sum := sha256.Sum256([]byte(queue + "\x00" + string(k.origin[:]) + k.key))
	return string(rune(keyBlock)) + string(sum[:])
}

// remember keeps an end, so that a late result is answered, and a late handoff
// raises nobody from the dead.
func (h *Home) remember(e *ended) {
	if old := h.ended[e.task]; old != nil {
		h.ends.Remove(old)
	}
	h.ended[e.task] = h.ends.PushBack(e)
}

// forget drops ends that nobody will ask for. What came by a handoff is kept until
// no copy of that can live.
func (h *Home) forget() {
	over := h.ends.Len() - h.cfg.KeepEnded
	for e := h.ends.Front(); e != nil && over > -64 && !h.out.full(); {
		x, next := e.Value.(*ended), e.Next()
		dead := h.now.past(x.notAfter + h.cfg.Skew.Milliseconds())
		if dead || over > 0 && !x.handed {
			h.ends.Remove(e)
			delete(h.ended, x.task)
			h.out.drop(taskKey(keyLease, x.task))
		}
		over--
		e = next
	}
	h.forgetMoved()
}

// Unblock lets the lanes of an ordering key that stand still go on, of whatever origin. A
// person asked for it. It reports whether there is one here.
func (h *Home) Unblock(queue, key string, now Now) (bool, Output) {
	h.step(now)
	q, stood := h.queues[queue], false
	if q == nil {
		return false, h.out
	}
	for _, b := range q.blocks() {
		if b.Key == key {
			h.unblock(q, q.lanes[laneKeyFrom(b.Origin, b.Key)])
			stood = true
		}
	}
	return stood, h.done()
}

func (h *Home) unblock(q *queue, l *lane) {
	l.blocked = false
	h.out.drop(blockKey(q.name, l.key))
	h.wake(q, l)
}

// A Standing says where the cell of a task is, as far as a home knows.
type Standing byte

// The standings.
const (
	StandingUnknown Standing = iota // not here, or ended
	StandingHere
	StandingMoved // at another home
)

// Cancel ends a task that nobody works on, and has the owner of any other asked to
// stop. A wish for a task that went to another home follows it there; it must be
// said again until the task has ended, for on the way it may be lost.
func (h *Home) Cancel(id proto.TaskID, now Now) (Standing, Output) {
	h.step(now)
	where := h.cancel(id)
	return where, h.done()
}

func (h *Home) cancel(id proto.TaskID) Standing {
	if c := h.cells[id]; c != nil {
		h.cancelCell(c)
		return StandingHere
	}
	g := h.moved[id]
	if g == nil || h.cfg.flaw == cancelLost {
		return StandingUnknown
	}
	if g.wished > 0 && h.now.Mono-g.wished < h.cfg.Heartbeat {
		return StandingMoved
	}
	g.wished = max(h.now.Mono, 1)
	if g.lease != nil && !g.lease.Cancel {
		g.lease.Cancel = true // in case that the new home does not have it yet
		h.out.put(taskKey(keyMoved, id), g.record())
	}
	h.out.send(g.home, proto.TypeCancel, &proto.Cancel{Task: slices.Clone(id[:]), Reason: "cancelled at an earlier home"})
	return StandingMoved
}

func (h *Home) cancelCell(c *cell) {
	switch {
	case c.free():
		h.end(c, End{State: proto.Cancelled, Reason: "cancelled before it started"})
	case !c.cancel:
		c.cancel = true
		h.put(c)
		h.settle(c)
		h.sendCancel(c)
	}
}

// OnCancel takes a wish that followed its task from an earlier home.
func (h *Home) OnCancel(from proto.PeerID, m *proto.Cancel, now Now) Output {
	h.step(now)
	id, err := proto.TaskIDFrom(m.GetTask())
	if err != nil {
		return h.done()
	}
	c, g := h.cells[id], h.moved[id]
	switch {
	case c != nil && h.mayMove(from, c.task), g != nil && h.queues[g.queue].had(from):
		h.cancel(id)
	case c != nil || g != nil:
		h.unheeded(id, from, proto.Seq{}, "a wish to cancel of who was never its home")
	}
	return h.done()
}

func (h *Home) sendCancel(c *cell) {
	c.place.asked = h.now.Mono
	h.out.send(c.owner, proto.TypeCancel, &proto.Cancel{Task: slices.Clone(c.task.ID[:]), Reason: "cancelled at its home"})
}

// Reclass changes the class of a task, which counts while it waits. It reports
// whether the task is here and has not ended.
func (h *Home) Reclass(id proto.TaskID, class proto.Class, now Now) (bool, Output) {
	h.step(now)
	c := h.cells[id]
	if c == nil {
		return false, h.out
	}
	c.place.queue.unready(c)
	c.class, c.task.Class = class, class
	h.put(c)
	h.settle(c)
	return true, h.done()
}

// SetActive says whether this node believes that it is neither suspect nor
// isolated. A home that is not active grants to itself alone and takes no lease back (I16).
func (h *Home) SetActive(on bool, now Now) Output {
	h.step(now)
	h.active = on
	return h.done()
}

// period is the lease of c.
func (h *Home) period(c *cell) time.Duration {
	if q := h.queues[c.task.Queue]; q != nil && q.state.GetLeaseMs() > 0 {
		return time.Duration(q.state.LeaseMs) * time.Millisecond
	}
	return h.cfg.Lease
}
