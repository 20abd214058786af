package transport

import "time"

// A mend is what is done about a connected member that gossip has lost.
type mend int

const (
	wait      mend = iota // it may come by itself
	reopen                // open its streams of gossip anew
	reconnect             // give up the connection
)

// Times of an absence.
const (
	firstMend     = 10 * time.Second
	secondMend    = 30 * time.Second // after the absence began: streams did not help
	nextMend      = 5 * time.Minute  // between two connections that are given up
	forgetAbsence = time.Minute      // without a look at it
)

// An absence is how long a member has been connected and not heard.
type absence struct {
	since, seen time.Duration // monotonic; seen: the last look
	reopened    time.Duration
	closed      time.Duration
}

// next decides at now about a member that is absent still. While the member is
// not connected nobody asks; its absence begins anew then.
func (a *absence) next(now time.Duration) mend {
	if a.seen == 0 || now-a.seen > 2*watchEvery {
		a.since, a.reopened = now, 0
	}
	a.seen = now
	switch gone := now - a.since; {
	case gone >= secondMend && (a.closed == 0 || now-a.closed >= nextMend):
		a.closed, a.since, a.reopened = now, now, 0
		return reconnect
	case gone >= firstMend && (a.reopened == 0 || now-a.reopened >= firstMend):
		a.reopened = now
		return reopen
	}
	return wait
}
