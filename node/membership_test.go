package node

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/gossip"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/mem"
	"github.com/balefire/balefire/transport"
)

// What a node says of itself is true from its first word on: when it was started, and
// where others can come to it. Its own loopback is no such place when there are others.
func TestFirstRecordOfANode(t *testing.T) {
	a, b := pair(t, func(name string, c *Config) {
		if name == "a" {
			c.Net.Announce = []string{"/ip4/192.0.2.1/tcp/4001"}
		}
	})
	own := a.ownRecord()
	if !slices.Equal(own.Addrs, []string{"/ip4/192.0.2.1/tcp/4001"}) {
		t.Errorf("it says that it is at %v", own.Addrs)
	}
	var first gossip.Member
	eventually(t, func() (ok bool) {
		first, ok = b.gossip.Member(a.keys.Peer())
		return ok && first.Record != nil
	}, func() string { return "the other one hears nothing of it" })
	if started := time.UnixMilli(first.Record.GetStartedMs()); time.Since(started) > time.Hour {
		t.Errorf("it says that it was started at %v", started)
	}
}

// Who was revoked is not introduced to a node that joins: it knows of no revocations
// yet.
func TestRevokedMembersAreNotIntroduced(t *testing.T) {
	a, b := pair(t, nil)
	if err := a.Revoke(t.Context(), "b", "lost"); err != nil {
		t.Fatal(err)
	}
	keys := identity.NewKeys(nil, time.Now())
	cert, err := a.issue(identity.Member{Peer: keys.Peer(), Name: "c"})
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range a.introduceAll(keys.Peer(), cert).GetPeers() {
		if m, err := a.mesh.VerifyMember(k.GetCertificate(), time.Now()); err != nil || m.Peer == b.keys.Peer() {
			t.Errorf("%s is introduced (%v)", m.Name, err)
		}
	}
}

// A revoked member is disconnected and does not come back. A dial that the other side had
// begun before may look like a connection to the revoked member for a moment.
func TestRevokedMemberIsDisconnected(t *testing.T) {
	a, b := pair(t, nil)
	eventually(t, func() bool { return a.net.Connected(b.keys.Peer()) }, func() string { return "it never came: they are connected" })
	if err := a.Revoke(t.Context(), "b", "lost"); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return !a.net.Connected(b.keys.Peer()) && !b.net.Connected(a.keys.Peer()) }, func() string { return "it never came: it is put out" })
	eventually(t, func() bool {
		err := b.net.Dial(withTimeout(t, 10*time.Second), a.keys.Peer(), a.net.Addrs())
		if a.net.Connected(b.keys.Peer()) {
			t.Error("a revoked member is connected again")
		}
		return err != nil
	}, func() string { return "the dials of a revoked member succeed" })
}

// Nobody but who has the root key ends an admin, and is told so before anything is
// signed.
func TestOnlyTheRootRevokesAnAdmin(t *testing.T) {
	a, b := pair(t, nil)
	if err := b.Revoke(t.Context(), "a", "mine"); !errors.Is(err, ErrDenied) || !strings.Contains(err.Error(), "root key") {
		t.Errorf("a member ends the founder: %v", err)
	}
	if n := len(a.book.Revocations()) + len(b.book.Revocations()); n != 0 {
		t.Errorf("%d revocations were made", n)
	}
}

