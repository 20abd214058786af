package ownership

import (
	"bytes"
	"container/heap"
	"fmt"
	"slices"
	"time"

	"github.com/balefire/balefire/fair"
	"github.com/balefire/balefire/ownership/dispatch"
	"github.com/balefire/balefire/proto"
)

// A queue is what a home keeps of a queue in memory.
type queue struct {
	name         string
	state        *proto.QueueState // nil: nothing was ever said about it, and it is at home here
	deeds        []proof           // of state, those that hold
	root         Root              // of the deeds that prove state
	strategy     dispatch.Strategy
	picker       fair.Picker
	usage        *dispatch.Usage
	limits       dispatch.Limits
	ready        [4]readyQueue // by class
	delayed      delayHeap
	lanes        map[laneKey]*lane
	members      []*dispatch.Member // made from state and nodes
	membersStale bool               // members are to be made anew
	announced    bool               // its home, another node, knows that it is
	handedOff    bool               // this node was its home before, in this start
	announcedAt  time.Duration      // when it was told last
	chargedTo    proto.PeerID       // whose account the state is in
	stateBytes   int                // and what it takes up there
}

// A laneKey names a lane: the tasks of one origin with one ordering key, or, where the
// queue has its lanes shared, those of all origins with it.
type laneKey struct {
	origin proto.PeerID // zero: all
	key    string       // empty: no lane
}

// laneOf is the lane that a task belongs to.
func (q *queue) laneOf(t *Task) laneKey {
	if q.state.GetSharedLanes() {
		return laneKey{key: t.Key}
	}
	return laneKey{t.Origin, t.Key}
}

// originBytes is the origin as records have it.
func (k laneKey) originBytes() []byte {
	if k.origin.IsZero() {
		return nil
	}
	return k.origin[:]
}

func laneKeyFrom(origin []byte, key string) (k laneKey) {
	copy(k.origin[:], origin)
	k.key = key
	return k
}

// A lane is the tasks of one laneKey, in the order of birth: the first one alone may be
// granted.
type lane struct {
	key         laneKey
	tasks       []*taskState
	blocked     bool          // its last head died, and a person must say that it goes on
	deadHead    proto.TaskID  // that head, as far as it is known
	lastMoved   *handoffEntry // of its tasks that went to another home
	cachedHeads []*taskState  // of each origin, in the order of birth; nil: to be made anew
}

// sharesLane reports whether c is in a lane with the tasks of all origins.
func (ts *taskState) sharesLane() bool {
	return ts.mem.lane != nil && ts.mem.queue.state.GetSharedLanes()
}

// heads are the first tasks of each origin.
func (l *lane) heads() []*taskState {
	if l.cachedHeads == nil {
		met := map[proto.PeerID]bool{}
		for _, ts := range l.tasks {
			if !met[ts.task.Origin] {
				met[ts.task.Origin] = true
				l.cachedHeads = append(l.cachedHeads, ts)
			}
		}
	}
	return l.cachedHeads
}

// add puts c behind all others.
func (l *lane) add(ts *taskState) {
	l.tasks = append(l.tasks, ts)
	if l.cachedHeads != nil && !slices.ContainsFunc(l.cachedHeads, func(x *taskState) bool { return x.task.Origin == ts.task.Origin }) {
		l.cachedHeads = append(l.cachedHeads, ts)
	}
}

func (l *lane) remove(ts *taskState) {
	if at := slices.Index(l.tasks, ts); at >= 0 {
		l.tasks = slices.Delete(l.tasks, at, at+1)
	}
	if slices.Contains(l.cachedHeads, ts) {
		l.cachedHeads = nil
	}
}

// isNext reports whether it is c's turn in its lane.
func (h *Home) isNext(ts *taskState) bool {
	l, mut := ts.mem.lane, h.cfg.mutation
	switch {
	case l == nil:
		return true
	case l.blocked || len(l.tasks) == 0:
		return false
	case ts.sharesLane():
		return slices.Contains(h.sharedLaneHeads(l), ts)
	}
	return l.tasks[0] == ts || mut == laneEarly && len(l.tasks) > 1 && l.tasks[1] == ts
}

