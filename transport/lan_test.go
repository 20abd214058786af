package transport

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/balefire/balefire/proto"
)

// quietLAN is an mDNS service that never finds anyone.
type quietLAN struct{ open *atomic.Int32 }

func (q quietLAN) Close() error { q.open.Add(-1); return nil }

// onLAN starts a node on a LAN where the test determines what is found.
func onLAN(t *testing.T, n byte, prepare func(*testNode, *Config)) *testNode {
	t.Helper()
	var open atomic.Int32
	node := start(t, n, func(n *testNode, cfg *Config) {
		cfg.MDNS = true
		n.tune = func(tr *Transport) {
			tr.disc.lan.start = func(string) (io.Closer, error) {
				open.Add(1)
				return quietLAN{&open}, nil
			}
		}
		if prepare != nil {
			prepare(n, cfg)
		}
	})
	t.Cleanup(func() {
		if node.stop(); open.Load() != 0 {
			t.Errorf("%d services are still on the LAN", open.Load())
		}
	})
	return node
}

// sees makes n find b.
func (n *testNode) sees(b *testNode) {
	n.disc.lan.HandlePeerFound(peer.AddrInfo{ID: toLibp2p(b.Peer()), Addrs: b.host.Addrs()})
}

// TestLANMemberIsDialed checks that a member found on the LAN needs no address in the
// book, and that an unknown one needs only its certificate.
func TestLANMemberIsDialed(t *testing.T) {
	a := onLAN(t, 1, nil)
	b := onLAN(t, 2, nil)
	a.sees(b)
	eventually(t, "they connect", func() bool { return a.Connected(b.Peer()) })
	if d := a.Discovery(); d.LAN != "up" || len(d.Strangers) != 0 {
		t.Errorf("%+v, want no strangers", d)
	}
}

// TestStrangerOnLAN checks that a node of another mesh is reported once, with the reason,
// and is not contacted repeatedly.
func TestStrangerOnLAN(t *testing.T) {
	var mu sync.Mutex
	var seen []Stranger
	b := start(t, 2, nil)
	a := onLAN(t, 1, func(n *testNode, cfg *Config) {
		n.gate.admit = func(*proto.Hello, proto.PeerID) error { return errors.New("certificate of another mesh") }
		cfg.Seen = func(s Stranger) {
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, s)
		}
	})
	for range 3 * lanQueue {
		a.sees(b)
	}
	eventually(t, "it is reported", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(seen) > 0
	})
	a.sees(b)
	eventually(t, "it is listed", func() bool { return len(a.Discovery().Strangers) == 1 })
	mu.Lock()
	defer mu.Unlock()
	if s := seen[0]; len(seen) != 1 || s.Peer != b.Peer() || s.Joins || s.Reason == "" || len(s.Addrs) == 0 {
		t.Errorf("reported %+v", seen)
	}
	if got := a.gate.seen(); got != 1 {
		t.Errorf("%d hellos with a stranger that was just refused", got)
	}
}

// testJoiner admits a node without a ticket after an operator has approved it.
type testJoiner struct {
	mu      sync.Mutex
	asked   []*proto.JoinRequest
	accepts bool
}

func (d *testJoiner) Join(_ context.Context, from proto.PeerID, r *proto.JoinRequest) *proto.JoinReply {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked = append(d.asked, r)
	if !d.accepts {
		return &proto.JoinReply{Pending: true}
	}
	return &proto.JoinReply{Certificate: &proto.Signed{Details: []byte(from.String())}}
}

