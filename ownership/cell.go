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
	Doubt       Doubt
	Denied      string // of one that is handed over: why its queue does not take it, empty if it does
}

// A Doubt says whether a task may have run in what a store has lost that was restored
// from an older copy.
type Doubt byte

// The doubts.
const (
	NoDoubt    Doubt = iota
	MadeBefore       // it was made before the loss: it may have come here, unless it came by a handoff since
	HereBefore       // it was here then
)

func (t *Task) once() bool { return t.Mode == proto.AtMostOnce }

// A cell is the one place where it is decided about a task. What is above place is
// on disk once a grant was made.
type cell struct {
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

	place place
}

// A place is where a cell stands in memory.
type place struct {
	live   *list.Element // in Home.live
	queue  *queue
	lane   *lane
	ready  *list.Element // in queue.ready
	came   uint64        // to queue.ready
	class  int           // of ready
	due    time.Duration // not granted before this time of Mono
	look   time.Duration // settled again then
	until  time.Duration // the lease ends then
	asked  time.Duration // a grant, a status or a cancel was sent last
	taken  bool          // the owner acknowledged the grant, or is asked by Status
	lapsed bool          // the lease is over, and nobody else was granted
	owned  bool          // counted in queue.usage
	failed proto.PeerID  // whose run of it failed last: not asked while another can take it
	silent time.Duration // since when an owner of a task that may have started says nothing
}

// leased reports whether somebody may be at work on c under a lease that is not
// over.
func (c *cell) leased() bool {
	return c.epoch != (proto.Seq{}) && !c.released && !c.place.lapsed
}

// began reports whether c may have been started, or may be now.
func (c *cell) began() bool { return !c.free() || c.attempts+c.abandons > 0 }

// free reports whether certainly nobody is at work on c.
func (c *cell) free() bool { return c.epoch == (proto.Seq{}) || c.released }

// permitted reports whether the handler of an at_most_once task may have been
// started.
func (c *cell) permitted() bool {
	return !c.released && (c.state == proto.Running || c.state == proto.Indeterminate)
}

// fits is the commit rule for any word of an owner: it counts only from the node
// that the newest epoch was granted to, from the start of it that took the lease,
// with the token that was drawn for it, and until it gave the lease back.
func (c *cell) fits(from proto.PeerID, k claim, f flaw) bool {
	return (c.epoch == k.epoch || f == epochUnchecked) && c.epoch != (proto.Seq{}) &&
		(c.owner == from || f == ownerUnchecked) &&
		(c.token == k.token || f == tokenUnchecked) &&
		k.boot != (proto.BootID{}) && (c.boot == k.boot || c.boot == (proto.BootID{}) || f == bootUnchecked) &&
		!c.released
}

func (c *cell) claim() claim {
	return claim{task: c.task.ID, epoch: c.epoch, token: c.token, boot: c.boot, gen: c.gen}
}

// granted notes a grant in the history.
func (c *cell) granted(wall int64) {
	g := &proto.Granting{EpochBoot: c.epoch.Boot, EpochCounter: c.epoch.Counter, Owner: slices.Clone(c.owner[:]), TimeMs: wall}
	if len(c.grants) >= proto.MaxAttempts {
		const keep = proto.MaxAttempts / 4
		c.grants = slices.Concat(c.grants[:keep], c.grants[keep+1:])
	}
	c.grants = append(c.grants[:len(c.grants):len(c.grants)], g)
}

// over notes why the newest grant is over.
func (c *cell) over(why string, wall int64) {
	if n := len(c.grants); n > 0 && c.grants[n-1].Ended == "" {
		g := c.grants[n-1]
		c.grants = slices.Clone(c.grants)
		c.grants[n-1] = &proto.Granting{EpochBoot: g.EpochBoot, EpochCounter: g.EpochCounter, Owner: g.Owner, TimeMs: g.TimeMs, Ended: proto.Clip(why, 128), EndedMs: wall}
	}
}

// record is c as it is written.
func (c *cell) record() *proto.Lease {
	m := &proto.Lease{
		Task: c.task.ID[:], Queue: c.task.Queue, State: c.state, EpochBoot: c.epoch.Boot, EpochCounter: c.epoch.Counter,
		Generation: c.gen, Attempts: c.attempts, Abandons: c.abandons, Released: c.released, Cancel: c.cancel,
		Reason: c.reason, NotAfterMs: c.task.NotAfter, Grants: c.grants, Moves: c.moves, Class: c.class,
	}
	if c.epoch != (proto.Seq{}) {
		m.Owner, m.Token = c.owner[:], c.token[:]
	}
	if c.boot != (proto.BootID{}) {
		m.BootId = c.boot[:]
	}
	return m
}

// cellOf is the cell of a record.
func cellOf(t Task, m *proto.Lease) *cell {
	c := &cell{
		task: t, state: m.State, epoch: proto.Seq{Boot: m.EpochBoot, Counter: m.EpochCounter}, gen: m.Generation,
		attempts: m.Attempts, abandons: m.Abandons, released: m.Released, cancel: m.Cancel, reason: m.Reason,
		grants: m.Grants, moves: m.Moves, class: m.Class,
	}
	if c.class != proto.ClassUnspecified {
		c.task.Class = c.class
	}
	copy(c.owner[:], m.Owner)
	copy(c.boot[:], m.BootId)
	copy(c.token[:], m.Token)
	return c
}

// wants is c as dispatch sees it.
func (c *cell) wants() *dispatch.Task {
	return &dispatch.Task{Kind: c.task.Kind, Labels: c.task.Labels, Prefer: c.task.Prefer}
}

// An ended is what a home remembers of a task that has ended, or has been here.
type ended struct {
	task     proto.TaskID
	gen      uint64
	state    proto.TaskState
	epoch    proto.Seq
	owner    proto.PeerID
	digest   []byte
	notAfter int64
	handed   bool // it came by a handoff: a late copy must find this
}
