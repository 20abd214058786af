package gossip

import (
	"math"
	"time"
)

// Parameters of failure detection that need no tuning.
const (
	helpers       = 3 // nodes asked to probe a target that did not answer
	suspicionMult = 4 // time to refute when no other node can confirm, in intervals times log10 of the mesh's size
	suspicionMax  = 6 // maximum time to refute, without confirmations, as a multiple of it
	confirmations = 2 // confirmations that reduce the time to its minimum
	confirmedMult = 3 // minimum time to refute, in the unit of suspicionMult
)

// Tuning holds the protocol's parameters. Those without a default are required: the settings
// of the node have their defaults, which suit both a LAN and a WAN because timeouts follow
// measured round trips.
type Tuning struct {
	ProbeInterval  time.Duration // between two direct probes, regardless of the mesh's size
	ProbeTimeout   time.Duration // minimum, and used until a round trip has been measured
	SuspectRecover time.Duration // no new work after a refuted suspicion (suspect_recover_min_ms)
	DeadRecover    time.Duration // no new work after a return from DEAD (dead_recover_min_ms)
	SyncInterval   time.Duration // between two exchanges with a random node, and at least between two published roots
	PruneAge       time.Duration // dead nodes are forgotten after this time
	PruneInterval  time.Duration // between two checks for nodes to forget
	PruneLimit     int           // nodes forgotten per check
	MaxMembers     int           // further ones are rejected; default 4096

	// Plain selects SWIM as originally published, for comparison: the time to refute is
	// suspicionMult regardless of the number of accusers, local health is ignored, the
	// node does not detect its own pauses, and another node's verdict is adopted.
	Plain bool
}

// suspicion returns the minimum and maximum time that a suspect among n nodes has to
// refute, and how many confirmations reduce it to the minimum.
func (t Tuning) suspicion(n int) (low, high time.Duration, k int) {
	unit := max(1, math.Log10(float64(max(n, 1)))) * float64(t.ProbeInterval)
	alone := time.Duration(suspicionMult * unit)
	if k = min(confirmations, n-2); t.Plain || k < 2 {
		return alone, alone, 0 // too few nodes to confirm
	}
	low = min(time.Duration(confirmedMult*unit), alone)
	return low, alone * suspicionMax, k
}

// refuteIn returns how long a suspect has to refute after n confirmations.
func refuteIn(low, high time.Duration, n, k int) time.Duration {
	if k < 1 || n >= k {
		return low
	}
	share := math.Log(float64(n)+1) / math.Log(float64(k)+1)
	return max(low, high-time.Duration(share*float64(high-low)))
}

// transmits returns how many times a rumor is piggybacked in a mesh of n.
func transmits(n int) int { return 4 * int(math.Ceil(math.Log10(float64(n+1)))) }
