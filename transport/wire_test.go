package transport

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	ma "github.com/multiformats/go-multiaddr"
	msmux "github.com/multiformats/go-multistream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
)

// TestPeerIDs checks that ids of identity and libp2p are the same.
func TestPeerIDs(t *testing.T) {
	for i := range byte(50) {
		k := newTestKeys(i)
		id, err := peer.IDFromPublicKey(mustKey(t, k))
		if err != nil {
			t.Fatal(err)
		}
		if toLibp2p(k.Peer()) != id || k.Peer().String() != id.String() {
			t.Errorf("key %d: %s here, %s in libp2p", i, k.Peer(), id)
		}
		if p, err := fromLibp2p(id); err != nil || p != k.Peer() {
			t.Errorf("key %d: %s, %v", i, p, err)
		}
	}
	for _, id := range []peer.ID{"", "x", peer.ID(bytes.Repeat([]byte{1}, 38)), peer.ID("\x12\x20" + strings.Repeat("h", 32))} {
		if p, err := fromLibp2p(id); !errors.Is(err, errForeignKey) {
			t.Errorf("%q became %s, %v", id, p, err)
		}
	}
}

// TestSecp256k1KeysAreRefused checks that a key type that is not linked is an error, never a
// panic.
func TestSecp256k1KeysAreRefused(t *testing.T) {
	if _, _, err := crypto.GenerateSecp256k1Key(nil); err == nil {
		t.Error("a key was generated")
	}
	if _, err := crypto.UnmarshalSecp256k1PrivateKey(make([]byte, 32)); err == nil {
		t.Error("a private key was parsed")
	}
	public := append([]byte{0x08, 0x02, 0x12, 33, 2}, bytes.Repeat([]byte{7}, 32)...) // type 2, 33 bytes
	if _, err := crypto.UnmarshalPublicKey(public); err == nil {
		t.Error("a public key was parsed")
	}
	id := peer.ID(append([]byte{0, byte(len(public))}, public...))
	if _, err := id.ExtractPublicKey(); err == nil {
		t.Error("a public key was extracted from an id")
	}
	if p, err := fromLibp2p(id); !errors.Is(err, errForeignKey) {
		t.Errorf("the id became %s, %v", p, err)
	}
}

// rawConnect connects a's host to b without a hello and returns the connection.
func rawConnect(t *testing.T, a, b *testNode) network.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	a.peers.setJoining(b.Peer(), 1)
	if err := a.dialer.dialHost(ctx, b.Peer(), b.Addrs()); err != nil {
		t.Fatal(err)
	}
	conns := a.host.Network().ConnsToPeer(toLibp2p(b.Peer()))
	if len(conns) == 0 {
		t.Fatal("the connection closed before it was used")
	}
	return conns[0]
}

// openRaw opens a stream without this package's protocol handling.
func openRaw(t *testing.T, c network.Conn, p protocol.ID) *rawStream {
	t.Helper()
	s, err := c.NewStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return wrapRaw(s, p)
}

func wrapRaw(s network.Stream, p protocol.ID) *rawStream {
	s.SetDeadline(time.Now().Add(patience))
	return &rawStream{s, msmux.NewMSSelect(s, p)}
}

type rawStream struct {
	network.Stream
	rw msmux.LazyConn
}

// ends sends b and reports how the other side closes the stream.
func (s *rawStream) ends(b []byte) error {
	if _, err := s.rw.Write(b); err != nil {
		return err
	}
	for buf := make([]byte, 4096); ; {
		if _, err := s.rw.Read(buf); err != nil {
			return err
		}
	}
}

