package node

import (
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/gossip"
	"github.com/balefire/balefire/transport/transporttest"
)

// A lifeguardRun is the result of one run of complete nodes on a bad network.
type lifeguardRun struct {
	hours    float64
	reports  int             // DEAD reports of any node about any node
	wrong    int             // reports of a running node about a running node
	byPaused int             // the same by a paused node, which receives nothing
	detect   []time.Duration // from the death of a node until each other one reported it
}

// runLifeguard runs complete nodes: a tenth of the packets is lost, one node at a time
// pauses for 1 to 30 seconds, and every three minutes one dies and returns a minute
// later.
func runLifeguard(t *testing.T, size int, seed uint64, d time.Duration, plain bool) (r lifeguardRun) {
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(seed, 9))
		type nodeState struct {
			still bool
			died  time.Time // zero: it is up
		}
		var w *simMesh
		now := map[string]*nodeState{} // guarded by v.mu
		v := &deathReports{dead: map[[2]string]int{}}
		begun := false
		note := func(by *simNode, e gossip.Event) {
			v.mu.Lock()
			defer v.mu.Unlock()
			if !begun || e.Kind != gossip.Changed || e.To != gossip.Dead {
				return
			}
			r.reports++
			switch of := now[w.nameOf(e.Peer)]; {
			case !of.died.IsZero():
				r.detect = append(r.detect, time.Since(of.died))
			case of.still:
			case now[by.name].still:
				r.byPaused++
			default:
				r.wrong++
			}
		}
		w = newSimMeshWith(t, size, seed, transporttest.Link{Latency: 5 * time.Millisecond, Seed: seed}, func(s *simNode, cfg *Config) {
			cfg.Net.DHT, cfg.Net.Relays = false, 0 // expensive and irrelevant here
			cfg.Simulated.Gossip = func(c *gossip.Config) {
				c.Plain = plain
				next := c.Changed
				c.Changed = func(e gossip.Event) { note(s, e); next(e) }
			}
		})
		defer w.close()
		w.await(time.Minute, "the first view", func() bool { return w.allAlive() && w.allConnected() })
		for _, s := range w.nodes {
			now[s.name] = &nodeState{}
		}
		set := func(f func()) { v.mu.Lock(); defer v.mu.Unlock(); f() }
		set(func() { begun = true })
		w.SetLoss(0.1)
		end := time.Now().Add(d)
		w.users.Go(func() { // one at a time pauses
			rng := rand.New(rand.NewPCG(seed, 10))
			for time.Now().Before(end) {
				s := w.nodes[rng.IntN(len(w.nodes))]
				up := false
				set(func() { up = now[s.name].died.IsZero(); now[s.name].still = up })
				if !up {
					time.Sleep(time.Second)
					continue
				}
				w.Hold(s.at)
				time.Sleep(time.Second + time.Duration(rng.Int64N(int64(29*time.Second))))
				w.Release(s.at)
				set(func() { now[s.name].still = false })
			}
		})
		for time.Now().Before(end) {
			time.Sleep(2 * time.Minute)
			s := w.nodes[rng.IntN(len(w.nodes))]
			still := false
			set(func() {
				if still = now[s.name].still; !still {
					now[s.name].died = time.Now()
				}
			})
			if still {
				continue
			}
			s.crash()
			time.Sleep(time.Minute)
			set(func() { now[s.name].died = time.Time{} })
			s.start()
		}
		r.hours = d.Hours()
		set(func() { begun = false })
	})
	return r
}

// TestLifeguardWithWholeNodes verifies over real libp2p what a test in package gossip
// verifies for its core: with a tenth of the nodes paused and a tenth of the packets
// lost, the rules of Lifeguard give twenty times fewer false verdicts and detect a death
// at most 1.5 times as late. It needs ten nodes and BALEFIRE_VIRTUAL_HOURS; the short
// form has six nodes and some minutes, in which too little happens for such figures: each death is
// detected, and the rules give no more false verdicts than there are without them.
func TestLifeguardWithWholeNodes(t *testing.T) {
	t.Parallel()
	size, each := 6, 3*time.Minute
	hours, err := strconv.Atoi(os.Getenv("BALEFIRE_VIRTUAL_HOURS"))
	long := err == nil
	if long {
		size, each = 10, time.Duration(hours)*time.Hour/2
	}
	plain, ours := runLifeguard(t, size, 1, each, true), runLifeguard(t, size, 1, each, false)
	for _, r := range []struct {
		name string
		lifeguardRun
	}{{"plain", plain}, {"lifeguard", ours}} {
		if slices.Sort(r.detect); len(r.detect) == 0 {
			t.Fatalf("%s: no death was detected", r.name)
		}
		t.Logf("counted: %s: %.2f h, %d verdicts, %d false, %d more by paused nodes; detection mean %v, median %v, worst %v of %d", r.name, r.hours, r.reports, r.wrong, r.byPaused,
			mean(r.detect), r.detect[len(r.detect)/2], r.detect[len(r.detect)-1], len(r.detect))
	}
	if plain.wrong < ours.wrong || long && (plain.wrong < 20*ours.wrong || plain.wrong < 100) {
		t.Errorf("%d false verdicts, with plain SWIM %d", ours.wrong, plain.wrong)
	}
	if long && float64(mean(ours.detect)) > 1.5*float64(mean(plain.detect)) {
		t.Errorf("a death is detected after %v, by plain SWIM after %v", mean(ours.detect), mean(plain.detect))
	}
}

func mean(all []time.Duration) time.Duration {
	var sum time.Duration
	for _, d := range all {
		sum += d
	}
	return sum / time.Duration(max(len(all), 1))
}
