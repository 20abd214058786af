package transport_test

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/transport/transporttest"
	"github.com/balefire/balefire/wire"
)

// A reachSim is a mesh in which nodes 0 and 1 are behind NATs and the others relay.
type reachSim struct {
	*sim
	mu             sync.Mutex
	events         map[int][]transport.Event
	oneReservation bool     // nodes started from now on keep one reservation, not two
	relays         struct { // relays that each node announces, as gossip would publish them
		sync.Mutex
		of map[int][]proto.PeerID
	}
}

func newReachSim(t *testing.T, nodes int, kind transporttest.Kind, link transporttest.Link) *reachSim {
	return newReachSimWith(t, nodes, kind, link, func(*simNode, *transport.Config) {})
}

// newReachSimWith calls further on each node's configuration.
func newReachSimWith(t *testing.T, nodes int, kind transporttest.Kind, link transporttest.Link, further func(*simNode, *transport.Config)) *reachSim {
	m := &reachSim{sim: makeSim(t, nodes, link), events: map[int][]transport.Event{}}
	m.relays.of = map[int][]proto.PeerID{}
	m.Behind(kind, 0, 1)
	m.contact = func(i int, c *proto.Contact) {
		m.relays.Lock()
		defer m.relays.Unlock()
		c.Relays = m.relays.of[i]
		if i < 2 {
			c.Addrs = []string{"/ip4/1.0.200.1/udp/4001/quic-v1"} // only in its own network
		}
	}
	m.tune = func(n *simNode, cfg *transport.Config) {
		further(n, cfg)
		cfg.Relay = n.id >= 2 && n.liar == nil
		if m.oneReservation {
			cfg.Reserve = 1
		}
		cfg.Relays = func() (all []proto.PeerID) {
			for i := 2; i < nodes; i++ {
				all = append(all, simKeys(i).Peer())
			}
			return all
		}
		cfg.Open = func(p proto.PeerID) bool { other, _ := n.peerOf(p); return other >= 2 }
		cfg.Observe = func(e transport.Event) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.events[n.id] = append(m.events[n.id], e)
			m.relays.Lock()
			defer m.relays.Unlock()
			switch e.Kind {
			case transport.EventReserved:
				m.relays.of[n.id] = append(m.relays.of[n.id], e.Peer)
			case transport.EventReservationLost:
				m.relays.of[n.id] = slices.DeleteFunc(slices.Clone(m.relays.of[n.id]), func(p proto.PeerID) bool { return p == e.Peer })
			}
		}
	}
	m.startAll()
	return m
}

// status returns node a's connection status with node b.
func (m *reachSim) status(a, b int) transport.PeerStatus {
	for _, s := range m.nodes[a].Peers() {
		if s.Peer == simKeys(b).Peer() {
			return s
		}
	}
	return transport.PeerStatus{}
}

func (m *reachSim) direct(a, b int) bool { s := m.status(a, b); return s.Connected && s.Direct }

// happened counts a node's events of this kind.
func (m *reachSim) happened(node int, kind transport.EventKind) (count int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.events[node] {
		if e.Kind == kind {
			count++
		}
	}
	return count
}

// lost counts how often node a had no connection to node b left.
func (m *reachSim) lost(a, b int) (count int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.events[a] {
		if e.Kind == transport.EventDisconnected && e.Peer == simKeys(b).Peer() {
			count++
		}
	}
	return count
}

var wan = transporttest.Link{Latency: 20 * time.Millisecond, Mbps: 100}

// A relay tells others from its start on that they can dial it.
func TestRelayIsPublicFromItsStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newReachSim(t, 3, transporttest.Cone, wan)
		defer m.close()
		if r := m.nodes[2].Reach(); !r.Public || len(r.Observed) > 0 {
			t.Errorf("public: %v, before any peer has seen its address %v", r.Public, r.Observed)
		}
		m.await(20*time.Second, "a reservation", func() bool { return len(m.nodes[0].Reservations()) > 0 })
		if r := m.nodes[2].Reach(); !r.Public {
			t.Errorf("with peers it is not public any more: %+v", r)
		}
	})
}

