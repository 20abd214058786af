package gossip

import (
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
)

// One node has 60 % loss (S26): the others do not lose each other, and the node itself
// detects that it should not take new work.
func TestOneBadLinkDoesNotAffectOthers(t *testing.T) {
	var wrong, right int
	paused, looks := 0, 0
	for seed := range uint64(6) {
		s := newSim(seed, 12, testTuning())
		s.run(20 * time.Second)
		s.bad[0] = 0.6
		s.events = func(at *simNode, e *Event) {
			switch {
			case e.Kind != Changed || e.To != Dead:
			case at.i != 0 && e.Peer != s.nodes[0].id:
				wrong++
			case at.i != 0:
				right++
			}
		}
		for range 600 {
			s.run(time.Second)
			looks++
			if s.nodes[0].core.Degraded(s.now) {
				paused++
			}
			for _, n := range s.nodes[1:] {
				if n.core.Isolated(s.now) {
					t.Fatalf("seed %d: node %d considers itself isolated", seed, n.i)
				}
			}
		}
	}
	t.Logf("in %d minutes: others declared each other dead %d times, the bad node %d times; it paused itself %d %% of the time", looks/60, wrong, right, 100*paused/looks)
	if wrong > 0 {
		t.Errorf("%d verdicts about healthy nodes", wrong)
	}
	if paused*2 < looks {
		t.Errorf("the bad node paused itself in only %d of %d seconds", paused, looks)
	}
}

// A pruned node returns (S28), both after a restart and after a partition during which it
// kept its incarnation. Its old record does not bring it back meanwhile (I16).
func TestPrunedNodesReturn(t *testing.T) {
	for _, restart := range []bool{true, false} {
		s := newSim(1, 6, tuned(func(t *Tuning) { t.PruneAge, t.PruneInterval = 5*time.Minute, time.Minute }))
		s.run(10 * time.Second)
		gone := s.nodes[5]
		if restart {
			s.kill(gone)
		} else {
			s.partition(func(a, b int) bool { return (a == 5) != (b == 5) })
		}
		s.run(4 * time.Minute)
		old := s.nodes[0].core.members[gone.id].record
		s.run(16 * time.Minute)
		for _, n := range s.nodes[:5] {
			if m := n.core.members[gone.id]; m == nil || m.status != Unknown {
				t.Fatalf("restart %v: node %d did not prune it", restart, n.i)
			}
			n.core.Updates(s.now, s.nodes[0].id, []*Update{old})
			if m := n.core.members[gone.id]; m.status != Unknown {
				t.Fatalf("restart %v: an old record brought it back to node %d", restart, n.i)
			}
		}
		if restart {
			s.start(gone)
		} else {
			s.partition(nil)
		}
		if d := s.until(time.Minute, func() bool { return s.agree(actualStatus) && s.equal() }); d >= 20*time.Second {
			t.Errorf("restart %v: back after %v", restart, d)
		} else {
			t.Logf("restart %v: back after %v", restart, d)
		}
		if c := s.counts(); c.Pruned < 5 || c.StaleDead < 5 {
			t.Errorf("restart %v: %+v", restart, c)
		}
	}
}

// The last node of a mesh whose other members were stopped is not isolated, however long ago
// that was (I16).
func TestTheLastNodeIsNotIsolated(t *testing.T) {
	s := newSim(1, 3, tuned(func(t *Tuning) { t.PruneAge, t.PruneInterval = 5*time.Minute, time.Minute }))
	s.run(10 * time.Second)
	s.stop(s.nodes[1])
	s.stop(s.nodes[2])
	for at := range 15 {
		s.run(time.Minute)
		if s.nodes[0].core.Isolated(s.now) {
			t.Fatalf("isolated %d minutes after the others were stopped", at+1)
		}
	}
}