func frame(t *testing.T, typ proto.MessageType, payload []byte) []byte {
	t.Helper()
	b, err := proto.AppendFrame(nil, &proto.Message{Type: typ, Payload: payload})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestNothingBeforeHello checks that a connection without a hello carries nothing, and is
// soon closed (S54).
func TestNothingBeforeHello(t *testing.T) {
	t.Parallel()
	received := make(chan struct{}, 1)
	b := start(t, 2, func(n *testNode, cfg *Config) {
		n.recv.receive = func(context.Context, proto.PeerID, []*proto.Message) (Answer, error) {
			received <- struct{}{}
			return Answer{}, nil
		}
		cfg.Bodies = newBodyStore(t)
		cfg.Timing.Hello = 3 * time.Second
	})
	a := start(t, 1, nil)
	c := rawConnect(t, a, b)
	for _, s := range []*rawStream{openRaw(t, c, streamTask), openRaw(t, c, streamChunk)} {
		if err := s.ends(frame(t, proto.TypeData, []byte("x"))); isTimeout(err) || err == nil {
			t.Errorf("%v, want the stream to be reset", err)
		}
	}
	select {
	case <-received:
		t.Error("a frame was received before the hello")
	case <-a.connGone(c):
	}
	if len(b.Peers()) != 0 {
		t.Errorf("a stranger is stored: %+v", b.Peers())
	}
}

// connGone returns a channel that is closed when libp2p reports the end of c.
func (n *testNode) connGone(c network.Conn) <-chan struct{} {
	n.peers.mu.Lock()
	defer n.peers.mu.Unlock()
	if k := n.peers.conns[c]; k != nil {
		return k.gone
	}
	done := make(chan struct{})
	close(done)
	return done
}

// TestBadHellos sends invalid first messages.
func TestBadHellos(t *testing.T) {
	hello := func(h *proto.Hello) []byte {
		b, err := proto.Encode(nil, h)
		if err != nil {
			t.Fatal(err)
		}
		return frame(t, proto.TypeHello, b)
	}
	tests := []struct {
		name string
		send []byte
	}{
		{"garbage", []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}},
		{"an empty frame", []byte{0}},
		{"a frame above the limit", []byte{0x81, 0x80, 0x04}},
		{"no message", []byte{2, 0xff, 0xff}},
		{"not a hello", frame(t, proto.TypePing, []byte("x"))},
		{"an invalid hello", frame(t, proto.TypeHello, []byte{0xff})},
		{"a hello that is too large", frame(t, proto.TypeHello, make([]byte, maxHello))},
		{"another version", hello(&proto.Hello{Version: 2})},
	}
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := start(t, 100, func(n *testNode, _ *Config) { n.gate.admit = func(*proto.Hello, proto.PeerID) error { return nil } })
			a := start(t, byte(i+1), nil)
			c := rawConnect(t, a, b)
			s := openRaw(t, c, streamCtl)
			if err := s.ends(tt.send); isTimeout(err) {
				t.Errorf("the stream closes with %v", err)
			}
			s.Close()
			<-a.connGone(c)
			if b.Connected(a.Peer()) {
				t.Error("it is connected")
			}
			if hellos := b.gate.seen(); hellos != 0 {
				t.Errorf("%d hellos reached the gate", hellos)
			}
		})
	}
}

func (g *testGate) seen() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.hellos)
}

