package transport_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
)

// A graveyard is a directory with contacts that do not exist any more.
type graveyard struct {
	transport.Directory
	dead []proto.Contact
}

func (g graveyard) Contacts() []proto.Contact { return append(g.Directory.Contacts(), g.dead...) }

// A peer that restarts is dialed at once, however many contacts have not answered for long.
func TestDeadContactsDelayNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const nodes, dead = 3, 40
		m := newSimWith(t, nodes, wan, func(n *simNode, cfg *transport.Config) {
			n.knows = []int{} // the others do not dial
			if n.id == 0 {
				n.knows = nil
				g := graveyard{Directory: n}
				for i := nodes; i < nodes+dead; i++ {
					g.dead = append(g.dead, proto.Contact{Peer: simKeys(i).Peer(), Addrs: []string{n.mesh.Addr(i)}})
				}
				cfg.Directory = g
			}
		})
		defer m.close()
		other := m.nodes[2]
		there := func() bool { return m.nodes[0].Connected(other.Peer()) }
		m.await(10*time.Minute, "the first contact", there)
		time.Sleep(30 * time.Minute) // all others have failed, some of them while node 1 was heard
		for range 5 {
			other.stop()
			time.Sleep(5 * time.Second)
			other.start()
			t.Logf("dialed again after %v", m.await(10*time.Second, "the peer that restarted", there))
		}
	})
}
