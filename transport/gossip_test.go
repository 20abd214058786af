package transport_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/transport/transporttest"
)

// A rumorLog records what a simulated node received, by author.
type rumorLog struct {
	mu    sync.Mutex
	heard map[proto.PeerID]map[string]int
	count int
	valid func(author proto.PeerID, data []byte) bool
	// number returns the author's own number of a message; nil: it has none.
	number func(data []byte) uint64
}

func (l *rumorLog) Valid(author proto.PeerID, data []byte) (number uint64, ok bool) {
	if l.number != nil {
		number = l.number(data)
	}
	return number, l.valid == nil || l.valid(author, data)
}

func (l *rumorLog) Receive(author proto.PeerID, data []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.heard == nil {
		l.heard = make(map[proto.PeerID]map[string]int)
	}
	if l.heard[author] == nil {
		l.heard[author] = make(map[string]int)
	}
	l.heard[author][string(data[:min(len(data), 32)])]++
	l.count++
}

// from returns how many different rumors of author were received, and how many twice.
func (l *rumorLog) from(author proto.PeerID) (different, twice int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range l.heard[author] {
		if n > 1 {
			twice++
		}
	}
	return len(l.heard[author]), twice
}

// gossiping makes every node join the topic.
func gossiping(n *simNode, cfg *transport.Config) { cfg.Topic = &n.gossip }

// allGossip reports whether all nodes are gossip peers of all others.
func (m *sim) allGossip() bool {
	for _, n := range m.nodes {
		if n.Discovery().TopicPeers != len(m.nodes)-1 {
			return false
		}
	}
	return true
}

func publish(t *testing.T, n *simNode, data string) {
	t.Helper()
	if err := n.Publish(t.Context(), []byte(data)); err != nil {
		t.Fatal(err)
	}
}

// TestAllMembersJoinTopic checks that each of 12 members, 20 in the long form, becomes a
// gossip peer of all others.
func TestAllMembersJoinTopic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newSimWith(t, scaled(12, 20), transporttest.Link{Latency: 10 * time.Millisecond}, gossiping)
		defer m.close()
		t.Logf("all are in the topic after %v", m.await(time.Minute, "a topic of all", m.allGossip))
	})
}

// TestBurstOfRumors checks that the queues are long enough for 2000 rumors at once: each
// member receives all of them, once.
func TestBurstOfRumors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes, burst := scaled(5, 8), 2000
		m := newSimWith(t, nodes, transporttest.Link{Latency: 10 * time.Millisecond}, gossiping)
		defer m.close()
		m.await(time.Minute, "the topic", m.allGossip)
		author := m.nodes[3]
		heard := func(want int) func() bool {
			return func() bool {
				for _, n := range m.nodes {
					if got, _ := n.gossip.from(author.Peer()); n != author && got < want {
						return false
					}
				}
				return true
			}
		}
		publish(t, author, "one")
		t.Logf("one rumor reached all nodes after %v", m.await(time.Second, "one rumor", heard(1)))
		for i := range burst {
			publish(t, author, fmt.Sprintf("%05d%0251d", i, 0))
		}
		t.Logf("%d have reached all nodes after %v", burst, m.await(30*time.Second, "a burst", heard(burst+1)))
		for _, n := range m.nodes {
			if _, twice := n.gossip.from(author.Peer()); twice > 0 {
				t.Errorf("node %d received %d rumors twice", n.id, twice)
			}
		}
	})
}

// copies returns how many messages of the topic reached n, by outcome.
func copies(t *testing.T, r *prometheus.Registry) (heard, again float64) {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "balefire_transport_rumors_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			switch m.GetLabel()[0].GetValue() {
			case "heard":
				heard = m.GetCounter().GetValue()
			case "duplicate":
				again = m.GetCounter().GetValue()
			}
		}
	}
	return heard, again
}

