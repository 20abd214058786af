package clock

import "time"

// A Ticker ticks at multiples of its period on the monotonic time of a [Clock], so that a node
// does what it does now and then at the same moments: what a process at rest costs is to be
// woken, for ten goroutines hardly more than for one. With [System] the multiples count from a
// random moment: if two nodes that were started together ticked together, both would dial at once.
type Ticker struct {
	C     <-chan time.Time
	ticks *time.Ticker
	align *time.Timer
}

// Ticker returns a ticker with the period d, at least a millisecond. Its first tick comes after d,
// and at most twice that.
func (c Clock) Ticker(d time.Duration) *Ticker {
	t := time.NewTicker(d)
	at := &Ticker{C: t.C, ticks: t}
	if late := (c.Mono() + c.phase) % d; late > 0 {
		at.align = time.AfterFunc(d-late, func() { t.Reset(d) })
	}
	return at
}

// Stop ends the ticks. It does not close C.
func (t *Ticker) Stop() {
	if t.align != nil {
		t.align.Stop()
	}
	t.ticks.Stop()
}

// Until returns the time to that tick of a [Ticker] with the period d which is closest to d from
// now, for timers that are to fire together with the tickers.
func (c Clock) Until(d time.Duration) time.Duration {
	now := c.Mono() + c.phase
	return (now + d + d/2).Truncate(d) - now
}

// UntilAfter returns the time to the first tick of a [Ticker] with the period d that is not before
// wait from now, for timers of which a tick more does not matter.
func (c Clock) UntilAfter(wait, d time.Duration) time.Duration {
	now := c.Mono() + c.phase
	return (now + max(wait, 0) + d - 1).Truncate(d) - now
}
