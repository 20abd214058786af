package pairing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/wire"
)

// The state kept for nodes without a ticket is bounded and expires.
func TestJoinRequestsAreBounded(t *testing.T) {
	w, now := newRequests(), time.Unix(1_800_000_000, 0)
	for i := range maxRequests + 20 {
		if w.add(proto.PeerID{byte(i), 1}, fmt.Sprint(i), "", &proto.JoinRequest{Name: "n"}, now) == nil {
			t.Fatalf("request %d is refused", i)
		}
	}
	if len(w.list(now)) != maxRequests || len(w.list(now.Add(requestTTL+time.Second))) != 0 {
		t.Errorf("%d requests at first, %d later", len(w.list(now)), len(w.asked))
	}
	for i := range 3 * maxStrangers {
		w.firstSeen(proto.PeerID{byte(i), byte(i >> 8)})
	}
	if len(w.strangers) > maxStrangers {
		t.Errorf("%d strangers are remembered", len(w.strangers))
	}
	w.firstSeen(proto.PeerID{1})
	if w.firstSeen(proto.PeerID{1}) {
		t.Error("a stranger is reported twice")
	}
}

// One address on the LAN sends requests with ever new keys: it gets only a few places,
// and a request from another address is listed, first if it is the newest.
func TestOneAddressCannotFillTheList(t *testing.T) {
	w, now := newRequests(), time.Unix(1_800_000_000, 0)
	for i := range 5 * maxRequests {
		now = now.Add(time.Second)
		if w.add(proto.PeerID{byte(i), byte(i >> 8), 1}, "bad", "/ip4/192.0.2.1", &proto.JoinRequest{Name: "tablet"}, now) == nil {
			t.Fatal("the address is shut out itself: its requests are not visible")
		}
	}
	now = now.Add(time.Second)
	if w.add(proto.PeerID{9}, "good", "/ip4/192.0.2.2", &proto.JoinRequest{Name: "tablet"}, now) == nil {
		t.Fatal("a request from another address is shut out")
	}
	all := w.list(now)
	if len(all) != maxPerOrigin+1 || all[0].From != "/ip4/192.0.2.2" {
		t.Errorf("%d requests, the first from %s", len(all), all[0].From)
	}
	if code := JoinCode(proto.PeerID{9}); len(code) != 14 || plainCode(strings.ToLower(code)) != strings.ReplaceAll(code, "-", "") {
		t.Errorf("code %s", code)
	}
}

// The first node that answers on a LAN is not necessarily the right one: without the
// code of the member a person is asked, and if nobody can be asked the answer is no.
func TestJoiningNeedsConsent(t *testing.T) {
	p, asked := proto.PeerID{9}, ""
	no := errors.New("no")
	for _, tt := range []struct {
		name  string
		o     LANOptions
		wants bool
		err   error
	}{
		{"the right code", LANOptions{Code: strings.ToLower(JoinCode(p))}, true, nil},
		{"the code of another node", LANOptions{Code: JoinCode(proto.PeerID{8})}, false, nil},
		{"nobody to ask", LANOptions{}, true, wire.ErrRefused},
		{"a person declines", LANOptions{Agree: func(code, _ string) error { asked = code; return no }}, true, no},
	} {
		if got := tt.o.mayAsk(p); got != tt.wants {
			t.Errorf("%s: agree = %v", tt.name, got)
		}
		if err := tt.o.confirm(p, identity.Mesh{}); tt.wants && !errors.Is(err, tt.err) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.err)
		}
	}
	if asked != JoinCode(p) {
		t.Errorf("the person was shown %q", asked)
	}
}

// TestStrangerIsReportedWithTheReason checks that an event says why a node on the LAN is no
// member, unless it belongs to no mesh: then it has the code to accept it by.
func TestStrangerIsReportedWithTheReason(t *testing.T) {
	var fields map[string]string
	p := &Pairing{requests: newRequests()}
	p.Event = func(_ string, _ proto.PeerID, f map[string]string) { fields = f }
	p.StrangerSeen(transport.Stranger{Peer: proto.PeerID{1}, Reason: "refused:\n  a certificate of another mesh"})
	if fields["detail"] != "refused: a certificate of another mesh" || fields["code"] != "" {
		t.Errorf("reported with %v", fields)
	}
	p.StrangerSeen(transport.Stranger{Peer: proto.PeerID{2}, Joins: true, Reason: "it has no mesh"})
	if fields["detail"] != "" || fields["code"] != JoinCode(proto.PeerID{2}) {
		t.Errorf("reported with %v", fields)
	}
}

