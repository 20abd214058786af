package gossip

import (
	"cmp"
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

// Tuning holds the protocol's parameters. The zero value of each field means its default,
// which suits both a LAN and a WAN: timeouts follow measured round trips.
type Tuning struct {
	ProbeInterval  time.Duration // between two direct probes, regardless of the mesh's size; default 1s
	ProbeTimeout   time.Duration // minimum, and used until a round trip has been measured; default 500ms
	SuspectRecover time.Duration // no new work after a refuted suspicion (suspect_recover_min_ms); default 5s
	DeadRecover    time.Duration // no new work after a return from DEAD (dead_recover_min_ms); default 30s
	SyncInterval   time.Duration // between two exchanges with a random node, and at least between two published roots; default 30s
	PruneAge       time.Duration // dead and stopped nodes are forgotten after this time; default 24h
	PruneInterval  time.Duration // between two checks for nodes to forget; default 10m
	PruneLimit     int           // nodes forgotten per check; default 64
	MaxMembers     int           // further ones are rejected; default 4096

	// Plain selects SWIM as originally published, for comparison: the time to refute is
	// suspicionMult regardless of the number of accusers, local health is ignored, the
	// node does not detect its own pauses, and another node's verdict is adopted.
	Plain bool
}

func (t Tuning) withDefaults() Tuning {
	t.ProbeInterval = cmp.Or(t.ProbeInterval, time.Second)
	t.ProbeTimeout = cmp.Or(t.ProbeTimeout, 500*time.Millisecond)
	t.SuspectRecover = cmp.Or(t.SuspectRecover, 5*time.Second)
	t.DeadRecover = cmp.Or(t.DeadRecover, 30*time.Second)
	t.SyncInterval = cmp.Or(t.SyncInterval, 30*time.Second)
	t.PruneAge = cmp.Or(t.PruneAge, 24*time.Hour)
	t.PruneInterval = cmp.Or(t.PruneInterval, 10*time.Minute)
	t.PruneLimit = cmp.Or(t.PruneLimit, 64)
	t.MaxMembers = cmp.Or(t.MaxMembers, 4096)
	return t
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
