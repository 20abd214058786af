package backlog

import (
	"sync"
	"time"

	"github.com/balefire/balefire/fair"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// A Backlog is the schedule of the entries in one bucket. All its methods are
// safe for concurrent use.
type Backlog struct {
	store   *store.Store
	buckets Buckets
	cfg     Config
	time    steadyClock
	scratch sync.Pool // of *[]byte, for encoding
	batches sync.Pool // of *store.Batch, empty

	tidying sync.Mutex // one Tidy, Purge or Revise at a time

	mu         sync.Mutex // guards everything below; held briefly, never during disk access
	idle       sync.Cond  // an entry is no longer busy
	waiters    int        // goroutines waiting on idle
	entries    map[Key]*entry
	groups     map[string]*group
	order      []*group // the groups, in order of creation
	lanes      map[string]*lane
	expiry     heap[byExpiry]
	done, dead endedSet    // the ended entries
	picker     fair.Picker // of TakeAny
	tenants    tenants
	drift      int64 // of the wall clock from the steadyClock when last followed
	wake       chan struct{}
	arrivals   uint64 // entries added
	totals     tally
	reserved   tally  // entries reserved and not yet on disk
	starved    uint64 // times a low entry was taken because it had waited too long
}

// A group is a set of entries that are taken together: the tasks for a peer, or
// of a kind.
type group struct {
	name    string
	ready   [fair.Classes]pool
	waiting heap[byDue]
	picker  fair.Picker
	tally   tally
	wake    chan struct{}
}

// A tally counts entries.
type tally struct {
	live   int   // entries that have not ended
	kept   int   // entries that have ended and are tombstones
	bytes  int64 // size of the initial records of live entries
	states [16]int32
}

// add counts e n times: 1 or -1.
func (t *tally) add(e *entry, n int) {
	if proto.TaskState(e.state).Terminal() {
		t.kept += n
	} else {
		t.live += n
		t.bytes += int64(n) * int64(e.size)
	}
	t.states[e.state&15] += int32(n)
}

// A steadyClock counts milliseconds: the wall time at the start, advanced by the
// machine's boot clock. So a jump of the wall clock neither delays nor hastens a
// retry.
type steadyClock struct {
	start int64
	boot  time.Duration
}

func (t steadyClock) now(boot time.Duration) int64 { return t.start + (boot - t.boot).Milliseconds() }

// now returns the time of the steadyClock.
func (b *Backlog) now() int64 { return b.time.now(b.cfg.Clock.Boot()) }

// groupNamed returns the group with this name and creates it if needed.
func (b *Backlog) groupNamed(name string) *group {
	g := b.groups[name]
	if g == nil {
		g = &group{name: name, wake: make(chan struct{}, 1)}
		b.groups[name] = g
		b.order = append(b.order, g)
	}
	return g
}

// admit assigns a new entry its group and lane. Its place is not set yet.
func (b *Backlog) admit(e *entry, r *proto.Record) {
	e.group, e.tenant = b.groupNamed(b.cfg.Group(e.key, r)), b.tenants.of(b.cfg.Tenant(e.key, r))
	e.xpos = -1
	b.arrivals++
	e.arrival = b.arrivals
	b.describe(e, r)
	b.count(e, 1)
	if name := b.cfg.Lane(e.key, r); name != "" && !proto.TaskState(e.state).Terminal() {
		b.laneNamed(name).join(e)
	}
}

// describe copies to e what the schedule needs of r.
func (b *Backlog) describe(e *entry, r *proto.Record) {
	e.class = uint8(r.Class.Index() + 1)
	e.state = uint8(r.State) & 15
	e.expires = 0
	if !r.State.Terminal() {
		e.expires = b.cfg.Expires(e.key, r)
	}
	b.schedule(e, r)
}

// schedule sets when e is due according to r.
func (b *Backlog) schedule(e *entry, r *proto.Record) {
	now := b.now()
	e.due, e.absolute = now, false
	if r.DueMs == 0 {
		return
	}
	b.followWall() // otherwise a known jump of the clock would be counted twice
	wait := max(r.DueMs-b.cfg.Clock.Now().UnixMilli(), 0)
	if r.Attempts > 0 || r.Abandons > 0 || r.State == proto.Retrying {
		wait = min(wait, b.cfg.MaxWait.Milliseconds())
	} else {
		e.absolute = wait > 0
	}
	e.due = now + wait
}

// count adds e to the counts, or with -1 removes it.
func (b *Backlog) count(e *entry, n int) {
	b.totals.add(e, n)
	e.group.tally.add(e, n)
}

// position sets the place of an entry that has none.
func (b *Backlog) position(e *entry, r *proto.Record) {
	b.expire(e)
	if r.State.Terminal() || b.cfg.Parked(e.key, r) {
		e.place = parked
		return
	}
	b.enqueue(e)
}

// expire updates the expiry heap for e.
func (b *Backlog) expire(e *entry) {
	switch {
	case e.expires == 0 && e.xpos >= 0:
		b.expiry.remove(int(e.xpos))
	case e.expires == 0:
	case e.xpos >= 0:
		b.expiry.fix(int(e.xpos))
	default:
		b.expiry.push(e)
	}
}

// enqueue makes e wait for its lane, its time or a worker.
func (b *Backlog) enqueue(e *entry) {
	g := e.group
	switch {
	case e.lane != nil && !e.lane.admits(e):
		e.place = queuedBehind
		return
	case e.due > b.now():
		e.place = waiting
		g.waiting.push(e)
	default:
		b.makeReady(e)
	}
	b.wakeGroup(g)
}

func (b *Backlog) makeReady(e *entry) {
	e.place = ready
	e.group.ready[proto.Class(e.class).Index()].push(e)
}

// dequeue removes e from its heap.
func (b *Backlog) dequeue(e *entry) {
	switch e.place {
	case waiting:
		e.group.waiting.remove(int(e.pos))
	case ready:
		e.group.ready[proto.Class(e.class).Index()].remove(e)
	}
}

// wakeGroup wakes the callers waiting for g, or for any group.
func (b *Backlog) wakeGroup(g *group) {
	signal(g.wake)
	signal(b.wake)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// end removes e from memory, except from its lane if it blocks it.
func (b *Backlog) end(e *entry, becomes place) {
	delete(b.entries, e.key)
	e.place, e.expires = becomes, 0
	b.expire(e)
	if becomes != blocking {
		b.leaveLane(e)
	}
}
