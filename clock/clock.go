// Package clock gives the three times that balefire reckons with through one
// small value, so that a test can drive each of them.
//
//	Wall  what people and signatures say: jumps, may be wrong by years
//	Mono  since the process began: never goes back, stands still in suspend
//	Boot  since the machine began: never goes back, runs on in suspend
//
// No promise of balefire hangs on Wall being right: a [Guard] doubts a wall clock
// that jumped against the boot clock. Timers are the standard library's; a Clock
// only answers "what time is it".
package clock

import (
	"sync"
	"sync/atomic"
	"time"
)

// A Clock tells the time. The zero value is not usable: see [System],
// [Runtime], [Manual] and [Guard].
type Clock struct {
	wall func() time.Time
	mono func() time.Duration
	boot func() time.Duration

	machine string      // names the start of the machine that boot counts from; empty: unknown
	doubted func() bool // nil: never
}

// Now returns the wall time, without a monotonic reading. Of a guarded clock it is
// the time to go by: see [Doubt].
func (c Clock) Now() time.Time { return c.wall() }

// Mono returns the monotonic time since some fixed moment of this process.
func (c Clock) Mono() time.Duration { return c.mono() }

// Boot returns the time since some fixed moment of this machine, counting
// suspended time.
func (c Clock) Boot() time.Duration { return c.boot() }

// Machine names the start of the machine that Boot counts from: over a restart of
// the process Boot goes on where it has the same name. Empty: nobody knows.
func (c Clock) Machine() string { return c.machine }

// Doubted reports whether the wall clock is doubted: then nothing may end, be
// deleted or be refused for good because of what it says. Only a clock with a
// [Guard] is ever doubted.
func (c Clock) Doubted() bool { return c.doubted != nil && c.doubted() }

// IsZero reports whether c was never set, so that a config can default it.
func (c Clock) IsZero() bool { return c.wall == nil }

// System is the machine's own clock.
func System() Clock {
	start := time.Now()
	return Clock{
		wall: func() time.Time { return time.Now().Round(0) },
		mono: func() time.Duration { return time.Since(start) },
		boot: newBootReader(start, bootTime).now,

		machine: machineStart(),
	}
}

// A bootReader tells the boot time from the monotonic one and asks the machine only
// now and then: that is a system call, and callers ask several times a task. A
// suspension is seen as soon as the machine has run for bootEvery after it.
type bootReader struct {
	start time.Time
	read  func() time.Duration
	last  atomic.Pointer[reading]
}

// A reading is what the machine said: at mono it was boot.
type reading struct{ mono, boot time.Duration }

const (
	bootEvery = time.Millisecond
	bootSlack = 20 * time.Microsecond // of a reading that is kept: it was not cut off in between
)

func newBootReader(start time.Time, read func() time.Duration) *bootReader {
	return &bootReader{start: start, read: read}
}

func (b *bootReader) now() time.Duration {
	mono := time.Since(b.start)
	if r := b.last.Load(); r != nil && mono-r.mono < bootEvery {
		return r.boot + max(mono-r.mono, 0)
	}
	boot := b.read()
	if time.Since(b.start)-mono < bootSlack {
		b.last.Store(&reading{mono, boot})
	}
	return boot
}

// Runtime takes all three times from the Go runtime. Inside a
// testing/synctest bubble they are virtual.
func Runtime() Clock {
	start := time.Now()
	since := func() time.Duration { return time.Since(start) }
	return Clock{wall: func() time.Time { return time.Now().Round(0) }, mono: since, boot: since}
}

// WithSuspend returns c as on a machine that has been asleep for slept() in all: Wall
// and Boot are ahead by that, Mono stood still. slept must not go back.
func WithSuspend(c Clock, slept func() time.Duration) Clock {
	return Clock{
		wall: func() time.Time { return c.wall().Add(slept()) },
		mono: c.mono,
		boot: func() time.Duration { return c.boot() + slept() },

		machine: c.machine, doubted: c.doubted,
	}
}

// WithOffset returns c on a machine whose wall clock is ahead by by(), which may
// change at any moment and be negative.
func WithOffset(c Clock, by func() time.Duration) Clock {
	return Clock{wall: func() time.Time { return c.wall().Add(by()) }, mono: c.mono, boot: c.boot, machine: c.machine, doubted: c.doubted}
}

// WithMachine returns c on a machine whose start has this name: over a restart of the process
// its boot time goes on.
func WithMachine(machine string, c Clock) Clock {
	c.machine = machine
	return c
}

// Manual is a clock that moves only when told to. It is safe for concurrent use.
type Manual struct {
	mu   sync.Mutex
	wall time.Time
	mono time.Duration
	boot time.Duration
}

// NewManual returns a manual clock whose wall time is t.
func NewManual(t time.Time) *Manual { return &Manual{wall: t.Round(0)} }

// Clock returns the clock that m drives.
func (m *Manual) Clock() Clock {
	return Clock{
		wall: func() time.Time { m.mu.Lock(); defer m.mu.Unlock(); return m.wall },
		mono: func() time.Duration { m.mu.Lock(); defer m.mu.Unlock(); return m.mono },
		boot: func() time.Duration { m.mu.Lock(); defer m.mu.Unlock(); return m.boot },
	}
}

// Advance lets d pass on all three times.
func (m *Manual) Advance(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wall, m.mono, m.boot = m.wall.Add(d), m.mono+d, m.boot+d
}

// Suspend lets d pass as a sleeping machine does: Mono stands still.
func (m *Manual) Suspend(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wall, m.boot = m.wall.Add(d), m.boot+d
}

// SetWall makes the wall clock jump to t; the other two do not move.
func (m *Manual) SetWall(t time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wall = t.Round(0)
}