// TestJoinFromLAN checks that a node without a mesh finds a member on the LAN, asks it
// without a ticket, waits for an operator and is admitted, and that the member learns of
// the request.
func TestJoinFromLAN(t *testing.T) {
	keeper := new(testJoiner)
	seen := make(chan Stranger, 16)
	member := onLAN(t, 1, func(n *testNode, cfg *Config) {
		cfg.Joiner = keeper
		cfg.Seen = func(s Stranger) { seen <- s }
	})
	newcomer := onLAN(t, 2, func(n *testNode, _ *Config) { n.gate.outsideMesh = true })
	if names := newcomer.disc.lan.services(); len(names) != 1 || names[0] != joinService {
		t.Errorf("a node without a mesh is on the LAN as %v", names)
	}
	if names := member.disc.lan.services(); len(names) != 2 || names[1] != joinService {
		t.Errorf("a member is on the LAN as %v", names)
	}
	ctx, cancel := context.WithCancel(t.Context())
	meshes := newcomer.FindMeshes(ctx)
	newcomer.sees(member)
	newcomer.sees(member)
	found := <-meshes
	if found.Peer != member.Peer() || len(found.Addrs) == 0 {
		t.Fatalf("found %+v", found)
	}
	member.sees(newcomer)
	if s := <-seen; s.Peer != newcomer.Peer() || !s.Joins {
		t.Errorf("the member sees %+v", s)
	}
	ask := func() *proto.JoinReply {
		t.Helper()
		r, err := newcomer.RequestJoin(ctx, found.Addrs, found.Peer, &proto.JoinRequest{Name: "newcomer"})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := ask(); !r.GetPending() || r.GetCertificate() != nil {
		t.Errorf("before an operator decided: %v", r)
	}
	keeper.mu.Lock()
	keeper.accepts = true
	if r := keeper.asked[0]; len(r.GetTicketId()) != 0 || r.GetName() != "newcomer" {
		t.Errorf("asked with %v", r)
	}
	keeper.mu.Unlock()
	if r := ask(); r.GetPending() || r.GetCertificate() == nil {
		t.Errorf("after an operator accepted: %v", r)
	}
	cancel()
	for range meshes {
		t.Error("a node is found twice")
	}
}

// TestFindMeshesEnds checks that FindMeshes does not block when LAN discovery is off.
func TestFindMeshesEnds(t *testing.T) {
	if _, ok := <-start(t, 1, nil).FindMeshes(t.Context()); ok {
		t.Error("found without mDNS")
	}
	n := onLAN(t, 2, nil)
	meshes := n.FindMeshes(t.Context())
	n.stop()
	if _, ok := <-meshes; ok {
		t.Error("found after the end")
	}
	if _, ok := <-n.FindMeshes(t.Context()); ok {
		t.Error("found after the end")
	}
}

// TestLANRestarts checks that a failure of LAN discovery is reported, is not fatal, and
// leaves no service running.
func TestLANRestarts(t *testing.T) {
	var open atomic.Int32
	bad := errors.New("no supported interface")
	fail := ""
	n := start(t, 1, nil)
	l := newLAN(&n.disc, n.host, n.local)
	l.start = func(name string) (io.Closer, error) {
		if fail == "all" || name == fail {
			return nil, bad
		}
		open.Add(1)
		return quietLAN{&open}, nil
	}
	for _, tt := range []struct {
		fail, state string
		open        int32
	}{{"all", bad.Error(), 0}, {joinService, bad.Error(), 0}, {"", "up", 2}} {
		fail = tt.fail
		up, err := l.startAll()
		if (err != nil) != (tt.fail != "") || l.status() != tt.state || open.Load() != tt.open {
			t.Errorf("fail %q: %v, %s, %d services", tt.fail, err, l.status(), open.Load())
		}
		closeAll(up)
	}
	if open.Load() != 0 {
		t.Errorf("%d services are running after the end", open.Load())
	}
}

// TestStrangersAreBounded checks the cost of a LAN full of made-up nodes, and how often
// one of them is contacted.
func TestStrangersAreBounded(t *testing.T) {
	s := make(strangers)
	for i := range 10_000 {
		var p proto.PeerID
		binary.BigEndian.PutUint32(p[:], uint32(i))
		s.note(p, time.Duration(i)).onLAN = true
	}
	if len(s) != maxStrangers || len(s.list()) != maxStrangers {
		t.Errorf("%d strangers are stored, the limit is %d", len(s), maxStrangers)
	}
	now := time.Hour
	p := newTestKeys(1).Peer()
	x := s.note(p, now)
	x.onLAN = true
	tries, told := 0, 0
	for end := now + time.Hour; now < end; now += time.Second {
		s.note(p, now)
		for _, d := range s.due(now) {
			if y := s[d.Peer]; d.Peer == p && y.begin(now) {
				if y.begin(now) {
					t.Fatal("two concurrent hellos")
				}
				tries++
				y.failed(now, errStranger, maxRetry)
			}
		}
		if x.shouldReport(now) {
			told++
		}
	}
	if tries < 8 || tries > 15 {
		t.Errorf("%d hellos in an hour with a stranger", tries)
	}
	if told != 120 {
		t.Errorf("reported %d times in an hour, want every half minute", told)
	}
	for range 100 {
		if len(s.due(now+lanMemory)) > 0 {
			t.Fatal("a node that left the LAN is contacted")
		}
	}
}