// TestPunch checks S41: two nodes behind NATs connect through a relay, work starts at
// once, a direct path is established, and the work moves to it without loss.
func TestPunch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newReachSim(t, 3, transporttest.Cone, wan)
		defer m.close()
		m.nodes[0].addTasks(1000)
		met := m.await(20*time.Second, "first contact", func() bool { return m.nodes[0].Connected(m.nodes[1].Peer()) })
		first := m.status(0, 1)
		var took time.Duration
		for m.nodes[0].left() > 0 || !m.direct(0, 1) || !m.direct(1, 0) {
			if took += 100 * time.Millisecond; took > 30*time.Second {
				t.Fatalf("no direct path: %+v and %+v", m.status(0, 1), m.status(1, 0))
			}
			m.nodes[0].addTasks(10)
			time.Sleep(100 * time.Millisecond)
		}
		t.Logf("connected after %v (%s), direct %v later", met, first.Path, took)
		if took > 5*time.Second {
			t.Errorf("direct after %v, want at most 5s", took)
		}
		m.nodes[0].addTasks(100)
		m.await(5*time.Second, "tasks on the direct path", func() bool { return m.nodes[0].left() == 0 })
		if n := m.happened(0, transport.EventPunched) + m.happened(1, transport.EventPunched); n == 0 {
			t.Error("the punch was not reported")
		}
		m.check(m.nodes[0].total)
	})
}

// TestSymmetricStaysRelayed checks that the relay carries the work where hole punching is
// impossible, for half an hour, or two in the long form.
func TestSymmetricStaysRelayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newReachSim(t, 3, transporttest.Symmetric, wan)
		defer m.close()
		m.await(20*time.Second, "first contact", func() bool { return m.nodes[0].Connected(m.nodes[1].Peer()) })
		rounds := scaled(3, 12)
		for range rounds {
			m.nodes[0].addTasks(100)
			time.Sleep(10 * time.Minute)
		}
		if s := m.status(0, 1); !s.Connected || s.Direct || s.Relay != simKeys(2).Peer() {
			t.Errorf("%+v", s)
		}
		if m.nodes[0].left() > 0 {
			t.Errorf("%d tasks are left", m.nodes[0].left())
		}
		if m.lost(0, 1) > 0 {
			t.Error("the relayed path broke")
		}
		m.check(100 * rounds)
	})
}

// TestRelayRestart checks S40: a restarted relay grants reservations again within five
// seconds.
func TestRelayRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newReachSim(t, 3, transporttest.Symmetric, wan)
		defer m.close()
		reserved := func() bool {
			return len(m.nodes[0].Reservations()) == 1 && len(m.nodes[1].Reservations()) == 1
		}
		m.await(20*time.Second, "first contact", func() bool { return reserved() && m.nodes[0].Connected(m.nodes[1].Peer()) })
		m.nodes[0].addTasks(100)
		m.nodes[2].stop()
		time.Sleep(3 * time.Second)
		m.nodes[2].start()
		took := m.await(5*time.Second, "the reservations", reserved)
		work := m.await(10*time.Second, "the work", func() bool { return m.nodes[0].left() == 0 })
		t.Logf("reserved %v after the restart, all work done %v later", took, work)
		m.check(100)
	})
}

// TestRelayDies checks that when a relay vanishes without a message, the other one is
// used within ten seconds and nothing is lost.
func TestRelayDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newReachSim(t, 4, transporttest.Symmetric, wan)
		defer m.close()
		m.await(20*time.Second, "first contact", func() bool {
			return len(m.nodes[0].Reservations()) == 2 && len(m.nodes[1].Reservations()) == 2 && m.nodes[0].Connected(m.nodes[1].Peer())
		})
		relay := slices.IndexFunc(m.nodes, func(n *simNode) bool { return n.Peer() == m.status(0, 1).Relay })
		m.Unplug(relay)
		m.nodes[0].addTasks(100)
		took := m.await(20*time.Second, "the other relay", func() bool { return m.nodes[0].left() == 0 })
		t.Logf("%v", took)
		if took > 10*time.Second {
			t.Errorf("the other relay served after %v, want at most 10s", took)
		}
		m.check(100)
	})
}