// TestFloodIsLimited checks S44: in a dense mesh of 16, or 20, where every node floods at
// once, every node receives every payload once, a link carries each about once, and
// traffic ends when all have received it. gossipsub has no hop count; a payload is
// bounded because each node forwards it at most once.
func TestFloodIsLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes, each := scaled(16, 20), scaled(3, 8)
		regs := make([]*prometheus.Registry, nodes)
		m := newSimWith(t, nodes, transporttest.Link{Latency: 10 * time.Millisecond}, func(n *simNode, cfg *transport.Config) {
			gossiping(n, cfg)
			regs[n.id] = prometheus.NewRegistry()
			cfg.Registerer = regs[n.id]
		})
		defer m.close()
		m.await(time.Minute, "the topic", m.allGossip)
		time.Sleep(10 * time.Second) // until gossipsub's meshes are grafted
		for i := range each {
			for _, n := range m.nodes {
				publish(t, n, fmt.Sprintf("%05d%02d%02000d", i, n.id, 0))
			}
		}
		total := func() (heard, all float64) {
			for _, r := range regs {
				h, again := copies(t, r)
				heard, all = heard+h, all+h+again
			}
			return heard, all
		}
		payloads, links := nodes*each, nodes*(nodes-1)/2
		want := float64(payloads * (nodes - 1))
		took := m.await(30*time.Second, "the flood", func() bool { h, _ := total(); return h >= want })
		time.Sleep(10 * time.Second)
		heard, all := total()
		t.Logf("%d payloads reached all nodes after %v; a link carried each %.2f times", payloads, took, all/float64(payloads*links))
		if heard != want || all > 1.5*float64(payloads*links) {
			t.Errorf("%.0f received, want %.0f; %.0f copies on %d links", heard, want, all, links)
		}
		time.Sleep(time.Minute)
		if _, later := total(); later != all {
			t.Errorf("%.0f more copies were sent later", later-all)
		}
	})
}

// TestNoGossipBeforeHello checks that gossip waits for the certificates: a peer that
// verifies the others late receives nothing before, and everything after.
func TestNoGossipBeforeHello(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newSimWith(t, 3, transporttest.Link{Latency: 10 * time.Millisecond}, func(n *simNode, cfg *transport.Config) {
			cfg.Topic = &n.gossip
			cfg.Timing.Hello = 30 * time.Second
			if n.id == 2 {
				slow := time.Now().Add(20 * time.Second)
				n.admit = func(proto.PeerID) error {
					time.Sleep(time.Until(slow)) // virtual: a slow disk
					return nil
				}
			}
		})
		defer m.close()
		m.await(10*time.Second, "two meet", func() bool { return m.nodes[0].Connected(m.nodes[1].Peer()) })
		for i := range 100 {
			publish(t, m.nodes[0], fmt.Sprint("early ", i))
			time.Sleep(100 * time.Millisecond)
		}
		// The others may know it already, as it sends its own hello at once.
		if m.nodes[2].Connected(m.nodes[0].Peer()) {
			t.Fatal("the third has verified the others already: nothing is tested")
		}
		if got, _ := m.nodes[2].gossip.from(m.nodes[0].Peer()); got != 0 || m.nodes[0].Discovery().TopicPeers != 1 {
			t.Errorf("before the hello %d rumors were received, %d peers are in the topic", got, m.nodes[0].Discovery().TopicPeers)
		}
		m.await(time.Minute, "all are in the topic", m.allGossip)
		publish(t, m.nodes[0], "late")
		m.await(5*time.Second, "the late rumor", func() bool {
			got, _ := m.nodes[2].gossip.from(m.nodes[0].Peer())
			return got > 0
		})
		publish(t, m.nodes[2], "back")
		m.await(5*time.Second, "the way back", func() bool {
			got, _ := m.nodes[0].gossip.from(m.nodes[2].Peer())
			return got > 0
		})
	})
}

// TestRefusedPeerGetsNoGossip checks that a peer refused by one side is not a gossip
// peer, and becomes one when it is admitted.
func TestRefusedPeerGetsNoGossip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var open atomic.Bool
		m := newSimWith(t, 2, transporttest.Link{Latency: 10 * time.Millisecond}, func(n *simNode, cfg *transport.Config) {
			cfg.Topic = &n.gossip
			if n.id == 0 {
				n.admit = func(proto.PeerID) error {
					if !open.Load() {
						return errors.New("no certificate of this mesh")
					}
					return nil
				}
			}
		})
		defer m.close()
		for range 60 {
			time.Sleep(time.Second)
			publish(t, m.nodes[0], "secret")
			if m.nodes[0].Discovery().TopicPeers != 0 {
				t.Fatal("a stranger is in the topic")
			}
		}
		if got, _ := m.nodes[1].gossip.from(m.nodes[0].Peer()); got != 0 {
			t.Errorf("a stranger received %d rumors", got)
		}
		open.Store(true)
		m.await(2*time.Minute, "he is let in", m.allGossip)
	})
}