// What a node keeps of members that come and go does not grow: one row for each member of the
// mesh, however often it dies or is stopped.
func TestComingAndGoingLeavesOneRowEach(t *testing.T) {
	s := newSim(1, 30, tuned(func(t *Tuning) { t.PruneAge, t.PruneInterval = 5*time.Minute, time.Minute }))
	s.run(time.Minute)
	for round := range 8 {
		for i, n := range s.nodes[10:] {
			if (i+round)%2 == 0 {
				s.stop(n)
			} else {
				s.kill(n)
			}
		}
		s.run(10 * time.Minute)
		for _, n := range s.nodes[10:] {
			s.start(n)
		}
		s.run(2 * time.Minute)
	}
	c := s.nodes[0].core
	if len(c.members) != 29 || c.alive != 29 || c.left != 0 || c.counts.Pruned == 0 {
		t.Errorf("%d rows, %d alive, %d left after %d were pruned", len(c.members), c.alive, c.left, c.counts.Pruned)
	}
}

// Partitions, one-way cuts and a total outage heal without intervention, and a node that
// leaves is seen as LEFT at once.
func TestPartitionsHeal(t *testing.T) {
	cuts := map[string]func(a, b int) bool{
		"two halves":       func(a, b int) bool { return (a < 6) != (b < 6) },
		"one deaf":         func(a, b int) bool { return b == 3 },
		"one mute":         func(a, b int) bool { return a == 3 },
		"a ring of deaf":   func(a, b int) bool { return b == (a+1)%12 },
		"all alone":        func(a, b int) bool { return true },
		"one way, halves":  func(a, b int) bool { return a < 6 && b >= 6 },
		"a third is alone": func(a, b int) bool { return (a%3 == 0) != (b%3 == 0) },
	}
	for name, cut := range cuts {
		t.Run(name, func(t *testing.T) {
			var took []time.Duration
			for seed := range uint64(4) {
				s := newSim(seed, 12, testTuning())
				s.loss = 0.05
				s.run(20 * time.Second)
				s.partition(cut)
				s.run(2 * time.Minute)
				if name == "all alone" && !s.nodes[0].core.Isolated(s.now) {
					t.Error("a node that hears from no one is not isolated")
				}
				if name == "one deaf" && !s.nodes[3].core.Degraded(s.now) {
					t.Error("a deaf node is not degraded")
				}
				s.partition(nil)
				took = append(took, s.until(5*time.Minute, func() bool { return s.agree(actualStatus) && s.equal() }))
			}
			t.Logf("healed after %v", durations(took))
			if worst(took) > 90*time.Second {
				t.Errorf("healed after %v", worst(took))
			}
		})
	}
	s := newSim(1, 12, testTuning())
	s.run(20 * time.Second)
	s.stop(s.nodes[4])
	d := s.until(time.Minute, func() bool {
		return s.agree(func(n *simNode) Status {
			if n.up {
				return Alive
			}
			return Left
		})
	})
	if d > time.Second {
		t.Errorf("the leave was seen after %v", d)
	}
}

// All nodes stop and start again ten minutes later, with the clock where it was or
// anywhere else: all see each other alive at once (S27).
func TestTotalOutage(t *testing.T) {
	s := newSim(3, 7, testTuning())
	s.run(time.Minute)
	for _, n := range s.nodes {
		s.kill(n)
	}
	s.run(10 * time.Minute)
	for _, n := range s.nodes {
		s.start(n)
	}
	if d := s.until(time.Minute, func() bool { return s.agree(actualStatus) && s.equal() }); d > 5*time.Second {
		t.Errorf("all seven are back after %v", d)
	}
}