// sharedLaneHeads are the tasks of a shared lane whose turn it is, of which one is granted: one that
// began, until it has ended, or else the first that can. A head that never began and that
// cannot, for it is not due or nobody serves it, holds up those of its origin alone: it
// takes its place among the others when it can.
func (h *Home) sharedLaneHeads(l *lane) (all []*taskState) {
	for _, ts := range l.heads() {
		if ts.mayHaveStarted() {
			return []*taskState{ts}
		}
	}
	for _, ts := range l.heads() {
		if all = append(all, ts); h.untilDue(ts) == 0 && h.served(ts) {
			break
		}
	}
	return all
}

// served reports whether a member is there that could take c when it has room.
func (h *Home) served(ts *taskState) bool {
	q := ts.mem.queue
	if q.membersStale {
		h.rebuildMembers(q)
	}
	return slices.ContainsFunc(q.members, func(m *dispatch.Member) bool {
		return m.Alive && contains(m.Kinds, ts.task.Kind) && !slices.ContainsFunc(ts.task.Labels, func(l string) bool { return !contains(m.Labels, l) })
	})
}

// queue returns the queue of a name.
func (h *Home) queue(name string) *queue {
	q := h.queues[name]
	if q == nil {
		q = newQueue(name)
		h.addQueue(q)
	}
	return q
}

func newQueue(name string) *queue {
	q := &queue{name: name, usage: dispatch.NewUsage(), lanes: map[laneKey]*lane{}, membersStale: true}
	q.strategy, _ = dispatch.New("")
	return q
}

func (h *Home) addQueue(q *queue) {
	h.queues[q.name] = q
	h.order = append(h.order, q)
}

// setState makes m the state of q.
func (h *Home) setState(q *queue, m *proto.QueueState) {
	h.charge(q, m)
	q.deeds, q.root = h.proofs(m.Deeds), h.rootOf(m, q)
	if s, err := dispatch.New(m.Strategy); err == nil && s.Name() != q.strategy.Name() {
		q.strategy = s
	}
	moved := q.state != nil && q.state.GetSharedLanes() != m.GetSharedLanes()
	q.state, q.membersStale = m, true
	if moved {
		h.regroupLanes(q)
	}
	q.limits = dispatch.Limits{Queue: int(m.Concurrency), Node: int(m.NodeConcurrency), Kinds: map[string]dispatch.KindLimit{}}
	for _, k := range m.Kinds {
		q.limits.Kinds[k.Kind] = dispatch.KindLimit{Queue: int(k.Concurrency), Node: int(k.NodeConcurrency)}
	}
}

// rootOf is the root of the deeds that prove m, which was taken for q.
func (h *Home) rootOf(m *proto.QueueState, q *queue) (root Root) {
	found := false
	for _, d := range h.proofs(m.Deeds) {
		if d.Generation == m.Generation && string(d.To[:]) == string(m.Home) && (!found || bytes.Compare(d.Root[:], root[:]) < 0) {
			root, found = d.Root, true
		}
	}
	if !found && len(m.Root) == len(root) {
		return Root(m.Root)
	} else if !found {
		return q.root
	}
	return root
}

// regroupLanes puts the tasks of q into the lanes that they belong to by its rules of now. Those
// of a lane that stood still go on standing still.
func (h *Home) regroupLanes(q *queue) {
	old := q.lanes
	q.lanes = map[laneKey]*lane{}
	for e := h.live.Front(); e != nil; e = e.Next() {
		ts := e.Value.(*taskState)
		if ts.mem.queue != q || ts.mem.lane == nil {
			continue
		}
		was := ts.mem.lane
		l := q.lane(q.laneOf(&ts.task))
		l.add(ts)
		if ts.mem.lane = l; was.blocked && !l.blocked {
			l.blocked, l.deadHead = true, was.deadHead
			h.out.put(blockKey(q.name, l.key), blockOf(q.name, l))
		}
	}
	for k, l := range old {
		if l.blocked && (q.lanes[k] == nil || !q.lanes[k].blocked) {
			h.out.drop(blockKey(q.name, k))
		}
		if l.lastMoved != nil && l.lastMoved.lease != nil { // its last is on its way to another home
			now := q.lane(laneKey{key: k.key})
			if !q.state.GetSharedLanes() {
				now = q.lane(l.lastMoved.laneKey())
			}
			now.lastMoved = l.lastMoved
		}
	}
	for _, l := range q.lanes {
		for _, ts := range l.tasks {
			h.reschedule(ts)
		}
	}
}

