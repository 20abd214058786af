package node

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/gossip"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/transporttest"
)

// lanLink is the link for which docs/network.md states its targets.
var lanLink = transporttest.Link{Latency: 2 * time.Millisecond, Mbps: 1000}

// longRun selects the long form of a test: more nodes, rounds and hours.
var longRun = os.Getenv("BALEFIRE_LONG") != ""

// eachNth returns a form of t.Run for the rows of a table: the short form of the test runs the
// first of each n rows, the long form all.
func eachNth(t *testing.T, n int) func(name string, row func(*testing.T)) {
	next := 0
	return func(name string, row func(*testing.T)) {
		if longRun || next%n == 0 {
			t.Run(name, row)
		}
		next++
	}
}

// await waits until ok returns true, at most limit, and returns how long it took.
func (sm *simMesh) await(limit time.Duration, what string, ok func() bool) time.Duration {
	sm.t.Helper()
	began := time.Now()
	for !ok() {
		if time.Since(began) > limit {
			sm.t.Fatalf("%s: not within %v", what, limit)
		}
		time.Sleep(20 * time.Millisecond)
	}
	return time.Since(began)
}

// peer returns the id of s, up or down, which was started before.
func (s *simNode) peer() proto.PeerID { return s.id }

// statusOf returns the status of another node according to s.
func (s *simNode) statusOf(of *simNode) gossip.Status {
	m, _ := s.get().gossip.Member(of.peer())
	return m.Status
}

// allSee reports whether all running nodes assign this status to a node.
func (sm *simMesh) allSee(of *simNode, want gossip.Status) bool {
	return !slices.ContainsFunc(sm.nodes, func(s *simNode) bool {
		return s != of && s.get() != nil && s.statusOf(of) != want
	})
}

// allAlive reports whether all running nodes consider all running nodes alive.
func (sm *simMesh) allAlive() bool {
	return !slices.ContainsFunc(sm.nodes, func(s *simNode) bool { return s.get() != nil && !sm.allSee(s, gossip.Alive) })
}

// allConnected reports whether all running nodes are connected to each other.
func (sm *simMesh) allConnected() bool {
	for _, a := range sm.nodes {
		for _, b := range sm.nodes {
			if a != b && a.get() != nil && b.get() != nil && !a.get().net.Connected(b.peer()) {
				return false
			}
		}
	}
	return true
}

// deathReports counts the DEAD reports of nodes about each other, from the events of
// gossip.
type deathReports struct {
	mu    sync.Mutex
	dead  map[[2]string]int // by reporter and subject
	times []time.Time       // time of each report
}

func (r *deathReports) watch(s *simNode, cfg *Config) {
	cfg.Simulated.Gossip = func(c *gossip.Config) {
		next := c.Changed
		c.Changed = func(e gossip.Event) {
			if e.Kind == gossip.Changed && e.To == gossip.Dead {
				r.mu.Lock()
				r.dead[[2]string{s.name, s.mesh.nameOf(e.Peer)}]++
				r.times = append(r.times, time.Now())
				r.mu.Unlock()
			}
			next(e)
		}
	}
}

// nameOf returns the name of the node with id p.
func (sm *simMesh) nameOf(p proto.PeerID) string {
	if name, ok := sm.names.Load(p); ok {
		return name.(string)
	}
	return p.Short()
}

// TestMembersKnowEachOther verifies the figures of a mesh of ten complete nodes, of
// twenty with BALEFIRE_LONG: all know a new member within 5 s and a dead one within 10
// s; a revoked one is disconnected by all and cannot join anywhere.
func TestMembersKnowEachOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		size := 10
		if longRun {
			size = 20
		}
		w := newSimMesh(t, size-1, 1, lanLink)
		defer w.close()
		first := w.await(time.Minute, "the first view", func() bool { return w.allAlive() && w.allConnected() })
		time.Sleep(10 * time.Second)
		before := w.Stats().Sent
		time.Sleep(10 * time.Second)
		idle := float64(w.Stats().Sent-before) / 10 / float64(size-1)

		one := w.add()
		w.join(one)
		joined := w.await(time.Minute, "a new one is known", func() bool { return w.allSee(one, gossip.Alive) })
		linked := w.await(time.Minute, "all are connected with it", w.allConnected)
		if joined > 5*time.Second {
			t.Errorf("a new member was known to all after %v, want at most 5s", joined)
		}
		var killed []time.Duration
		for _, i := range []int{3, size/2 + 1, size - 1} {
			time.Sleep(time.Duration(w.rng.IntN(3000)) * time.Millisecond)
			w.nodes[i].crash()
			killed = append(killed, w.await(time.Minute, "a dead one is known", func() bool { return w.allSee(w.nodes[i], gossip.Dead) }))
		}
		if d := slices.Max(killed); d > 10*time.Second {
			t.Errorf("a dead member was known to all after %v, want at most 10s", d)
		}
		out := w.nodes[5]
		if err := w.nodes[0].get().Pairing.Revoke(t.Context(), out.name, "lost"); err != nil {
			t.Fatal(err)
		}
		revoked := w.await(time.Minute, "a revocation", func() bool {
			return !slices.ContainsFunc(w.nodes, func(s *simNode) bool {
				return s != out && s.get() != nil && (!s.get().book.Revoked(out.peer()) || s.get().net.Connected(out.peer()))
			})
		})
		time.Sleep(15 * time.Second)
		for _, s := range w.nodes {
			if s != out && s.get() != nil && s.get().net.Connected(out.peer()) {
				t.Errorf("%s is connected to the revoked member", s.name)
			}
		}
		t.Logf("first view %v; %.0f packets a second and node when idle; a join is known after %v, connected after %v more; a death after %v; a revocation after %v",
			first, idle, joined, linked, killed, revoked)
	})
}

