package gossip

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
)

// A testMesh is a mesh of runners over a network in memory, inside a synctest bubble.
type testMesh struct {
	t     testing.TB
	root  *identity.Root
	mesh  identity.Mesh
	mu    sync.Mutex
	nodes map[proto.PeerID]*testNode
	order []*testNode
	rand  *rand.Rand
	loss  float64
	cut   func(a, b *testNode) bool
}

// A testNode is one node of a testMesh: its runner, its network and its directory.
type testNode struct {
	mesh   *testMesh
	keys   *identity.Keys
	cert   *proto.Signed
	runner *Runner
	boot   uint64
	stop   func()

	mu        sync.Mutex
	up        bool
	known     map[proto.PeerID]*proto.KnownPeer
	revoked   identity.Revocations
	events    []Event
	self      Self
	published []uint64 // numbers of the messages that it published
	roots     int      // how many of them had the root of its digest
}

func seeded(n uint64) *rand.ChaCha8 {
	var seed [32]byte
	seed[0], seed[1] = byte(n), byte(n>>8)
	return rand.NewChaCha8(seed)
}

func newTestMesh(tb testing.TB, n int) *testMesh {
	tb.Helper()
	w := &testMesh{t: tb, root: identity.NewRoot(seeded(0)), nodes: map[proto.PeerID]*testNode{}, rand: rand.New(rand.NewPCG(1, 1))}
	w.mesh = w.root.Mesh()
	for range n {
		w.add()
	}
	return w
}

// add admits a node that knows all others but is unknown to them.
func (w *testMesh) add() *testNode {
	w.t.Helper()
	h := &testNode{mesh: w, keys: identity.NewKeys(seeded(uint64(len(w.order))+1), time.Now()), known: map[proto.PeerID]*proto.KnownPeer{}, boot: 1000}
	cert, err := w.root.IssueMember(identity.Member{Peer: h.keys.Peer(), Name: "node"}, time.Now())
	if err != nil {
		w.t.Fatal(err)
	}
	h.cert = cert
	h.known[h.keys.Peer()] = &proto.KnownPeer{Certificate: cert, KeyRecord: h.keys.KeyRecord()}
	for _, o := range w.order {
		h.known[o.keys.Peer()] = o.known[o.keys.Peer()]
	}
	w.nodes[h.keys.Peer()] = h
	w.order = append(w.order, h)
	return h
}

func (w *testMesh) introduceAll() {
	for _, h := range w.order {
		for _, o := range w.order {
			h.known[o.keys.Peer()] = o.known[o.keys.Peer()]
		}
	}
}

// start runs the runner of h and connects it to all nodes that are up.
func (h *testNode) start() {
	h.boot++
	runner, err := Open(h.keys, h.mesh.mesh, h, h, Config{
		Tuning: testTuning(),
		Boot:   h.boot, Clock: clock.Runtime(), Seed: h.boot, Registerer: prometheus.NewRegistry(),
		Self:    func() Self { h.mu.Lock(); defer h.mu.Unlock(); return h.self },
		Changed: func(e Event) { h.mu.Lock(); defer h.mu.Unlock(); h.events = append(h.events, e) },
	})
	if err != nil {
		h.mesh.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	h.setRunner(runner, true)
	h.stop = func() {
		h.setRunner(runner, false)
		cancel()
		<-done
	}
	go func() {
		defer close(done)
		if err := runner.Run(ctx); !errors.Is(err, context.Canceled) {
			h.mesh.t.Errorf("run: %v", err)
		}
	}()
	for p := range h.known {
		runner.Introduced(p)
	}
	for _, o := range h.mesh.order {
		if o != h && o.isUp() {
			runner.Connected(o.keys.Peer(), true)
			o.current().Connected(h.keys.Peer(), true)
		}
	}
}

// setRunner sets the runner of h, and whether it is up.
func (h *testNode) setRunner(runner *Runner, up bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.runner, h.up = runner, up
}

// current returns the runner of h.
func (h *testNode) current() *Runner { h.mu.Lock(); defer h.mu.Unlock(); return h.runner }

func (h *testNode) isUp() bool { h.mu.Lock(); defer h.mu.Unlock(); return h.up }

func (w *testMesh) start() {
	for _, h := range w.order {
		h.start()
	}
}

func (w *testMesh) stop() {
	for _, h := range w.order {
		if h.isUp() {
			h.stop()
		}
	}
}

// peer returns the node p if a message to it would arrive.
func (h *testNode) peer(p proto.PeerID, lossy bool) *testNode {
	h.mesh.mu.Lock()
	defer h.mesh.mu.Unlock()
	o := h.mesh.nodes[p]
	if o == nil || !o.isUp() || !h.isUp() || h.mesh.cut != nil && h.mesh.cut(h, o) || lossy && h.mesh.rand.Float64() < h.mesh.loss {
		return nil
	}
	return o
}

var errUnreachable = errors.New("unreachable")

func (h *testNode) SendCtl(p proto.PeerID, m *proto.Message) error {
	if o := h.peer(p, true); o != nil {
		time.AfterFunc(10*time.Millisecond, func() { o.current().Control(h.keys.Peer(), m) })
	}
	return nil
}

func (h *testNode) Publish(_ context.Context, data []byte) error {
	var m proto.Rumors
	if err := proto.Decode(data, &m); err != nil {
		return err
	}
	h.mu.Lock()
	h.published = append(h.published, m.GetNumber())
	if len(m.GetRoot()) > 0 {
		h.roots++
	}
	h.mu.Unlock()
	for _, o := range h.mesh.order {
		if o == h || h.peer(o.keys.Peer(), true) == nil {
			continue
		}
		time.AfterFunc(15*time.Millisecond, func() {
			if _, ok := o.current().Valid(h.keys.Peer(), data); ok {
				o.current().TopicMessage(h.keys.Peer(), data)
			}
		})
	}
	return nil
}

func (h *testNode) Exchange(ctx context.Context, p proto.PeerID, m *proto.Message) (*proto.Message, error) {
	time.Sleep(20 * time.Millisecond)
	o := h.peer(p, false)
	if o == nil {
		return nil, errUnreachable
	}
	return o.current().Sync(ctx, h.keys.Peer(), m)
}

func (h *testNode) Member(p proto.PeerID) (identity.Member, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	k := h.known[p]
	if k == nil {
		return identity.Member{}, false
	}
	m, err := h.mesh.mesh.VerifyMember(k.GetCertificate(), time.Now())
	return m, err == nil && !h.revoked.Revokes(m)
}

func (h *testNode) Learn(_ context.Context, k *proto.KnownPeer) error {
	m, err := h.mesh.mesh.VerifyMember(k.GetCertificate(), time.Now())
	if err == nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.known[m.Peer] = k
	}
	return err
}

