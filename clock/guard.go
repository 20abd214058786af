package clock

import (
	"encoding/binary"
	"errors"
	"sync"
	"time"
)

// A Guard is a clock whose wall time follows the rules of [Doubt]. It is safe for
// concurrent use.
type Guard struct {
	raw Clock

	mu   sync.Mutex
	d    Doubt
	held bool // see Hold
}

// NewGuard guards a clock. Without [Guard.Resume] it knows no earlier start.
func NewGuard(raw Clock) *Guard { return &Guard{raw: raw} }

// Clock returns the guarded clock.
func (g *Guard) Clock() Clock {
	return Clock{wall: g.now, mono: g.raw.mono, boot: g.raw.boot, phase: g.raw.phase, machine: g.raw.machine, guard: g}
}

func (g *Guard) now() time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.d.Observe(g.raw.wall(), g.raw.boot())
}

func (g *Guard) doubted() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.d.Observe(g.raw.wall(), g.raw.boot())
	return g.held || g.d.active
}

func (g *Guard) unknown() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.d.Observe(g.raw.wall(), g.raw.boot())
	return g.held || g.d.active && g.d.lowerBound
}

func (g *Guard) plausible() time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	wall, boot := g.raw.wall(), g.raw.boot()
	now := g.d.Observe(wall, boot)
	switch believed := g.d.Believed(boot); {
	case !g.d.active || !g.d.late(wall):
		return now
	case g.d.late(believed):
		return g.d.passed
	default:
		return believed
	}
}

// Hold sets whether the clock is doubted in any case, as before the stamp of an earlier
// start has been read.
func (g *Guard) Hold(held bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held = held
}

// Bound sets the period in which the wall clock can be right, and a moment in it that has
// passed; a zero time is no bound. It must be called before the clock is read.
func (g *Guard) Bound(from, passed, until time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.d.from, g.d.passed, g.d.until = from, passed, until
}

// Extend moves the end of the bounds, if they have one.
func (g *Guard) Extend(until time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.d.until.IsZero() {
		g.d.until = until
	}
}

// ObservePeer takes the current time of a connected peer, see
// [Doubt.ObservePeer].
func (g *Guard) ObservePeer(peer time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.d.ObservePeer(peer, g.raw.wall(), g.raw.boot())
}

// ObserveRefused takes the current time of a peer that is refused because of this node's
// clock. It may contradict a doubted wall clock, but not confirm it: else a former member
// could let a wrong clock admit it.
func (g *Guard) ObserveRefused(peer time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if wall := g.raw.wall(); beyond(peer.Sub(wall)) {
		g.d.ObservePeer(peer, wall, g.raw.boot())
	}
}

// State describes whether the wall clock is believed.
func (g *Guard) State() State {
	g.mu.Lock()
	defer g.mu.Unlock()
	wall, boot := g.raw.wall(), g.raw.boot()
	g.d.Observe(wall, boot)
	return g.d.State(wall, boot)
}

// stampSize is the length of a stamp without the identifier of the machine start.
const stampSize = 16

// ErrStamp means that bytes are not a valid stamp.
var ErrStamp = errors.New("clock: not a stamp of the clock")

// Stamp returns the time believed now, to be stored across a stop:
//
//	wall 8, Unix nanoseconds | boot 8, nanoseconds | identifier of the machine start
func (g *Guard) Stamp() []byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	boot := g.raw.boot()
	g.d.Observe(g.raw.wall(), boot)
	b := binary.BigEndian.AppendUint64(nil, uint64(g.d.Believed(boot).UnixNano()))
	b = binary.BigEndian.AppendUint64(b, uint64(boot))
	return append(b, g.raw.machine...)
}

// StampTime returns the time in a stamp, zero if it is not a valid one.
func StampTime(stamp []byte) time.Time {
	if len(stamp) < stampSize {
		return time.Time{}
	}
	return time.Unix(0, int64(binary.BigEndian.Uint64(stamp)))
}

// Resume takes the stamp of an earlier start. If the machine has not restarted
// since then, its boot clock tells how long ago that was; otherwise the duration
// is unknown.
func (g *Guard) Resume(stamp []byte) error {
	if len(stamp) < stampSize {
		return ErrStamp
	}
	wall := StampTime(stamp)
	then := time.Duration(binary.BigEndian.Uint64(stamp[8:]))
	g.mu.Lock()
	defer g.mu.Unlock()
	boot := g.raw.boot()
	known := g.raw.machine != "" && string(stamp[stampSize:]) == g.raw.machine && then <= boot
	running := time.Duration(0)
	if known {
		running = boot - then
	}
	g.d.Resume(wall, boot, running, known)
	return nil
}
