package schedule

import (
	"slices"
	"time"
)

// Missed says what becomes of times that went by while nobody could make their task.
type Missed byte

// The ways to deal with missed times.
const (
	Skip Missed = iota // they are left out
	Once               // the newest of them is made up for
	All                // each of them, the newest ones up to a limit
)

const (
	// Late is how long ago a time is that was missed.
	Late = time.Minute
	// Horizon is how far back missed times are looked for.
	Horizon = 31 * 24 * time.Hour
	// MaxCap is how many missed times can be made up for at once.
	MaxCap = 1000
)

// Due returns the times after mark and up to now that a task is to be made for, oldest
// first, and how many are left out: missed ones, as m says and limit bounds.
func (p Plan) Due(after, now time.Time, m Missed, limit int) (fire []time.Time, skipped int) {
	if back := now.Add(-Horizon); after.Before(back) {
		after = back
	}
	keep := 0
	switch m {
	case Once:
		keep = 1
	case All:
		keep = min(max(limit, 1), MaxCap)
	}
	var missed []time.Time
	for t := p.Next(after); !t.IsZero() && !t.After(now); t = p.Next(t) {
		if now.Sub(t) <= Late {
			fire = append(fire, t)
			continue
		}
		missed = append(missed, t)
		if len(missed) > keep+1024 {
			skipped += len(missed) - keep
			missed = slices.Clone(missed[len(missed)-keep:])
		}
	}
	if n := len(missed) - keep; n > 0 {
		skipped, missed = skipped+n, missed[n:]
	}
	return append(missed, fire...), skipped
}
