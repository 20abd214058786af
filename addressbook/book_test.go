package addressbook

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/mem"
	"github.com/balefire/balefire/transport"
)

var birth = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// A bookCase is a mesh of one node with an empty book, and a member that wants to
// connect.
type bookCase struct {
	clock  *clock.Manual
	root   *identity.Root
	engine *mem.Engine
	store  *store.Store
	own    *identity.Keys
	cert   *proto.Signed
	book   *Book
	peer   *identity.Keys
	hello  *proto.Hello // a valid hello of peer
}

func newBookCase(t testing.TB) *bookCase {
	t.Helper()
	c := &bookCase{clock: clock.NewManual(birth), root: identity.NewRoot(nil), engine: mem.New()}
	c.own, c.peer = identity.NewKeys(nil, birth), identity.NewKeys(nil, birth)
	c.cert = c.issue(t, c.root, c.own, "home")
	c.open(t)
	c.hello = c.helloOf(t, c.peer, "laptop")
	return c
}

func (c *bookCase) open(t testing.TB) {
	t.Helper()
	s, err := store.Open(c.engine, store.Config{Clock: c.clock.Clock(), SweepEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	c.store = s
	if c.book, err = Open(s, c.root.Mesh(), c.own, c.cert, c.clock.Clock(), transport.Multiaddrs{}); err != nil {
		t.Fatal(err)
	}
}

// reopen stops the node and restarts it with the data on its disk.
func (c *bookCase) reopen(t testing.TB) {
	t.Helper()
	if err := c.store.Close(); err != nil {
		t.Fatal(err)
	}
	c.engine = c.engine.Reopen()
	c.open(t)
}

func (c *bookCase) issue(t testing.TB, r *identity.Root, k *identity.Keys, name string) *proto.Signed {
	t.Helper()
	cert, err := r.IssueMember(identity.Member{Peer: k.Peer(), Name: name}, c.clock.Clock().Now())
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func (c *bookCase) helloOf(t testing.TB, k *identity.Keys, name string) *proto.Hello {
	return &proto.Hello{
		Version: proto.Version, Certificate: c.issue(t, c.root, k, name), KeyRecord: k.KeyRecord(),
		Boot: 1000, BootId: make([]byte, 16), Addrs: []string{"/ip4/192.0.2.7/udp/4001/quic-v1"},
	}
}

// A peer that is blocked may be unblocked: it is not gone, as one is that was revoked or
// cannot be renewed any more.
func TestGone(t *testing.T) {
	c := newBookCase(t)
	id := c.peer.Peer()
	if !c.book.Gone(id) {
		t.Error("a peer that nobody knows is not gone")
	}
	if err := errors.Join(c.book.Admit(c.hello, id), c.book.Block(t.Context(), id)); err != nil {
		t.Fatal(err)
	}
	if _, ok := c.book.Renewable(id); ok || c.book.Gone(id) {
		t.Errorf("a blocked peer: a member %v, gone %v", ok, c.book.Gone(id))
	}
	c.clock.Advance(identity.MaxMemberLife + identity.MemberGrace + time.Hour)
	if !c.book.Gone(id) {
		t.Error("a peer that cannot be renewed is not gone")
	}
	c = newBookCase(t)
	s, err := c.root.Revoke(identity.Revocation{Peer: id}, birth)
	if err = errors.Join(err, c.book.Admit(c.hello, c.peer.Peer()), c.book.Revoke(t.Context(), s)); err != nil {
		t.Fatal(err)
	}
	if !c.book.Gone(id) {
		t.Error("a revoked peer is not gone")
	}
}

// After a stop a wall clock may be wrong: while it is doubted, no member is gone because
// of it, since what comes from one that is gone is refused for good.
func TestDoubtedClockEndsNoMember(t *testing.T) {
	c := newBookCase(t)
	id := c.peer.Peer()
	if err := c.book.Admit(c.hello, id); err != nil {
		t.Fatal(err)
	}
	stamp := clock.NewGuard(clock.WithMachine("before", c.clock.Clock())).Stamp()
	c.clock.SetWall(birth.Add(identity.MaxMemberLife + identity.MemberGrace + time.Hour))
	after := clock.NewGuard(clock.WithMachine("after", c.clock.Clock()))
	if err := after.Resume(stamp); err != nil {
		t.Fatal(err)
	}
	c.book.clock = after.Clock()
	if c.book.clock.Now().Before(birth.Add(identity.MaxMemberLife)) || !c.book.clock.Doubted() {
		t.Fatalf("the clock is %v, doubted: %v", c.book.clock.Now(), c.book.clock.Doubted())
	}
	if _, ok := c.book.Renewable(id); !ok || c.book.Gone(id) {
		t.Errorf("by a doubted clock: a member %v, gone %v", ok, c.book.Gone(id))
	}
	c.clock.Advance(clock.BelieveAfter + time.Minute)
	if _, ok := c.book.Renewable(id); ok || !c.book.Gone(id) {
		t.Errorf("by a believed clock: a member %v, gone %v", ok, c.book.Gone(id))
	}
}

// TestHelloFamilies checks admission as in DESIGN section 6 and S51, S54: what is
// admitted, what is not, and that nothing of the latter is stored.
func TestHelloFamilies(t *testing.T) {
	other := identity.NewKeys(nil, birth)
	tests := []struct {
		name   string
		change func(t *testing.T, c *bookCase)
		want   error // nil: admitted
		says   string
	}{
		{"a member", func(*testing.T, *bookCase) {}, nil, ""},
		{"a stranger without a certificate", func(_ *testing.T, c *bookCase) { c.hello.Certificate = nil }, identity.ErrBadRecord, ""},
		{"a stranger that is its own root", func(t *testing.T, c *bookCase) {
			c.hello.Certificate = c.issue(t, identity.NewRoot(nil), c.peer, "laptop")
		}, errAny, ""},
		{"another node's certificate", func(t *testing.T, c *bookCase) {
			c.hello.Certificate = c.issue(t, c.root, other, "laptop")
		}, errAny, "certificate belongs to"},
		{"another node's certificate that expired long ago", func(t *testing.T, c *bookCase) { // it says nothing about clocks
			c.hello.Certificate = c.issue(t, c.root, other, "laptop")
			c.clock.Advance(identity.MaxMemberLife + identity.MemberGrace + time.Hour)
		}, errAny, "certificate belongs to"},
		{"a revoked certificate that expired long ago", func(t *testing.T, c *bookCase) {
			s, err := c.root.Revoke(identity.Revocation{Peer: c.peer.Peer()}, birth)
			if err = errors.Join(err, c.book.Revoke(t.Context(), s)); err != nil {
				t.Fatal(err)
			}
			c.clock.Advance(identity.MaxMemberLife + identity.MemberGrace + time.Hour)
		}, ErrRevoked, ""},
		{"a changed certificate", func(_ *testing.T, c *bookCase) { c.hello.Certificate.Details[4] ^= 1 }, errAny, ""},
		{"a changed signature", func(_ *testing.T, c *bookCase) { c.hello.Certificate.Signature[4] ^= 1 }, errAny, ""},
		{"a recently expired certificate may connect to be renewed", func(_ *testing.T, c *bookCase) {
			c.clock.Advance(identity.MaxMemberLife + identity.MemberGrace - time.Hour)
		}, nil, ""},
		{"a certificate that expired long ago", func(_ *testing.T, c *bookCase) {
			c.clock.Advance(identity.MaxMemberLife + identity.MemberGrace + time.Hour)
		}, identity.ErrExpired, ""},
		{"a certificate of the future", func(_ *testing.T, c *bookCase) { c.clock.Advance(-100 * 24 * time.Hour) }, identity.ErrNotYet, ""},
		{"no key record", func(_ *testing.T, c *bookCase) { c.hello.KeyRecord = nil }, identity.ErrBadRecord, ""},
		{"another node's key record", func(_ *testing.T, c *bookCase) { c.hello.KeyRecord = other.KeyRecord() }, errAny, ""},
		{"a changed key record", func(_ *testing.T, c *bookCase) {
			k := *identity.NewKeys(nil, birth).KeyRecord()
			c.hello.KeyRecord = &proto.Signed{Details: k.Details, Signature: k.Signature, Signer: c.hello.KeyRecord.Signer}
		}, errAny, ""},
		{"no boot", func(_ *testing.T, c *bookCase) { c.hello.Boot = 0 }, errAny, "contains no boot"},
		{"a short boot id", func(_ *testing.T, c *bookCase) { c.hello.BootId = []byte("x") }, errAny, "contains no boot"},
		{"blocked", func(t *testing.T, c *bookCase) {
			if err := c.book.Block(t.Context(), c.peer.Peer()); err != nil {
				t.Fatal(err)
			}
		}, ErrBlocked, ""},
		{"blocked and unblocked", func(t *testing.T, c *bookCase) {
			err := errors.Join(c.book.Block(t.Context(), c.peer.Peer()), c.book.Unblock(t.Context(), c.peer.Peer()))
			if err != nil {
				t.Fatal(err)
			}
		}, nil, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := newBookCase(t)
			tt.change(t, c)
			err := c.book.Admit(c.hello, c.peer.Peer())
			switch {
			case tt.want == nil && err != nil, tt.want == errAny && err == nil:
				t.Fatalf("Admit = %v, want %v", err, tt.want)
			case tt.want != errAny && !errors.Is(err, tt.want):
				t.Fatalf("Admit = %v, want %v", err, tt.want)
			case tt.says != "" && !strings.Contains(err.Error(), tt.says):
				t.Errorf("Admit = %q, want it to contain %q", err, tt.says)
			}
			if p, ok := c.book.Get(c.peer.Peer()); tt.want != nil && ok && (p.Member.Cert != nil || len(p.Addrs) > 0) {
				t.Errorf("a refused peer is stored: %+v", p)
			}
		})
	}
}

// errAny stands for any error.
var errAny = errors.New("some error")

// TestBootNumberNeverDecreases checks I5 and S51: a store restored from a backup with a
// clock set back, and a second node with the same key, are refused, even after a restart
// of the refusing node.
func TestBootNumberNeverDecreases(t *testing.T) {
	c := newBookCase(t)
	admit := func(boot uint64, id byte) error {
		c.hello.Boot, c.hello.BootId = boot, slices.Repeat([]byte{id}, 16)
		return c.book.Admit(c.hello, c.peer.Peer())
	}
	steps := []struct {
		boot uint64
		id   byte
		want error
	}{
		{1000, 1, nil}, {1000, 1, nil}, {1001, 2, nil}, {1000, 1, ErrOldBoot}, {1001, 3, ErrTwin}, {1001, 2, nil}, {5, 9, ErrOldBoot},
	}
	for i, s := range steps {
		if err := admit(s.boot, s.id); !errors.Is(err, s.want) {
			t.Errorf("step %d: boot %d/%d = %v, want %v", i, s.boot, s.id, err, s.want)
		}
	}
	c.reopen(t)
	if err := admit(1000, 1); !errors.Is(err, ErrOldBoot) {
		t.Errorf("after a restart: %v, want %v", err, ErrOldBoot)
	}
	if err := c.book.Admit(c.hello, c.own.Peer()); !errors.Is(err, ErrTwin) {
		t.Errorf("own key: %v, want %v", err, ErrTwin)
	}
}

func TestBookSurvivesRestart(t *testing.T) {
	c := newBookCase(t)
	ctx, id := t.Context(), c.peer.Peer()
	blocked := identity.NewKeys(nil, birth).Peer()
	err := errors.Join(c.book.Admit(c.hello, id), c.book.Block(ctx, blocked))
	if err != nil {
		t.Fatal(err)
	}
	before, _ := c.book.Get(id)
	if r := c.book.Recipient(id); r == nil || r.Peer != id || r.Name != before.Name || !slices.Equal(r.KeyRecord.Public, before.KeyRecord.Public) {
		t.Errorf("as a recipient it is %+v, want %+v", r, before)
	}
	if r := c.book.Recipient(proto.PeerID{1}); r != nil {
		t.Errorf("a stranger is a recipient: %+v", r)
	}
	c.reopen(t)
	after, ok := c.book.Get(id)
	if !ok || after.Name != "laptop" || after.Boot != 1000 || !after.LastSeen.Equal(birth) || after.KeyRecord.Seq != before.KeyRecord.Seq {
		t.Errorf("after a restart: %+v", after)
	}
	want := []string{"/ip4/192.0.2.7/udp/4001/quic-v1"}
	if !slices.Equal(after.Addrs, want) {
		t.Errorf("addresses %q, want %q", after.Addrs, want)
	}
	if m, ok := c.book.Member(id); !ok || !m.HasRole(identity.RoleWork) {
		t.Errorf("member %+v, %v", m, ok)
	}
	if !c.book.Blocked(blocked) || c.book.Blocked(id) {
		t.Error("a blocked peer was forgotten")
	}
	if got := c.book.Contacts(); len(got) != 1 || got[0].Peer != id {
		t.Errorf("contacts %+v, want the one with addresses", got)
	}
	if err := c.book.Forget(ctx, id); err != nil {
		t.Fatal(err)
	}
	c.reopen(t)
	if _, ok := c.book.Get(id); ok {
		t.Error("a forgotten peer is known again")
	}
}

func TestIntroductions(t *testing.T) {
	c := newBookCase(t)
	ctx, id := t.Context(), c.peer.Peer()
	first := &proto.KnownPeer{Certificate: c.hello.Certificate, KeyRecord: c.hello.KeyRecord, Addrs: []string{"/ip4/192.0.2.1/tcp/1", "no address"}}
	if err := c.book.Learn(ctx, first); err != nil {
		t.Fatal(err)
	}
	if p, _ := c.book.Get(id); !slices.Equal(p.Addrs, first.Addrs[:1]) || !p.LastSeen.IsZero() {
		t.Errorf("learnt %+v", p)
	}
	if err := c.book.Admit(c.hello, id); err != nil {
		t.Fatal(err)
	}
	if err := c.book.Learn(ctx, first); err != nil {
		t.Fatal(err)
	}
	if p, _ := c.book.Get(id); !slices.Equal(p.Addrs, c.hello.Addrs) {
		t.Errorf("an introduction replaced the peer's own addresses: %q", p.Addrs)
	}
	if err := c.peer.Rotate(0, birth); err != nil {
		t.Fatal(err)
	}
	c.hello.KeyRecord = c.peer.KeyRecord()
	if err := c.book.Admit(c.hello, id); err != nil {
		t.Fatal(err)
	}
	if err := c.book.Learn(ctx, first); !errors.Is(err, ErrOldKey) {
		t.Errorf("an older key record: %v, want %v", err, ErrOldKey)
	}
	if k, ok := c.book.KeyRecord(id); !ok || k.Seq != c.peer.SealingKey().Seq {
		t.Errorf("key record %+v, want number %d", k, c.peer.SealingKey().Seq)
	}
	p, _ := c.book.Get(id)
	if err := c.book.Learn(ctx, p.Known()); err != nil {
		t.Errorf("the book's own entry: %v", err)
	}
	stranger := &proto.KnownPeer{Certificate: c.issue(t, identity.NewRoot(nil), c.peer, "x"), KeyRecord: c.peer.KeyRecord()}
	if err := c.book.Learn(ctx, stranger); err == nil {
		t.Error("a member of another mesh was introduced")
	}
}

func TestFind(t *testing.T) {
	c := newBookCase(t)
	_, err := c.book.Find("laptop")
	if !errors.Is(err, ErrUnknownPeer) || !strings.Contains(err.Error(), "invite") {
		t.Errorf("in an empty book: %v, want a hint", err)
	}
	twins := []*identity.Keys{identity.NewKeys(nil, birth), identity.NewKeys(nil, birth)}
	for k, name := range map[*identity.Keys]string{c.peer: "laptop", twins[0]: "twin", twins[1]: "twin"} {
		if err := c.book.Admit(c.helloOf(t, k, name), k.Peer()); err != nil {
			t.Fatal(err)
		}
	}
	id := c.peer.Peer().String()
	for _, ref := range []string{"laptop", id, id[:20], id[len(id)-6:]} {
		if p, err := c.book.Find(ref); err != nil || p.Peer != c.peer.Peer() {
			t.Errorf("Find(%q) = %v, %v", ref, p.Name, err)
		}
	}
	if p, err := c.book.Find("home"); err != nil || p.Peer != c.own.Peer() {
		t.Errorf("the node itself: %v, %v", p.Name, err)
	}
	for _, ref := range []string{"twin", "12D3KooW"} {
		if _, err := c.book.Find(ref); !errors.Is(err, ErrAmbiguous) {
			t.Errorf("Find(%q) = %v, want %v", ref, err, ErrAmbiguous)
		}
	}
	for _, ref := range []string{"", "lap", "tablet", id[1:20]} {
		if _, err := c.book.Find(ref); !errors.Is(err, ErrUnknownPeer) || !strings.Contains(err.Error(), "laptop") {
			t.Errorf("Find(%q) = %v, want %v listing the known peers", ref, err, ErrUnknownPeer)
		}
	}
}

// A name that is mistyped among a thousand peers names a few of them, not all.
func TestFindAmongAThousandPeers(t *testing.T) {
	all := make([]Peer, 1000)
	for i := range all {
		all[i].Name = fmt.Sprintf("peer-%d", i)
	}
	if got := hint(all); !strings.HasPrefix(got, "known peers: peer-0, peer-1, ") || !strings.HasSuffix(got, ", peer-7, and 992 more") || len(got) > 200 {
		t.Errorf("%d bytes: %.300s", len(got), got)
	}
}

func TestEnroll(t *testing.T) {
	c := newBookCase(t)
	c.store.Close()
	c.engine, c.cert = mem.New(), nil
	s, err := store.Open(c.engine, store.Config{SweepEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	b, err := Open(s, identity.Mesh{}, c.own, nil, c.clock.Clock(), transport.Multiaddrs{})
	if err != nil {
		t.Fatal(err)
	}
	b.SetBoot(7, proto.BootID{1})
	if b.Hello() != nil {
		t.Error("a node in no mesh has a hello")
	}
	if err := b.Admit(c.hello, c.peer.Peer()); !errors.Is(err, ErrNoMember) {
		t.Errorf("Admit before Enroll = %v", err)
	}
	if err := b.Enroll(c.root.Mesh(), c.hello.Certificate); err == nil {
		t.Error("enrolled with another node's certificate")
	}
	if err := b.Enroll(c.root.Mesh(), c.issue(t, c.root, c.own, "home")); err != nil {
		t.Fatal(err)
	}
	if h := b.Hello(); h.GetBoot() != 7 || h.GetCertificate() == nil {
		t.Errorf("hello %v", h)
	}
	if err := b.Admit(c.hello, c.peer.Peer()); err != nil {
		t.Error(err)
	}
	if m, ok := b.Member(c.own.Peer()); !ok || m.Name != "home" {
		t.Errorf("own membership %+v, %v", m, ok)
	}
}

func TestMembershipEndsWithCertificate(t *testing.T) {
	c := newBookCase(t)
	if err := c.book.Admit(c.hello, c.peer.Peer()); err != nil {
		t.Fatal(err)
	}
	c.clock.Advance(identity.MaxMemberLife + time.Hour)
	if _, ok := c.book.Member(c.peer.Peer()); ok {
		t.Error("a permanent member")
	}
	if err := c.book.Block(context.Background(), c.own.Peer()); err == nil {
		t.Error("a node blocked itself")
	}
}

func FuzzRecord(f *testing.F) {
	c := newBookCase(f)
	if err := c.book.Admit(c.hello, c.peer.Peer()); err != nil {
		f.Fatal(err)
	}
	p, _ := c.book.Get(c.peer.Peer())
	good, err := p.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"certificate":"AAAA","key_record":"","manual":[""],"boot_id":"AA=="}`))
	f.Add([]byte(`{`))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := decodePeer(c.peer.Peer(), b, c.root.Mesh(), birth)
		if err != nil {
			return
		}
		again, err := p.encode()
		if err != nil {
			t.Fatalf("a decoded record cannot be encoded: %v", err)
		}
		if _, err := decodePeer(c.peer.Peer(), again, c.root.Mesh(), birth); err != nil {
			t.Fatal(err)
		}
	})
}

// TestClockBehind checks I14: a node whose clock was set back to before its own
// certificate's start still starts, knows the peers that it knew, and admits them with
// the certificates that it knew. New certificates are checked against the clock.
func TestClockBehind(t *testing.T) {
	c := newBookCase(t)
	id := c.peer.Peer()
	if err := c.book.Admit(c.hello, id); err != nil {
		t.Fatal(err)
	}
	c.clock.SetWall(birth.AddDate(-1, 0, 0))
	c.reopen(t)
	if p, ok := c.book.Get(id); !ok || p.Name != "laptop" || p.KeyRecord.Seq == 0 {
		t.Fatalf("after the start it knows %+v", p)
	}
	if err := c.book.Admit(c.hello, id); err != nil {
		t.Errorf("a known peer was refused: %v", err)
	}
	later := identity.NewKeys(nil, birth)
	hello := c.helloOf(t, later, "tablet")
	var err error
	if hello.Certificate, err = c.root.IssueMember(identity.Member{Peer: later.Peer(), Name: "tablet"}, birth); err != nil {
		t.Fatal(err)
	}
	if err := c.book.Admit(hello, later.Peer()); !errors.Is(err, identity.ErrNotYet) {
		t.Errorf("a certificate of the future: %v, want %v", err, identity.ErrNotYet)
	}
}

// Made-up members, such as the holder of an admin key can create, do not fill the memory
// of others: beyond MaxPeers new ones are refused, and known ones are still served.
func TestBookIsBounded(t *testing.T) {
	c := newBookCase(t)
	if err := c.book.Admit(c.hello, c.peer.Peer()); err != nil {
		t.Fatal(err)
	}
	for i := range MaxPeers - 1 { // as if they were on disk
		p := proto.PeerID{1, byte(i), byte(i >> 8)}
		c.book.entries[p] = &Peer{Peer: p}
	}
	k := identity.NewKeys(nil, birth)
	hello := c.helloOf(t, k, "one-more")
	if err := c.book.Admit(hello, k.Peer()); !errors.Is(err, ErrBookFull) || !strings.Contains(err.Error(), "peers forget") {
		t.Errorf("a hello: %v", err)
	}
	if err := c.book.Learn(t.Context(), &proto.KnownPeer{Certificate: hello.Certificate, KeyRecord: hello.KeyRecord}); !errors.Is(err, ErrBookFull) {
		t.Errorf("an introduction: %v", err)
	}
	if err := c.book.Admit(c.hello, c.peer.Peer()); err != nil {
		t.Errorf("a known peer: %v", err)
	}
	if err := c.book.Forget(t.Context(), c.peer.Peer()); err != nil {
		t.Fatal(err)
	}
	if err := c.book.Admit(hello, k.Peer()); err != nil || c.book.Count() != MaxPeers {
		t.Errorf("after one was forgotten: %v, %d known", err, c.book.Count())
	}
}

// I14: a refusal because of the time of a certificate names the clocks as its cause, for
// both nodes, if they differ.
func TestRefusalNamesTheClocks(t *testing.T) {
	for _, tt := range []struct {
		name string
		off  time.Duration // of this node's clock
		told bool          // the peer tells its clock
		want string
	}{
		{"far ahead", 20 * 365 * 24 * time.Hour, true, "the clock of the refused node is 175200h0m0s behind that of the other: compare the clocks"},
		{"far behind", -20 * 365 * 24 * time.Hour, true, "the clock of the refused node is 175200h0m0s ahead of that of the other: compare the clocks"},
		{"the same clock", 0, true, ""},
		{"untold", 20 * 365 * 24 * time.Hour, false, "has expired"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newBookCase(t)
			if tt.told {
				c.hello.ClockMs = c.clock.Clock().Now().UnixMilli()
			}
			c.clock.Advance(tt.off)
			err := c.book.Admit(c.hello, c.peer.Peer())
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}

// A hello that states nothing new is not written, however often it is repeated: a member would
// keep the disk of the others busy. That the peer is here is still noted each minute.
func TestRepeatedHelloIsNotWritten(t *testing.T) {
	c := newBookCase(t)
	id := c.peer.Peer()
	admit := func() (batches int64) {
		t.Helper()
		before := c.store.Counters().Batches
		if err := c.book.Admit(c.hello, id); err != nil {
			t.Fatal(err)
		}
		return c.store.Counters().Batches - before
	}
	if n := admit(); n != 1 {
		t.Fatalf("the first hello is written %d times", n)
	}
	for range 10 {
		c.clock.Advance(seenEvery / 20)
		if n := admit(); n != 0 {
			t.Fatal("a hello that states nothing new is written")
		}
	}
	c.hello.Addrs = []string{"/ip4/192.0.2.8/udp/4001/quic-v1"}
	if n := admit(); n != 1 {
		t.Error("other addresses are not written")
	}
	c.clock.Advance(seenEvery)
	if n := admit(); n != 1 {
		t.Error("it is not noted that the peer is here")
	}
	if p, _ := c.book.Get(id); !p.LastSeen.Equal(c.clock.Clock().Now()) || p.Addrs[0] != c.hello.Addrs[0] {
		t.Errorf("last seen %v at %v", p.LastSeen, p.Addrs)
	}
}
