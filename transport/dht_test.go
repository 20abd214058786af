package transport_test

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/transport/transporttest"
)

// starTopology makes every node participate in the DHT and know only node 0.
func starTopology(n *simNode, cfg *transport.Config) {
	cfg.DHT = true
	if n.id > 0 {
		n.knows = []int{0}
	} else {
		n.knows = []int{}
	}
}

// allTabled reports whether every node has all others in its routing table.
func (m *sim) allTabled() bool {
	for _, n := range m.nodes {
		if n.Discovery().TablePeers != len(m.nodes)-1 {
			return false
		}
	}
	return true
}

// TestOneContactFindsAllMembers checks that 14 members, 20 in the long form, that each
// know the address of one member all connect, through the DHT.
func TestOneContactFindsAllMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newSimWith(t, scaled(14, 20), transporttest.Link{Latency: 10 * time.Millisecond}, starTopology)
		defer m.close()
		t.Logf("all are connected after %v", m.await(time.Minute, "a full mesh", m.connected))
		t.Logf("all routing tables are full %v later", m.await(time.Minute, "full tables", m.allTabled))
		addrs, err := m.nodes[7].FindAddrs(t.Context(), m.nodes[13].Peer())
		if err != nil || !slices.Contains(addrs, m.Addr(13)) {
			t.Errorf("found %v, %v", addrs, err)
		}
		if addrs, err := m.nodes[7].FindAddrs(t.Context(), simKeys(99).Peer()); err == nil {
			t.Errorf("an unknown peer is at %v", addrs)
		}
	})
}

// TestChangedAddress checks that a peer that returns at another address is found within
// ten seconds by peers that know only the old one.
func TestChangedAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newSimWith(t, 6, transporttest.Link{Latency: 20 * time.Millisecond}, func(n *simNode, cfg *transport.Config) {
			cfg.DHT = true
			if n.id == 5 {
				n.knows = []int{0}
			}
		})
		defer m.close()
		m.await(time.Minute, "first connection", m.connected)
		mover := m.nodes[5]
		m.Unplug(5)
		mover.stop()
		mover.index = 200
		time.Sleep(5 * time.Minute)
		mover.start()
		took := m.await(time.Minute, "all have found it", m.connected)
		t.Logf("found after %v", took)
		if took > 10*time.Second {
			t.Errorf("found after %v, want 10s at most", took)
		}
		for i := range 5 {
			m.await(10*time.Second, "the new address is known", func() bool {
				addrs, err := m.nodes[i].FindAddrs(t.Context(), mover.Peer())
				return err == nil && slices.Contains(addrs, m.Addr(200))
			})
		}
	})
}

// TestStrangersAreNotInTheDHT checks that a refused peer is in no routing table, can
// query nothing and is returned to no one.
func TestStrangersAreNotInTheDHT(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := errors.New("no certificate of this mesh")
		m := newSimWith(t, 5, transporttest.Link{Latency: 10 * time.Millisecond}, func(n *simNode, cfg *transport.Config) {
			starTopology(n, cfg)
			if n.id != 4 {
				n.admit = func(p proto.PeerID) error {
					if p == simKeys(4).Peer() {
						return refused
					}
					return nil
				}
			}
		})
		defer m.close()
		time.Sleep(5 * time.Minute)
		for _, n := range m.nodes {
			want := 3
			if n.id == 4 {
				want = 0
			}
			if got := n.Discovery().TablePeers; got != want {
				t.Errorf("node %d has %d peers in its table, want %d", n.id, got, want)
			}
		}
		if addrs, err := m.nodes[4].FindAddrs(t.Context(), m.nodes[3].Peer()); err == nil {
			t.Errorf("the DHT returned a member's addresses to a stranger: %v", addrs)
		}
		if addrs, err := m.nodes[3].FindAddrs(t.Context(), m.nodes[4].Peer()); err == nil {
			t.Errorf("the DHT returned a stranger's addresses to a member: %v", addrs)
		}
	})
}

// TestNoDHT checks that a transport without a DHT returns an error.
func TestNoDHT(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newSim(t, 1, transporttest.Link{})
		defer m.close()
		if _, err := m.nodes[0].FindAddrs(t.Context(), simKeys(1).Peer()); !errors.Is(err, transport.ErrNoDHT) {
			t.Errorf("%v, want ErrNoDHT", err)
		}
	})
}

// TestTheDHTCostsLittle checks that members whom gossip tells of each other connect at about
// the cost that they have without the DHT.
func TestTheDHTCostsLittle(t *testing.T) {
	var bytes [2]int64
	for i, with := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			m := newSimWith(t, 12, transporttest.Link{Latency: 10 * time.Millisecond}, func(n *simNode, cfg *transport.Config) {
				gossiping(n, cfg)
				cfg.DHT = with
			})
			defer m.close()
			m.await(time.Minute, "first connections", m.connected)
			if time.Sleep(time.Minute); with && !m.allTabled() {
				t.Error("the routing tables are not full")
			}
			bytes[i] = m.Stats().Bytes
		})
	}
	t.Logf("%d bytes without the DHT, %d with it", bytes[0], bytes[1])
	if bytes[1] > bytes[0]*5/4 {
		t.Errorf("%d bytes without the DHT, %d with it", bytes[0], bytes[1])
	}
}