func blockOf(queue string, l *lane) *proto.LaneBlock {
	return &proto.LaneBlock{Queue: queue, Key: l.key.key, Origin: l.key.originBytes(), Task: slices.Clone(l.deadHead[:])}
}

// isHome reports whether self is the home of q.
func (q *queue) isHome(self proto.PeerID) bool {
	return q.state == nil || len(q.state.Home) == 0 || string(q.state.Home) == string(self[:])
}

// lane returns the lane of a key.
func (q *queue) lane(key laneKey) *lane {
	l := q.lanes[key]
	if l == nil {
		l = &lane{key: key}
		q.lanes[key] = l
	}
	return l
}

// idle reports whether nothing of q waits here.
func (q *queue) idle() bool {
	for i := range q.ready {
		if len(q.ready[i].shapes) > 0 {
			return false
		}
	}
	return len(q.delayed) == 0
}

func (q *queue) makeReady(ts *taskState) {
	ts.mem.class = ts.task.Class.Index()
	q.ready[ts.mem.class].push(ts)
}

func (q *queue) unready(ts *taskState) {
	if ts.mem.ready != nil {
		q.ready[ts.mem.class].remove(ts)
	}
}

// wait lets c be settled again at a time of Mono.
func (q *queue) wait(ts *taskState, at time.Duration) {
	ts.mem.recheckAt = at
	heap.Push(&q.delayed, delayedTask{at, ts})
}

// A delayHeap orders cells by when they are looked at again. An entry may be out of date: it is
// looked at again then.
type delayHeap []delayedTask

type delayedTask struct {
	due  time.Duration
	task *taskState
}

func (d delayHeap) Len() int           { return len(d) }
func (d delayHeap) Less(i, j int) bool { return d[i].due < d[j].due }
func (d delayHeap) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }
func (d *delayHeap) Push(x any)        { *d = append(*d, x.(delayedTask)) }
func (d *delayHeap) Pop() any {
	old := *d
	x := old[len(old)-1]
	*d = old[:len(old)-1]
	return x
}

// promoteDue settles what has become due.
func (h *Home) promoteDue(q *queue) {
	for len(q.delayed) > 0 && q.delayed[0].due <= h.now.Mono {
		d := heap.Pop(&q.delayed).(delayedTask)
		if h.cells[d.task.task.ID] == d.task && d.task.mem.recheckAt == d.due {
			h.reschedule(d.task)
		}
	}
}

// A Node is what this home knows about a node that could own tasks. It is a hint:
// a lease makes it true.
type Node struct {
	dispatch.Member
	BootID proto.BootID // of its start, zero if not known: a grant is for this start alone
}

type node struct {
	Node
	backoff map[string]time.Duration // by kind, empty for all: nothing is granted before this time of Mono
}

// SetNode says what is known about a node now.
func (h *Home) SetNode(n Node, now Now) Output {
	h.beginInput(now)
	old := h.nodes[n.Peer]
	if old == nil {
		old = &node{backoff: map[string]time.Duration{}}
		h.nodes[n.Peer] = old
		h.peers = append(h.peers, n.Peer)
	}
	old.Node = n
	for _, q := range h.order {
		q.membersStale = true
	}
	return h.endInput()
}

// backOff keeps a node from tasks of a kind, or of all, for a while.
func (h *Home) backOff(p proto.PeerID, kind string, d time.Duration) {
	if n := h.nodes[p]; n != nil {
		n.backoff[kind] = h.now.Mono + d
	}
}

