package ownership

import (
	"bytes"
	"container/heap"
	"container/list"
	"fmt"
	"slices"
	"time"

	"github.com/balefire/balefire/fair"
	"github.com/balefire/balefire/ownership/dispatch"
	"github.com/balefire/balefire/proto"
)

// A queue is the state of a queue in memory.
type queue struct {
	name         string
	state        *proto.QueueState // nil: unknown, and treated as at home here
	deeds        []proof           // the valid deeds of state
	root         Root              // of the deeds that prove state
	strategy     dispatch.Strategy
	picker       fair.Picker
	usage        *dispatch.Usage
	limits       dispatch.Limits
	tasks        list.List     // of *taskState, in the order in which they came
	ready        [4]readyQueue // by class
	stuck        stuckShapes   // of tasks in ready
	delayed      delayHeap
	lanes        map[laneKey]*lane
	blockedLanes int
	members      []*dispatch.Member // see refreshMembers
	membersStale bool               // members must be rebuilt
	announced    bool               // its home, another node, has confirmed it
	handedOff    bool               // this node was its home before, since this start
	announcedAt  time.Duration      // when it was last announced
	chargedTo    proto.PeerID       // whose usage includes the state
	stateBytes   int                // counted there
}

// A laneKey identifies a lane: the tasks of one origin with one ordering key or, if the
// queue shares its lanes, those of all origins with that key.
type laneKey struct {
	origin proto.PeerID // zero: all origins
	key    string       // empty: no lane
}

// laneOf returns the key of the lane that a task belongs to.
func (q *queue) laneOf(t *Task) laneKey {
	if q.state.GetSharedLanes() {
		return laneKey{key: t.Key}
	}
	return laneKey{t.Origin, t.Key}
}

// originBytes returns the origin as stored in records.
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

// A lane holds the tasks of one laneKey in the order in which they came. Only the first may
// be granted.
type lane struct {
	key         laneKey
	tasks       []*taskState
	blocked     bool          // its last head failed, and an operator must unblock it
	deadHead    proto.TaskID  // that head; zero: unknown
	lastMoved   *handoffEntry // of its tasks that went to another home
	cachedHeads []*taskState  // see heads; nil: must be recomputed
}

// sharesLane reports whether the task is in a lane with those of all origins.
func (ts *taskState) sharesLane() bool {
	return ts.mem.lane != nil && ts.mem.queue.state.GetSharedLanes()
}

// heads returns the first task of each origin, in the order in which they came.
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

// add appends ts.
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

// isNext reports whether ts is next in its lane.
func (ts *taskState) isNext(now Now, all *members) bool {
	l := ts.mem.lane
	switch {
	case l == nil:
		return true
	case l.blocked || len(l.tasks) == 0:
		return false
	case ts.sharesLane():
		return slices.Contains(l.sharedHeads(now, all), ts)
	}
	return l.tasks[0] == ts
}

// sharedHeads returns the candidates of a shared lane, of which one is granted: a task
// that has begun, until it has ended, or else the heads up to the first that can run. A
// head that has not begun and cannot run, because it is not due or no member serves it,
// blocks only the tasks of its own origin.
func (l *lane) sharedHeads(now Now, all *members) (heads []*taskState) {
	for _, ts := range l.heads() {
		if ts.mayHaveStarted() {
			return []*taskState{ts}
		}
	}
	for _, ts := range l.heads() {
		if heads = append(heads, ts); ts.untilDue(now) == 0 && ts.served(all) {
			break
		}
	}
	return heads
}

// queue returns the queue with this name, and adds it if needed.
func (h *Home) queue(name string) *queue {
	q := h.queues[name]
	if q == nil {
		q = h.newQueue(name)
		h.addQueue(q)
	}
	return q
}

