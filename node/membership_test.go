package node

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/gossip"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/pairing"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/mem"
	"github.com/balefire/balefire/wire"
)

// The first announcement of a node is already correct: its start time and its reachable
// addresses, without loopback if there are others.
func TestFirstRecordOfANode(t *testing.T) {
	a, b := pair(t, func(name string, c *Config) {
		if name == "a" {
			c.Net.Announce = []string{"/ip4/192.0.2.1/tcp/4001"}
		}
	})
	own := a.ownRecord()
	if !slices.Equal(own.Addrs, []string{"/ip4/192.0.2.1/tcp/4001"}) {
		t.Errorf("it announces the addresses %v", own.Addrs)
	}
	var first gossip.Member
	eventually(t, func() (ok bool) {
		first, ok = b.gossip.Member(a.keys.Peer())
		return ok && first.Record != nil
	}, func() string { return "the other node does not learn of it" })
	if started := time.UnixMilli(first.Record.GetStartedMs()); time.Since(started) > time.Hour {
		t.Errorf("it announces the start time %v", started)
	}
}

// A revoked member is not introduced to a joining node, which knows no revocations yet.
func TestRevokedMembersAreNotIntroduced(t *testing.T) {
	a, b := pair(t, nil)
	if err := a.Pairing.Revoke(t.Context(), "b", "lost"); err != nil {
		t.Fatal(err)
	}
	keys := identity.NewKeys(nil, time.Now())
	inv, err := a.Pairing.Invite(t.Context(), wire.InviteOptions{Name: "c"})
	if err != nil {
		t.Fatal(err)
	}
	ticket, err := identity.ParseTicket(inv.Ticket)
	if err != nil {
		t.Fatal(err)
	}
	reply := a.Pairing.Join(t.Context(), keys.Peer(), &proto.JoinRequest{
		TicketId: ticket.ID[:], Proof: identity.JoinProof(ticket.Secret, keys.Peer(), ticket.Inviter), KeyRecord: keys.KeyRecord(),
	})
	if len(reply.GetPeers()) == 0 {
		t.Fatalf("not admitted: %v", reply)
	}
	for _, k := range reply.GetPeers() {
		if m, err := a.mesh.VerifyMember(k.GetCertificate(), time.Now()); err != nil || m.Peer == b.keys.Peer() {
			t.Errorf("%s was introduced (%v)", m.Name, err)
		}
	}
}

// A revoked member is disconnected and cannot reconnect. A dial that the other side had
// started before may briefly look like a connection to the revoked member.
func TestRevokedMemberIsDisconnected(t *testing.T) {
	a, b := pair(t, nil)
	eventually(t, func() bool { return a.net.Connected(b.keys.Peer()) }, func() string { return "they are not connected" })
	if err := a.Pairing.Revoke(t.Context(), "b", "lost"); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return !a.net.Connected(b.keys.Peer()) && !b.net.Connected(a.keys.Peer()) }, func() string { return "the revoked member is still connected" })
	eventually(t, func() bool {
		err := b.net.Dial(withTimeout(t, 10*time.Second), a.keys.Peer(), a.net.Addrs())
		if a.net.Connected(b.keys.Peer()) {
			t.Error("the revoked member is connected again")
		}
		return err != nil
	}, func() string { return "dials of the revoked member succeed" })
}

// Only a node with the root key can revoke an admin; others get that error before
// anything is signed.
func TestOnlyTheRootRevokesAnAdmin(t *testing.T) {
	a, b := pair(t, nil)
	if err := b.Pairing.Revoke(t.Context(), "a", "mine"); !errors.Is(err, wire.ErrDenied) || !strings.Contains(err.Error(), "root key") {
		t.Errorf("a member revokes the first member: %v", err)
	}
	if n := len(a.book.Revocations()) + len(b.book.Revocations()); n != 0 {
		t.Errorf("%d revocations were made", n)
	}
}

// A peer that is blocked on this node is still a member elsewhere: its state is compared
// with other members as before, and they agree.
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
	}, func() string { return "not all members know each other" })
	if err := a.Pairing.Block(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	if _, ok := a.book.Member(third.keys.Peer()); ok {
		t.Error("a blocked peer counts as a member for incoming messages")
	}
	records := a.Pairing.Directory()
	if _, ok := records.Member(third.keys.Peer()); !ok {
		t.Error("a blocked peer does not count as a member for gossip about it")
	}
	eventually(t, func() bool {
		got, err := a.Converge(t.Context())
		return err == nil && slices.Contains(got.Agree, "b")
	}, func() string { return "the members do not agree" })
}