func (h *testNode) Introduce(p proto.PeerID) *proto.KnownPeer {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.known[p]
}

func (h *testNode) Revoke(_ context.Context, s *proto.Signed) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	r, err := h.mesh.mesh.VerifyRevocation(s)
	if err == nil {
		h.revoked.Add(r)
	}
	return err
}

func (h *testNode) Revocations() []*proto.Signed {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []*proto.Signed
	for _, id := range h.revoked.IDs([32]byte{}, [32]byte{}) {
		r, _ := h.revoked.Get(id)
		all = append(all, r.Signed)
	}
	return all
}

// status returns h's view of o.
func (h *testNode) status(o *testNode) Status {
	m, _ := h.runner.Member(o.keys.Peer())
	return m.Status
}

// all reports whether every other node that is up assigns this status to o.
func (w *testMesh) all(o *testNode, want Status) bool {
	for _, h := range w.order {
		if h != o && h.isUp() && h.status(o) != want {
			return false
		}
	}
	return true
}

// equal reports whether all nodes that are up know the same.
func (w *testMesh) equal() bool {
	var first *Summary
	for _, h := range w.order {
		if !h.isUp() {
			continue
		}
		if s := h.runner.Summary(); first == nil {
			first = &s
		} else if s.Root != first.Root {
			return false
		}
	}
	return true
}

func (w *testMesh) wait(limit time.Duration, what string, ok func() bool) {
	w.t.Helper()
	start := time.Now()
	for !ok() {
		if time.Since(start) > limit {
			w.t.Fatalf("%s: not within %v", what, limit)
		}
		time.Sleep(20 * time.Millisecond)
	}
	w.t.Logf("%s after %v", what, time.Since(start))
}

// Runners find each other, and see a death, a return, a leave and a newcomer that was
// introduced to only one of them.
func TestRunnersTrackMembership(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestMesh(t, 6)
		w.introduceAll()
		w.start()
		defer w.stop()
		w.wait(5*time.Second, "six nodes know each other", func() bool {
			for _, h := range w.order {
				if !w.all(h, Alive) {
					return false
				}
			}
			return w.equal()
		})
		last := w.order[5]
		last.stop()
		w.wait(15*time.Second, "a death", func() bool { return w.all(last, Dead) })
		last.start()
		w.wait(5*time.Second, "its return", func() bool { return w.all(last, Alive) })
		if m, _ := w.order[0].runner.Member(last.keys.Peer()); m.Eligible {
			t.Error("a node that came back is eligible at once")
		}
		time.Sleep(31 * time.Second)
		if m, _ := w.order[0].runner.Member(last.keys.Peer()); !m.Eligible {
			t.Error("it is not eligible half a minute later")
		}
		if err := last.runner.Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.wait(time.Second, "a leave", func() bool { return w.all(last, Left) })
		last.stop()
		w.add().start()
		w.wait(5*time.Second, "a newcomer that introduces itself", func() bool { return w.all(w.order[6], Alive) })
		all := w.order[6].runner.Converge(t.Context())
		if len(all) != 5 { // one of the other six has left
			t.Errorf("exchanges with %d others, want 5", len(all))
		}
		for _, a := range all {
			if !a.Same || a.Err != nil {
				t.Errorf("the newcomer does not agree with %s: %+v", a.Peer.Short(), a)
			}
		}
	})
}