// A dead node becomes alive only with a higher incarnation, at every node, in any
// situation (I16); no incarnation ever decreases; a node that flapped waits. The test
// runs 40 virtual hours, or BALEFIRE_GOSSIP_HOURS, over seeds, sizes and kinds of faults.
func TestInvariantsHoldForManyHours(t *testing.T) {
	seeds := 10
	if n, err := strconv.Atoi(os.Getenv("BALEFIRE_GOSSIP_HOURS")); err == nil {
		seeds = max(n/4, seeds)
	}
	var all Counts
	var hours float64
	var mu sync.Mutex
	var wg sync.WaitGroup
	for w := range 2 {
		wg.Go(func() {
			for seed := w; seed < seeds; seed += 2 {
				n := 3 + seed%5
				s := newSim(uint64(seed), n, tuned(func(t *Tuning) { t.PruneAge = 20 * time.Minute }))
				checkIncarnations(t, s)
				d := 4 * time.Hour
				randomFaults(s, d)
				mu.Lock()
				all.add(s.counts())
				hours += d.Hours()
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	t.Logf("counted: %.0f virtual hours: %+v", hours, all)
	for name, n := range map[string]uint64{
		"indirect probes": all.Indirect, "helpers": all.Helped, "missed probes": all.Misses, "suspicions": all.Suspicions,
		"confirmations": all.Confirmations, "verdicts": all.Verdicts, "refutations": all.Refutations, "own refutations": all.OwnRefutations,
		"returns": all.Returns, "suppressed": all.Suppressed, "pruned": all.Pruned,
		"pauses": all.Pauses, "stale updates": all.Stale, "unknown incarnations": all.UnknownIncarnation,
	} {
		if n == 0 {
			t.Errorf("this never happened: %s", name)
		}
	}
}

// checkIncarnations fails t if a node violates I16.
func checkIncarnations(t *testing.T, s *sim) {
	type pair struct{ at, of proto.PeerID }
	seen := map[pair]uint64{}
	life := map[proto.PeerID]uint64{}
	s.events = func(at *simNode, e *Event) {
		if life[at.id] != at.boot { // a restarted node has forgotten what it knew
			for k := range seen {
				if k.at == at.id {
					delete(seen, k)
				}
			}
			life[at.id] = at.boot
		}
		k := pair{at.id, e.Peer}
		if e.Kind == Changed {
			if e.From == Dead && e.To == Alive && e.Incarnation <= seen[k] {
				t.Errorf("at %v node %d: %x came back from the dead with incarnation %d, it died with %d", s.now, at.i, e.Peer[:2], e.Incarnation, seen[k])
			}
			if e.Incarnation < seen[k] {
				t.Errorf("at %v node %d: incarnation of %x went back from %d to %d", s.now, at.i, e.Peer[:2], seen[k], e.Incarnation)
			}
			seen[k] = e.Incarnation
			if m := at.core.members[e.Peer]; m.status != e.To && e.To == Dead || e.To != Alive && m.eligible(s.now) && m.status != Alive {
				t.Errorf("at %v node %d: %x is eligible while it is %v", s.now, at.i, e.Peer[:2], m.status)
			}
		}
	}
}

// randomFaults runs the simulation for d with faults of all kinds, one after another, and
// calm between them.
func randomFaults(s *sim, d time.Duration) {
	end := s.now + d
	for s.now < end {
		n := s.nodes[s.rand.IntN(len(s.nodes))]
		hold := time.Duration(s.rand.Int64N(int64(4 * time.Minute)))
		switch s.rand.IntN(8) {
		case 0:
			s.kill(n)
			if s.rand.IntN(3) == 0 {
				hold += 30 * time.Minute // long enough to be pruned
			}
			s.run(hold)
			s.start(n)
		case 1:
			s.pause(n, time.Second+hold/4)
		case 2:
			at := 1 + s.rand.IntN(len(s.nodes)-1)
			s.partition(func(a, b int) bool { return (a < at) != (b < at) })
			s.run(hold)
			s.partition(nil)
		case 3:
			s.partition(func(a, b int) bool { return a == n.i })
			s.run(hold)
			s.partition(nil)
		case 4:
			s.loss = 0.3
			s.run(hold)
			s.loss = 0.02
		case 5:
			s.delay = 600 * time.Millisecond
			s.run(hold)
			s.delay = 10 * time.Millisecond
		case 6:
			s.stop(n)
			s.run(hold)
			s.start(n)
		case 7:
			s.act(n, n.core.Revise(s.now))
			s.bad[n.i] = 0.6
			s.run(hold)
			delete(s.bad, n.i)
		}
		s.run(5 * time.Minute)
	}
}
