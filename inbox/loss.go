package inbox

import (
	"time"

	"github.com/balefire/balefire/clock"
)

// Traces tell until when a store was used that is replaced by an older copy. A zero time is
// not known.
type Traces struct {
	Copied  time.Time // stamp of the clock in the copy
	Stamped time.Time // stamp of the clock in the replaced store
	Audited time.Time // last record of the audit log
	Written time.Time // newest file of the replaced store, by a clock that nobody guarded
}

// stampSlack is how long after its last stamp of the clock a store is used at most, by the
// time that the node believes: the next stamp is due in a minute, and a smaller step of the
// clock is no doubt.
const stampSlack = time.Minute + clock.DoubtBeyond

// Lost returns until when the replaced store may have been used. What the node believed
// counts; the files refine it while they agree with it, and without it they are the only
// trace. It is never after now, the present by the time that the node believes, if sure.
// Where the traces contradict each other, Lost returns the later time: a task that may have
// run is not started again.
func (x Traces) Lost(now time.Time, sure bool) time.Time {
	lost := x.Written
	switch bound := x.Stamped.Add(stampSlack); {
	case !x.Stamped.IsZero() && (x.Written.Before(x.Stamped.Add(-stampSlack)) || x.Written.After(bound)):
		lost = bound
	case !x.Stamped.IsZero():
		lost = latest(lost, x.Stamped)
	default:
		if known := latest(x.Copied, x.Audited); !sure || lost.IsZero() || lost.Before(known.Add(-stampSlack)) {
			lost = latest(lost, now) // the files say nothing
		}
	}
	if !x.Copied.IsZero() {
		lost = latest(lost, x.Copied.Add(stampSlack))
	}
	if lost = latest(lost, x.Audited); sure && lost.After(now) {
		return now
	}
	return lost
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
