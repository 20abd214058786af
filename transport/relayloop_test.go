package transport_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/transporttest"
)

// TestRelayDialsDoNotLoop checks that two peers, each announced behind the other, are not
// dialed in a loop: each dial would wait for the other, and both would outlive the node
// that started them. The bubble must end, whenever the node stops.
func TestRelayDialsDoNotLoop(t *testing.T) {
	for _, after := range []time.Duration{700 * time.Millisecond, 1300 * time.Millisecond, 2100 * time.Millisecond, 3700 * time.Millisecond} {
		t.Run(after.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := makeSim(t, 3, transporttest.Link{Latency: 5 * time.Millisecond, Mbps: 100})
				defer m.Network.Close()
				m.contact = func(i int, c *proto.Contact) {
					if i > 0 {
						c.Relays = []proto.PeerID{simKeys(3 - i).Peer()}
					}
				}
				m.nodes[0].start() // alone: no other node runs
				time.Sleep(after)
				m.nodes[0].stop()
			})
		})
	}
}
