package ownership

import (
	"container/list"
	"slices"
	"time"

	"github.com/balefire/balefire/ownership/dispatch"
	"github.com/balefire/balefire/proto"
)

// A Task is what a home needs to know about a task. The driver keeps the record of the task
// itself.
type Task struct {
	ID         proto.TaskID
	Sent       proto.PeerID // the home that its origin sent it to; zero: unknown
	Origin     proto.PeerID
	Queue      string
	Kind       string
	Class      proto.Class
	Mode       proto.Mode
	Key        string             // ordering key, empty for none
	Block      bool               // on_dead is block: the lane waits for an operator
	NotBefore  int64              // Unix milliseconds, 0: at once
	NotAfter   int64              // Unix milliseconds: no start after this
	Options    *proto.TaskOptions // never changed; nil: the defaults
	MayHaveRun MayHaveRun
	Cancelled  bool   // by its origin, before it came: it ends without a start
	Denied     string // for a task that is handed over: why its queue rejects it; empty: it is accepted
}

// A MayHaveRun states whether a task may have run in the time that a store lost when it was
// restored from an older copy.
type MayHaveRun byte

// The values of [MayHaveRun].
const (
	CertainlyNotRun   MayHaveRun = iota
	CreatedBeforeLoss            // it was created before the loss: it may have been here, unless a handoff brought it since
	PresentBeforeLoss            // it was here before the loss
)

func (t *Task) atMostOnce() bool { return t.Mode == proto.AtMostOnce }

// A taskState is the authoritative state of a task. The fields above mem are on disk once a
// lease was granted.
type taskState struct {
	task               Task
	state              proto.TaskState
	epoch              proto.Seq
	gen                uint64
	owner              proto.PeerID
	boot               proto.BootID
	token              Token
	attempts, abandons uint32
	released           bool // the owner of the newest epoch reported that it does not work on the task
	lost               bool // a lease of it ran out: its owner may still run it, until its result's deadline
	cancel             bool
	cancelHard         bool // its owner kills the handler at once
	reason             string
	grants             []*proto.Granting
	moves              []*proto.Receipt
	class              proto.Class // set by an operator; unspecified: the task's own

	mem taskMem
}

// A taskMem is the part of a task's state that is only in memory.
type taskMem struct {
	live        *list.Element // in Home.live
	queue       *queue
	inQueue     *list.Element // in queue.tasks
	lane        *lane
	ready       *list.Element // in queue.ready; nil: not there
	readySeq    uint64        // its number in queue.ready
	class       int           // index into queue.ready
	dueAt       time.Duration // not granted before this time of Mono
	recheckAt   time.Duration // rescheduled at this time of Mono
	leaseUntil  time.Duration // end of the lease
	grantUntil  time.Duration // after it, a grant that has not reached the owner gives way to one for another node
	sentAt      time.Duration // time of the last grant, status or cancel sent
	acked       bool          // the owner acknowledged the grant, or is asked by Status
	lapsed      bool          // the lease is over, and no other node was granted one
	counted     bool          // counted in queue.usage
	lastFailed  proto.PeerID  // whose run failed last, or who knows a higher epoch: not asked again while another node can take the task
	silentSince time.Duration // since when the owner of a task that may have started has been silent; 0: it is not
}

// leased reports whether a node may be working on the task under a lease that is not over.
func (ts *taskState) leased() bool {
	return ts.epoch != (proto.Seq{}) && !ts.released && !ts.mem.lapsed
}

// mayHaveStarted reports whether the task may have been started, or may be now.
func (ts *taskState) mayHaveStarted() bool {
	return !ts.free() || ts.lost || ts.attempts+ts.abandons > 0
}

// mayHaveCrashed reports whether the owner of a lease that is over may have started the task. One
// of mode at_most_once had no permit.
func (ts *taskState) mayHaveCrashed() bool { return ts.mem.acked && !ts.task.atMostOnce() }

// attempt returns the number of the newest attempt; 0: there was none.
func (ts *taskState) attempt() uint32 {
	n := ts.attempts + ts.abandons
	if !ts.free() {
		n++
	}
	return n
}

// free reports whether it is certain that no node works on the task.
func (ts *taskState) free() bool { return ts.epoch == (proto.Seq{}) || ts.released }

// permitted reports whether the handler of an at_most_once task may have been started.
func (ts *taskState) permitted() bool {
	return !ts.released && (ts.state == proto.Running || ts.state == proto.Indeterminate)
}

