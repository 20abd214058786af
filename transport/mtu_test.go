package transport_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/transport/transporttest"
)

// Where IPv6 ends, through a tunnel of 1280 bytes that tells nobody what it drops, QUIC
// connects and tasks go over: 1232 are left for it.
func TestSmallestPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newSim(t, 2, transporttest.Link{Latency: 10 * time.Millisecond, MTU: 1280 - 40 - 8})
		defer m.close()
		m.await(10*time.Second, "connected", m.connected)
		m.nodes[0].give(20)
		m.await(10*time.Second, "the tasks", func() bool { return m.nodes[0].left() == 0 })
		m.check(20)
	})
}
