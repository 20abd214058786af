package pairing

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
)

// A closingNet notes whose connections are closed.
type closingNet struct {
	Network
	closed []proto.PeerID
}

func (n *closingNet) Disconnect(p proto.PeerID) { n.closed = append(n.closed, p) }

// A revoked member is disconnected although the log next to the keys cannot be written. The
// error makes gossip bring the revocation again, and then the log gets it.
func TestRevokedMemberIsDisconnectedWithoutALog(t *testing.T) {
	now, dir := time.Now(), t.TempDir()
	root, own, peer := identity.NewRoot(nil), identity.NewKeys(nil, now), identity.NewKeys(nil, now)
	issue := func(k *identity.Keys, name string) *proto.Signed {
		cert, err := root.IssueMember(identity.Member{Peer: k.Peer(), Name: name, Roles: identity.DefaultRoles()}, now)
		if err != nil {
			t.Fatal(err)
		}
		return cert
	}
	book, err := addressbook.Open(openStore(t), root.Mesh(), own, issue(own, "a"), clock.System(), transport.Multiaddrs{})
	if err != nil {
		t.Fatal(err)
	}
	if err := book.Learn(t.Context(), &proto.KnownPeer{Certificate: issue(peer, "b"), KeyRecord: peer.KeyRecord()}); err != nil {
		t.Fatal(err)
	}
	s, err := root.Revoke(identity.Revocation{Peer: peer.Peer()}, now)
	if err != nil {
		t.Fatal(err)
	}
	net := new(closingNet)
	p := &Pairing{Parts: Parts{Dir: dir, Book: book, Logger: slog.New(slog.DiscardHandler)}, net: net, revocations: newRevocationLog(dir)}
	if err := p.Directory().Revoke(t.Context(), s); err == nil { // its folder is missing
		t.Fatal("the log was written")
	}
	if !slices.Equal(net.closed, []proto.PeerID{peer.Peer()}) {
		t.Errorf("disconnected %v", net.closed)
	}
	if err := os.Mkdir(filepath.Join(dir, datadir.Identity), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := p.Directory().Revoke(t.Context(), s); err != nil {
		t.Error(err)
	}
	if kept, whole, err := p.revocations.read(); len(kept) != 1 || !whole || err != nil {
		t.Errorf("the log has %d, %v, %v", len(kept), whole, err)
	}
}