// matches is the commit rule. A message counts only if it comes from the owner of the
// newest epoch, carries that lease's boot id and token, and arrives before the owner
// released the lease.
func (ts *taskState) matches(from proto.PeerID, k claim) bool {
	return ts.epoch == k.epoch && ts.epoch != (proto.Seq{}) &&
		ts.owner == from &&
		ts.token == k.token &&
		k.boot != (proto.BootID{}) && (ts.boot == k.boot || ts.boot == (proto.BootID{})) &&
		!ts.released
}

func (ts *taskState) claim() claim {
	return claim{task: ts.task.ID, epoch: ts.epoch, token: ts.token, boot: ts.boot, gen: ts.gen}
}

// recordGrant adds the grant to the history.
func (ts *taskState) recordGrant(wall int64) {
	g := &proto.Granting{EpochBoot: ts.epoch.Boot, EpochCounter: ts.epoch.Counter, Owner: slices.Clone(ts.owner[:]), TimeMs: wall}
	if len(ts.grants) >= proto.MaxAttempts {
		const keep = proto.MaxAttempts / 4
		ts.grants = slices.Concat(ts.grants[:keep], ts.grants[keep+1:])
	}
	ts.grants = append(ts.grants[:len(ts.grants):len(ts.grants)], g)
}

// recordGrantEnd notes why the newest grant ended.
func (ts *taskState) recordGrantEnd(why string, wall int64) {
	if n := len(ts.grants); n > 0 && ts.grants[n-1].Ended == "" {
		g := ts.grants[n-1]
		ts.grants = slices.Clone(ts.grants)
		ts.grants[n-1] = &proto.Granting{EpochBoot: g.EpochBoot, EpochCounter: g.EpochCounter, Owner: g.Owner, TimeMs: g.TimeMs, Ended: proto.Clip(why, 128), EndedMs: wall}
	}
}

// record returns the record that is stored.
func (ts *taskState) record() *proto.Lease {
	m := &proto.Lease{
		Task: ts.task.ID[:], Queue: ts.task.Queue, State: ts.state, EpochBoot: ts.epoch.Boot, EpochCounter: ts.epoch.Counter,
		Generation: ts.gen, Attempts: ts.attempts, Abandons: ts.abandons, Released: ts.released, Cancel: ts.cancel, CancelHard: ts.cancelHard, Lost: ts.lost,
		Reason: ts.reason, NotAfterMs: ts.task.NotAfter, Grants: ts.grants, Moves: ts.moves, Class: ts.class,
	}
	if ts.epoch != (proto.Seq{}) {
		m.Owner, m.Token = ts.owner[:], ts.token[:]
	}
	if ts.boot != (proto.BootID{}) {
		m.BootId = ts.boot[:]
	}
	return m
}

// taskStateOf returns the state that a record holds.
func taskStateOf(t Task, m *proto.Lease) *taskState {
	ts := &taskState{
		task: t, state: m.State, epoch: proto.Seq{Boot: m.EpochBoot, Counter: m.EpochCounter}, gen: m.Generation,
		attempts: m.Attempts, abandons: m.Abandons, released: m.Released, lost: m.Lost, cancel: m.Cancel, cancelHard: m.CancelHard, reason: m.Reason,
		grants: m.Grants, moves: m.Moves, class: m.Class,
	}
	if ts.class != proto.ClassUnspecified {
		ts.task.Class = ts.class
	}
	copy(ts.owner[:], m.Owner)
	copy(ts.boot[:], m.BootId)
	copy(ts.token[:], m.Token)
	return ts
}

// untilDue returns how long ts must not be granted yet: by the monotonic clock after a
// failed attempt, by the wall clock before the first one.
func (ts *taskState) untilDue(now Now) time.Duration {
	d := ts.mem.dueAt - now.Mono
	if ts.epoch == (proto.Seq{}) {
		d = max(d, time.Duration(ts.task.NotBefore-now.Wall)*time.Millisecond)
	}
	return max(d, 0)
}

// updateUsage counts ts in the usage of its queue, at a time of Mono.
func (ts *taskState) updateUsage(owned bool, at time.Duration) {
	if owned != ts.mem.counted {
		ts.mem.counted = owned
		n := -1
		if owned {
			n = 1
		}
		ts.mem.queue.usage.Add(ts.owner, ts.task.Kind, n, at)
	}
}

// dispatchTask returns the task as package dispatch needs it.
func (ts *taskState) dispatchTask() *dispatch.Task {
	return &dispatch.Task{Kind: ts.task.Kind, Labels: ts.task.Options.GetRequire(), Prefer: ts.task.Options.GetPrefer()}
}
