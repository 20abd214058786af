package transport

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/route"
)

// testKeys is a node key made from a small number.
type testKeys struct{ key ed25519.PrivateKey }

func newTestKeys(n byte) testKeys {
	seed := make([]byte, ed25519.SeedSize)
	seed[0], seed[31] = n, 1
	return testKeys{ed25519.NewKeyFromSeed(seed)}
}

func (k testKeys) Peer() proto.PeerID {
	p, err := proto.PeerIDFrom(k.key.Public().(ed25519.PublicKey))
	if err != nil {
		panic(err)
	}
	return p
}
func (k testKeys) PrivateKey() ed25519.PrivateKey { return k.key }

// testGate admits the peers that admit accepts.
type testGate struct {
	mu          sync.Mutex
	boot        byte
	outsideMesh bool // not in a mesh
	admit       func(h *proto.Hello, p proto.PeerID) error
	hellos      []*proto.Hello
	block       map[proto.PeerID]bool
}

func (g *testGate) Hello() *proto.Hello {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.outsideMesh {
		return nil
	}
	id := make([]byte, 16)
	id[0] = g.boot
	return &proto.Hello{Boot: 1, BootId: id, Software: "balefire test"}
}

func (g *testGate) Admit(h *proto.Hello, p proto.PeerID) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.hellos = append(g.hellos, h)
	if g.admit != nil {
		return g.admit(h, p)
	}
	return nil
}

func (g *testGate) Blocked(p proto.PeerID) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.block[p]
}

// testReceiver passes on its links and calls a function with each group.
type testReceiver struct {
	receive func(ctx context.Context, from proto.PeerID, msgs []*proto.Message) (Answer, error)
	links   chan *Link
	started chan *proto.Receipts
	hold    chan struct{}
}

func newTestReceiver() *testReceiver {
	return &testReceiver{links: make(chan *Link, 16), started: make(chan *proto.Receipts, 16)}
}

func (r *testReceiver) Receive(ctx context.Context, from proto.PeerID, msgs []*proto.Message) (Answer, error) {
	if r.receive == nil {
		return Answer{}, nil
	}
	return r.receive(ctx, from, msgs)
}

func (r *testReceiver) Linked(ctx context.Context, l *Link) error {
	select {
	case r.links <- l:
	case <-ctx.Done():
	}
	<-ctx.Done()
	if r.hold != nil {
		<-r.hold // no other link meanwhile
	}
	return nil
}

func (r *testReceiver) Started(_ proto.PeerID, m *proto.Receipts) { r.started <- m }

// A testNode is one node on a real socket of this machine.
type testNode struct {
	*Transport
	gate *testGate
	recv *testReceiver
	tune func(*Transport) // called before Run

	cancel context.CancelFunc // stops it without waiting
	stop   func()             // stops it and waits
}

// testWeights are those that a node has by default.
var testWeights = route.Weights{Bandwidth: 1, Latency: 1, Loss: 2}

// start runs a node; prepare may adjust its configuration.
func start(t testing.TB, n byte, prepare func(*testNode, *Config)) *testNode {
	t.Helper()
	node := &testNode{gate: &testGate{boot: n}, recv: newTestReceiver()}
	cfg := Config{Listen: []string{"/ip4/127.0.0.1/udp/0/quic-v1", "/ip4/127.0.0.1/tcp/0"}, Reserve: 2, Weights: testWeights}
	if prepare != nil {
		prepare(node, &cfg)
	}
	tr, err := New(newTestKeys(n), node.gate, node.recv, cfg)
	if err != nil {
		t.Fatal(err)
	}
	node.Transport = tr
	if node.tune != nil {
		node.tune(tr)
	}
	ctx, cancel := context.WithCancel(t.Context())
	node.cancel = cancel
	done := make(chan struct{})
	go func() {
		defer close(done)
		tr.Run(ctx)
	}()
	node.stop = sync.OnceFunc(func() {
		cancel()
		<-done
	})
	t.Cleanup(node.stop)
	<-tr.Opened()
	return node
}

// patience is the longest wait for an event on real sockets. It only catches hangs: a
// busy machine may be slow.
const patience = 2 * time.Minute

// eventually waits until ok.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	limit := time.After(patience)
	for !ok() {
		select {
		case <-limit:
			t.Fatalf("%s: not within %v", what, patience)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// link dials from a to b and returns a's link. On a busy machine a hello may exceed its
// time limit: then it dials again.
func link(t testing.TB, a, b *testNode) *Link {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for err := a.Dial(ctx, b.Peer(), b.Addrs()); err != nil; err = a.Dial(ctx, b.Peer(), b.Addrs()) {
		if _, refused := errors.AsType[*RefusedError](err); refused || !clock.Pause(ctx, 10*time.Millisecond) {
			t.Fatal(err)
		}
	}
	select {
	case l := <-a.recv.links:
		return l
	case <-ctx.Done():
		t.Fatal("no link")
		return nil
	}
}

func data(n int) *proto.Message {
	return &proto.Message{Type: proto.TypeData, Id: fmt.Sprint(n), Payload: []byte("task")}
}

func TestFramesArriveInOrderAndAreAcknowledged(t *testing.T) {
	const total = 5000
	var mu sync.Mutex
	var got []string
	b := start(t, 2, func(n *testNode, _ *Config) {
		n.recv.receive = func(_ context.Context, _ proto.PeerID, msgs []*proto.Message) (Answer, error) {
			mu.Lock()
			defer mu.Unlock()
			var a Answer
			for i, m := range msgs {
				got = append(got, m.GetId())
				if m.GetId() == "77" {
					a.Refusals = append(a.Refusals, &proto.Refusal{Number: uint64(i), Code: proto.CodeFull})
				}
			}
			return a, nil
		}
	})
	a := start(t, 1, nil)
	l := link(t, a, b)
	go func() {
		var msgs []*proto.Message
		for i := range total {
			msgs = append(msgs, data(i))
		}
		if err := l.Send(t.Context(), msgs); err != nil {
			t.Error(err)
		}
	}()
	last, refused := uint64(0), 0
	for last < total {
		ack, err := l.Answers(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if ack.GetFrom() != last+1 {
			t.Fatalf("ack from %d after %d", ack.GetFrom(), last)
		}
		last = ack.GetUpTo()
		for _, r := range ack.GetRefusals() {
			refused++
			if r.GetNumber() != 78 {
				t.Errorf("refusal of frame %d, want 78", r.GetNumber())
			}
		}
		mu.Lock()
		if len(got) < int(last) {
			t.Errorf("I8: ack of %d frames when %d were received", last, len(got))
		}
		mu.Unlock()
	}
	if refused != 1 {
		t.Errorf("%d refusals, want 1", refused)
	}
	for i, id := range got {
		if id != fmt.Sprint(i) {
			t.Fatalf("frame %d is task %s", i, id)
		}
	}
}