// newPairing returns the pairing of the first member of a mesh.
func newPairing(t *testing.T, net Network) *Pairing {
	t.Helper()
	dir, clk := t.TempDir(), clock.System()
	if _, err := Init(InitOptions{Dir: dir, Name: "a", NewMesh: true}); err != nil {
		t.Fatal(err)
	}
	own, err := Load(dir, clk.Now())
	if err != nil {
		t.Fatal(err)
	}
	st := openStore(t)
	book, err := addressbook.Open(st, own.Mesh, own.Keys, own.Self.Cert, clk, transport.Multiaddrs{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(Parts{
		Dir: dir, Keys: own.Keys, Mesh: own.Mesh, Book: book, Store: st, Clock: clk, Logger: slog.New(slog.DiscardHandler),
		Audit: func(context.Context, string, string) error { return nil },
		Event: func(string, proto.PeerID, map[string]string) {},
	})
	if err != nil {
		t.Fatal(err)
	}
	p.Connect(net, nil, nil, nil)
	return p
}

// A lanNet is the network of a member that nodes on its LAN ask.
type lanNet struct{ Network }

func (lanNet) Addrs() []string                      { return nil }
func (lanNet) Origin(proto.PeerID) (_, addr string) { return "lan", "/ip4/192.0.2.1" }

// Allow lists name members: a node gets the name that a person accepted, whatever it states
// after that.
func TestAcceptedNameStays(t *testing.T) {
	p, keys := newPairing(t, lanNet{}), identity.NewKeys(nil, time.Now())
	ask := func(name string) *proto.JoinReply {
		return p.Join(t.Context(), keys.Peer(), &proto.JoinRequest{Name: name, KeyRecord: keys.KeyRecord()})
	}
	if r := ask("guest"); !r.GetPending() {
		t.Fatal(r)
	}
	if x, err := p.Accept(t.Context(), JoinCode(keys.Peer()), wire.AcceptOptions{}); err != nil || x.Name != "guest" {
		t.Fatal(x, err)
	}
	r := ask("backup-server")
	if m, err := p.Mesh.VerifyMember(r.GetCertificate(), time.Now()); err != nil || m.Name != "guest" {
		t.Errorf("it is a member as %q, %v, %s", m.Name, err, r.GetRefusal())
	}
}

// Nor does a node get another name than that with which a person was first shown it, by an event or a
// list, unless that person gives a name: some program may have asked for the list since.
func TestNameIsTheOneShown(t *testing.T) {
	p, keys := newPairing(t, lanNet{}), identity.NewKeys(nil, time.Now())
	ask := func(keys *identity.Keys, name string) {
		t.Helper()
		if r := p.Join(t.Context(), keys.Peer(), &proto.JoinRequest{Name: name, KeyRecord: keys.KeyRecord()}); !r.GetPending() {
			t.Fatal(r)
		}
	}
	accept := func(o wire.AcceptOptions) error {
		_, err := p.Accept(t.Context(), JoinCode(keys.Peer()), o)
		return err
	}
	ask(keys, "guest")
	if l := p.Requests(); len(l) != 1 || l[0].Name != "guest" {
		t.Fatal(l)
	}
	ask(keys, "backup-server")
	if err := accept(wire.AcceptOptions{}); !errors.Is(err, wire.ErrRefused) || !strings.Contains(err.Error(), "backup-server") || !strings.Contains(err.Error(), "guest") {
		t.Errorf("under a name that nobody was shown: %v", err)
	}
	for range maxPerOrigin { // which push its request out
		ask(identity.NewKeys(nil, time.Now()), "x")
	}
	ask(keys, "backup-server")
	if err := accept(wire.AcceptOptions{}); !errors.Is(err, wire.ErrRefused) {
		t.Errorf("after its first request was pushed out: %v", err)
	}
	if err := accept(wire.AcceptOptions{Name: "guest"}); err != nil {
		t.Errorf("under a name that the person gives: %v", err)
	}
	for _, later := range []string{"phone", "tablet"} {
		other := identity.NewKeys(nil, time.Now())
		ask(other, "tablet")
		ask(other, later)
		p.Requests()
		x, err := p.Accept(t.Context(), JoinCode(other.Peer()), wire.AcceptOptions{})
		if later == "tablet" && (err != nil || x.Name != later) || later != "tablet" && !errors.Is(err, wire.ErrRefused) {
			t.Errorf("after it asked as %s: %+v, %v", later, x, err)
		}
	}
}
