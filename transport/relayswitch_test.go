package transport_test

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/transport/transporttest"
)

// A switchSim is a mesh of two nodes behind symmetric NATs, 0 and 1, and two relays, 2
// and 3, whose nodes publish their paths to relays.
type switchSim struct {
	*reachSim
	mu   sync.Mutex
	told map[proto.PeerID][]transport.Hop
	slow int // node 0 publishes a slow path to this relay; 0: to none
}

func newSwitchSim(t *testing.T) *switchSim {
	s, _ := makeSwitchSim(t, 4, transporttest.Link{Latency: 5 * time.Millisecond, Mbps: 100}, nil)
	s.await(20*time.Second, "reservations and a path", func() bool {
		return len(s.nodes[0].Reservations()) == 2 && len(s.nodes[1].Reservations()) == 2 && s.nodes[0].Connected(s.nodes[1].Peer())
	})
	return s
}

// makeSwitchSim returns a mesh whose relays, from 2 on, have these links and may lie.
func makeSwitchSim(t *testing.T, nodes int, link transporttest.Link, links map[int]transporttest.NodeLink) (s *switchSim, liars map[int]*transport.Liar) {
	s, liars = &switchSim{told: map[proto.PeerID][]transport.Hop{}}, map[int]*transport.Liar{}
	s.reachSim = newReachSimWith(t, nodes, transporttest.Symmetric, link, func(n *simNode, cfg *transport.Config) {
		cfg.Hops = func(p proto.PeerID) []transport.Hop {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.told[p]
		}
		cfg.Reserve = nodes - 2
		n.mesh.SetNodeLink(n.id, links[n.id])
		if n.id >= 2 {
			liars[n.id] = new(transport.Liar)
			n.liar = liars[n.id]
		}
	})
	return s, liars
}

// publish makes all nodes publish their paths to relays.
func (s *switchSim) publish() {
	for _, n := range s.nodes {
		hops := n.Hops()
		for i, h := range hops {
			if n.id == 0 && s.slow > 0 && h.Relay == simKeys(s.slow).Peer() {
				hops[i].Path.Rate = 10_000
			}
		}
		s.mu.Lock()
		s.told[n.Peer()] = hops
		s.mu.Unlock()
	}
}

// rest runs for d without work.
func (s *switchSim) rest(d time.Duration) {
	for range int(d / time.Second) {
		s.publish()
		time.Sleep(time.Second)
	}
}

// work adds work of node 0 for the time d, and returns how many tasks these are: one, or in
// bulk as many of 250 kB as keep two megabytes waiting.
func (s *switchSim) work(bulk bool, d time.Duration) int {
	size, given := int64(1000), 1
	if bulk {
		size, given = 250_000, max(0, 8-s.nodes[0].left())
	}
	s.size.Store(size)
	s.nodes[0].addTasks(given)
	s.publish()
	time.Sleep(d)
	return given
}

// reserved returns the relays at which a node has a reservation.
func (s *switchSim) reserved(node int) (all []int) {
	for _, p := range s.nodes[node].Reservations() {
		r, _ := s.nodes[node].peerOf(p)
		all = append(all, r)
	}
	return all
}

// live runs for d while work is sent and the nodes publish their paths.
func (s *switchSim) live(d time.Duration) (given int) {
	for range int(d / time.Second) {
		s.nodes[0].addTasks(5)
		given += 5
		s.publish()
		time.Sleep(time.Second)
	}
	return given
}

// via returns the relays through which 0 and 1 send to each other, -1 for none.
func (s *switchSim) via() (ways [2]int) {
	for i := range ways {
		ways[i], _ = s.nodes[0].peerOf(s.status(i, 1-i).Relay)
	}
	return ways
}

// near moves relay r near both nodes, and the other one near the first only: judging by
// its own half, that node would choose the other.
func (s *switchSim) near(r int) {
	other := 5 - r
	s.SetDistance(0, r, 10*time.Millisecond)
	s.SetDistance(1, r, 10*time.Millisecond)
	s.SetDistance(0, other, 0)
	s.SetDistance(1, other, 300*time.Millisecond)
}

// TestRelaySwitch checks that the relay is chosen by the whole path: work moves to the
// better relay, moves back when that one has been better for long, and loses nothing,
// including connections, in the process.
func TestRelaySwitch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSwitchSim(t)
		defer s.close()
		given := 0
		for _, r := range []int{3, 2, 3} {
			s.near(r)
			given += s.live(5 * time.Minute)
			// What a comparison measured counts for half an hour, and the next one may be 5 minutes away.
			for began := time.Now(); s.via() != [2]int{r, r} && time.Since(began) < 10*time.Minute; {
				given += s.live(time.Second)
			}
			if v := s.via(); v != [2]int{r, r} {
				t.Fatalf("the work goes through %v, relay %d is better: %+v", v, r, s.nodes[0].Paths(s.nodes[1].Peer()).Paths)
			}
		}
		s.await(10*time.Second, "the rest of the work", func() bool { return s.nodes[0].left() == 0 })
		if a, b := s.lost(0, 1), s.lost(1, 0); a+b > 0 {
			t.Errorf("the peers lost each other %d and %d times", a, b)
		}
		if conns := len(connectedPaths(s.nodes[0].Paths(s.nodes[1].Peer()))); conns > 4 {
			t.Errorf("%d connections are left", conns)
		}
		s.check(given)
	})
}

