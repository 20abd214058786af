package transport

import "time"

// A repairAction is what to do about a connected member that gossipsub has lost.
type repairAction int

const (
	repairNone       repairAction = iota // it may recover by itself
	repairStreams                        // reopen its gossip streams
	repairConnection                     // close the connection
)

// Timing of repairs.
const (
	reopenAfter    = 10 * time.Second
	reconnectAfter = 30 * time.Second // since the loss: reopening streams did not help
	reconnectPause = 5 * time.Minute  // between two closed connections
	forgetAfter    = time.Minute      // after the last check
)

// A gossipRepair records how long a member has been connected but lost by gossipsub.
type gossipRepair struct {
	since, checked time.Duration // monotonic; checked: the last check
	reopened       time.Duration
	closed         time.Duration
}

// next returns the action at now for a member that is still lost. It is not called while
// the member is disconnected; the loss then starts again.
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
