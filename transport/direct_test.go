package transport_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/transport/transporttest"
)

// TestDirectPathBehindNATs checks how soon a relayed connection becomes direct behind
// each pair of NATs that permits it, whichever side has dialed through the relay.
func TestDirectPathBehindNATs(t *testing.T) {
	tests := []struct {
		name   string
		nats   [2]transporttest.Kind // of nodes 0 and 1
		relays int
		limit  time.Duration // from the first relayed connection
	}{
		{"two cones", [2]transporttest.Kind{transporttest.Cone, transporttest.Cone}, 2, time.Second},
		{"symmetric and endpoint-independent", [2]transporttest.Kind{transporttest.Symmetric, transporttest.FullCone}, 2, time.Second},
		{"the same with one relay, which shows the kind of no NAT", [2]transporttest.Kind{transporttest.Symmetric, transporttest.FullCone}, 1, time.Second},
		{"cone and endpoint-independent", [2]transporttest.Kind{transporttest.Cone, transporttest.FullCone}, 2, time.Second},
	}
	for _, tt := range tests {
		for _, dialer := range []int{0, 1} {
			t.Run(fmt.Sprintf("%s, dialed by %d", tt.name, dialer), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					m := newReachSimWith(t, 2+tt.relays, transporttest.Cone, wan, func(n *simNode, _ *transport.Config) {
						n.knows = []int{2, 3}
					})
					defer m.close()
					for i, kind := range tt.nats {
						m.Behind(kind, i)
					}
					reserved := func() bool {
						return len(m.nodes[0].Reservations()) == tt.relays && len(m.nodes[1].Reservations()) == tt.relays
					}
					m.await(20*time.Second, "reservations", reserved)
					time.Sleep(10 * time.Second)
					m.nodes[dialer].setKnown(nil)
					m.nodes[dialer].Want(m.nodes[1-dialer].Peer())
					m.await(20*time.Second, "first contact", func() bool { return m.nodes[dialer].Connected(m.nodes[1-dialer].Peer()) })
					took := m.await(20*time.Second, "a direct path", func() bool { return m.direct(0, 1) && m.direct(1, 0) })
					t.Logf("direct after %v", took)
					if took > tt.limit {
						t.Errorf("direct after %v, want at most %v: %+v", took, tt.limit, m.nodes[1-dialer].Paths(m.nodes[dialer].Peer()).Punches)
					}
				})
			})
		}
	}
}

// TestRestartedRelayServesAgain checks that a relay that returns is direct again within
// three seconds and reserved, also if it dials its clients through another relay before
// they dial it.
func TestRestartedRelayServesAgain(t *testing.T) {
	for _, kind := range []transporttest.Kind{transporttest.Symmetric, transporttest.Cone} {
		for _, pause := range []time.Duration{time.Second, 3 * time.Second, 10 * time.Second, 30 * time.Second} {
			t.Run(fmt.Sprint(kind, pause), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					m := newReachSim(t, 4, kind, wan)
					defer m.close()
					serves := func() bool {
						for _, n := range m.nodes[:2] {
							if !slices.Contains(n.Reservations(), m.nodes[2].Peer()) || !m.direct(n.id, 2) {
								return false
							}
						}
						return true
					}
					m.await(20*time.Second, "first contact", func() bool { return serves() && m.nodes[0].Connected(m.nodes[1].Peer()) })
					time.Sleep(10 * time.Second)
					m.nodes[2].stop()
					time.Sleep(pause)
					m.nodes[2].start()
					took := m.await(20*time.Second, "the relay", serves)
					t.Logf("serves again after %v", took)
					if took > 3*time.Second {
						t.Errorf("the relay served again after %v, want at most 3s", took)
					}
				})
			})
		}
	}
}

// TestPeerBehindNewRelay checks how soon two members behind NATs meet whose address books name no
// relay, or one that nobody knows: a dial that began, or failed, before there was a relay does not
// delay the one through it.
func TestPeerBehindNewRelay(t *testing.T) {
	for pause := time.Duration(0); pause < 3*time.Second; pause += 250 * time.Millisecond {
		var named []proto.PeerID
		if pause%(500*time.Millisecond) == 0 {
			named = []proto.PeerID{simKeys(99).Peer()}
		}
		t.Run(pause.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newReachSimWith(t, 3, transporttest.Symmetric, wan, func(n *simNode, cfg *transport.Config) {
					if n.id == 0 && n.boot == 0 { // before any node runs
						n.mesh.contact = func(i int, c *proto.Contact) {
							if i < 2 {
								c.Addrs, c.Relays = []string{"/ip4/1.0.200.1/udp/4001/quic-v1"}, named
							}
						}
					}
				})
				defer m.close()
				met := m.meetAgain(pause)
				t.Logf("connected after %v", met)
				if met > 2500*time.Millisecond {
					t.Errorf("connected %v after the start, want at most 2.5s", met)
				}
			})
		})
	}
}

// meetAgain restarts two nodes, node 0 so much later than node 1, and returns the time from its start
// until they are connected.
func (m *reachSim) meetAgain(pause time.Duration) time.Duration {
	m.nodes[1].stop()
	m.nodes[0].stop()
	m.nodes[1].start()
	time.Sleep(pause)
	m.nodes[0].start()
	return m.await(20*time.Second, "first contact", func() bool { return m.nodes[1].Connected(m.nodes[0].Peer()) })
}

// TestDirectPathAfterFailedDials checks that a relayed connection becomes direct at once although
// the addresses of the peer, behind a firewall, have been dialed without success before: the packets of
// a handshake come ever more rarely, and a dial that joins an old one waits for the next.
func TestDirectPathAfterFailedDials(t *testing.T) {
	for pause := time.Duration(0); pause < 4*time.Second; pause += time.Second {
		t.Run(pause.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newReachSimWith(t, 3, transporttest.Cone, wan, func(n *simNode, cfg *transport.Config) {
					cfg.DHT = n.id == 1
					if n.id == 0 {
						n.knows = []int{2}
					}
					if n.id == 0 && n.boot == 0 { // before any node runs
						relayed := n.mesh.contact
						n.mesh.contact = func(i int, c *proto.Contact) {
							relayed(i, c)
							c.Addrs = []string{n.mesh.Addr(i)}
						}
					}
				})
				defer m.close()
				met := m.meetAgain(pause)
				first := m.status(1, 0)
				took := m.await(20*time.Second, "a direct path", func() bool { return m.direct(0, 1) && m.direct(1, 0) })
				t.Logf("connected after %v (%s), direct %v later", met, first.Path, took)
				if first.Direct || took > 500*time.Millisecond {
					t.Errorf("direct %v after the first connection, %s; want at most 0.5s after a relayed one: %+v", took, first.Path, m.nodes[1].Paths(m.nodes[0].Peer()).Punches)
				}
			})
		})
	}
}