// TestInvalidRumorsAreNotForwarded checks that a node does not forward what it finds
// invalid.
func TestInvalidRumorsAreNotForwarded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newSimWith(t, 4, transporttest.Link{Latency: 10 * time.Millisecond}, func(n *simNode, cfg *transport.Config) {
			cfg.Topic = &n.gossip
			n.gossip.valid = func(_ proto.PeerID, data []byte) bool { return string(data) != "garbage" }
		})
		defer m.close()
		m.await(time.Minute, "the topic", m.allGossip)
		publish(t, m.nodes[1], "garbage")
		publish(t, m.nodes[1], "news")
		m.await(time.Second, "the news", func() bool {
			got, _ := m.nodes[3].gossip.from(m.nodes[1].Peer())
			return got == 1
		})
		time.Sleep(5 * time.Second)
		for _, n := range m.nodes {
			if got, _ := n.gossip.from(m.nodes[1].Peer()); n.id != 1 && got != 1 {
				t.Errorf("node %d received %d rumors, want only the new one", n.id, got)
			}
		}
		if err := m.nodes[1].Publish(t.Context(), make([]byte, 64<<10+1)); err == nil {
			t.Error("a rumor of more than 64 KiB is accepted")
		}
	})
}

// TestLargestRumor checks that a rumor of 64 KiB arrives.
func TestLargestRumor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newSimWith(t, 3, transporttest.Link{Latency: 10 * time.Millisecond}, gossiping)
		defer m.close()
		m.await(time.Minute, "the topic", m.allGossip)
		if err := m.nodes[0].Publish(t.Context(), make([]byte, 64<<10)); err != nil {
			t.Fatal(err)
		}
		m.await(5*time.Second, "the largest rumor", func() bool {
			got, _ := m.nodes[2].gossip.from(m.nodes[0].Peer())
			return got == 1
		})
	})
}

// TestGossipSurvivesRestarts checks that members that restart, or whose link was cut,
// become gossip peers again.
func TestGossipSurvivesRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newSimWith(t, 5, transporttest.Link{Latency: 20 * time.Millisecond}, gossiping)
		defer m.close()
		m.await(time.Minute, "the topic", m.allGossip)
		for round := range 6 {
			i := round % 5
			if round%2 == 0 {
				m.nodes[i].stop()
				m.nodes[i].start()
			} else {
				m.Unplug(i)
				time.Sleep(time.Minute)
				m.Heal()
			}
			t.Logf("round %d: %v", round, m.await(time.Minute, "the topic again", m.allGossip))
		}
	})
}

// futureNonces stores for every author a libp2p number in the far future, as from authors
// whose clocks were ahead.
type futureNonces struct{}

func (futureNonces) Get(context.Context, proto.PeerID) ([]byte, error) {
	return append(binary.BigEndian.AppendUint64(nil, 1<<62), make([]byte, 8)...), nil // none of the application's
}

func (futureNonces) Put(context.Context, map[proto.PeerID][]byte) error { return nil }

// TestAuthorIsAcceptedAfterClockChange checks that a node whose clock was set back is
// still accepted by nodes that received its messages before, because of its own message
// numbers.
func TestAuthorIsAcceptedAfterClockChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newSimWith(t, 3, transporttest.Link{Latency: 10 * time.Millisecond}, func(n *simNode, cfg *transport.Config) {
			cfg.Topic, cfg.Nonces = &n.gossip, futureNonces{}
			n.gossip.number = func(data []byte) (number uint64) {
				fmt.Sscanf(string(data), "%d", &number)
				return number
			}
		})
		defer m.close()
		m.await(time.Minute, "the topic", m.allGossip)
		for _, data := range []string{"no number", "7000001 first", "7000001 first, again", "7000002 second"} {
			publish(t, m.nodes[0], data)
		}
		m.await(5*time.Second, "numbered frames", func() bool {
			b, _ := m.nodes[1].gossip.from(m.nodes[0].Peer())
			c, _ := m.nodes[2].gossip.from(m.nodes[0].Peer())
			return b >= 2 && c >= 2
		})
		time.Sleep(5 * time.Second)
		if got, _ := m.nodes[1].gossip.from(m.nodes[0].Peer()); got != 2 {
			t.Errorf("%d messages were received, want the first and the second, once", got)
		}
	})
}

