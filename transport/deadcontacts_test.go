package transport_test

import (
	"slices"
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

// deadContacts returns contacts that do not exist, at the addresses of the nodes from that one on.
func deadContacts(n *simNode, from, count int) (all []proto.Contact) {
	for i := from; i < from+count; i++ {
		all = append(all, proto.Contact{Peer: simKeys(i).Peer(), Addrs: []string{n.mesh.Addr(i)}})
	}
	return all
}

// A peer that restarts is dialed at once, however many contacts have not answered for long.
func TestDeadContactsDelayNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const nodes, dead = 3, 40
		m := newSimWith(t, nodes, wan, func(n *simNode, cfg *transport.Config) {
			n.knows = []int{} // the others do not dial
			if n.id == 0 {
				n.knows = nil
				cfg.Directory = graveyard{n, deadContacts(n, nodes, dead)}
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

// A node that starts with many contacts that are gone reaches the others soon: those that it has
// not tried yet come first, and each takes its turn for shortDial alone.
func TestStartAmongDeadContacts(t *testing.T) {
	for seed := range uint64(5) {
		synctest.Test(t, func(t *testing.T) {
			const nodes, dead = 4, 24
			link := wan
			link.Seed = seed
			m := newSimWith(t, nodes, link, func(n *simNode, cfg *transport.Config) {
				n.knows = []int{} // the others do not dial
				if n.id == 0 {
					n.knows = nil
					cfg.Directory = graveyard{n, deadContacts(n, nodes, dead)}
				}
			})
			defer m.close()
			took := m.await(10*time.Minute, "all others", func() bool {
				return !slices.ContainsFunc(m.nodes[1:], func(n *simNode) bool { return !m.nodes[0].Connected(n.Peer()) })
			})
			t.Logf("connected with all after %v", took)
			if took > (dead+nodes)*3*time.Second {
				t.Errorf("connected with all after %v", took)
			}
		})
	}
}