// TestBigBodyThroughRelay checks S39: 10 MB, 50 in the long form, pass through a relay,
// where libp2p's default limit is 128 KiB.
func TestBigBodyThroughRelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newReachSim(t, 3, transporttest.Symmetric, wan)
		defer m.close()
		m.size.Store(250_000)
		tasks := scaled(40, 200)
		m.nodes[0].addTasks(tasks)
		took := m.await(5*time.Minute, "all bytes", func() bool { return m.nodes[0].left() == 0 })
		service := m.nodes[2].Reach().Service
		t.Logf("%v: %+v", took, service)
		if !service.On || service.Circuits == 0 || service.Bytes < uint64(tasks)*uint64(m.size.Load()) {
			t.Errorf("the relay reports %+v", service)
		}
		m.check(tasks)
	})
}

// TestClientRestarts checks S40: a client that restarts repeatedly has one reservation at
// each relay, and no circuit of a dead one remains.
func TestClientRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newReachSim(t, 3, transporttest.Symmetric, wan)
		defer m.close()
		for round := range 10 {
			m.await(30*time.Second, "the relayed path", func() bool {
				return m.nodes[0].Connected(m.nodes[1].Peer()) && len(m.nodes[1].Reservations()) == 1
			})
			m.nodes[0].addTasks(10)
			m.Unplug(1) // its close messages are lost
			m.nodes[1].stop()
			m.Heal()
			m.nodes[1].start()
			m.await(30*time.Second, "the work of a round", func() bool { return m.nodes[0].left() == 0 })
			if s := m.nodes[2].Reach().Service; s.Reservations > 3 || s.Circuits > 8 {
				t.Errorf("after %d restarts: %+v", round+1, s)
			}
		}
		time.Sleep(2 * time.Minute)
		if s := m.nodes[2].Reach().Service; s.Reservations != 2 || s.Circuits != 1 && s.Circuits != 2 {
			t.Errorf("in the end: %+v", s)
		}
		m.check(100)
	})
}

// TestLossDoesNotDowngrade checks S41: a direct path that carries acknowledged work stays
// in use even with a third of the packets lost.
func TestLossDoesNotDowngrade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newReachSim(t, 3, transporttest.Cone, transporttest.Link{Latency: 20 * time.Millisecond, Mbps: 100, Seed: 3})
		defer m.close()
		m.await(time.Minute, "a direct path", func() bool { return m.direct(0, 1) && m.direct(1, 0) })
		m.size.Store(10_000) // much at once: a little says nothing of the rate
		before := m.happened(0, transport.EventPath)
		m.DropEvery(3)
		for range 120 {
			m.nodes[0].addTasks(20)
			time.Sleep(time.Second)
		}
		m.DropEvery(0)
		m.await(time.Minute, "the rest", func() bool { return m.nodes[0].left() == 0 })
		if n := m.happened(0, transport.EventPath) - before; n != 0 || !m.direct(0, 1) {
			t.Errorf("%d changes of the path, direct %v", n, m.direct(0, 1))
		}
		s := m.nodes[0].Paths(m.nodes[1].Peer()).Paths[0].Measured
		t.Logf("loss %.2f, rate %.0f B/s", s.Loss, s.Rate)
		if s.Rate == 0 {
			t.Error("the rate was not measured")
		}
		m.check(120 * 20)
	})
}

// TestNATForgets checks S42: when the NATs forget the direct path, the relayed one takes
// over within ten seconds, and a direct one returns.
func TestNATForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newReachSim(t, 3, transporttest.Cone, wan)
		defer m.close()
		m.await(time.Minute, "a direct path", func() bool { return m.direct(0, 1) && m.direct(1, 0) })
		m.Cut(0, 1)
		m.Cut(1, 0)
		m.nodes[0].addTasks(10)
		took := m.await(20*time.Second, "the relay takes over", func() bool { return m.nodes[0].left() == 0 })
		m.Heal()
		m.Behind(transporttest.Cone, 0, 1)
		back := m.await(time.Minute, "a direct path again", func() bool { return m.direct(0, 1) && m.direct(1, 0) })
		t.Logf("relayed after %v, direct again after %v", took, back)
		if took > 10*time.Second {
			t.Errorf("the work stalled for %v", took)
		}
		m.check(10)
	})
}