// TestRefusalReasonIsSent checks that both sides learn why a connection is closed, with the
// code of what they act on.
func TestRefusalReasonIsSent(t *testing.T) {
	no := func(*proto.Hello, proto.PeerID) error { return errors.New("the certificate is of another mesh") }
	early := func(*proto.Hello, proto.PeerID) error {
		return fmt.Errorf("%w: it begins tomorrow", identity.ErrNotYet)
	}
	tests := []struct {
		name   string
		a, b   func(*testNode, *Config)
		says   string // the reason, if no code says it
		theirs bool
		code   proto.Code
	}{
		{"by the other side", nil, func(n *testNode, _ *Config) { n.gate.admit = no }, "another mesh", true, 0},
		{"by this side", func(n *testNode, _ *Config) { n.gate.admit = no }, nil, "another mesh", false, 0},
		{"by the clock of the other side", nil, func(n *testNode, _ *Config) { n.gate.admit = early }, "", true, proto.CodeClock},
		{"by the clock of this side", func(n *testNode, _ *Config) { n.gate.admit = early }, nil, "", false, proto.CodeClock},
		{"by a node in no mesh", nil, func(n *testNode, _ *Config) { n.gate.outsideMesh = true }, "", true, proto.CodeNoMesh},
		{"blocked here", func(n *testNode, _ *Config) {
			n.gate.block = map[proto.PeerID]bool{newTestKeys(2).Peer(): true}
		}, nil, "blocked", false, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a, b := start(t, 1, tt.a), start(t, 2, tt.b)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			err := a.Dial(ctx, b.Peer(), b.Addrs())
			r, ok := errors.AsType[*RefusedError](err)
			if !ok || !strings.Contains(r.Reason, tt.says) || r.Theirs != tt.theirs || r.Code != tt.code {
				t.Errorf("Dial = %v, want a refusal %v containing %q", err, tt.code, tt.says)
			}
			// The other side, which would have accepted, learns of it a moment later.
			for a.Connected(b.Peer()) || b.Connected(a.Peer()) {
				select {
				case <-ctx.Done():
					t.Fatal("they are connected all the same")
				case <-time.After(time.Millisecond):
				}
			}
		})
	}
}

func TestDialErrors(t *testing.T) {
	a := start(t, 1, func(n *testNode, _ *Config) { n.gate.outsideMesh = true })
	b := start(t, 2, nil)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := a.Dial(ctx, b.Peer(), b.Addrs()); !errors.Is(err, errNoMember) {
		t.Errorf("a node in no mesh: %v, want %v", err, errNoMember)
	}
	for _, addr := range []string{"", "192.0.2.1:4001", "/ip4/192.0.2.1/udp/4001/quic-v1/p2p/" + a.Peer().String()} {
		if err := a.Dial(ctx, b.Peer(), []string{addr}); err == nil || !strings.Contains(err.Error(), "address") {
			t.Errorf("Dial at %q = %v", addr, err)
		}
	}
	if err := a.Dial(ctx, a.Peer(), a.Addrs()); err == nil {
		t.Error("a node dialed itself")
	}
	taken := slices.IndexFunc(b.Addrs(), func(a string) bool { return strings.Contains(a, "udp") })
	listen := []string{"/ip4/127.0.0.1/tcp/0", b.Addrs()[taken]}
	if _, err := New(newTestKeys(3), a.gate, a.recv, Config{Listen: listen}); err == nil || !strings.Contains(err.Error(), listen[1]) {
		t.Errorf("an address in use: %v", err)
	}
}