func (h *Home) newQueue(name string) *queue {
	q := &queue{name: name, usage: dispatch.NewUsage(h.cfg.Ahead), lanes: map[laneKey]*lane{}, membersStale: true}
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

// rootOf returns the root of the deeds that prove m, the accepted state of q.
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

// maxBlockedLanes is the number of blocked lanes of a queue beyond which no more are taken
// from former homes: those keep them, and send them again.
const maxBlockedLanes = 1 << 14

// block blocks a lane because its head failed; zero: it is unknown which.
func (q *queue) block(l *lane, head proto.TaskID) {
	if !l.blocked {
		l.blocked = true
		q.blockedLanes++
	}
	l.deadHead = head
}

// regroupLanes moves the tasks of q to the lanes that its present settings give. Tasks of a
// blocked lane stay blocked.
func (h *Home) regroupLanes(q *queue) {
	old := q.lanes
	q.lanes, q.blockedLanes = map[laneKey]*lane{}, 0
	for e := q.tasks.Front(); e != nil; e = e.Next() {
		ts := e.Value.(*taskState)
		if ts.mem.lane == nil {
			continue
		}
		was := ts.mem.lane
		l := q.lane(q.laneOf(&ts.task))
		l.add(ts)
		if ts.mem.lane = l; was.blocked && !l.blocked {
			q.block(l, was.deadHead)
			h.out.put(blockKey(q.name, l.key), blockOf(q.name, l))
		}
	}
	for k, l := range old {
		if l.blocked && (q.lanes[k] == nil || !q.lanes[k].blocked) {
			h.out.drop(blockKey(q.name, k))
		}
		if l.lastMoved != nil && l.lastMoved.lease != nil { // its last task is in transit to another home
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

// lane returns the lane of a key, and adds it if needed.
func (q *queue) lane(key laneKey) *lane {
	l := q.lanes[key]
	if l == nil {
		l = &lane{key: key}
		q.lanes[key] = l
	}
	return l
}

// idle reports whether no task of q waits here.
func (q *queue) idle() bool {
	for i := range q.ready {
		if q.ready[i].turns.Len() > 0 {
			return false
		}
	}
	return len(q.delayed) == 0
}

// makeReady adds ts to the ready tasks. One that is there keeps its place.
func (q *queue) makeReady(ts *taskState) {
	if ts.mem.ready != nil {
		return
	}
	ts.mem.class = ts.task.Class.Index()
	q.ready[ts.mem.class].push(ts)
}

func (q *queue) unready(ts *taskState) {
	if ts.mem.ready != nil {
		q.ready[ts.mem.class].remove(ts)
	}
}

// wait reschedules ts at a time of Mono.
func (q *queue) wait(ts *taskState, at time.Duration) {
	ts.mem.recheckAt = at
	heap.Push(&q.delayed, delayedTask{at, ts})
}

// A delayHeap orders tasks by when they are rescheduled. An entry may be out of date; then
// rescheduling changes nothing.
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

// promoteDue reschedules the tasks that have become due.
func (h *Home) promoteDue(q *queue) {
	for len(q.delayed) > 0 && q.delayed[0].due <= h.now.Mono {
		d := heap.Pop(&q.delayed).(delayedTask)
		if h.tasks[d.task.task.ID] == d.task && d.task.mem.recheckAt == d.due {
			h.reschedule(d.task)
		}
	}
}

// candidates returns the members that may be granted ts. The node whose run of it failed
// last is included only if there is no other.
func (h *Home) candidates(q *queue, ts *taskState) []dispatch.Candidate {
	q.refreshMembers(&h.members)
	all := h.selfOnlyIfInactive(dispatch.Eligible(nil, ts.dispatchTask(), q.members, q.usage, q.limits))
	kept := all[:0]
	for _, d := range all {
		if !h.members.backedOff(d.Peer, ts.task.Kind, h.now.Mono) {
			kept = append(kept, d)
		}
	}
	isLast := func(d dispatch.Candidate) bool { return d.Peer == ts.mem.lastFailed }
	if len(kept) > 1 && slices.ContainsFunc(kept, isLast) {
		kept = slices.DeleteFunc(kept, isLast)
	}
	return dispatch.FreeFirst(kept)
}

// set changes s, the state of q.
func (h *Home) set(q *queue, s *proto.QueueState, change func(*proto.QueueState), now Now) error {
	change(s)
	s.ChangedMs = nextChangedMs(s, now)
	if !h.trimToFit(s) { // settings must leave room for deeds
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

// nextChangedMs returns the change time of s: later than any before, whatever the clock
// shows, since the latest wins.
func nextChangedMs(s *proto.QueueState, now Now) int64 { return max(now.Wall, s.ChangedMs+1) }

func queueKey(name string) string { return string(rune(keyQueue)) + name }

// stateOf returns a copy of q's state, or its initial one.
func (h *Home) stateOf(q *queue) *proto.QueueState {
	if q.state != nil {
		return proto.Clone(q.state)
	}
	s := &proto.QueueState{Name: q.name, Generation: 1, Home: append([]byte(nil), h.self[:]...)}
	s.Kind, _ = proto.TitleKindOf(q.name)
	return s
}
