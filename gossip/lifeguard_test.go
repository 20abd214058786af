package gossip

import (
	"os"
	"runtime/debug"
	"strconv"
	"sync"
	"testing"
	"time"
)

// A trial is the result of simulated runs with faults.
type trial struct {
	hours    float64         // virtual
	verdicts int             // DEAD, by any node about any node
	wrong    int             // about a node that was running
	detect   []time.Duration // from a node's death to another node's verdict
	messages uint64
	counts   Counts
}

// runFaults runs twenty nodes for d: a tenth of the messages is lost, two nodes at a time
// are paused for 1 to 30 seconds, and every three minutes one dies and returns a minute
// later.
func runFaults(seed uint64, d time.Duration, t Tuning) trial {
	s := newSim(seed, 20, t)
	s.loss = 0.1
	s.run(30 * time.Second)
	r := trial{hours: d.Hours()}
	died := map[*simNode]time.Duration{}
	s.events = func(at *simNode, e *Event) {
		if e.Kind != Changed || e.To != Dead {
			return
		}
		r.verdicts++
		switch n := s.find(e.Peer); {
		case !n.up:
			if e.By == at.id || t.Plain {
				r.detect = append(r.detect, s.now-died[n])
			}
		case !n.paused:
			r.wrong++
		}
	}
	end := s.now + d
	var lull func()
	lull = func() { // one of the two paused nodes
		n := s.nodes[s.rand.IntN(len(s.nodes))]
		if n.paused || !n.up {
			s.after(time.Second, lull)
			return
		}
		pause := time.Second + time.Duration(s.rand.Int64N(int64(29*time.Second)))
		s.pause(n, pause)
		s.after(pause, lull)
	}
	lull()
	lull()
	for s.now < end {
		s.run(2 * time.Minute)
		n := s.nodes[s.rand.IntN(len(s.nodes))]
		if n.paused {
			continue
		}
		died[n] = s.now
		s.kill(n)
		s.run(time.Minute)
		s.start(n)
	}
	r.messages, r.counts = s.messages, s.counts()
	return r
}

func (r *trial) add(o trial) {
	r.hours += o.hours
	r.verdicts += o.verdicts
	r.wrong += o.wrong
	r.detect = append(r.detect, o.detect...)
	r.messages += o.messages
	r.counts.add(o.counts)
}

// trials runs a tuning with several seeds.
func trials(seeds int, d time.Duration, t Tuning) trial {
	defer debug.SetGCPercent(debug.SetGCPercent(800)) // a run allocates much and keeps little
	var all trial
	var mu sync.Mutex
	var wg sync.WaitGroup
	for w := range 2 {
		wg.Go(func() {
			for seed := w; seed < seeds; seed += 2 {
				r := runFaults(uint64(seed), d, t)
				mu.Lock()
				all.add(r)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return all
}

// With a tenth of the nodes paused and a tenth of the messages lost, Lifeguard has twenty
// times fewer false verdicts, and takes at most half as long again to detect a death. The
// test runs 2 virtual hours of each, or BALEFIRE_GOSSIP_HOURS in meshes that run for
// five.
func TestLifeguardHasFewerFalseVerdicts(t *testing.T) {
	seeds, each, enough := 2, time.Hour, 100
	if n, err := strconv.Atoi(os.Getenv("BALEFIRE_GOSSIP_HOURS")); err == nil {
		seeds, each, enough = (n+4)/5, 5*time.Hour, 200
	}
	plain := trials(seeds, each, tuned(func(t *Tuning) { t.Plain = true }))
	ours := trials(seeds, each, testTuning())
	for _, r := range []struct {
		name string
		trial
	}{{"plain", plain}, {"lifeguard", ours}} {
		t.Logf("counted: %s: %.0f h, %d verdicts, %d false (%.2f an hour), detection mean %v, %v; %.1f messages a node and second; %+v", r.name, r.hours, r.verdicts,
			r.wrong, float64(r.wrong)/r.hours, mean(r.detect), durations(r.detect), float64(r.messages)/r.hours/3600/20, r.counts)
	}
	if plain.wrong < 20*ours.wrong || plain.wrong < enough {
		t.Errorf("%d false verdicts, %d with plain SWIM", ours.wrong, plain.wrong)
	}
	if 2*mean(ours.detect) > 3*mean(plain.detect) {
		t.Errorf("mean detection after %v, with plain SWIM after %v", mean(ours.detect), mean(plain.detect))
	}
}