// TestOneBadNode verifies S26: a node with 60 % loss does not disturb the others, and
// pauses itself.
func TestOneBadNode(t *testing.T) {
	t.Parallel()
	size, seconds, part := 6, 150, 10 // it must pause itself in one part of the seconds
	if longRun {
		size, seconds, part = 8, 600, 6
	}
	synctest.Test(t, func(t *testing.T) {
		v := &deathReports{dead: map[[2]string]int{}}
		w := newSimMeshWith(t, size, 1, lanLink, v.watch)
		defer w.close()
		w.await(time.Minute, "the first view", w.allAlive)
		bad := w.nodes[size-1]
		w.SetNodeLoss(bad.at, 0.6)
		paused := 0
		for range seconds {
			time.Sleep(time.Second)
			if bad.get().gossip.SelfPaused() {
				paused++
			}
			for _, s := range w.nodes[:size-1] {
				if s.get().gossip.Isolated() {
					t.Fatalf("%s considers itself isolated", s.name)
				}
			}
		}
		w.SetNodeLoss(bad.at, 0)
		back := w.await(2*time.Minute, "recovery", func() bool {
			return w.allAlive() && w.allConnected() && !bad.get().gossip.SelfPaused()
		})
		v.mu.Lock()
		defer v.mu.Unlock()
		for who, n := range v.dead {
			if who[0] != bad.name && who[1] != bad.name {
				t.Errorf("%s reported %s dead %d times although both were well", who[0], who[1], n)
			}
		}
		t.Logf("it paused itself in %d of %d seconds; verdicts %v; all well %v after the loss ended", paused, seconds, v.dead, back)
		if least := seconds / part; paused < least {
			t.Errorf("the bad node paused itself in only %d of %d seconds, want %d", paused, seconds, least)
		}
	})
}

// TestPrunedNodeReturns verifies S28 with complete nodes: a node returns by itself after
// it was down so long that the others pruned it, and so does one that was cut off but
// kept running.
func TestPrunedNodeReturns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newSimMeshWith(t, 4, 1, lanLink, func(_ *simNode, cfg *Config) {
			cfg.Mesh.PruneAge, cfg.Mesh.PruneInterval = 2*time.Minute, time.Minute
		})
		defer w.close()
		w.await(time.Minute, "the first view", w.allAlive)
		gone := w.nodes[3]
		for _, restart := range []bool{true, false} {
			if restart {
				gone.crash()
			} else {
				w.Unplug(gone.at)
			}
			time.Sleep(5 * time.Minute)
			for _, s := range w.nodes[:3] {
				if got := s.statusOf(gone); got != gossip.Unknown {
					t.Errorf("%s still has it as %s", s.name, got)
				}
			}
			if restart {
				gone.start()
			} else {
				w.Heal()
			}
			back := w.await(2*time.Minute, "its return", func() bool { return w.allAlive() && w.allConnected() })
			t.Logf("restart %v: back after %v", restart, back)
			if restart && back > 10*time.Second || back > 90*time.Second {
				t.Errorf("restart %v: back after %v", restart, back)
			}
			time.Sleep(time.Minute)
		}
	})
}

// TestAllReturnAtNewAddresses verifies S27: all five nodes, seven with BALEFIRE_LONG,
// lose power and start ten minutes later at new addresses, except one: a member that
// kept its address, or one whose new address is in the seeds of the others. Through it
// all find each other without help.
func TestAllReturnAtNewAddresses(t *testing.T) {
	t.Parallel()
	size := 5
	if longRun {
		size = 7
	}
	for _, seeded := range []bool{false, true} {
		t.Run(fmt.Sprintf("seeds %v", seeded), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				seed := ""
				w := newSimMeshWith(t, size, 1, lanLink, func(s *simNode, cfg *Config) {
					if seed != "" && s.place != 2 {
						cfg.Net.Seeds = []string{seed}
					}
				})
				defer w.close()
				w.await(time.Minute, "the first view", func() bool { return w.allAlive() && w.allConnected() })
				time.Sleep(time.Minute)
				for _, s := range w.nodes {
					s.crash()
				}
				time.Sleep(10 * time.Minute)
				for _, s := range w.nodes {
					if seeded || s.place != 2 {
						s.at += 100
					}
				}
				if seeded {
					seed = w.Addr(w.nodes[2].at) + "/p2p/" + w.nodes[2].id.String()
				}
				for _, s := range w.nodes {
					s.start()
				}
				alive := w.await(5*time.Minute, "all are known to live", w.allAlive)
				more := w.await(5*time.Minute, "all are connected", w.allConnected)
				t.Logf("known after %v, connected after %v", alive, alive+more)
				if alive+more > time.Minute {
					t.Errorf("all were back after %v", alive+more)
				}
				time.Sleep(time.Minute) // let the pending dials finish
			})
		})
	}
}
