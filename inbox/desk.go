package inbox

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/backlog"
)

// maxConcluding is how many tasks may be ending at a time: their slots are free
// again, their ends are being written.
const maxConcluding = 512

// A claim is one task that somebody is working on. Nobody else starts, ends or
// cancels it meanwhile.
type claim struct {
	key     backlog.Key
	kind    string
	version uint32        // of rec in the backlog
	stored  *proto.Stored // as read when its turn came
	rec     *proto.Record // the caller's own copy
	h       *handler
	origin  proto.PeerID
	epoch   proto.Seq
	attempt uint32      // of the start that this claim leads to
	idem    string      // (origin, idempotency key), empty: none
	timer   *time.Timer // of the run, nil: none; the worker's own
	lease   *Leased     // its home is another's to say; nil: of a task in custody here

	// Guarded by desk.mu:
	slot    bool // it holds a slot
	why     stop // the first reason to end
	cancel  context.CancelCauseFunc
	kill    chan struct{} // closed: end at once
	killed  bool
	began   time.Time     // wall time of the start; zero: the handler has not been called
	limit   time.Duration // boot time at which it is out of time; 0: none
	noticed time.Duration // boot time after which the origin is told that it runs; 0: was told
}

// A desk knows who works on what. It changes nothing on disk.
type desk struct {
	slots int

	mu         sync.Mutex
	claims     map[backlog.Key]*claim
	used       int                  // slots
	kinds      map[string]int       // slots by kind
	origins    map[proto.PeerID]int // and by origin
	concluding int                  // claims without a slot
	keys       map[string]*claim
	behindKey  map[string][]backlog.Key // taken, wait for the end of the claim with their key
	stuck      map[backlog.Key]string   // why the end of a task could not be written at the last try
	suspect    *claim
	suspects   []backlog.Key // taken, wait for the suspect to end
	drainingOn bool
	stopped    bool
	halting    chan struct{} // closed with stopped
	free       chan struct{} // holds a token when a slot came free or a handler was registered
	begun      chan struct{} // holds a token when a handler was called
	working    sync.WaitGroup
}

func newDesk(slots int) *desk {
	return &desk{
		slots: slots, claims: map[backlog.Key]*claim{}, kinds: map[string]int{}, origins: map[proto.PeerID]int{},
		keys: map[string]*claim{}, stuck: map[backlog.Key]string{}, behindKey: map[string][]backlog.Key{},
		free: make(chan struct{}, 1), begun: make(chan struct{}, 1), halting: make(chan struct{}),
	}
}

func (d *desk) ring() { signal(d.free) }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// quiet reports whether no task holds a slot.
func (d *desk) quiet() bool { d.mu.Lock(); defer d.mu.Unlock(); return d.used == 0 }

func (d *desk) drain(on bool) { d.mu.Lock(); defer d.mu.Unlock(); d.drainingOn = on }

func (d *desk) draining() bool { d.mu.Lock(); defer d.mu.Unlock(); return d.drainingOn || d.stopped }

// spare returns how many more tasks may be ended at the same time.
func (d *desk) spare() int { d.mu.Lock(); defer d.mu.Unlock(); return maxConcluding - d.concluding }

// room reports whether another task may be taken.
func (d *desk) room() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.stopped && d.used < d.slots && d.concluding < maxConcluding
}

// kindUsed returns the number of slots that tasks of a kind hold.
func (d *desk) kindUsed(kind string) int { d.mu.Lock(); defer d.mu.Unlock(); return d.kinds[kind] }

// sated reports whether an origin, named by the bytes of its id, holds all slots but
// one: the last is for whoever else waits.
func (d *desk) sated(origin string) bool {
	p, err := proto.PeerIDFrom([]byte(origin))
	d.mu.Lock()
	defer d.mu.Unlock()
	return err == nil && d.slots > 1 && d.origins[p] >= d.slots-1
}

// claim makes the caller the only one who works on the task, or returns nil.
func (d *desk) claim(k backlog.Key) *claim {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.claims[k] != nil {
		return nil
	}
	c := &claim{key: k, kill: make(chan struct{})}
	d.claims[k] = c
	d.concluding++
	return c
}

// find returns the claim on a task, nil if nobody works on it.
func (d *desk) find(k backlog.Key) *claim { d.mu.Lock(); defer d.mu.Unlock(); return d.claims[k] }