// After a partition in which each side considered the other dead, missed records are
// exchanged (I16).
func TestRunnersConvergeAfterPartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestMesh(t, 8)
		w.introduceAll()
		w.loss = 0.05
		w.start()
		defer w.stop()
		time.Sleep(10 * time.Second)
		side := func(h *testNode) bool { return slices.Index(w.order, h) < 3 }
		w.mu.Lock()
		w.cut = func(a, b *testNode) bool { return side(a) != side(b) }
		w.mu.Unlock()
		time.Sleep(time.Minute)
		if w.order[0].status(w.order[7]) != Dead || w.order[7].status(w.order[0]) != Dead || w.order[0].status(w.order[1]) != Alive {
			t.Error("the partition was not detected")
		}
		w.order[0].mu.Lock()
		w.order[0].self = Self{Kinds: []string{"build"}, Labels: []string{"gpu"}}
		w.order[0].mu.Unlock()
		time.Sleep(5 * time.Second)
		w.mu.Lock()
		w.cut = nil
		w.mu.Unlock()
		for _, a := range w.order {
			for _, b := range w.order {
				if a != b {
					a.runner.Connected(b.keys.Peer(), true)
				}
			}
		}
		w.wait(15*time.Second, "all are alive again", func() bool {
			for _, h := range w.order {
				if !w.all(h, Alive) {
					return false
				}
			}
			return true
		})
		w.wait(40*time.Second, "all know the same", w.equal)
		m, _ := w.order[7].runner.Member(w.order[0].keys.Peer())
		if len(m.Record.GetKinds()) != 1 || len(m.Record.GetLabels()) != 1 {
			t.Errorf("the record published during the partition is not known: %v", m.Record)
		}
	})
}

// A node that hears from no one considers itself isolated, except in a mesh of two (I16).
func TestIsolationIsDetected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, n := range []int{2, 3} {
			w := newTestMesh(t, n)
			w.introduceAll()
			w.start()
			time.Sleep(10 * time.Second)
			lonely := w.order[0]
			if lonely.runner.Isolated() {
				t.Errorf("%d nodes: isolated among others", n)
			}
			w.mu.Lock()
			w.cut = func(a, b *testNode) bool { return a == lonely || b == lonely }
			w.mu.Unlock()
			time.Sleep(20 * time.Second)
			if got := lonely.runner.Isolated(); got != (n > 2) {
				t.Errorf("%d nodes: isolated is %v", n, got)
			}
			w.mu.Lock()
			w.cut = nil
			w.mu.Unlock()
			for _, o := range w.order[1:] {
				lonely.runner.Connected(o.keys.Peer(), true)
				o.runner.Connected(lonely.keys.Peer(), true)
			}
			w.wait(20*time.Second, "back among others", func() bool { return !lonely.runner.SelfPaused() && w.all(lonely, Alive) })
			w.stop()
		}
	})
}

// The numbers of published messages increase across restarts, with the boot number and
// independently of the clock.
func TestMessageNumbersRiseAcrossRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestMesh(t, 2)
		w.introduceAll()
		w.start()
		defer w.stop()
		h := w.order[0]
		var highest uint64
		for range 3 {
			time.Sleep(time.Minute)
			h.mu.Lock()
			said := h.published
			h.published = nil
			h.mu.Unlock()
			if len(said) < 3 {
				t.Fatalf("%d messages in a minute", len(said))
			}
			for _, n := range said {
				if n <= highest {
					t.Errorf("number %d after %d", n, highest)
				}
				highest = n
			}
			h.stop()
			h.start()
		}
	})
}

// Every node publishes the root of its digest twice a minute or so.
func TestRootsArePublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestMesh(t, 2)
		w.introduceAll()
		w.start()
		defer w.stop()
		time.Sleep(5 * time.Minute)
		for _, h := range w.order {
			h.mu.Lock()
			if h.roots < 8 || h.roots > 12 {
				t.Errorf("%d roots in five minutes", h.roots)
			}
			h.mu.Unlock()
		}
	})
}

// A revocation reaches every node, including one that was away, and permanently removes
// what was known about the revoked node (DESIGN section 6).
func TestRevocationsAreFinal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestMesh(t, 5)
		w.introduceAll()
		w.start()
		defer w.stop()
		time.Sleep(5 * time.Second)
		away, thief := w.order[3], w.order[4]
		away.stop()
		s, err := w.root.Revoke(identity.Revocation{Peer: thief.keys.Peer()}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if err := w.order[0].runner.Revoke(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		for _, h := range w.order[:3] {
			if _, known := h.runner.Member(thief.keys.Peer()); known || h.runner.revoked.count() != 1 {
				t.Error("a revoked node is still known")
			}
		}
		away.start()
		w.wait(10*time.Second, "the absent node knows", func() bool { return away.runner.revoked.count() == 1 })
		time.Sleep(2 * time.Minute)
		for _, h := range w.order[:4] {
			if _, known := h.runner.Member(thief.keys.Peer()); known {
				t.Error("a revoked node came back")
			}
		}
		if err := w.order[0].runner.Revoke(t.Context(), thief.cert); !errors.Is(err, identity.ErrSignature) {
			t.Errorf("a certificate revokes: %v", err)
		}
	})
}
