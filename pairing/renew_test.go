package pairing

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
)

const day = 24 * time.Hour

// A sealing key that was made under a clock that was months ahead, and was believed, is replaced
// once the clock is right: peers refuse the hello of a node with such a key.
func TestSealingKeyFromTheFutureIsReplaced(t *testing.T) {
	now := time.Now()
	at := func(d time.Duration) clock.Clock { return clock.NewManual(now.Add(d)).Clock() }
	keys := identity.NewKeys(nil, now)
	rotate := func(clk clock.Clock) {
		t.Helper()
		p := &Pairing{Parts: Parts{Keys: keys, Clock: clk, Logger: slog.New(slog.DiscardHandler)}, net: silentNet{}}
		if err := p.RotateKeys(); err != nil {
			t.Fatal(err)
		}
	}
	rotate(at(200 * day))
	ahead := keys.SealingKey()
	rotate(at(0))
	if _, err := identity.VerifyKeyRecord(keys.KeyRecord(), keys.Peer(), now); err != nil || keys.SealingKey().Seq <= ahead.Seq {
		t.Errorf("with the right clock: key %d after %d, %v", keys.SealingKey().Seq, ahead.Seq, err)
	}
	again := keys.SealingKey()
	rotate(at(0))
	if got := keys.SealingKey(); got.Seq != again.Seq {
		t.Error("the next check replaces it again")
	}
}

// A node that made its keys under such a clock joins with a new sealing key.
func TestJoinReplacesASealingKeyFromTheFuture(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	if _, err := identity.CreateKeys(filepath.Join(dir, datadir.Identity), now.Add(200*day)); err != nil {
		t.Fatal(err)
	}
	x, err := Joiner{
		Storage: datadir.Config{Dir: dir},
		Net:     transport.Config{Clock: clock.NewManual(now).Clock()},
	}.begin("b")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := identity.VerifyKeyRecord(x.keys.KeyRecord(), x.keys.Peer(), now); err != nil {
		t.Error(err)
	}
}

// A renewingNet is connected to admins that answer with the given certificates.
type renewingNet struct {
	silentNet
	answers map[proto.PeerID]*proto.Signed
}

func (n renewingNet) Connected(p proto.PeerID) bool { return n.answers[p] != nil }

func (n renewingNet) RequestRenewal(_ context.Context, p proto.PeerID, _ *proto.JoinRequest) (*proto.JoinReply, error) {
	return &proto.JoinReply{Certificate: n.answers[p]}, nil
}

// An admin whose clock is far ahead answers with a certificate that is not valid yet: the next
// admin is asked.
func TestRenewalAfterAnUnusableAnswer(t *testing.T) {
	now, dir, clk := time.Now(), t.TempDir(), clock.System()
	root := identity.NewRoot(nil)
	keys, _, err := ensureKeys(dir, clk)
	if err != nil {
		t.Fatal(err)
	}
	issue := func(p proto.PeerID, name string, at time.Time, roles ...string) *proto.Signed {
		cert, err := root.IssueMember(identity.Member{Peer: p, Name: name, Roles: roles}, at)
		if err != nil {
			t.Fatal(err)
		}
		return cert
	}
	cert := issue(keys.Peer(), "b", now.Add(10*day-identity.MaxMemberLife), identity.RoleWork)
	encoded, err := proto.Encode(nil, cert)
	if err != nil {
		t.Fatal(err)
	}
	if err := (membership{Name: "b", Root: root.Mesh().Root, Certificate: encoded}).write(dir); err != nil {
		t.Fatal(err)
	}
	book, err := addressbook.Open(openStore(t), root.Mesh(), keys, cert, clk, transport.Multiaddrs{})
	if err != nil {
		t.Fatal(err)
	}
	net := renewingNet{answers: map[proto.PeerID]*proto.Signed{}}
	for name, ahead := range map[string]time.Duration{"admin1": 200 * day, "admin2": 0} {
		admin := identity.NewKeys(nil, now)
		if err := book.Learn(t.Context(), &proto.KnownPeer{Certificate: issue(admin.Peer(), name, now, identity.RoleAdmin), KeyRecord: admin.KeyRecord()}); err != nil {
			t.Fatal(err)
		}
		net.answers[admin.Peer()] = issue(keys.Peer(), "b", now.Add(ahead), identity.RoleWork)
	}
	p := &Pairing{Parts: Parts{Dir: dir, Keys: keys, Mesh: root.Mesh(), Book: book, Clock: clk, Logger: slog.New(slog.DiscardHandler)}, net: net}
	if err := p.renewSelf(t.Context()); err != nil {
		t.Error(err)
	}
	if until := book.Self().Member.NotAfter; until.Sub(now) < RenewBefore {
		t.Errorf("its certificate ends %v", until)
	}
}