// A node that stops announces it: no member has to detect it or suspects it.
func TestStopIsAnnounced(t *testing.T) {
	a, b := pair(t, nil)
	id := b.keys.Peer()
	status := func() gossip.Status {
		m, _ := a.gossip.Member(id)
		return m.Status
	}
	eventually(t, func() bool { return status() == gossip.Alive }, func() string { return "it does not become alive" })
	b.halt()
	eventually(t, func() bool { return status() != gossip.Alive }, func() string { return "its stop goes unnoticed" })
	if got := status(); got != gossip.Left {
		t.Errorf("it is %v after its stop", got)
	}
}

// After a restart a node has forgotten the version of the others' records. It ignores a
// replayed old record because it remembers their boot numbers.
func TestOldRecordIsIgnored(t *testing.T) {
	a, b := pair(t, nil)
	id := b.keys.Peer()
	eventually(t, func() bool {
		p, _ := a.book.Get(id)
		return p.Boot > 0 && a.net.Connected(id)
	}, func() string { return "they do not meet" })
	cfg := a.cfg
	b.halt()
	a.halt()
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	before, _ := n.book.Get(id)
	announce := func(boot uint64, addr string) {
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
	announce(before.Boot-1, "/ip4/192.0.2.66/tcp/4001")
	if p, _ := n.book.Get(id); !slices.Equal(p.Addrs, before.Addrs) {
		t.Errorf("an old record leads to %v instead of %v", p.Addrs, before.Addrs)
	}
	announce(before.Boot+1, "/ip4/192.0.2.77/tcp/4001")
	if p, _ := n.book.Get(id); !slices.Equal(p.Addrs, []string{"/ip4/192.0.2.77/tcp/4001"}) {
		t.Errorf("a new record leads to %v", p.Addrs)
	}
}

// A clock that is set to before the node's own certificate causes a warning.
func TestClockBehindTheCertificateWarns(t *testing.T) {
	var by atomic.Int64
	a, _ := pair(t, func(name string, c *Config) {
		c.Clock = clock.WithOffset(clock.System(), func() time.Duration { return time.Duration(by.Load()) })
	})
	if w := a.Views.Status(t.Context()).Warnings; noted(w, wire.NoteClockDoubted) || noted(w, wire.NoteClockBehind) || noted(w, wire.NoteClockJumped) {
		t.Errorf("warning with a correct clock: %+v", w)
	}
	by.Store(int64(-time.Hour))
	if w := a.Views.Status(t.Context()).Warnings; !slices.ContainsFunc(w, func(n wire.Note) bool { return n.Code == wire.NoteClockDoubted && math.Round(n.Clock.Off) == -3600 }) {
		t.Errorf("warnings while it is doubted: %+v", w)
	}
	a.guard.ObservePeer(time.Now().Add(-time.Hour))
	if w := a.Views.Status(t.Context()).Warnings; !noted(w, wire.NoteClockBehind) {
		t.Errorf("warnings: %+v", w)
	}
}

// A full member directory is reported by an event and in the status.
func TestFullBookIsReported(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, t.TempDir()+"/a")
	cfg.Simulated.Engine = mem.New()
	if _, err := pairing.Init(pairing.InitOptions{Dir: cfg.Dir, Name: "a", NewMesh: true}); err != nil {
		t.Fatal(err)
	}
	a := start(t, cfg)
	for i := range addressbook.MaxPeers {
		if err := a.book.Block(t.Context(), identity.NewKeys(rand.NewChaCha8([32]byte{byte(i), byte(i >> 8)}), time.Now()).Peer()); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, func() bool {
		return slices.ContainsFunc(a.Events.Read(t.Context(), 0, 100, 0).Items, func(e wire.NodeEvent) bool { return e.Kind == wire.EventBookFull })
	}, func() string { return "no event reports that the directory is full" })
	if w := a.Views.Status(t.Context()).Warnings; !noted(w, wire.NoteBookFull) {
		t.Errorf("status warnings: %+v", w)
	}
}