// busy tells whether the key of c is taken, and whether a suspect runs.
func (d *desk) busy(c *claim) (key, suspect bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return c.idem != "" && d.keys[c.idem] != nil, d.suspect != nil
}

// await lets the task of c wait for the end of the claim that holds its key, or
// of the suspect. It reports false when that has ended since it was looked for:
// nobody would wake the task. The caller releases c.
func (d *desk) await(c *claim) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case c.idem != "" && d.keys[c.idem] != nil:
		d.behindKey[c.idem] = append(d.behindKey[c.idem], c.key)
	case d.suspect != nil && suspicious(c.rec):
		d.suspects = append(d.suspects, c.key)
	default:
		return false
	}
	return true
}

// seat gives c a slot, its key and, if it is suspicious, the place of the
// suspect. Only the dispatcher seats, so that what busy said still holds.
func (d *desk) seat(c *claim, suspect bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.idem != "" {
		d.keys[c.idem] = c
	}
	if suspect {
		d.suspect = c
	}
	c.slot = true
	d.concluding--
	d.used++
	d.kinds[c.kind]++
	d.origins[c.origin]++
}

// attach gives c the cancel function of its run, and calls it at once when c was
// told to end before that.
func (d *desk) attach(c *claim, cancel context.CancelCauseFunc) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c.cancel = cancel
	if c.why != notStopped {
		cancel(c.why.cause())
	}
}

// begin notes that the handler of c is about to be called. It reports false when
// c was told to end before that.
func (d *desk) begin(c *claim, now time.Time, boot time.Duration) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.why != notStopped {
		return false
	}
	c.began, c.noticed = now, boot+noticeAfter
	if t := c.h.Timeout; t > 0 {
		c.limit = boot + t
	}
	signal(d.begun)
	return true
}

// stop tells c to end; hard: at once. The first reason counts.
func (d *desk) stop(c *claim, why stop, hard bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.why == notStopped {
		c.why = why
		if c.cancel != nil {
			c.cancel(why.cause())
		}
	}
	if hard && !c.killed {
		c.killed = true
		close(c.kill)
	}
}

// rise frees the slot of c, whose handler has returned, and says why it was told
// to end.
func (d *desk) rise(c *claim) stop {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.leaveSlot(c)
	d.concluding++
	return c.why
}

func (d *desk) leaveSlot(c *claim) {
	if !c.slot {
		return
	}
	c.slot = false
	d.used--
	if d.kinds[c.kind]--; d.kinds[c.kind] == 0 {
		delete(d.kinds, c.kind)
	}
	if d.origins[c.origin]--; d.origins[c.origin] == 0 {
		delete(d.origins, c.origin)
	}
	d.ring()
}

// release ends the claim and returns the tasks that waited for it.
func (d *desk) release(c *claim) (waiters []backlog.Key) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.slot {
		d.leaveSlot(c)
	} else {
		d.concluding--
	}
	delete(d.claims, c.key)
	delete(d.stuck, c.key)
	if c.idem != "" && d.keys[c.idem] == c {
		delete(d.keys, c.idem)
		waiters = d.behindKey[c.idem]
		delete(d.behindKey, c.idem)
	}
	if d.suspect == c {
		d.suspect = nil
		waiters = append(waiters, d.suspects...)
		d.suspects = nil
	}
	d.ring()
	return waiters
}

// unwritten notes why the end of c could not be written.
func (d *desk) unwritten(c *claim, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stuck[c.key] = err.Error()
}

// stall says that the end of c cannot be written now, and with false that it is
// tried again: what stalls does not keep others from ending.
func (d *desk) stall(on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if on {
		d.concluding--
		d.ring()
	} else {
		d.concluding++
	}
}

// running returns the claims whose handlers run, in the order of their starts.
func (d *desk) running() []*claim {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []*claim
	for _, c := range d.claims {
		if c.slot {
			out = append(out, c)
		}
	}
	slices.SortFunc(out, func(a, b *claim) int { return a.began.Compare(b.began) })
	return out
}

func (d *desk) halted() bool { d.mu.Lock(); defer d.mu.Unlock(); return d.stopped }

// rest waits for d, or the end of ctx, or until the node stops.
func (d *desk) rest(ctx context.Context, wait time.Duration) {
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-d.halting:
	case <-t.C:
	}
}

// halt stops taking tasks.
func (d *desk) halt() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.stopped {
		d.stopped = true
		close(d.halting)
	}
}