// candidates returns who may be asked to own c. The node whose run of it failed is
// asked only when there is no other.
func (h *Home) candidates(q *queue, ts *taskState) []dispatch.Candidate {
	if q.membersStale {
		h.rebuildMembers(q)
	}
	all := dispatch.Eligible(nil, ts.dispatchTask(), q.members, q.usage, q.limits)
	kept := all[:0]
	for _, d := range all {
		n := h.nodes[d.Peer]
		if h.now.Mono >= n.backoff[ts.task.Kind] && h.now.Mono >= n.backoff[""] {
			kept = append(kept, d)
		}
	}
	isLast := func(d dispatch.Candidate) bool { return d.Peer == ts.mem.lastFailed }
	if len(kept) > 1 && slices.ContainsFunc(kept, isLast) {
		kept = slices.DeleteFunc(kept, isLast)
	}
	return kept
}

// rebuildMembers joins what the queue and what the nodes say of its members.
func (h *Home) rebuildMembers(q *queue) {
	q.membersStale, q.members = false, nil
	add := func(p proto.PeerID, said *proto.QueueMember) {
		n := h.nodes[p]
		if n == nil {
			return
		}
		m := n.Member
		if said != nil {
			m.Limit, m.Weight = int(said.Concurrency), said.Weight
			m.Draining = m.Draining || said.Draining
			if said.Priority > 0 {
				m.Priority = said.Priority
			}
		}
		for _, l := range q.state.GetLabels() {
			if !contains(m.Labels, l) {
				return
			}
		}
		q.members = append(q.members, &m)
	}
	for _, said := range q.state.GetMembers() {
		if p, err := proto.PeerIDFrom(said.Peer); err == nil {
			add(p, said)
		}
	}
	if len(q.state.GetMembers()) == 0 {
		for _, p := range h.peers {
			add(p, nil)
		}
	}
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

// SetQueue changes the settings of a queue whose home is here. What was waiting
// waits under the new ones; nothing that is owned is touched. One that is not known is
// made, if this node is an admin; else nothing is.
func (h *Home) SetQueue(change func(*proto.QueueState), now Now, name string) Output {
	out, _ := h.CreateQueue(name, change, nil, now)
	return out
}

// set changes the state of q, which is s until then.
func (h *Home) set(q *queue, s *proto.QueueState, change func(*proto.QueueState), now Now) error {
	change(s)
	s.ChangedMs = nextChangedMs(s, now)
	if !h.trimToFit(s) { // what a person sets leaves room for deeds
		return h.errFull(s)
	}
	if _, err := proto.Encode(nil, s); err != nil {
		return fmt.Errorf("queue %s: %w", q.name, err)
	}
	if h.queues[q.name] == nil {
		h.addQueue(q)
	}
	h.setState(q, s)
	h.out.put(queueKey(q.name), s)
	return nil
}

// nextChangedMs is when s is changed, after all that was said of it before, whatever the clock
// shows: the latest is believed.
func nextChangedMs(s *proto.QueueState, now Now) int64 { return max(now.Wall, s.ChangedMs+1) }

func queueKey(name string) string { return string(rune(keyQueue)) + name }

// stateOf is a copy of q's state, or its first one.
func (h *Home) stateOf(q *queue) *proto.QueueState {
	s := &proto.QueueState{Name: q.name, Generation: 1, Home: append([]byte(nil), h.self[:]...)}
	if q.state == nil {
		return s
	}
	b, err := proto.Encode(nil, q.state)
	if err == nil {
		err = proto.Decode(b, s)
	}
	if err != nil {
		panic("ownership: a queue's state that cannot be copied: " + err.Error())
	}
	return s
}

// Queue returns the state of a queue, nil if nothing was ever said about it. It
// must not be changed.
func (h *Home) Queue(name string) *proto.QueueState {
	if q := h.queues[name]; q != nil {
		return q.state
	}
	return nil
}

// HomeOf returns the home of a queue as far as it is known here.
func (h *Home) HomeOf(name string) (home proto.PeerID, generation uint64) {
	if q := h.queues[name]; q != nil && len(q.state.GetHome()) == len(home) {
		copy(home[:], q.state.Home)
		return home, q.state.Generation
	}
	return h.self, 1
}