// TestWakeFromSleep checks S42: a machine that wakes up still considers its connection
// open, although the other side has closed it, and has unacknowledged messages on it.
// They return to the queue, and are done within seconds.
func TestWakeFromSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var slept atomic.Int64
		m := newSimWith(t, 2, transporttest.Link{Latency: 20 * time.Millisecond}, func(n *simNode, cfg *transport.Config) {
			if n.id == 0 {
				cfg.Clock = clock.WithSuspend(cfg.Clock, func() time.Duration { return time.Duration(slept.Load()) })
			}
		})
		defer m.close()
		m.await(10*time.Second, "first connection", m.connected)
		m.commit = time.Hour // the receiver accepts messages but never answers
		m.nodes[0].addTasks(100)
		time.Sleep(100 * time.Millisecond)
		m.Unplug(0) // the lid is closed
		m.nodes[1].stop()
		time.Sleep(time.Second)
		m.commit = 3 * time.Millisecond
		m.nodes[1].start()
		if !m.nodes[0].Connected(m.nodes[1].Peer()) || m.nodes[0].left() != 100 {
			t.Fatalf("connected %v, %d open: nothing is tested", m.nodes[0].Connected(m.nodes[1].Peer()), m.nodes[0].left())
		}
		slept.Store(int64(8 * time.Hour))
		m.Heal()
		took := m.await(10*time.Second, "messages sent before the sleep", func() bool { return m.nodes[0].left() == 0 })
		t.Logf("done %v after the wake-up", took)
		m.check(100)
	})
}

// TestHealAtOnce checks S46: fifty nodes that lost one peer for a while find it again
// soon, and not at the same moment.
func TestHealAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const nodes = 51
		m := makeSim(t, nodes, transporttest.Link{Latency: 10 * time.Millisecond})
		defer m.close()
		for _, n := range m.nodes[1:] {
			n.knows = []int{0}
		}
		m.nodes[0].knows = []int{}
		m.startAll()
		hub := m.nodes[0].Peer()
		count := func() (n int) {
			for _, o := range m.nodes[1:] {
				if o.Connected(hub) {
					n++
				}
			}
			return n
		}
		m.await(time.Minute, "first connection", func() bool { return count() == nodes-1 })
		m.Unplug(0)
		m.await(2*time.Minute, "the loss is detected", func() bool { return count() == 0 })
		time.Sleep(20 * time.Second)
		m.Heal()
		var first, most time.Duration
		began := m.clock.Mono()
		m.await(20*time.Second, "all are back", func() bool {
			n := count()
			if n > 0 && first == 0 {
				first = m.clock.Mono() - began
			}
			if n >= nodes*9/10 && most == 0 {
				most = m.clock.Mono() - began
			}
			return n == nodes-1
		})
		t.Logf("the first after %v, nine of ten after %v, all after %v", first, most, m.clock.Mono()-began)
		if most-first < 300*time.Millisecond {
			t.Errorf("all reconnected within %v", most-first)
		}
		if all := m.clock.Mono() - began; all > 10*time.Second {
			t.Errorf("all were back after %v", all)
		}
	})
}