// TestPublishWithoutGossip checks that a transport without a topic returns an error.
func TestPublishWithoutGossip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newSim(t, 1, transporttest.Link{})
		defer m.close()
		if err := m.nodes[0].Publish(t.Context(), []byte("x")); !errors.Is(err, transport.ErrNoGossip) {
			t.Errorf("%v, want ErrNoGossip", err)
		}
	})
}

// TestExchange checks that a sync is answered, that anything else is refused, and that a
// failing handler costs only the stream.
func TestExchange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sync := &proto.Message{Type: proto.TypeSync, Payload: []byte("what do you know")}
		m := newSimWith(t, 3, transporttest.Link{Latency: 10 * time.Millisecond}, func(n *simNode, cfg *transport.Config) {
			if n.id == 2 {
				return // serves no syncs
			}
			cfg.Sync = func(_ context.Context, from proto.PeerID, m *proto.Message) (*proto.Message, error) {
				switch string(m.GetPayload()) {
				case "fail":
					return nil, errors.New("busy")
				case "much":
					return &proto.Message{Type: proto.TypeSynced, Payload: make([]byte, proto.MaxControl)}, nil
				case "odd":
					return &proto.Message{Type: proto.TypePong}, nil
				}
				return &proto.Message{Type: proto.TypeSynced, Payload: append([]byte(from.Short()), m.GetPayload()...)}, nil
			}
		})
		defer m.close()
		m.await(10*time.Second, "they meet", m.connected)
		for range 5 {
			reply, err := m.nodes[0].Exchange(t.Context(), m.nodes[1].Peer(), sync)
			if err != nil || string(reply.GetPayload()) != m.nodes[0].Peer().Short()+"what do you know" {
				t.Fatalf("%v, %v", reply, err)
			}
		}
		for _, payload := range []string{"fail", "much", "odd"} {
			if r, err := m.nodes[0].Exchange(t.Context(), m.nodes[1].Peer(), &proto.Message{Type: proto.TypeSync, Payload: []byte(payload)}); err == nil {
				t.Errorf("%s is answered with %v", payload, r)
			}
		}
		if _, err := m.nodes[0].Exchange(t.Context(), m.nodes[2].Peer(), sync); err == nil {
			t.Error("a node that serves no syncs answers")
		}
		if _, err := m.nodes[0].Exchange(t.Context(), m.nodes[1].Peer(), &proto.Message{Type: proto.TypePing}); err == nil {
			t.Error("a PING is accepted as a sync")
		}
		if _, err := m.nodes[0].Exchange(t.Context(), simKeys(9).Peer(), sync); !errors.Is(err, transport.ErrNotConnected) {
			t.Errorf("%v, want ErrNotConnected", err)
		}
		if !m.connected() {
			t.Error("a failed sync closed a connection")
		}
	})
}

// TestControl checks that probes travel on the ctl stream, and that an unhandled one costs
// nothing.
func TestControl(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type word struct {
			from proto.PeerID
			kind proto.MessageType
		}
		heard := make(chan word, 1000)
		m := newSimWith(t, 2, transporttest.Link{Latency: 10 * time.Millisecond}, func(n *simNode, cfg *transport.Config) {
			if n.id == 1 {
				cfg.Control = func(from proto.PeerID, m *proto.Message) { heard <- word{from, m.GetType()} }
			}
		})
		defer m.close()
		m.await(10*time.Second, "they meet", m.connected)
		to := m.nodes[1].Peer()
		for _, kind := range []proto.MessageType{proto.TypeProbe, proto.TypeProbed} {
			if err := m.nodes[0].SendCtl(to, &proto.Message{Type: kind, Payload: make([]byte, 20_000)}); err != nil {
				t.Fatal(err)
			}
			select {
			case got := <-heard:
				if got != (word{m.nodes[0].Peer(), kind}) {
					t.Errorf("heard %v", got)
				}
			case <-time.After(time.Second): // large frames wait for no PING on the stream that carries these
				t.Fatal("not heard")
			}
		}
		if err := m.nodes[1].SendCtl(m.nodes[0].Peer(), &proto.Message{Type: proto.TypeProbe}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if !m.connected() {
			t.Error("an unhandled probe closed the connection")
		}
	})
}