func connectedPaths(r transport.PathReport) (all []transport.Path) {
	for _, p := range r.Paths {
		if p.Connected {
			all = append(all, p)
		}
	}
	return all
}

// TestRelaySwitchIsStable checks that similar relays are not exchanged for each other,
// and that a short degradation of one changes nothing.
func TestRelaySwitchIsStable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSwitchSim(t)
		defer s.close()
		given := s.live(2 * time.Minute)
		before, first := s.happened(0, transport.EventPath)+s.happened(1, transport.EventPath), s.via()
		for round := range scaled(6, 20) {
			s.SetDistance(0, 2, time.Duration(round%3)*time.Millisecond)
			s.SetDistance(1, 3, time.Duration(round%4)*time.Millisecond)
			given += s.live(time.Minute)
			s.SetDistance(0, 2+round%2, 15*time.Millisecond)
			given += s.live(25 * time.Second)
			s.SetDistance(0, 2+round%2, 0)
		}
		if n := s.happened(0, transport.EventPath) + s.happened(1, transport.EventPath) - before; n > 0 {
			t.Errorf("%d changes of the path, from %v to %v", n, first, s.via())
		}
		s.await(10*time.Second, "the rest of the work", func() bool { return s.nodes[0].left() == 0 })
		s.check(given)
	})
}

// TestReceiverLeavesTheRelayToTheSender checks that a side that only receives, and estimates
// that another relay is better, stays on the one that the sender has compared with it while
// that sends, and not after.
func TestReceiverLeavesTheRelayToTheSender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSwitchSim(t)
		defer s.close()
		given := s.live(2 * time.Minute)
		before, first := s.happened(0, transport.EventPath)+s.happened(1, transport.EventPath), s.via()
		s.slow = first[0]
		for range 30 { // so much that the sender compares
			given += s.work(true, 100*time.Millisecond)
		}
		for range 180 {
			given += s.work(false, time.Second)
		}
		if n := s.happened(0, transport.EventPath) + s.happened(1, transport.EventPath) - before; n > 0 {
			t.Errorf("%d changes of the path, from %v to %v", n, first, s.via())
		}
		other := 5 - first[0]
		s.await(2*time.Minute, "the other relay, without work", func() bool { return s.via() == [2]int{other, other} })
		s.check(given)
	})
}

// TestFirstDialUsesBestRelay checks that a peer is dialed through the relay with the best
// whole path, not through the nearest one.
func TestFirstDialUsesBestRelay(t *testing.T) {
	for _, r := range []int{2, 3} {
		synctest.Test(t, func(t *testing.T) {
			s := newSwitchSim(t)
			defer s.close()
			s.near(r)
			s.live(30 * time.Second)
			for range 5 {
				s.nodes[0].Disconnect(s.nodes[1].Peer())
				s.await(time.Second, "the disconnect", func() bool { return !s.nodes[0].Connected(s.nodes[1].Peer()) })
				s.await(10*time.Second, "a path again", func() bool { return s.nodes[0].Connected(s.nodes[1].Peer()) })
				if v := s.via(); v[0] != r {
					t.Errorf("dialed through %v, relay %d is better", v, r)
				}
				s.live(5 * time.Second)
			}
		})
	}
}

// TestReservationsFollowScore checks that a node keeps its reservation at the relay that
// is best for the peers that use it, not at the one that is best for itself.
func TestReservationsFollowScore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSwitchSim(t)
		defer s.close()
		s.nodes[1].stop()
		s.oneReservation = true
		s.nodes[1].start()
		for _, r := range []int{3, 2} {
			s.near(r)
			s.SetDistance(1, 5-r, 0)
			s.SetDistance(0, 5-r, 300*time.Millisecond)
			// How long it takes is chance: QUIC takes a rise of the latency for a loss, and a path
			// that carries little forgets one in minutes.
			took := time.Duration(0)
			for ; !slices.Equal(s.reserved(1), []int{r}) && took < time.Hour; took += time.Minute {
				s.live(time.Minute)
			}
			t.Logf("relay %d in %v", r, took)
			s.live(2 * time.Minute)
			if held := s.reserved(1); !slices.Equal(held, []int{r}) {
				t.Errorf("reserved at %v, relay %d is better", held, r)
			}
		}
	})
}

// TestObservationByStrangerIsIgnored checks that an observation by a refused peer is
// ignored.
func TestObservationByStrangerIsIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newReachSimWith(t, 4, transporttest.Symmetric, wan, func(n *simNode, _ *transport.Config) {
			n.admit = func(p proto.PeerID) error {
				if n.id == 0 && p == simKeys(2).Peer() {
					return errors.New("no member")
				}
				return nil
			}
		})
		defer m.close()
		members := false
		for range 5000 {
			for _, o := range m.nodes[0].Reach().Observed {
				if o.By == simKeys(2).Peer() {
					t.Fatal("a stranger's observation was accepted")
				}
				members = members || o.By == simKeys(3).Peer()
			}
			time.Sleep(time.Millisecond)
		}
		if !members {
			t.Error("this node's address was not observed")
		}
	})
}
