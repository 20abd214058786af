package dispatch

import (
	"maps"
	"math"
	"time"

	"github.com/balefire/balefire/proto"
)

// A Usage counts the tasks of a queue that are owned now, and how fast they end.
//
// A slot whose task ends would be idle until the next grant is there: its result is committed
// at the owner and at the home, and so is that grant. A node is therefore granted some tasks
// ahead: of each kind as many as it ended lately in a given time.
type Usage struct {
	ahead time.Duration
	all   int
	kind  map[string]int
	nodes map[proto.PeerID]*nodeUse
}

// A nodeUse counts those of one node.
type nodeUse struct {
	owned int
	early int // of them, granted ahead: they take no slot
	kinds map[string]*kindUse
	peaks [2]int        // most that it owned at a time since then, and in the peakEvery before
	since time.Duration // when peaks[0] began
}

// A kindUse counts those of one kind.
type kindUse struct {
	owned int
	ends  float64       // that ended, each counted exp(-1) after endsWindow
	aged  time.Duration // the time of ends
}

const (
	peakEvery  = 5 * time.Second // longer than a report of a node about its slots takes to arrive
	endsWindow = time.Second
	maxAhead   = 60 // tasks of a queue that a node is granted ahead at a time
)

// NewUsage returns the usage of an idle queue whose nodes are granted tasks ahead for that
// time.
func NewUsage(ahead time.Duration) *Usage {
	return &Usage{ahead: ahead, kind: map[string]int{}, nodes: map[proto.PeerID]*nodeUse{}}
}

// Add adds n tasks of a kind on a node, at a time of a monotonic clock; n may be negative.
func (u *Usage) Add(p proto.PeerID, kind string, n int, now time.Duration) {
	u.all += n
	if u.kind[kind] += n; u.kind[kind] == 0 {
		delete(u.kind, kind)
	}
	x := u.nodes[p]
	if x == nil {
		x = &nodeUse{kinds: map[string]*kindUse{}, since: now}
		u.nodes[p] = x
	}
	x.age(now)
	if x.kinds[kind] == nil {
		x.kinds[kind] = &kindUse{aged: now}
	}
	x.owned += n
	x.kinds[kind].owned += n
	x.peaks[0] = max(x.peaks[0], x.owned)
	u.update(x, now)
}

// Ended records that a run of a task of this kind has ended on a node that owns it.
func (u *Usage) Ended(p proto.PeerID, kind string, now time.Duration) {
	if k := u.of(p).kinds[kind]; k != nil {
		k.ends = k.endsAt(now) + 1
		k.aged = now
	}
}

// Stalled records that a node has returned a task of this kind, which had to wait for a slot:
// it is granted none ahead until others have ended there.
func (u *Usage) Stalled(p proto.PeerID, kind string, now time.Duration) {
	if k := u.of(p).kinds[kind]; k != nil {
		k.ends = 0
		u.update(u.nodes[p], now)
	}
}

func (k *kindUse) endsAt(now time.Duration) float64 {
	return k.ends * math.Exp(-(now-k.aged).Seconds()/endsWindow.Seconds())
}

// update computes how many tasks of x are granted ahead.
func (u *Usage) update(x *nodeUse, now time.Duration) {
	x.early = 0
	for _, k := range x.kinds {
		x.early += min(k.owned, int(k.endsAt(now)*(u.ahead.Seconds()/endsWindow.Seconds())))
	}
	x.early = min(x.early, maxAhead)
}

// age begins the next peakEvery if it is time, and forgets kinds of which there were none lately.
func (x *nodeUse) age(now time.Duration) {
	past := now - x.since
	if past < peakEvery {
		return
	}
	x.peaks[1] = x.owned
	if past < 2*peakEvery {
		x.peaks[1] = x.peaks[0]
	}
	x.peaks[0], x.since = x.owned, now
	maps.DeleteFunc(x.kinds, func(_ string, k *kindUse) bool { return k.owned == 0 && k.endsAt(now) < 1 })
}

// of returns the use of a node, not to be changed.
func (u *Usage) of(p proto.PeerID) *nodeUse {
	if x := u.nodes[p]; x != nil {
		return x
	}
	return new(nodeUse)
}

// OwnedBy returns how many of them p owns.
func (u *Usage) OwnedBy(p proto.PeerID) int { return u.of(p).owned }

// ownedOf returns how many of a kind p owns.
func (u *Usage) ownedOf(p proto.PeerID, kind string) int {
	if k := u.of(p).kinds[kind]; k != nil {
		return k.owned
	}
	return 0
}

// Peak returns the most of them that p owned at a time within the last 5 to 10 seconds: so
// many of the slots that it reported as busy may have been theirs.
func (u *Usage) Peak(p proto.PeerID, now time.Duration) int {
	x := u.of(p)
	x.age(now)
	return max(x.peaks[0], x.peaks[1])
}

// BelowLimit reports whether the limit of the queue allows another grant.
func (u *Usage) BelowLimit(l Limits) bool { return l.Queue <= 0 || u.all < l.Queue }
