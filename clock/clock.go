// Package clock provides the three times that balefire uses through one small
// value, so that a test can control each of them.
//
//	Wall  used by people and signatures: jumps, may be wrong by years
//	Mono  since the process started: never goes back, stops during suspend
//	Boot  since the machine started: never goes back, continues during suspend
//
// No promise of balefire depends on Wall being right: a [Guard] doubts a wall clock
// that jumped against the boot clock. Timers are the standard library's: a Clock
// only answers "what time is it", and lets a [Ticker] tick when others do.
package clock

import (
	"hash/fnv"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// A Clock returns the time. The zero value is not usable: see [System],
// [Runtime], [Manual] and [Guard].
type Clock struct {
	wall func() time.Time
	mono func() time.Duration
	boot func() time.Duration

	phase   time.Duration // added to mono: when its tickers tick; random for the machine's own clock
	machine string        // identifies the machine start that boot counts from; empty: unknown
	guard   *Guard        // decides whether the wall clock is doubted; nil: it never is
}

// Now returns the wall time, without a monotonic reading. For a guarded clock it
// is the time to use: see [Doubt].
func (c Clock) Now() time.Time { return c.wall() }

// Mono returns the monotonic time since some fixed moment of this process.
func (c Clock) Mono() time.Duration { return c.mono() }

// Boot returns the time since some fixed moment of this machine, counting
// suspended time.
func (c Clock) Boot() time.Duration { return c.boot() }

// Machine identifies the machine start that Boot counts from: if it is unchanged
// after a restart of the process, Boot continues. Empty: unknown.
func (c Clock) Machine() string { return c.machine }

// MachineMark returns a short identifier of the machine start that Boot counts from,
// never 0. process identifies the start of this process, which Boot counts from if
// the start of the machine is unknown.
func (c Clock) MachineMark(process []byte) uint32 {
	h := fnv.New32a()
	if c.machine != "" {
		process = []byte(c.machine)
	}
	h.Write(process)
	return max(h.Sum32(), 1)
}

// Doubted reports whether the wall clock is doubted: then nothing may end, be
// deleted or be refused permanently because of it. Only a clock with a [Guard] is
// ever doubted.
func (c Clock) Doubted() bool { return c.guard != nil && c.guard.doubted() }

// Unknown reports whether Now may be later than the time, or earlier: the wall clock is
// doubted, and the machine was off for an unknown time. Once it is false it stays false:
// a Now after that can be relied on.
func (c Clock) Unknown() bool { return c.guard != nil && c.guard.unknown() }

// Plausible returns Now, unless the wall clock is after its bounds and is doubted for that:
// then the last believed time, or a moment that has passed.
func (c Clock) Plausible() time.Time {
	if c.guard == nil {
		return c.Now()
	}
	return c.guard.plausible()
}

// IsZero reports whether c is unset, so that a config can default it.
func (c Clock) IsZero() bool { return c.wall == nil }

// System returns the machine's own clock.
func System() Clock {
	start := time.Now()
	return Clock{
		wall: func() time.Time { return time.Now().Round(0) },
		mono: func() time.Duration { return time.Since(start) },
		boot: newBootReader(start, bootTime).now,

		phase:   rand.N(time.Hour),
		machine: machineStart(),
	}
}

// A bootReader derives the boot time from the monotonic one and asks the machine
// only now and then: that is a system call, and callers ask several times per
// task. A suspension is noticed once the machine has run for bootEvery after it.
type bootReader struct {
	start time.Time
	read  func() time.Duration
	last  atomic.Pointer[reading]
}

// A reading pairs a monotonic time with the boot time at that moment.
type reading struct{ mono, boot time.Duration }

const (
	bootEvery = time.Millisecond
	bootSlack = 20 * time.Microsecond // largest duration of a reading that is used: longer ones were interrupted
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

// Runtime returns a clock that takes all three times from the Go runtime. Inside
// a testing/synctest bubble they are virtual.
func Runtime() Clock {
	start := time.Now()
	since := func() time.Duration { return time.Since(start) }
	return Clock{wall: func() time.Time { return time.Now().Round(0) }, mono: since, boot: since}
}

// WithSuspend returns c as on a machine that has been suspended for slept() in
// total: Wall and Boot are ahead by that, Mono is not. slept must not decrease.
func WithSuspend(c Clock, slept func() time.Duration) Clock {
	return Clock{
		wall: func() time.Time { return c.wall().Add(slept()) },
		mono: c.mono,
		boot: func() time.Duration { return c.boot() + slept() },

		phase: c.phase, machine: c.machine, guard: c.guard,
	}
}

// WithOffset returns c as on a machine whose wall clock is ahead by by(), which
// may change at any time and be negative.
func WithOffset(c Clock, by func() time.Duration) Clock {
	return Clock{wall: func() time.Time { return c.wall().Add(by()) }, mono: c.mono, boot: c.boot, phase: c.phase, machine: c.machine, guard: c.guard}
}

// WithMachine returns c as on a machine whose start is identified by machine:
// after a restart of the process its boot time continues.
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

// Advance advances all three times by d.
func (m *Manual) Advance(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wall, m.mono, m.boot = m.wall.Add(d), m.mono+d, m.boot+d
}

// Suspend advances Wall and Boot by d, as during suspend.
func (m *Manual) Suspend(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wall, m.boot = m.wall.Add(d), m.boot+d
}

// SetWall makes the wall clock jump to t; the other two do not change.
func (m *Manual) SetWall(t time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wall = t.Round(0)
}