// A peer that a person blocks here is a member elsewhere: what is known of it is
// compared with others as before, and they agree.
func TestBlockedPeerRemainsAMember(t *testing.T) {
	a, b := pair(t, nil)
	c := testConfig(t, t.TempDir()+"/c")
	join(t, a, c, "c")
	third := start(t, c)
	knows := func(n *testNode, p proto.PeerID) bool {
		m, ok := n.gossip.Member(p)
		return ok && m.Status == gossip.Alive
	}
	eventually(t, func() bool {
		return knows(a, b.keys.Peer()) && knows(a, third.keys.Peer()) && knows(b, third.keys.Peer()) && knows(third, b.keys.Peer())
	}, func() string { return "it never came: all know all" })
	if err := a.Block(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	if _, ok := a.book.Member(third.keys.Peer()); ok {
		t.Error("who is blocked is a member for what comes in")
	}
	records := directory{Book: a.book, net: a.net}
	if _, ok := records.Member(third.keys.Peer()); !ok {
		t.Error("who is blocked here is no member for what is told of it")
	}
	eventually(t, func() bool {
		got, err := a.Converge(t.Context())
		return err == nil && slices.Contains(got.Agree, "b")
	}, func() string { return "it never came: they agree" })
}

// A node that stops says so: nobody has to find out, and nobody accuses it.
func TestStopIsAnnounced(t *testing.T) {
	a, b := pair(t, nil)
	id := b.keys.Peer()
	status := func() gossip.Status {
		m, _ := a.gossip.Member(id)
		return m.Status
	}
	eventually(t, func() bool { return status() == gossip.Alive }, func() string { return "it is never alive" })
	b.halt()
	eventually(t, func() bool { return status() != gossip.Alive }, func() string { return "its stop goes unnoticed" })
	if got := status(); got != gossip.Left {
		t.Errorf("it is %v after its stop", got)
	}
}

// After a restart a node has forgotten how new the others' records were. An old one
// that somebody kept and says again does not lead it astray: it remembers their boots.
func TestOldRecordIsIgnored(t *testing.T) {
	a, b := pair(t, nil)
	id := b.keys.Peer()
	eventually(t, func() bool {
		p, _ := a.book.Get(id)
		return p.Boot > 0 && a.net.Connected(id)
	}, func() string { return "they never meet" })
	cfg := a.cfg
	b.halt()
	a.halt()
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	before, _ := n.book.Get(id)
	tell := func(boot uint64, addr string) {
		t.Helper()
		r := &proto.NodeRecord{
			Mesh: n.mesh.ID[:], Peer: id[:], Incarnation: identity.Incarnation(boot), Revision: 1, Boot: boot,
			State: proto.NodeRunning, Addrs: []string{addr},
		}
		s, err := b.keys.SignNode(r)
		if err != nil {
			t.Fatal(err)
		}
		q, err := proto.Encode(nil, &proto.SyncRequest{Rumors: []*proto.Rumor{{Record: s}}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := n.gossip.Sync(t.Context(), id, &proto.Message{Type: proto.TypeSync, Payload: q}); err != nil {
			t.Fatal(err)
		}
		n.updateAddrs(id)
	}
	tell(before.Boot-1, "/ip4/192.0.2.66/tcp/4001")
	if p, _ := n.book.Get(id); !slices.Equal(p.Addrs, before.Addrs) {
		t.Errorf("an old record leads to %v instead of %v", p.Addrs, before.Addrs)
	}
	tell(before.Boot+1, "/ip4/192.0.2.77/tcp/4001")
	if p, _ := n.book.Get(id); !slices.Equal(p.Addrs, []string{"/ip4/192.0.2.77/tcp/4001"}) {
		t.Errorf("a new record leads to %v", p.Addrs)
	}
}

// A clock that went behind the node's own certificate is warned of.
func TestClockBehindTheCertificateWarns(t *testing.T) {
	var by atomic.Int64
	a, _ := pair(t, func(name string, c *Config) {
		c.Clock = clock.WithOffset(clock.System(), func() time.Duration { return time.Duration(by.Load()) })
	})
	if w := strings.Join(a.Status(t.Context()).Warnings, "\n"); strings.Contains(w, "clock") {
		t.Errorf("warned with a good clock: %s", w)
	}
	by.Store(int64(-time.Hour))
	if w := strings.Join(a.Status(t.Context()).Warnings, "\n"); !strings.Contains(w, "is doubted: it is 1h0m0s behind") {
		t.Errorf("warnings while it is doubted: %q", w)
	}
	a.guard.ObservePeer(time.Now().Add(-time.Hour))
	if w := strings.Join(a.Status(t.Context()).Warnings, "\n"); !strings.Contains(w, "the clock of this machine is behind") {
		t.Errorf("warnings: %q", w)
	}
}

// When no more members can be known a person is told so, by an event and by the status.
func TestFullBookIsReported(t *testing.T) {
	cfg := testConfig(t, t.TempDir()+"/a")
	cfg.Simulated.Engine = mem.New()
	if _, err := Init(InitOptions{Dir: cfg.Dir, Name: "a", NewMesh: true}); err != nil {
		t.Fatal(err)
	}
	a := start(t, cfg)
	for i := range transport.MaxPeers {
		if err := a.book.SetAddrs(t.Context(), identity.NewKeys(rand.NewChaCha8([32]byte{byte(i), byte(i >> 8)}), time.Now()).Peer(), nil); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, func() bool {
		return slices.ContainsFunc(a.Events(t.Context(), 0, 100, 0).Items, func(e NodeEvent) bool { return e.Kind == "member.alarm" })
	}, func() string { return "no event tells that the book is full" })
	if w := a.Status(t.Context()).Warnings; !slices.ContainsFunc(w, func(w string) bool { return strings.Contains(w, "peers forget") }) {
		t.Errorf("the status warns of %q", w)
	}
}
