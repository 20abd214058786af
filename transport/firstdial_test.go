package transport_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/transport/transporttest"
)

// TestFirstDialIsPatient checks that a first handshake that takes more than two seconds is not given
// up for another one, which would take as long.
func TestFirstDialIsPatient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const latency = 1200 * time.Millisecond // a handshake of more than two seconds
		m := newSimWith(t, 2, transporttest.Link{Latency: latency}, func(n *simNode, _ *transport.Config) {
			if n.id == 1 {
				n.knows = []int{}
			}
		})
		defer m.close()
		took := m.await(time.Minute, "the connection", func() bool { return m.nodes[0].Connected(m.nodes[1].Peer()) })
		t.Logf("connected after %v", took)
		if took > 8*time.Second {
			t.Errorf("connected after %v", took)
		}
	})
}
