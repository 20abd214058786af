package clock

import (
	"math"
	"time"
)

// The parameters of [Doubt].
const (
	// DoubtBeyond is the largest deviation of a wall clock from the expected time
	// before it is doubted.
	DoubtBeyond = 5 * time.Minute
	// BelieveAfter is how long a wall clock must run without a jump before it is
	// believed without confirmation by a peer.
	BelieveAfter = 10 * time.Minute
	// BelieveAnyway is how long peers that contradict a wall clock can keep it
	// doubted.
	BelieveAnyway = 24 * time.Hour
)

// An anchor pairs a wall time with the boot time at that moment.
type anchor struct {
	wall time.Time
	boot time.Duration
}

// at returns the wall time at a boot time, provided that no clock jumped in
// between.
func (a anchor) at(boot time.Duration) time.Time { return a.wall.Add(boot - a.boot) }

// off returns how far wall is ahead of the time expected from a.
func (a anchor) off(wall time.Time, boot time.Duration) time.Duration { return wall.Sub(a.at(boot)) }

func beyond(d time.Duration) bool { return d.Abs() > DoubtBeyond }

// A Doubt decides whether a wall clock is believed. The last believed time is
// extrapolated with the boot clock. A wall clock further from it than DoubtBeyond
// is doubted until it has come back, a peer agrees with it, or it has run without
// a jump for BelieveAfter. While it is doubted, the extrapolated time is used
// instead. After a stop of unknown length that time is only a lower bound: then a
// later wall clock is used.
//
// A wall clock outside the bounds of [Guard.Bound] cannot be right. It is doubted from the
// first reading. One that is before them is never believed, and the time goes on from a
// moment that has certainly passed; one that is after them is believed only after running for
// BelieveAnyway without a peer that contradicts it.
//
// It is a value without clock, disk or lock. The zero value has seen nothing and
// believes the first reading.
type Doubt struct {
	from, until    time.Time // bounds of a plausible wall clock; zero: none
	passed         time.Time // a moment after from that has passed; zero: none is known
	started        bool
	base           anchor // last believed time
	lowerBound     bool   // base is only a lower bound: the machine was off since
	active         bool
	jumped         anchor // the doubted wall clock after its last jump
	reported       anchor // the time to use while it is doubted
	contradictedAt time.Duration
	contradicted   bool          // a peer contradicted the doubted wall clock, last at contradictedAt
	doubtedSince   time.Duration // when the wall clock became doubted
}

// Resume sets the time believed when the last stamp was written. running is the
// time elapsed since then; known is false if the machine may have been off in
// between. It must be called before the first Observe.
func (d *Doubt) Resume(stamp time.Time, boot time.Duration, running time.Duration, known bool) {
	*d = Doubt{from: d.from, until: d.until, passed: d.passed, started: true, base: anchor{stamp.Add(running), boot}, lowerBound: !known}
}

func (d *Doubt) early(wall time.Time) bool { return !d.from.IsZero() && wall.Before(d.from) }

func (d *Doubt) late(wall time.Time) bool { return !d.until.IsZero() && wall.After(d.until) }

func (d *Doubt) plausible(wall time.Time) bool { return !d.early(wall) && !d.late(wall) }

// Observe takes a reading of the clocks and returns the time to use.
func (d *Doubt) Observe(wall time.Time, boot time.Duration) time.Time {
	switch {
	case !d.started && d.plausible(wall):
		d.started, d.base = true, anchor{wall, boot}
		return wall
	case !d.started:
		d.started, d.lowerBound, d.base = true, true, anchor{wall, boot}
		if d.early(wall) {
			d.base.wall = d.passed
		}
		d.doubt(wall, boot)
	case d.plausible(wall) && (!beyond(d.base.off(wall, boot)) || d.late(d.base.at(boot))):
		d.believe(wall, boot)
		return wall
	case !d.active:
		d.doubt(wall, boot)
	case beyond(d.jumped.off(wall, boot)):
		d.jumped, d.contradicted = anchor{wall, boot}, false // it jumped again
	}
	d.setReported(wall, boot)
	if d.left(wall, boot) <= 0 {
		if d.late(wall) {
			d.until = time.Time{}
		}
		d.believe(wall, boot)
		return wall
	}
	return d.reported.at(boot)
}

// doubt begins to doubt the wall clock.
func (d *Doubt) doubt(wall time.Time, boot time.Duration) {
	d.active, d.doubtedSince, d.contradicted = true, boot, false
	d.jumped, d.reported = anchor{wall, boot}, d.base
}

// left returns the time until a doubted wall clock is believed, if no peer contradicts it.
func (d *Doubt) left(wall time.Time, boot time.Duration) time.Duration {
	switch {
	case d.early(wall):
		return math.MaxInt64
	case d.late(wall) && d.contradicted:
		return max(d.jumped.boot, d.contradictedAt) + BelieveAnyway - boot
	case d.late(wall):
		return d.jumped.boot + BelieveAnyway - boot
	case d.contradicted:
		return max(d.jumped.boot+BelieveAfter, min(d.contradictedAt+BelieveAfter, d.doubtedSince+BelieveAnyway)) - boot
	}
	return d.jumped.boot + BelieveAfter - boot
}

// setReported chooses the time to use while the wall clock is doubted.
func (d *Doubt) setReported(wall time.Time, boot time.Duration) {
	to := d.base
	if d.lowerBound && wall.After(d.base.at(boot)) {
		to = anchor{wall, boot}
	}
	if beyond(d.reported.off(to.at(boot), boot)) {
		d.reported = to
	}
}

// believe accepts the wall clock.
func (d *Doubt) believe(wall time.Time, boot time.Duration) {
	d.base, d.lowerBound, d.active = anchor{wall, boot}, false, false
}

// ObservePeer takes the clock of a connected peer, which the peer does not doubt.
// A peer that agrees with a doubted wall clock ends the doubt, one that
// contradicts it prolongs it. A believed wall clock stays believed.
func (d *Doubt) ObservePeer(peer, wall time.Time, boot time.Duration) {
	d.Observe(wall, boot)
	switch {
	case !d.active:
	case beyond(peer.Sub(wall)):
		d.contradicted, d.contradictedAt = true, boot
	case d.plausible(wall):
		d.believe(wall, boot)
	}
}

// Believed returns the believed time at a boot time, a lower bound after a stop
// of unknown length.
func (d *Doubt) Believed(boot time.Duration) time.Time { return d.base.at(boot) }

// A State describes, for people, whether a wall clock is believed.
type State struct {
	Doubted bool
	Off     time.Duration // how far the doubted wall clock is ahead of what was believed
	Stopped bool          // the machine was off for an unknown time since then
	Denied  bool          // a peer contradicts the doubted wall clock
	Left    time.Duration // until it is believed without a peer's confirmation
	Outside bool          // it is outside the bounds
}

// State describes d at a reading of the clocks.
func (d *Doubt) State(wall time.Time, boot time.Duration) State {
	if !d.active {
		return State{}
	}
	return State{
		Doubted: true, Off: d.base.off(wall, boot), Stopped: d.lowerBound, Denied: d.contradicted,
		Left: max(d.left(wall, boot), 0), Outside: !d.plausible(wall),
	}
}
