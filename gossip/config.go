package gossip

import (
	"cmp"
	"math"
	"time"
)

// Tuning sets the times of the protocol. The zero value of each field means its
// default, which suits a LAN and a WAN: timeouts follow the measured round trips.
type Tuning struct {
	ProbeInterval  time.Duration // between two direct probes, whatever the size of the mesh; default 1s
	ProbeTimeout   time.Duration // for an answer while no round trip was measured, and the least; default 500ms
	Helpers        int           // asked to probe in turn when there was no answer; default 3
	SuspicionMult  int           // the time to refute where nobody else can agree, in intervals times log10 of the mesh's size; default 4
	SuspicionMax   int           // the most, while nobody agrees, in that; default 6
	Confirmations  int           // others that must agree for the least; default 3
	ConfirmedMult  int           // the least, as SuspicionMult; default 3
	SuspectRecover time.Duration // a refuted suspicion keeps new work away so long (suspect_recover_min_ms); default 5s
	DeadRecover    time.Duration // and so long a return from the dead (dead_recover_min_ms); default 30s
	SyncInterval   time.Duration // between two exchanges with a random node, and two roots published; default 30s
	PruneAge       time.Duration // dead and stopped nodes older than this are forgotten; default 24h
	PruneInterval  time.Duration // how often that is looked at; default 10m
	PruneLimit     int           // forgotten at once; default 64
	MaxMembers     int           // kept; further ones are refused; default 4096

	// Plain is for comparison: SWIM as it was first published. The time to refute
	// is SuspicionMult whoever accuses, local health does not count, a node's own
	// pauses are not noticed, a verdict of another is taken over.
	Plain bool
}

func (t Tuning) withDefaults() Tuning {
	t.ProbeInterval = cmp.Or(t.ProbeInterval, time.Second)
	t.ProbeTimeout = cmp.Or(t.ProbeTimeout, 500*time.Millisecond)
	t.Helpers = cmp.Or(t.Helpers, 3)
	t.SuspicionMult = cmp.Or(t.SuspicionMult, 4)
	t.SuspicionMax = cmp.Or(t.SuspicionMax, 6)
	t.Confirmations = cmp.Or(t.Confirmations, 3)
	t.ConfirmedMult = cmp.Or(t.ConfirmedMult, 3)
	t.SuspectRecover = cmp.Or(t.SuspectRecover, 5*time.Second)
	t.DeadRecover = cmp.Or(t.DeadRecover, 30*time.Second)
	t.SyncInterval = cmp.Or(t.SyncInterval, 30*time.Second)
	t.PruneAge = cmp.Or(t.PruneAge, 24*time.Hour)
	t.PruneInterval = cmp.Or(t.PruneInterval, 10*time.Minute)
	t.PruneLimit = cmp.Or(t.PruneLimit, 64)
	t.MaxMembers = cmp.Or(t.MaxMembers, 4096)
	return t
}

// suspicion returns the least and the most time that a suspect among n nodes has to
// refute, and how many others must agree for the least.
func (t Tuning) suspicion(n int) (low, high time.Duration, k int) {
	unit := max(1, math.Log10(float64(max(n, 1)))) * float64(t.ProbeInterval)
	alone := time.Duration(float64(t.SuspicionMult) * unit)
	if k = min(t.Confirmations, n-2); t.Plain || k < 2 {
		return alone, alone, 0 // nobody is there to agree
	}
	low = min(time.Duration(float64(t.ConfirmedMult)*unit), alone)
	return low, alone * time.Duration(t.SuspicionMax), k
}

// refuteIn returns how long a suspect has that n others than the first accused.
func refuteIn(low, high time.Duration, n, k int) time.Duration {
	if k < 1 || n >= k {
		return low
	}
	share := math.Log(float64(n)+1) / math.Log(float64(k)+1)
	return max(low, high-time.Duration(share*float64(high-low)))
}

// transmits returns how often a rumor rides on a probe in a mesh of n.
func transmits(n int) int { return 4 * int(math.Ceil(math.Log10(float64(n+1)))) }
