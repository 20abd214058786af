package ownership

import (
	"container/heap"
	"container/list"
	"slices"
	"time"

	"github.com/balefire/balefire/fair"
	"github.com/balefire/balefire/ownership/dispatch"
	"github.com/balefire/balefire/proto"
)

// A queue is the state of a queue in memory.
type queue struct {
	title        *title
	applied      *proto.QueueState // the state of the title that counts here; see Home.apply
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
	handedOff    bool               // this node was its home before, since this start
}

// A laneKey identifies a lane: the tasks of one origin with one ordering key or, if the
// queue shares its lanes, those of all origins with that key.
type laneKey struct {
	origin proto.PeerID // zero: all origins
	key    string       // empty: no lane
}

// laneOf returns the key of the lane that a task belongs to.
func (q *queue) laneOf(t *Task) laneKey {
	if q.title.state.GetSharedLanes() {
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
	return ts.mem.lane != nil && ts.mem.queue.title.state.GetSharedLanes()
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

// queue returns the queue with this name, and adds it if needed.
func (h *Home) queue(name string) *queue {
	q := h.queues[name]
	if q == nil {
		q = &queue{title: h.titles.keep(h.titles.named(name)), usage: dispatch.NewUsage(h.cfg.Ahead), lanes: map[laneKey]*lane{}, membersStale: true}
		q.strategy, _ = dispatch.New("")
		h.queues[name] = q
		h.order = append(h.order, q)
	}
	return q
}

// apply applies the settings of q after a change.
func (h *Home) apply(q *queue) {
	old, s := q.applied, q.title.state
	if s == old {
		return
	}
	q.applied, q.membersStale = s, true
	if x, err := dispatch.New(s.Strategy); err == nil && x.Name() != q.strategy.Name() {
		q.strategy = x
	}
	if old != nil && old.GetSharedLanes() != s.GetSharedLanes() {
		h.regroupLanes(q)
	}
	q.limits = dispatch.Limits{Queue: int(s.Concurrency), Node: int(s.NodeConcurrency), Kinds: map[string]dispatch.KindLimit{}}
	for _, k := range s.Kinds {
		q.limits.Kinds[k.Kind] = dispatch.KindLimit{Queue: int(k.Concurrency), Node: int(k.NodeConcurrency)}
	}
}

// regroupLanes moves the tasks of q to the lanes that its present settings give. Tasks of a
// blocked lane stay blocked.
func (h *Home) regroupLanes(q *queue) {
	old := q.lanes
	q.lanes, q.blockedLanes = map[laneKey]*lane{}, 0
	for ts := range each[*taskState](&q.tasks) {
		if ts.mem.lane == nil {
			continue
		}
		was := ts.mem.lane
		l := q.lane(q.laneOf(&ts.task))
		l.add(ts)
		if ts.mem.lane = l; was.blocked && !l.blocked {
			q.block(l, was.deadHead)
			h.out.put(blockKey(q.title.name, l.key), blockOf(q.title.name, l))
		}
	}
	for k, l := range old {
		if l.blocked && (q.lanes[k] == nil || !q.lanes[k].blocked) {
			h.out.drop(blockKey(q.title.name, k))
		}
		if l.lastMoved != nil && l.lastMoved.lease != nil { // its last task is in transit to another home
			now := q.lane(laneKey{key: k.key})
			if !q.title.state.GetSharedLanes() {
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
