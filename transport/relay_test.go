package transport_test

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/transport/transporttest"
)

// A member that may relay but does not is asked for no reservation, and no circuit
// through it is tried, once its protocols are known. The one that relays is found among
// them, and one that starts to relay is asked from then on.
func TestNonRelaysAreNotAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const nodes = 6
		relays := map[int]bool{2: true}
		var log logBuffer
		m := newSimWith(t, nodes, wan, func(n *simNode, cfg *transport.Config) {
			cfg.Relay = relays[n.id]
			cfg.Relays = func() (all []proto.PeerID) {
				for i := 1; i < nodes; i++ {
					all = append(all, simKeys(i).Peer())
				}
				return all
			}
			if n.id == 0 {
				cfg.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
			}
		})
		held := func() []proto.PeerID { return m.nodes[0].Reservations() }
		m.await(20*time.Second, "a place", func() bool { return m.connected() && len(held()) == 1 })
		if held()[0] != simKeys(2).Peer() {
			t.Errorf("the reservation is at %v", held())
		}
		time.Sleep(10 * time.Second) // they are asked until their protocols are known
		log.take()
		m.Partition([]int{0, 1, 2, 3, 4}, []int{5})
		time.Sleep(time.Duration(scaled(3, 10)) * time.Minute)
		outage := log.take()
		m.Heal()
		m.await(2*time.Minute, "all to be connected", m.connected)
		relays[3] = true
		m.nodes[3].stop()
		m.nodes[3].start()
		m.await(time.Minute, "a second reservation", func() bool { return len(held()) == 2 })
		m.close()
		if n := strings.Count(outage, "no reservation"); n > 0 {
			t.Errorf("asked for a reservation in vain %d times", n)
		}
		for i := 1; i < nodes-1; i++ {
			if tried := strings.Contains(outage, simKeys(i).Peer().String()+"/p2p-circuit"); tried != (i == 2) {
				t.Errorf("a circuit through node %d was tried: %v", i, tried)
			}
		}
	})
}

// Relays that refuse, however near they are, keep no place from one that does not, also where that one
// is left out for a better one until this has refused. They are asked from time to time, and take a
// place when they grant one.
func TestRefusingRelaysTakeNoPlace(t *testing.T) {
	for _, leftOut := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			liars := map[int]*transport.Liar{1: new(transport.Liar), 2: new(transport.Liar)}
			m := newSimWith(t, 4, wan, func(n *simNode, cfg *transport.Config) {
				n.liar = liars[n.id]
				cfg.Relay = n.id > 0 && n.liar == nil
				cfg.Relays = func() []proto.PeerID {
					all := []proto.PeerID{simKeys(1).Peer(), simKeys(2).Peer(), simKeys(3).Peer()}
					if leftOut && !n.RefusesReservations(all[0]) {
						return all[:1]
					}
					return all
				}
			})
			defer m.close()
			for _, l := range liars {
				l.Tell(transport.Lie{Refuse: true})
			}
			m.SetDistance(0, 3, 300*time.Millisecond)
			held := func() []proto.PeerID { return m.nodes[0].Reservations() }
			m.await(20*time.Second, "all to be connected", m.connected)
			m.await(time.Minute, "a reservation at the honest relay", func() bool { return slices.Contains(held(), simKeys(3).Peer()) })
			liars[1].Tell(transport.Lie{})
			m.await(3*time.Minute, "a reservation at one that refuses no more", func() bool { return slices.Contains(held(), simKeys(1).Peer()) })
		})
	}
}

// Two relays that grant reservations and drop the circuits, and are nearer than the one that does not,
// give their places to this one: two nodes that only a relay connects meet there, and it keeps a place.
func TestRelaysThatDropCircuitsAreLeft(t *testing.T) {
	for what, lie := range map[string]transport.Lie{"silent": {Drop: 1}, "broken": {Break: true}, "refused": {Reset: true}} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const nodes, honest = 5, 4
				liars := map[int]*transport.Liar{2: new(transport.Liar), 3: new(transport.Liar)}
				for _, l := range liars {
					l.Tell(lie)
				}
				m := newReachSimWith(t, nodes, transporttest.Symmetric, wan, func(n *simNode, _ *transport.Config) {
					n.liar = liars[n.id]
					n.mesh.SetDistance(0, honest, 300*time.Millisecond)
					n.mesh.SetDistance(1, honest, 300*time.Millisecond)
				})
				defer m.close()
				held := func(i int) bool { return slices.Contains(m.nodes[i].Reservations(), simKeys(honest).Peer()) }
				m.await(20*time.Second, "reservations", func() bool { return len(m.nodes[0].Reservations()) == 2 && len(m.nodes[1].Reservations()) == 2 })
				if held(0) || held(1) {
					t.Error("the honest relay has a place at once: this test shows nothing")
				}
				took := m.await(2*time.Minute, "the two to be connected", func() bool { return m.nodes[0].Connected(simKeys(1).Peer()) })
				t.Logf("connected after %v", took)
				for range 5 {
					time.Sleep(time.Minute)
					if !held(0) || !held(1) || !m.nodes[0].Connected(simKeys(1).Peer()) {
						t.Fatalf("a place at the honest relay: %v and %v; %+v", held(0), held(1), m.status(0, 1))
					}
				}
			})
		})
	}
}

// TestRelayChangeCostsLittle checks that a node that takes another relay tells hardly
// anything to peers with direct connections, who learn of it by gossip: it must not fill a
// narrow link.
func TestRelayChangeCostsLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const nodes = 10
		m := newSimWith(t, nodes, wan, func(n *simNode, cfg *transport.Config) {
			gossiping(n, cfg)
			cfg.Relay = n.id > 0
			cfg.Relays = func() (all []proto.PeerID) {
				for i := 1; i < nodes; i++ {
					all = append(all, simKeys(i).Peer())
				}
				return all
			}
		})
		defer m.close()
		held := func() []proto.PeerID { return m.nodes[0].Reservations() }
		m.await(20*time.Second, "two reservations", func() bool { return m.connected() && len(held()) == 2 })
		time.Sleep(2 * time.Minute)
		cost := func(d time.Duration) int64 {
			before := m.Stats().Bytes
			time.Sleep(d)
			return m.Stats().Bytes - before
		}
		quiet := cost(time.Minute)
		left := held()[0]
		i, _ := m.nodes[0].peerOf(left)
		m.SetDistance(0, i, time.Second)
		var n int64 // of the ten seconds of the change, and the next ten
		for try := 0; slices.Contains(held(), left); try++ {
			if n = cost(10 * time.Second); try == 60 {
				t.Fatal("no other relay is taken")
			}
		}
		if n += cost(10*time.Second) - quiet/3; n > 400*(nodes-1) {
			t.Errorf("the change costs %d bytes", n)
		} else {
			t.Logf("the change costs %d bytes", n)
		}
	})
}

// A logBuffer keeps log output.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (j *logBuffer) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.Write(p)
}

// take returns the output since the last call.
func (j *logBuffer) take() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	defer j.buf.Reset()
	return j.buf.String()
}
