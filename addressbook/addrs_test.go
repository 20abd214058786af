package addressbook

import (
	"errors"
	"slices"
	"testing"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
)

func TestUpdateAddrs(t *testing.T) {
	c := newBookCase(t)
	if err := c.book.UpdateAddrs(t.Context(), c.peer.Peer(), nil, nil); !errors.Is(err, ErrUnknownPeer) {
		t.Fatalf("of a stranger: %v", err)
	}
	if err := c.book.Admit(c.hello, c.peer.Peer()); err != nil {
		t.Fatal(err)
	}
	relay := proto.PeerID{7}
	moved := []string{"/ip4/192.0.2.99/udp/4001/quic-v1"}
	if err := c.book.UpdateAddrs(t.Context(), c.peer.Peer(), append(moved, "nonsense"), []proto.PeerID{relay}); err != nil {
		t.Fatal(err)
	}
	c.reopen(t)
	p, _ := c.book.Get(c.peer.Peer())
	if !slices.Equal(p.Addrs, moved) || !slices.Equal(p.Relays, []proto.PeerID{relay}) {
		t.Fatalf("after a restart: %v through %v", p.Addrs, p.Relays)
	}
	if err := c.book.UpdateAddrs(t.Context(), c.peer.Peer(), nil, nil); err != nil {
		t.Fatal(err)
	}
	if p, _ = c.book.Get(c.peer.Peer()); !slices.Equal(p.Addrs, moved) || len(p.Relays) != 0 {
		t.Fatalf("no address announced: %v through %v", p.Addrs, p.Relays)
	}
}

// A hello of a machine that has just lost its network states no addresses: the known ones stay.
func TestHelloWithoutAddressesKeepsThem(t *testing.T) {
	c := newBookCase(t)
	known := c.hello.GetAddrs()
	if err := c.book.Admit(c.hello, c.peer.Peer()); err != nil {
		t.Fatal(err)
	}
	c.hello.Addrs = nil
	if err := c.book.Admit(c.hello, c.peer.Peer()); err != nil {
		t.Fatal(err)
	}
	if p, _ := c.book.Get(c.peer.Peer()); !slices.Equal(p.Addrs, known) {
		t.Errorf("its addresses are %v, want %v", p.Addrs, known)
	}
}

func TestAliasIsUnique(t *testing.T) {
	c := newBookCase(t)
	if err := c.book.Admit(c.hello, c.peer.Peer()); err != nil {
		t.Fatal(err)
	}
	if err := c.book.Rename(t.Context(), c.peer.Peer(), "home"); !errors.Is(err, ErrAmbiguous) {
		t.Fatalf("the name of this node: %v", err)
	}
	if err := c.book.Rename(t.Context(), c.peer.Peer(), "attic"); err != nil {
		t.Fatal(err)
	}
	c.reopen(t)
	for _, ref := range []string{"attic", "laptop"} {
		if p, err := c.book.Find(ref); err != nil || p.Label() != "attic" {
			t.Errorf("%s resolves to %q, %v", ref, p.Label(), err)
		}
	}
	if m, ok := c.book.Member(c.peer.Peer()); !ok || m.Name != "laptop" {
		t.Errorf("rules would know it as %q", m.Name)
	}
	if err := c.book.Rename(t.Context(), c.peer.Peer(), ""); err != nil {
		t.Fatal(err)
	}
	if p, _ := c.book.Find("laptop"); p.Label() != "laptop" {
		t.Errorf("without the alias its label is %q", p.Label())
	}
}

// A peer that announced 127.0.0.1 would make every member dial itself. For a peer on this
// machine the address is valid.
func TestUpdateAddrsRejectsLocalAddresses(t *testing.T) {
	c := newBookCase(t)
	id, far, here := c.peer.Peer(), "/ip4/192.0.2.99/tcp/4001", "/ip4/127.0.0.1/tcp/4001"
	if err := c.book.Admit(c.hello, id); err != nil {
		t.Fatal(err)
	}
	told := []string{here, "/ip6/::1/tcp/1", "/ip4/0.0.0.0/tcp/1", far}
	if err := c.book.UpdateAddrs(t.Context(), id, told, nil); err != nil {
		t.Fatal(err)
	}
	if p, _ := c.book.Get(id); !slices.Equal(p.Addrs, []string{far}) {
		t.Errorf("its statement leads to %v", p.Addrs)
	}
	c.hello.Addrs = []string{here}
	if err := c.book.Admit(c.hello, id); err != nil {
		t.Fatal(err)
	}
	if err := c.book.UpdateAddrs(t.Context(), id, []string{here, far}, nil); err != nil {
		t.Fatal(err)
	}
	if p, _ := c.book.Get(id); !slices.Equal(p.Addrs, []string{here, far}) {
		t.Errorf("of one on this machine: %v", p.Addrs)
	}
}

// A member that introduces another with loopback addresses would make the receiver dial
// itself. On one machine, and initially from the inviter, they are valid.
func TestIntroductionRejectsLocalAddresses(t *testing.T) {
	far, here := "/ip4/192.0.2.1/tcp/1", "/ip4/127.0.0.1/tcp/1"
	told := []string{far, here, "/ip6/::1/tcp/1", "/ip4/0.0.0.0/tcp/1", "/ip6/fe80::1/tcp/1"}
	for _, tt := range []struct {
		name string
		met  []string // addresses of earlier hellos; nil: none
		want []string
	}{
		{"by the inviter, at first", nil, []string{far, here, "/ip6/::1/tcp/1", "/ip6/fe80::1/tcp/1"}},
		{"by a member elsewhere", []string{"/ip4/192.0.2.9/tcp/1"}, []string{far}},
		{"on one machine", []string{"/ip4/127.0.0.1/tcp/9"}, []string{far, here, "/ip6/::1/tcp/1", "/ip6/fe80::1/tcp/1"}},
	} {
		c := newBookCase(t)
		if tt.met != nil {
			c.hello.Addrs = tt.met
			if err := c.book.Admit(c.hello, c.peer.Peer()); err != nil {
				t.Fatal(err)
			}
		}
		third := identity.NewKeys(nil, birth)
		k := &proto.KnownPeer{Certificate: c.issue(t, c.root, third, "third"), KeyRecord: third.KeyRecord(), Addrs: told}
		if err := c.book.Learn(t.Context(), k); err != nil {
			t.Fatal(err)
		}
		if p, _ := c.book.Get(third.Peer()); !slices.Equal(p.Addrs, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, p.Addrs, tt.want)
		}
	}
}
