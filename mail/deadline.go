package mail

import (
	"math"
	"sync"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/mail/box"
)

// next returns how long nothing is to be done; false: until somebody asks for something.
func (b *Broker) next() (wait time.Duration, ok bool) {
	if !b.started {
		return tickEvery, true
	}
	now := b.now()
	at := b.nextOfSpace(now)
	if due, ok := b.state.Next(now); ok {
		at = min(at, due)
	}
	if len(b.queued.refused) > 0 {
		at = min(at, b.queued.retried+time.Second.Milliseconds())
	}
	if b.spools.soonest > 0 {
		at = min(at, b.spools.soonest)
	}
	for t := range b.spools.all() {
		if b.waitingIn(t) > 0 {
			at = min(at, b.spools.expired+expireEvery.Milliseconds())
			break
		}
	}
	if t := &b.reports.telling; b.cfg.Bounced != nil && !t.running && len(b.state.Untold(1)) > 0 {
		at = min(at, t.at)
	}
	return time.Duration(max(at-now.Mono, 0)) * time.Millisecond, at < math.MaxInt64
}

// nextOfSpace returns when a checkpoint is due, dead letters are archived, or mail is moved, on the
// clock of box.Now.Mono.
func (b *Broker) nextOfSpace(now box.Now) (at int64) {
	at = math.MaxInt64
	if len(b.dead.waiting) > 0 && !b.dead.running {
		at = b.dead.at
	}
	if m := &b.moving; m.sparse != nil && !m.running {
		at = min(at, m.due)
	}
	switch {
	case b.saved.running || b.saved.records == 0:
	case b.saved.records >= b.cfg.CheckpointRecords || b.saved.bytes >= b.cfg.CheckpointBytes:
		at = min(at, now.Mono)
	default:
		at = min(at, (b.saved.at + b.cfg.CheckpointEvery).Milliseconds())
	}
	return at
}

// ticks are when the broker looks what time brings: when something is due, and soon after anything that
// was asked for, also if its wake-up is lost.
type ticks struct {
	clock clock.Clock
	timer *time.Timer

	mu    *sync.Mutex
	close bool // the next one is within tickEvery
}

func newTicks(c clock.Clock) ticks {
	return ticks{clock: c, timer: time.NewTimer(tickEvery), mu: new(sync.Mutex), close: true}
}

// soon lets the next tick be within tickEvery.
func (t *ticks) soon() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.close {
		t.close = true
		t.set(0)
	}
}

// set lets the next tick be after wait, together with others of the node. A tick does not follow itself.
func (t *ticks) set(wait time.Duration) {
	t.timer.Reset(t.clock.UntilAfter(max(wait, time.Millisecond), tickEvery))
}

// begin notes that the broker looks now.
func (t *ticks) begin() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.close = false
	t.timer.Stop()
}

// end lets the next tick be after wait, if anything waits, or sooner if something was asked for meanwhile.
func (t *ticks) end(wait time.Duration, waits bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if waits && !t.close {
		t.set(wait)
	}
}

func (t *ticks) stop() { t.timer.Stop() }

// clocks are what a broker remembers of the clocks of its node.
type clocks struct {
	slept time.Duration // how long the machine had slept when it woke up last
	grace time.Duration // until when, on the boot clock, no lease ends

	wall   int64         // the wall clock when it was not doubted, Unix milliseconds; 0: it always was
	read   time.Duration // when that was, on the monotonic clock
	stands bool          // it is doubted since
}

// sleepGrace is how long leases last at least after the machine slept: a handler extends the
// longest ones each 20 s.
const sleepGrace = 30 * time.Second

// observe reads a clock, and returns its boot time. From the first doubt on the wall clock stands still:
// nothing expires.
func (k *clocks) observe(c clock.Clock, doubted bool) (boot time.Duration) {
	boot = c.Boot()
	mono := c.Mono()
	if boot-mono-k.slept > time.Second {
		k.slept, k.grace = boot-mono, boot+sleepGrace
	}
	switch {
	case !doubted:
		k.wall, k.read, k.stands = c.Now().UnixMilli(), mono, false
	case k.wall > 0 && !k.stands:
		k.wall, k.stands = k.wall+(mono-k.read).Milliseconds(), true
	}
	return boot
}
