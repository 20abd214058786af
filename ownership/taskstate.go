package ownership

import (
	"container/list"
	"slices"
	"time"

	"github.com/balefire/balefire/ownership/dispatch"
	"github.com/balefire/balefire/proto"
)

// A Task is what a home needs to know of a task. The record of the task itself is
// its driver's.
type Task struct {
	ID          proto.TaskID
	Sent        proto.PeerID // the home that its origin sent it to, zero if not known
	Origin      proto.PeerID
	Queue       string
	Kind        string
	Class       proto.Class
	Mode        proto.Mode
	Key         string   // ordering key, empty for none
	Block       bool     // on_dead is block: the lane waits for a person
	Labels      []string // that an owner must have
	Prefer      []string // that it should have
	NotBefore   int64    // Unix milliseconds, 0: at once
	NotAfter    int64    // Unix milliseconds: no start after it
	MaxAttempts uint32   // 0: the home's
	MaxResult   uint64   // bytes; 0: as many as its handler gives
	MayHaveRun  MayHaveRun
	Denied      string // of one that is handed over: why its queue does not take it, empty if it does
}

// A MayHaveRun says whether a task may have run in what a store has lost that was restored
// from an older copy.
type MayHaveRun byte

// The doubts.
const (
	CertainlyNotRun   MayHaveRun = iota
	CreatedBeforeLoss            // it was made before the loss: it may have come here, unless it came by a handoff since
	PresentBeforeLoss            // it was here then
)

func (t *Task) atMostOnce() bool { return t.Mode == proto.AtMostOnce }

// A taskState is the one place where it is decided about a task. What is above place is
// on disk once a grant was made.
type taskState struct {
	task               Task
	state              proto.TaskState
	epoch              proto.Seq
	gen                uint64
	owner              proto.PeerID
	boot               proto.BootID
	token              Token
	attempts, abandons uint32
	released           bool // nobody works on it: the owner of the newest epoch said so
	cancel             bool
	reason             string
	grants             []*proto.Granting
	moves              []*proto.Receipt
	class              proto.Class // that a person gave it; unspecified: its own

	mem taskMem
}

// A taskMem is where a cell stands in memory.
type taskMem struct {
	live        *list.Element // in Home.live
	queue       *queue
	lane        *lane
	ready       *list.Element // in queue.ready
	readySeq    uint64        // to queue.ready
	class       int           // of ready
	dueAt       time.Duration // not granted before this time of Mono
	recheckAt   time.Duration // settled again then
	leaseUntil  time.Duration // the lease ends then
	sentAt      time.Duration // a grant, a status or a cancel was sent last
	acked       bool          // the owner acknowledged the grant, or is asked by Status
	lapsed      bool          // the lease is over, and nobody else was granted
	counted     bool          // counted in queue.usage
	lastFailed  proto.PeerID  // whose run of it failed last: not asked while another can take it
	silentSince time.Duration // since when an owner of a task that may have started says nothing
}

// leased reports whether somebody may be at work on c under a lease that is not
// over.
func (ts *taskState) leased() bool {
	return ts.epoch != (proto.Seq{}) && !ts.released && !ts.mem.lapsed
}

// mayHaveStarted reports whether c may have been started, or may be now.
func (ts *taskState) mayHaveStarted() bool { return !ts.free() || ts.attempts+ts.abandons > 0 }

// free reports whether certainly nobody is at work on c.
func (ts *taskState) free() bool { return ts.epoch == (proto.Seq{}) || ts.released }

// permitted reports whether the handler of an at_most_once task may have been
// started.
func (ts *taskState) permitted() bool {
	return !ts.released && (ts.state == proto.Running || ts.state == proto.Indeterminate)
}

// matches is the commit rule for any word of an owner: it counts only from the node
// that the newest epoch was granted to, from the start of it that took the lease,
// with the token that was drawn for it, and until it gave the lease back.
func (ts *taskState) matches(from proto.PeerID, k claim, mut mutation) bool {
	return (ts.epoch == k.epoch || mut == epochUnchecked) && ts.epoch != (proto.Seq{}) &&
		(ts.owner == from || mut == ownerUnchecked) &&
		(ts.token == k.token || mut == tokenUnchecked) &&
		k.boot != (proto.BootID{}) && (ts.boot == k.boot || ts.boot == (proto.BootID{}) || mut == bootUnchecked) &&
		!ts.released
}

func (ts *taskState) claim() claim {
	return claim{task: ts.task.ID, epoch: ts.epoch, token: ts.token, boot: ts.boot, gen: ts.gen}
}

// recordGrant notes a grant in the history.
func (ts *taskState) recordGrant(wall int64) {
	g := &proto.Granting{EpochBoot: ts.epoch.Boot, EpochCounter: ts.epoch.Counter, Owner: slices.Clone(ts.owner[:]), TimeMs: wall}
	if len(ts.grants) >= proto.MaxAttempts {
		const keep = proto.MaxAttempts / 4
		ts.grants = slices.Concat(ts.grants[:keep], ts.grants[keep+1:])
	}
	ts.grants = append(ts.grants[:len(ts.grants):len(ts.grants)], g)
}

// recordGrantEnd notes why the newest grant is over.
func (ts *taskState) recordGrantEnd(why string, wall int64) {
	if n := len(ts.grants); n > 0 && ts.grants[n-1].Ended == "" {
		g := ts.grants[n-1]
		ts.grants = slices.Clone(ts.grants)
		ts.grants[n-1] = &proto.Granting{EpochBoot: g.EpochBoot, EpochCounter: g.EpochCounter, Owner: g.Owner, TimeMs: g.TimeMs, Ended: proto.Clip(why, 128), EndedMs: wall}
	}
}

// record is c as it is written.
func (ts *taskState) record() *proto.Lease {
	m := &proto.Lease{
		Task: ts.task.ID[:], Queue: ts.task.Queue, State: ts.state, EpochBoot: ts.epoch.Boot, EpochCounter: ts.epoch.Counter,
		Generation: ts.gen, Attempts: ts.attempts, Abandons: ts.abandons, Released: ts.released, Cancel: ts.cancel,
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

// taskStateOf is the cell of a record.
func taskStateOf(t Task, m *proto.Lease) *taskState {
	ts := &taskState{
		task: t, state: m.State, epoch: proto.Seq{Boot: m.EpochBoot, Counter: m.EpochCounter}, gen: m.Generation,
		attempts: m.Attempts, abandons: m.Abandons, released: m.Released, cancel: m.Cancel, reason: m.Reason,
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

// dispatchTask is c as dispatch sees it.
func (ts *taskState) dispatchTask() *dispatch.Task {
	return &dispatch.Task{Kind: ts.task.Kind, Labels: ts.task.Labels, Prefer: ts.task.Prefer}
}

// An endedTask is what a home remembers of a task that has ended, or has been here.
type endedTask struct {
	task        proto.TaskID
	gen         uint64
	state       proto.TaskState
	epoch       proto.Seq
	owner       proto.PeerID
	digest      []byte
	notAfter    int64
	fromHandoff bool // it came by a handoff: a late copy must find this
}
