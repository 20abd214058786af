package transport_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/transport/transporttest"
)

// At the minimum IPv6 MTU, through a tunnel of 1280 bytes that silently drops larger
// packets, QUIC connects and tasks get through: 1232 bytes are left for it.
func TestMinimumMTU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newSim(t, 2, transporttest.Link{Latency: 10 * time.Millisecond, MTU: 1280 - 40 - 8})
		defer m.close()
		m.await(10*time.Second, "connected", m.connected)
		m.nodes[0].addTasks(20)
		m.await(10*time.Second, "the tasks", func() bool { return m.nodes[0].left() == 0 })
		m.check(20)
	})
}

// When a path starts to drop packets of the size that it carried, its connection is
// replaced by a new one, which starts with small packets.
func TestShrinkingMTU(t *testing.T) {
	for _, tt := range []struct {
		name  string
		tasks int
		size  int64
	}{{"small tasks", 200, 100}, {"a body", 1, 250_000}} {
		t.Run(tt.name, func(t *testing.T) {
			var all []time.Duration
			for range scaled(5, 99) {
				synctest.Test(t, func(t *testing.T) {
					m := newSim(t, 2, transporttest.Link{Latency: 20 * time.Millisecond, Mbps: 20, MTU: 1472})
					defer m.close()
					m.size.Store(tt.size)
					m.await(10*time.Second, "connected", m.connected)
					m.nodes[0].addTasks(tt.tasks)
					m.await(20*time.Second, "tasks before", func() bool { return m.nodes[0].left() == 0 })
					time.Sleep(20 * time.Second)
					m.SetMTU(1300)
					m.nodes[0].addTasks(tt.tasks)
					all = append(all, m.await(10*time.Second, "tasks on the smaller path", func() bool { return m.nodes[0].left() == 0 }))
					m.check(2 * tt.tasks)
				})
			}
			slices.Sort(all)
			median := all[len(all)/2]
			t.Logf("counted: %d times, after %v, at the latest %v", len(all), median, all[len(all)-1])
			if median > 5*time.Second {
				t.Errorf("the tasks took %v on a path that has shrunk, want at most 5s", median)
			}
		})
	}
}

// Neither a slow, congested path nor a slow disk is a black hole. Where QUIC heard nothing for
// long before the rate of the path was known, that cannot be told from a black hole: of 4 500
// connections over 64 kbit/s two were replaced.
func TestSlowPathIsNotABlackHole(t *testing.T) {
	for _, tt := range []struct {
		name   string
		mbps   float64
		commit time.Duration
		few    int // connections of a hundred that may be replaced
	}{{"64 kbit/s", 0.064, 0, 2}, {"a slow disk", 20, 15 * time.Second, 0}} {
		seeds, replaced := scaled(3, 100), 0
		for seed := range seeds {
			t.Run(fmt.Sprint(tt.name, " ", seed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					link := transporttest.Link{Latency: 60 * time.Millisecond, Jitter: 5 * time.Millisecond, Mbps: tt.mbps, Seed: uint64(seed)}
					m := newSimWith(t, 2, link, func(_ *simNode, cfg *transport.Config) { cfg.Timing.Ack = 10 * time.Minute })
					defer m.close()
					m.size.Store(60_000)
					m.commit = tt.commit
					m.await(time.Minute, "connected", m.connected)
					time.Sleep(5 * time.Second) // if both dialed, one connection is closed
					links := m.nodes[0].links.Load()
					m.nodes[0].addTasks(10)
					took := m.await(20*time.Minute, "all bytes", func() bool { return m.nodes[0].left() == 0 })
					if n := m.nodes[0].links.Load() - links; n != 0 {
						t.Logf("within %v the link was reopened %d times", took, n)
						replaced++
					}
					m.check(10)
				})
			})
		}
		t.Logf("counted: %s: %d of %d connections were replaced", tt.name, replaced, seeds)
		if replaced*100 > tt.few*seeds {
			t.Errorf("%s: %d of %d connections were replaced", tt.name, replaced, seeds)
		}
	}
}

// A frame that is large for a narrow link arrives about as fast as the link carries it, keeps its
// queue short, and costs no connection.
func TestLargeFrameOverANarrowLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const narrow = 1 // to which the tasks go
		m := newSim(t, 4, transporttest.Link{Latency: 10 * time.Millisecond, Mbps: 20, Seed: 1})
		defer m.close()
		m.await(10*time.Second, "connected", m.connected)
		time.Sleep(5 * time.Second) // if both dialed, one connection is closed
		m.SetNodeLink(narrow, transporttest.Both(transporttest.Direction{Latency: 30 * time.Millisecond, Mbps: 0.064, Queue: 24_000}))
		time.Sleep(30 * time.Second)
		links := m.nodes[0].links.Load()
		m.size.Store(200_000)
		m.nodes[0].addTasks(1)
		var rtts []time.Duration
		began := time.Now()
		for m.nodes[0].left() > 0 {
			rtt, err := m.nodes[2].Ping(t.Context(), m.nodes[narrow].Peer())
			if err != nil {
				t.Fatal(err)
			}
			rtts = append(rtts, rtt)
			time.Sleep(500 * time.Millisecond)
		}
		slices.Sort(rtts)
		took, median, worst := time.Since(began), rtts[len(rtts)/2], rtts[len(rtts)-1]
		t.Logf("200 kB after %v, 25 s at the rate of the link; round trips of another node: median %v, worst %v", took, median, worst)
		if took > time.Minute || median > 3*time.Second || worst > 8*time.Second {
			t.Error("too slow")
		}
		if n := m.nodes[0].links.Load() - links; n != 0 {
			t.Errorf("the link was reopened %d times", n)
		}
	})
}
