package node

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
)

// A slowListener listens to the gossip topic and pauses for a while when a burst begins:
// the messages of that time are received all at once.
type slowListener struct {
	transport.TopicHandler
	pause time.Duration

	mu       sync.Mutex
	received int // revocations received from the topic
}

func (l *slowListener) Receive(author proto.PeerID, data []byte) {
	var m proto.Rumors
	if proto.Decode(data, &m) == nil && len(m.GetRumors()) > 0 && m.GetRumors()[0].GetRevocation() != nil {
		l.mu.Lock()
		l.received++
		first := l.received == 1
		l.mu.Unlock()
		if first {
			time.Sleep(l.pause)
		}
	}
	l.TopicHandler.Receive(author, data)
}

// missed returns how many of n revocations did not reach gossip through the topic: lost
// before the listener, or dropped for lack of room.
func (l *slowListener) missed(t *testing.T, of *Node, n int) int {
	t.Helper()
	families, err := of.Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	lost := n - l.received
	for _, f := range families {
		if f.GetName() == "balefire_gossip_messages_dropped_total" {
			lost += int(f.GetMetric()[0].GetCounter().GetValue())
		}
	}
	return lost
}

// TestBurstIsRepairedBySync verifies S43: statements that must arrive reach every
// member, including one that was offline, even if they are more at once than gossip
// delivers to a slow listener. The losses of the topic are counted and repaired by a
// sync. It is a burst of 500, or of 10 000 with BALEFIRE_VIRTUAL_HOURS or
// BALEFIRE_LONG.
func TestBurstIsRepairedBySync(t *testing.T) {
	t.Parallel()
	burst := 500
	if longRun || os.Getenv("BALEFIRE_VIRTUAL_HOURS") != "" {
		burst = 10_000
	}
	synctest.Test(t, func(t *testing.T) {
		listeners := map[string]*slowListener{}
		var mu sync.Mutex
		w := newSimMeshWith(t, 5, 1, lanLink, func(s *simNode, cfg *Config) {
			cfg.Net.DHT, cfg.Net.Relays = false, 0
			configure := cfg.Simulated.Transport
			cfg.Simulated.Transport = func(c *transport.Config) {
				configure(c)
				listener := &slowListener{TopicHandler: c.Topic, pause: 3 * time.Second}
				c.Topic = listener
				mu.Lock()
				defer mu.Unlock()
				listeners[s.name] = listener
			}
		})
		defer w.close()
		w.await(time.Minute, "the first view", func() bool { return w.allAlive() && w.allConnected() })
		founder, away := w.nodes[0], w.nodes[4]
		root, err := identity.LoadRoot(filepath.Join(founder.dir, datadir.Identity))
		if err != nil {
			t.Fatal(err)
		}
		away.halt()
		for i := range burst {
			s, err := root.Revoke(identity.Revocation{Serial: [16]byte{1, byte(i), byte(i >> 8)}}, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			if err := founder.get().gossip.Revoke(t.Context(), s); err != nil {
				t.Fatal(err)
			}
		}
		knows := func(nodes ...*simNode) func() bool {
			return func() bool {
				for _, s := range nodes {
					if len(s.get().book.Revocations()) < burst {
						return false
					}
				}
				return true
			}
		}
		took := w.await(10*time.Minute, "a burst", knows(w.nodes[:4]...))
		for _, s := range w.nodes[1:4] {
			lost := listeners[s.name].missed(t, s.get(), burst)
			t.Logf("%s: the topic lost %d of %d (%d %%); all known after %v", s.name, lost, burst, 100*lost/burst, took)
			if lost < burst/10 {
				t.Errorf("%s lost %d of %d: the test proves nothing", s.name, lost, burst)
			}
		}
		away.start()
		t.Logf("the offline member knows all after %v", w.await(10*time.Minute, "the offline member", func() bool { return w.allConnected() && knows(away)() }))
		w.await(5*time.Minute, "all know the same state", func() bool {
			root := founder.get().gossip.Summary().Root
			for _, s := range w.nodes {
				if s.get().gossip.Summary().Root != root {
					return false
				}
			}
			return true
		})
	})
}
