package schedule

import (
	"slices"
	"time"

	"github.com/balefire/balefire/proto"
)

const (
	// Late is the age from which a time counts as missed.
	Late = time.Minute
	// Horizon is how far back missed times are considered.
	Horizon = 31 * 24 * time.Hour
	// MaxCap is the most missed times that are made up for at once.
	MaxCap = 1000
)

// Due returns the times after `after` and up to now that need a task, oldest first, and the
// number of missed ones that are skipped according to m and limit.
func (p Plan) Due(after, now time.Time, m proto.MissedRuns, limit int) (fire []time.Time, skipped int) {
	if back := now.Add(-Horizon); after.Before(back) {
		after = back
	}
	keep := 0
	switch m {
	case proto.MissedOnce:
		keep = 1
	case proto.MissedAll:
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
