package dispatch

import (
	"cmp"
	"fmt"

	"github.com/balefire/balefire/proto"
)

// A Strategy chooses among the nodes that may get a task. Its state concerns only fairness:
// it may be replaced between any two choices.
type Strategy interface {
	// Name is the name of the strategy in settings.
	Name() string
	// Pick returns the index of the chosen candidate. There is at least one.
	Pick(t *Task, among []Candidate) int
}

// The names of the strategies.
const (
	Ordered     = "ordered"      // the first in the queue's list that has a free slot
	RoundRobin  = "round_robin"  // each in turn, by weight
	Priority    = "priority"     // the highest priority that has a free slot, the least loaded among equals
	LeastLoaded = "least_loaded" // the least busy for its size
)

// Names lists the strategies, the default first.
func Names() []string { return []string{LeastLoaded, Ordered, RoundRobin, Priority} }

// New returns the strategy with this name. Empty means the default, least_loaded.
func New(name string) (Strategy, error) {
	switch name {
	case "", LeastLoaded:
		return leastLoaded{}, nil
	case Ordered:
		return ordered{}, nil
	case RoundRobin:
		return &roundRobin{credit: map[proto.PeerID]int64{}}, nil
	case Priority:
		return priority{}, nil
	}
	return nil, fmt.Errorf("dispatch: unknown strategy %.40q: must be one of %v", name, Names())
}

type ordered struct{}

func (ordered) Name() string                { return Ordered }
func (ordered) Pick(*Task, []Candidate) int { return 0 }

type priority struct{}

func (priority) Name() string { return Priority }

func (priority) Pick(_ *Task, among []Candidate) int {
	return best(among, func(a, b *Candidate) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), busier(a, b))
	})
}

type leastLoaded struct{}

func (leastLoaded) Name() string                        { return LeastLoaded }
func (leastLoaded) Pick(_ *Task, among []Candidate) int { return best(among, busier) }

// busier orders candidates by the share of their slots that is taken, weighted; among
// equals, by the load of the machine.
func busier(a, b *Candidate) int {
	share := func(c, other *Candidate) int64 { // cross-multiplied, to avoid a division
		taken := int64(max(c.Slots, 1) - c.Free)
		return taken * int64(max(other.Slots, 1)) * int64(max(other.Weight, 1))
	}
	return cmp.Or(cmp.Compare(share(a, b), share(b, a)), cmp.Compare(a.Load, b.Load))
}

// best returns the index of the first minimum.
func best(among []Candidate, less func(a, b *Candidate) int) int {
	at := 0
	for i := range among {
		if less(&among[i], &among[at]) < 0 {
			at = i
		}
	}
	return at
}

// roundRobin is smooth: over any number of picks each node gets its share, to within one,
// without bursts for heavy nodes.
type roundRobin struct{ credit map[proto.PeerID]int64 }

func (*roundRobin) Name() string { return RoundRobin }

func (r *roundRobin) Pick(_ *Task, among []Candidate) int {
	at, total := 0, int64(0)
	for i := range among {
		w := int64(max(among[i].Weight, 1))
		total += w
		r.credit[among[i].Peer] += w
		if r.credit[among[i].Peer] > r.credit[among[at].Peer] {
			at = i
		}
	}
	r.credit[among[at].Peer] -= total
	return at
}