// TestReachIsMeasured checks the metrics of a mesh with a relay: connections by path,
// reservations on both sides, circuits, and the score of the relay.
func TestReachIsMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		regs := make([]*prometheus.Registry, 3)
		m := newReachSimWith(t, 3, transporttest.Symmetric, wan, func(n *simNode, cfg *transport.Config) {
			regs[n.id] = prometheus.NewPedanticRegistry()
			cfg.Registerer = regs[n.id]
		})
		defer m.close()
		values := func(node int) map[string]float64 {
			t.Helper()
			families, err := regs[node].Gather()
			if err != nil {
				t.Fatal(err)
			}
			out := map[string]float64{}
			for _, f := range families {
				name := strings.TrimPrefix(f.GetName(), "balefire_transport_")
				for _, v := range f.GetMetric() {
					key := name
					for _, l := range v.GetLabel() {
						key += " " + l.GetValue()
					}
					out[key] = v.GetGauge().GetValue() + v.GetCounter().GetValue()
				}
			}
			return out
		}
		score := "relay_score " + simKeys(2).Peer().String()
		if _, told := values(0)[score]; told {
			t.Error("a relay that was never connected has a score")
		}
		m.await(time.Minute, "a path through the relay", func() bool { return m.nodes[0].Connected(m.nodes[1].Peer()) && m.nodes[1].Connected(m.nodes[0].Peer()) })
		m.await(time.Minute, "a failed punch", func() bool { return values(0)["punches_total failed"]+values(1)["punches_total failed"] > 0 })
		m.await(time.Minute, "a measured path to the relay", func() bool { return len(m.nodes[0].Hops()) == 1 })
		expect := func(node int, want map[string]float64) {
			t.Helper()
			got := values(node)
			for name, v := range want {
				if x, ok := got[name]; !ok || x != v {
					t.Errorf("node %d: %s is %v (%v), want %v", node, name, x, ok, v)
				}
			}
		}
		for i := range 2 {
			r := m.nodes[i].Reach().Reservations
			if len(r) != 1 {
				t.Fatalf("node %d keeps %d reservations", i, len(r))
			}
			relayed := 0.0 // either of the two may have dialed the other
			for _, p := range m.nodes[i].Paths(m.nodes[1-i].Peer()).Paths {
				if p.Connected && !p.Direct {
					relayed++
				}
			}
			if relayed == 0 {
				t.Errorf("node %d has no path through the relay", i)
			}
			expect(i, map[string]float64{
				"connections quic direct": 1, "connections quic relay": relayed, "connections tcp direct": 0, "reservations": 1,
				"relay_reservations": 0, "relay_circuits": 0, score: r[0].Score.Total,
			})
		}
		served := m.nodes[2].Reach().Service
		if served.Circuits == 0 {
			t.Error("no relayed connection")
		}
		expect(2, map[string]float64{
			"connections quic direct": 2, "connections quic relay": 0, "reservations": 0, "relay_reservations": 2,
			"relay_circuits": float64(served.Circuits), "relayed_bytes_total": float64(served.Bytes),
		})
		if _, told := values(2)[score]; told {
			t.Error("the relay scores itself")
		}
		m.nodes[2].stop()
		m.await(time.Minute, "the reservations to be dropped", func() bool { return values(0)["reservations"] == 0 })
		if _, told := values(0)[score]; told {
			t.Error("a disconnected relay has a score")
		}
		m.nodes[2].start()
	})
}

// TestReports checks the reports of paths and reachability.
func TestReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newReachSim(t, 4, transporttest.Symmetric, wan)
		defer m.close()
		m.await(time.Minute, "two reservations each and a path", func() bool {
			return len(m.nodes[0].Reservations()) == 2 && len(m.nodes[1].Reservations()) == 2 && m.nodes[0].Connected(m.nodes[1].Peer())
		})
		m.nodes[0].addTasks(200)
		time.Sleep(5 * time.Minute)
		r := m.nodes[0].Paths(m.nodes[1].Peer())
		if len(r.Paths) < 2 || !r.Paths[0].InUse || r.Paths[0].Direct || r.Paths[0].Measured.RTT < 80*time.Millisecond || r.Paths[0].Score.Total == 0 {
			t.Errorf("paths: %+v", r.Paths)
		}
		if len(r.Punches) == 0 || len(r.Punches) > 16 || r.Punches[0].OK {
			t.Errorf("punches: %+v", r.Punches)
		}
		t.Logf("%+v", r.Cause)
		for _, p := range r.Paths[1:] {
			t.Logf("candidate %+v", p)
		}
		reach := m.nodes[0].Reach()
		t.Logf("%+v", reach)
		if len(reach.Reservations) != 2 || reach.Reservations[0].Expires.Before(m.clock.Now()) || len(reach.Observed) != 2 ||
			!reach.UDP || reach.TCP || reach.Service.On || len(reach.Addrs) < 3 {
			t.Errorf("reach: %+v", reach)
		}
		m.nodes[0].stop()
		m.nodes[1].stop()
		m.nodes[0].start()
		m.nodes[1].start()
		if r := m.nodes[2].Paths(simKeys(99).Peer()); len(r.Paths) != 0 || r.Cause.Code != wire.PathUntried {
			t.Errorf("of an unknown peer: %+v", r)
		}
	})
}