// servedLink is link, and returns when b serves that link: it may come to serve it after a
// stream that was opened later, and would end that one.
func servedLink(t *testing.T, a, b *testNode) {
	t.Helper()
	l := link(t, a, b)
	if err := l.Send(t.Context(), []*proto.Message{data(1)}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Answers(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestBadTaskFrames checks that invalid frames cost the stream, are counted, and finally
// cost the connection, while valid frames before them are received (S54).
func TestBadTaskFrames(t *testing.T) {
	var received atomic.Int64
	b := start(t, 2, func(n *testNode, _ *Config) {
		n.recv.receive = func(_ context.Context, _ proto.PeerID, m []*proto.Message) (Answer, error) {
			received.Add(int64(len(m)))
			return Answer{}, nil
		}
	})
	a := start(t, 1, func(n *testNode, _ *Config) { n.recv.hold = make(chan struct{}) }) // no link takes the place of these streams
	defer close(a.recv.hold)
	servedLink(t, a, b)
	good, counted := frame(t, proto.TypeData, []byte("x")), func() float64 { return testutil.ToFloat64(b.met.offenses.WithLabelValues("task")) }
	bad := [][]byte{
		frame(t, proto.TypeBundle, []byte("x")), {0}, {0x80, 0x00}, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02},
		{0x81, 0x80, 0x18}, {2, 0xff, 0xff}, frame(t, proto.TypeHello, []byte("x")),
		frame(t, proto.TypeAck, []byte("x")), frame(t, proto.TypePing, []byte("x")), frame(t, proto.TypeChunk, []byte("x")),
	}
	c := a.peers.best(b.Peer())
	for i := 0; !b.rates.banned(a.Peer()) && !c.raw.IsClosed(); i++ {
		s, err := c.raw.NewStream(t.Context())
		if err != nil {
			break // it was just closed: checked below by gone
		}
		if err := wrapRaw(s, streamTask).ends(slices.Concat(good, bad[i%len(bad)])); isTimeout(err) || i > 20 {
			t.Fatalf("case %d: %v", i, err)
		}
		eventually(t, "the offense", func() bool { return counted() > float64(i) || c.raw.IsClosed() })
	}
	<-c.gone
	if n := counted(); n < 2 || received.Load() <= int64(n) { // one more over the link
		t.Errorf("%v offenses, %d valid frames received", n, received.Load())
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := a.Dial(ctx, b.Peer(), b.Addrs()); err == nil {
		t.Error("a banned peer connected")
	}
}

// TestSlowLoris checks that a frame that never ends costs its stream in time (S54).
func TestSlowLoris(t *testing.T) {
	b := start(t, 2, func(_ *testNode, cfg *Config) { cfg.Timing.Frame = 500 * time.Millisecond })
	a := start(t, 1, func(n *testNode, _ *Config) { n.recv.hold = make(chan struct{}) })
	defer close(a.recv.hold)
	servedLink(t, a, b)
	s := openRaw(t, a.peers.best(b.Peer()).raw, streamTask)
	began := time.Now()
	if err := s.ends([]byte{0xff, 0xff, 0x10, 'x'}); isTimeout(err) {
		t.Errorf("the stream stays: %v", err)
	}
	if took := time.Since(began); took < 500*time.Millisecond {
		t.Errorf("reset after %v", took)
	}
}

func TestUnknownTypesAreRefusedNotLost(t *testing.T) {
	b := start(t, 2, nil)
	a := start(t, 1, nil)
	l := link(t, a, b)
	if err := l.Send(t.Context(), []*proto.Message{data(1), {Type: 99, Id: "new"}, data(2)}); err != nil {
		t.Fatal(err)
	}
	refused := map[uint64]proto.Code{}
	for last := uint64(0); last < 3; {
		ack, err := l.Answers(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		last = ack.GetUpTo()
		for _, r := range ack.GetRefusals() {
			refused[r.GetNumber()] = r.GetCode()
		}
	}
	if len(refused) != 1 || refused[2] != proto.CodeUnknownVersion {
		t.Errorf("refused: %v", refused)
	}
}

// TestNoAckAfterError checks I8: a receiver that failed acknowledges nothing.
func TestNoAckAfterError(t *testing.T) {
	fail := errors.New("the disk is gone")
	b := start(t, 2, func(n *testNode, _ *Config) {
		n.recv.receive = func(context.Context, proto.PeerID, []*proto.Message) (Answer, error) { return Answer{}, fail }
	})
	a := start(t, 1, nil)
	l := link(t, a, b)
	if err := l.Send(t.Context(), []*proto.Message{data(1)}); err != nil {
		t.Fatal(err)
	}
	if ack, err := l.Answers(t.Context()); !errors.Is(err, ErrLinkDown) {
		t.Errorf("answer %v, %v; want %v", ack, err, ErrLinkDown)
	}
	<-l.Done()
	next := <-a.recv.links // it is reopened
	if next == l || next.Peer() != b.Peer() {
		t.Error("the link did not come back")
	}
}

// TestWindowBlocksSender checks that a slow receiver stops the sender.
func TestWindowBlocksSender(t *testing.T) {
	hold := make(chan struct{})
	b := start(t, 2, func(n *testNode, _ *Config) {
		n.recv.receive = func(ctx context.Context, _ proto.PeerID, m []*proto.Message) (Answer, error) {
			<-hold
			return Answer{}, nil
		}
	})
	a := start(t, 1, nil)
	l := link(t, a, b)
	go func() { // read the answers: unread ones block the window too
		for _, err := l.Answers(t.Context()); err == nil; _, err = l.Answers(t.Context()) {
		}
	}()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var msgs []*proto.Message
	for i := range 3 * minTasks {
		msgs = append(msgs, data(i))
	}
	sent := make(chan error, 1)
	go func() { sent <- l.Send(ctx, msgs) }()
	inFlight := func() int { return int(a.peers.best(b.Peer()).inflight.Load()) }
	eventually(t, "the window is full", func() bool { return inFlight() >= minTasks })
	select {
	case err := <-sent:
		t.Fatalf("Send = %v before the receiver was ready, want it to wait", err)
	case <-time.After(50 * time.Millisecond): // without a working window the rest would be sent
	}
	cancel()
	if err := <-sent; !errors.Is(err, context.Canceled) {
		t.Errorf("Send = %v, want it to wait until it is canceled", err)
	}
	if n := inFlight(); n != minTasks {
		t.Errorf("%d frames in flight, want %d", n, minTasks)
	}
	close(hold)
	if err := l.Send(t.Context(), msgs); err != nil {
		t.Error(err)
	}
}

func TestAMessageThatCannotBeSent(t *testing.T) {
	b := start(t, 2, nil)
	a := start(t, 1, nil)
	l := link(t, a, b)
	huge := &proto.Message{Type: proto.TypeData, Payload: make([]byte, proto.MaxFrame)}
	err := l.Send(t.Context(), []*proto.Message{data(1), huge, data(2)})
	if !errors.Is(err, proto.ErrFrameTooLarge) || !strings.Contains(err.Error(), "2 of 3") {
		t.Errorf("Send = %v", err)
	}
	if ack, err := l.Answers(t.Context()); err != nil || ack.GetUpTo() != 1 {
		t.Errorf("the one before it: %v, %v", ack, err)
	}
}

func TestControlMessages(t *testing.T) {
	b := start(t, 2, func(_ *testNode, cfg *Config) { cfg.Listen = []string{"/ip4/127.0.0.1/tcp/0"} })
	a := start(t, 1, nil)
	link(t, a, b)
	if rtt, err := a.Ping(t.Context(), b.Peer()); err != nil || rtt <= 0 {
		t.Errorf("ping: %v, %v", rtt, err)
	}
	want := &proto.Receipts{Receipts: []*proto.Receipt{{Statement: []byte("started")}}}
	payload, err := proto.Encode(nil, want)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.SendCtl(a.Peer(), &proto.Message{Type: proto.TypeStarted, Payload: payload}); err != nil {
		t.Fatal(err)
	}
	if got := <-a.recv.started; string(got.GetReceipts()[0].GetStatement()) != "started" {
		t.Errorf("STARTED arrived as %v", got)
	}
	s := a.Peers()[0]
	if !s.Connected || !s.Linked || s.Network != "tcp" || !s.Direct || s.RTT == 0 {
		t.Errorf("status %+v", s)
	}
	stranger := newTestKeys(9).Peer()
	if _, err := a.Ping(t.Context(), stranger); !errors.Is(err, ErrNotConnected) {
		t.Errorf("ping of an unknown peer: %v", err)
	}
	if err := a.SendCtl(stranger, data(1)); !errors.Is(err, ErrNotConnected) {
		t.Errorf("SendCtl to an unknown peer: %v", err)
	}
	c := a.peers.best(b.Peer())
	a.Disconnect(b.Peer())
	<-c.gone
	if _, err := a.Ping(t.Context(), b.Peer()); err == nil {
		t.Error("they are connected all the same")
	}
}

// TestJoin checks that a node without a certificate gets an answer and nothing else.
func TestJoin(t *testing.T) {
	joins := joinerFunc(func(from proto.PeerID, r *proto.JoinRequest) *proto.JoinReply {
		return &proto.JoinReply{Refusal: fmt.Sprintf("%s wants to be %s", from.Short(), r.GetName())}
	})
	b := start(t, 2, func(_ *testNode, cfg *Config) { cfg.Joiner = joins })
	a := start(t, 1, func(n *testNode, _ *Config) { n.gate.outsideMesh = true })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	reply, err := a.RequestJoin(ctx, b.Addrs(), b.Peer(), &proto.JoinRequest{Name: "laptop"})
	if want := a.Peer().Short() + " wants to be laptop"; err != nil || reply.GetRefusal() != want {
		t.Errorf("reply %v, %v; want %q", reply, err, want)
	}
	if a.Connected(b.Peer()) || b.Connected(a.Peer()) {
		t.Error("a join connects")
	}
	c := start(t, 3, nil) // serves no joins
	if _, err := a.RequestJoin(ctx, c.Addrs(), c.Peer(), &proto.JoinRequest{}); err == nil {
		t.Error("a node that serves no joins answered")
	}
	a.gate.mu.Lock()
	a.gate.outsideMesh = false
	a.gate.mu.Unlock()
	if err := a.Dial(ctx, b.Peer(), b.Addrs()); err != nil {
		t.Errorf("after the join: %v", err)
	}
}

// TestJoinDuringStartup checks that a ticket works with a member that listens but does
// not accept connections yet.
func TestJoinDuringStartup(t *testing.T) {
	joins := joinerFunc(func(proto.PeerID, *proto.JoinRequest) *proto.JoinReply { return &proto.JoinReply{Refusal: "no"} })
	b := start(t, 2, func(_ *testNode, cfg *Config) { cfg.Joiner = joins })
	a := start(t, 1, func(n *testNode, _ *Config) { n.gate.outsideMesh = true })
	b.running.Store(false)
	time.AfterFunc(joinPause/2, func() { b.running.Store(true) })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if reply, err := a.RequestJoin(ctx, b.Addrs(), b.Peer(), &proto.JoinRequest{Name: "laptop"}); err != nil || reply.GetRefusal() != "no" {
		t.Errorf("reply %v, %v", reply, err)
	}
}

type joinerFunc func(proto.PeerID, *proto.JoinRequest) *proto.JoinReply

func (f joinerFunc) Join(_ context.Context, p proto.PeerID, r *proto.JoinRequest) *proto.JoinReply {
	return f(p, r)
}

func mustKey(t *testing.T, k testKeys) crypto.PubKey {
	t.Helper()
	key, err := crypto.UnmarshalEd25519PublicKey(k.key.Public().(ed25519.PublicKey))
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// TestGroupOfRefusals checks that the largest possible Ack arrives.
func TestGroupOfRefusals(t *testing.T) {
	hold := make(chan struct{})
	b := start(t, 2, func(n *testNode, _ *Config) {
		n.recv.receive = func(_ context.Context, _ proto.PeerID, msgs []*proto.Message) (Answer, error) {
			<-hold
			var a Answer
			for i := range msgs {
				a.Refusals = append(a.Refusals, &proto.Refusal{Number: uint64(i), Code: proto.CodeDenied, Detail: strings.Repeat("no ", 500)})
			}
			return a, nil
		}
	})
	a := start(t, 1, nil)
	l := link(t, a, b)
	var msgs []*proto.Message
	for i := range minTasks {
		msgs = append(msgs, data(i))
	}
	if err := l.Send(t.Context(), msgs); err != nil {
		t.Fatal(err)
	}
	close(hold)
	refused := 0
	for refused < len(msgs) {
		ack, err := l.Answers(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		refused += len(ack.GetRefusals())
	}
}

func TestNoListenAddress(t *testing.T) {
	a := start(t, 1, func(_ *testNode, cfg *Config) { cfg.Listen = []string{} })
	b := start(t, 2, nil)
	if got := a.Addrs(); len(got) != 0 {
		t.Errorf("it listens on %q", got)
	}
	link(t, a, b) // it can still dial
}

func TestAnnounce(t *testing.T) {
	public := "/dns4/laptop.example/udp/4001/quic-v1"
	a := start(t, 1, func(_ *testNode, cfg *Config) { cfg.Announce = []string{public} })
	b := start(t, 2, nil)
	link(t, a, b)
	b.gate.mu.Lock()
	defer b.gate.mu.Unlock()
	if h := b.gate.hellos[0]; !slices.Contains(h.GetAddrs(), public) || !slices.Contains(h.GetAddrs(), a.Addrs()[1]) {
		t.Errorf("the hello contains %q", h.GetAddrs())
	}
	if _, err := New(newTestKeys(3), a.gate, a.recv, Config{Listen: []string{}, Announce: []string{"laptop.example"}}); err == nil {
		t.Error("an invalid address is announced")
	}
}

// gathered returns the values of all gauges and counters of this package in r, by name
// and label values, ordered by label name.
func gathered(t *testing.T, r prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			out[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return out
}

// TestMetrics checks that connections are counted by path and network, and that every
// name follows Prometheus conventions.
func TestMetrics(t *testing.T) {
	for network, listen := range map[string]string{"quic": "/ip4/127.0.0.1/udp/0/quic-v1", "tcp": "/ip4/127.0.0.1/tcp/0"} {
		t.Run(network, func(t *testing.T) {
			r := prometheus.NewPedanticRegistry()
			a := start(t, 1, func(_ *testNode, cfg *Config) { cfg.Registerer, cfg.Listen = r, []string{listen} })
			b := start(t, 2, func(_ *testNode, cfg *Config) { cfg.Listen = []string{listen} })
			link(t, a, b)
			got := gathered(t, r)
			for _, path := range []string{"direct", "relay"} {
				for _, n := range []string{"quic", "tcp"} {
					want := 0.0
					if path == "direct" && n == network {
						want = 1
					}
					if v, ok := got["balefire_transport_connections "+n+" "+path]; !ok || v != want {
						t.Errorf("%s connections by %s: %v (%v), want %v", path, n, v, ok, want)
					}
				}
			}
			problems, err := testutil.GatherAndLint(r)
			for _, p := range problems {
				if strings.HasPrefix(p.Metric, "balefire_") {
					t.Errorf("%s: %s", p.Metric, p.Text)
				}
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// FuzzControl passes any bytes as a frame of a ctl stream.
func FuzzControl(f *testing.F) {
	hello, err := proto.Encode(nil, &proto.Hello{Version: proto.Version, Addrs: []string{"/ip4/192.0.2.1/tcp/1"}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(int32(proto.TypeHello), hello)
	f.Add(int32(proto.TypePing), make([]byte, pingSize))
	f.Add(int32(proto.TypePong), make([]byte, pingSize))
	f.Add(int32(proto.TypeStarted), []byte{0x0a, 0x00})
	f.Add(int32(99), []byte{1})
	f.Fuzz(func(t *testing.T, typ int32, payload []byte) {
		r := &testReceiver{started: make(chan *proto.Receipts, 1)}
		gate := &testGate{}
		tr := &Transport{recv: r, cfg: Config{Clock: clock.System()}, peers: newPeerTable(clock.System())}
		tr.greeter = &greeter{gate: gate, cfg: tr.cfg, peers: tr.peers, members: &members{gate: gate}}
		c := &conn{raw: fakeAddrConn{}, clock: clock.System(), ctl: make(chan *proto.Message, 1)}
		err := tr.control(c, &proto.Message{Type: proto.MessageType(typ), Payload: payload})
		if unknown(proto.MessageType(typ)) && err != nil {
			t.Errorf("a type of a newer node: %v", err)
		}
		if _, refused := errors.AsType[*RefusedError](err); err != nil && !refused && !errors.Is(err, ErrProtocol) {
			t.Errorf("untyped error %v", err)
		}
	})
}

// fakeAddrConn is a connection from some address.
type fakeAddrConn struct{ network.Conn }

func (fakeAddrConn) RemoteMultiaddr() ma.Multiaddr { return ma.StringCast("/ip4/192.0.2.9/tcp/1") }
