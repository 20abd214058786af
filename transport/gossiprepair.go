package transport

import "time"

// A repairAction is what is done about a connected member that gossip has lost.
type repairAction int

const (
	repairNone       repairAction = iota // it may come by itself
	repairStreams                        // open its streams of gossip anew
	repairConnection                     // give up the connection
)

// Times of an absence.
const (
	reopenAfter    = 10 * time.Second
	reconnectAfter = 30 * time.Second // after the absence began: streams did not help
	reconnectPause = 5 * time.Minute  // between two connections that are given up
	forgetAfter    = time.Minute      // without a look at it
)

// An gossipRepair is how long a member has been connected and not heard.
type gossipRepair struct {
	since, checked time.Duration // monotonic; seen: the last look
	reopened       time.Duration
	closed         time.Duration
}

// next decides at now about a member that is absent still. While the member is
// not connected nobody asks; its absence begins anew then.
func (a *gossipRepair) next(now time.Duration) repairAction {
	if a.checked == 0 || now-a.checked > 2*repairEvery {
		a.since, a.reopened = now, 0
	}
	a.checked = now
	switch gone := now - a.since; {
	case gone >= reconnectAfter && (a.closed == 0 || now-a.closed >= reconnectPause):
		a.closed, a.since, a.reopened = now, now, 0
		return repairConnection
	case gone >= reopenAfter && (a.reopened == 0 || now-a.reopened >= reopenAfter):
		a.reopened = now
		return repairStreams
	}
	return repairNone
}
