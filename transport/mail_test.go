package transport

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/balefire/balefire/proto"
)

func bundle(n int) *proto.Message {
	return &proto.Message{Type: proto.TypeBundle, Id: fmt.Sprint(n), Payload: []byte("mail")}
}

// takesMail prepares a node that passes mail on.
func takesMail(got chan<- *proto.Message) func(*testNode, *Config) {
	return func(_ *testNode, cfg *Config) {
		cfg.Mail = func(ctx context.Context, _ proto.PeerID, m *proto.Message) error {
			select {
			case got <- m:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

func (n *testNode) mailOffenses() float64 {
	return testutil.ToFloat64(n.met.offenses.WithLabelValues("mail"))
}

// openMail returns the mail stream of a link.
func openMail(t *testing.T, l *Link) *MailStream {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s, err := l.Mail(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func await[T any](t *testing.T, what string, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		t.Fatalf("%s: not within %v", what, patience)
	}
	return v
}

// Only a node that takes mail says so in its hello, and only such a node is sent mail.
func TestMailNeedsTheFeature(t *testing.T) {
	got := make(chan *proto.Message, 1)
	a, b := start(t, 1, nil), start(t, 2, takesMail(got))
	l := link(t, a, b)
	if err := openMail(t, l).Send(t.Context(), bundle(1)); err != nil {
		t.Fatal(err)
	}
	if m := await(t, "the mail", got); m.GetId() != "1" || m.GetType() != proto.TypeBundle {
		t.Errorf("received %v", m)
	}
	back := await(t, "the link back", b.recv.links)
	if _, err := back.Mail(t.Context()); !errors.Is(err, ErrNoMail) {
		t.Errorf("mail to a node that takes none: %v", err)
	}
	if a.TakesMail(proto.PeerID{9}) || !a.TakesMail(b.Peer()) || b.TakesMail(a.Peer()) {
		t.Error("a node does not know which of its peers take mail")
	}
	for n, want := range map[*testNode]bool{a: false, b: true} {
		other := map[*testNode]*testNode{a: b, b: a}[n]
		other.gate.mu.Lock()
		if has := slices.Contains(other.gate.hellos[0].GetFeatures(), proto.FeatureMail); has != want {
			t.Errorf("the hello names the feature: %v, want %v", has, want)
		}
		other.gate.mu.Unlock()
	}
	// a newer node that sends it all the same is turned away, which is no offense
	if err := openRaw(t, b.peers.best(a.Peer()).raw, streamMail).ends(frame(t, proto.TypeBundle, []byte("x"))); isTimeout(err) {
		t.Errorf("the stream stays: %v", err)
	}
	if n := a.mailOffenses(); n > 0 || !b.Connected(a.Peer()) {
		t.Errorf("%v offenses", n)
	}
}

// What no node sends on a mail stream costs the stream and counts as an offense; a type of
// a newer node does not.
func TestBadMailFrames(t *testing.T) {
	tests := []struct {
		name    string
		send    []byte
		offense float64
	}{
		{"a task", frame(t, proto.TypeData, []byte("x")), 1},
		{"an ownership message", frame(t, proto.TypeRenew, []byte("x")), 1},
		{"an acknowledgment", frame(t, proto.TypeAck, []byte("x")), 1},
		{"a ping", frame(t, proto.TypePing, []byte("x")), 1},
		{"a hello", frame(t, proto.TypeHello, []byte("x")), 1},
		{"an empty frame", []byte{0}, 1},
		{"a frame above the limit", []byte{0x81, 0x80, 0x18}, 1},
		{"no message", []byte{2, 0xff, 0xff}, 1},
		{"a message of a newer node", slices.Concat(frame(t, 99, []byte("x")), frame(t, proto.TypeSettle, []byte("last"))), 0},
	}
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := make(chan *proto.Message, 4)
			b, a := start(t, 100, takesMail(got)), start(t, byte(i+1), nil)
			link(t, a, b)
			s := openRaw(t, a.peers.best(b.Peer()).raw, streamMail)
			if _, err := s.rw.Write(append(frame(t, proto.TypeOpen, []byte("first")), tt.send...)); err != nil {
				t.Fatal(err)
			}
			if m := await(t, "the message before it", got); string(m.GetPayload()) != "first" {
				t.Errorf("received %v", m)
			}
			if tt.offense == 0 {
				if m := await(t, "the message after it", got); string(m.GetPayload()) != "last" {
					t.Errorf("received %v", m)
				}
			} else if err := s.ends(nil); isTimeout(err) {
				t.Errorf("the stream stays: %v", err)
			}
			eventually(t, "the offense", func() bool { return b.mailOffenses() >= tt.offense })
			if n := b.mailOffenses(); n != tt.offense || !a.Connected(b.Peer()) {
				t.Errorf("%v offenses, want %v", n, tt.offense)
			}
		})
	}
}

// The largest messages fit in a frame, and what does not, or is not mail, is not sent.
func TestMailMessagesThatAreSent(t *testing.T) {
	big := &proto.Bundle{Number: 1 << 63, Box: string(make([]byte, proto.MaxTarget)), Letters: make([]byte, proto.MaxLetters), PrevBoot: 1 << 63, PrevNumber: 1 << 63}
	deliver := &proto.Deliver{Session: 1 << 63, Boot: 1 << 63, Letters: big.GetLetters()}
	for range proto.MaxBundle {
		big.Runs = append(big.Runs, &proto.Run{Boot: 1 << 63, First: 1 << 63, Count: 1 << 31})
		deliver.Deliveries = append(deliver.Deliveries, &proto.Delivery{Seq: 1 << 63, Number: 1 << 63, Attempt: 1 << 31, Redelivered: true, LeaseMs: 1 << 31, Origin: make([]byte, 32)})
	}
	got := make(chan *proto.Message, 2)
	a, b := start(t, 1, nil), start(t, 2, takesMail(got))
	s := openMail(t, link(t, a, b))
	for typ, body := range map[proto.MessageType]proto.Body{proto.TypeBundle: big, proto.TypeDeliver: deliver} {
		payload, err := proto.Encode(nil, body)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Send(t.Context(), &proto.Message{Type: typ, Payload: payload}); err != nil {
			t.Errorf("%s of %d bytes: %v", typ, len(payload), err)
		} else if m := await(t, "the largest message", got); len(m.GetPayload()) != len(payload) {
			t.Errorf("%s of %d bytes arrived with %d", typ, len(payload), len(m.GetPayload()))
		}
	}
	if err := s.Send(t.Context(), &proto.Message{Type: proto.TypeBundle, Payload: make([]byte, proto.MaxFrame)}); !errors.Is(err, proto.ErrFrameTooLarge) {
		t.Errorf("a frame above the limit: %v", err)
	}
	if err := s.Send(t.Context(), data(1)); !errors.Is(err, ErrProtocol) {
		t.Errorf("a task as mail: %v", err)
	}
	if s.closed() || b.mailOffenses() > 0 {
		t.Error("the stream closed")
	}
}

// A mail stream that fails, or that the peer resets, is replaced on the same link, whose
// task stream stays. A receiver that fails is an offense only if the message was.
func TestMailStreamIsReplaced(t *testing.T) {
	var fail atomic.Pointer[error]
	got := make(chan *proto.Message, 8)
	b := start(t, 2, func(_ *testNode, cfg *Config) {
		cfg.Mail = func(_ context.Context, _ proto.PeerID, m *proto.Message) error {
			if err := fail.Swap(nil); err != nil {
				return *err
			}
			got <- m
			return nil
		}
	})
	a := start(t, 1, nil)
	l := link(t, a, b)
	s := openMail(t, l)
	full, bad := errors.New("the disk is full"), fmt.Errorf("%w: a bundle without mail", proto.ErrBadMail)
	offenses := 0.0
	for i, breaks := range []func(){
		func() { fail.Store(&full) },
		func() { fail.Store(&bad); offenses++ },
		func() { resetMail(t, b, a) },
	} {
		breaks()
		if err := s.Send(t.Context(), bundle(i)); err != nil && !errors.Is(err, ErrLinkDown) {
			t.Errorf("case %d: Send = %v", i, err)
		}
		await(t, "the end of the stream", s.Done())
		if err := s.Send(t.Context(), bundle(i)); !errors.Is(err, ErrLinkDown) {
			t.Errorf("case %d: Send on the stream that closed = %v", i, err)
		}
		next := openMail(t, l)
		if again := openMail(t, l); next == s || again != next {
			t.Fatalf("case %d: not one new stream", i)
		}
		if s = next; s.Peer() != b.Peer() {
			t.Error("another peer")
		}
		if err := s.Send(t.Context(), bundle(100+i)); err != nil {
			t.Fatal(err)
		}
		for m := await(t, "the mail", got); m.GetId() != fmt.Sprint(100+i); m = await(t, "the mail", got) {
			if m.GetId() != fmt.Sprint(i) { // which may have arrived before the reset
				t.Errorf("case %d: received %s", i, m.GetId())
			}
		}
	}
	eventually(t, "the acknowledgment", func() bool { return a.peers.best(b.Peer()).unacked() == 0 })
	if _, pending := l.conn.pendingAcks.since(a.cfg.Clock.Mono()); pending {
		t.Error("an acknowledgment is pending for ever")
	}
	if n := b.mailOffenses(); n != offenses {
		t.Errorf("%v offenses, want %v", n, offenses)
	}
	if err := l.Send(t.Context(), []*proto.Message{data(1)}); err != nil {
		t.Fatal(err)
	}
	if a, err := l.Answers(t.Context()); err != nil || a.GetUpTo() != 1 {
		t.Errorf("a task on the same link: %v, %v", a, err)
	}
}

// resetMail resets the mail streams of n from a peer, as a node that stops receiving does.
func resetMail(t *testing.T, n, from *testNode) {
	t.Helper()
	found := 0
	for _, s := range n.peers.best(from.Peer()).raw.GetStreams() {
		if s.Protocol() == streamMail {
			s.Reset()
			found++
		}
	}
	if found == 0 {
		t.Error("no mail stream")
	}
}

// A receiver that is blocked learns that the peer has begun another stream, which waits
// until it has returned, or is gone.
func TestNextMailStreamEndsTheLast(t *testing.T) {
	calls, hold := make(chan context.Context, 4), make(chan struct{})
	release := sync.OnceFunc(func() { close(hold) })
	defer release()
	b := start(t, 2, func(_ *testNode, cfg *Config) {
		cfg.Mail = func(ctx context.Context, _ proto.PeerID, m *proto.Message) error {
			calls <- ctx
			<-hold
			return nil
		}
	})
	a := start(t, 1, nil)
	l := link(t, a, b)
	s := openMail(t, l)
	if err := s.Send(t.Context(), bundle(1)); err != nil {
		t.Fatal(err)
	}
	first := await(t, "the first call", calls)
	l.move()
	await(t, "the end of the link", l.Done())
	await(t, "the end of its mail stream", s.Done())
	if _, err := l.Mail(t.Context()); !errors.Is(err, ErrLinkDown) {
		t.Errorf("Mail on a link that moved = %v", err)
	}
	next := await(t, "the next link", a.recv.links)
	if err := openMail(t, next).Send(t.Context(), bundle(2)); err != nil {
		t.Fatal(err)
	}
	await(t, "the end of the first context", first.Done())
	if len(calls) > 0 {
		t.Error("two calls at once")
	}
	release()
	second := await(t, "the second call", calls)
	if second.Err() != nil {
		t.Error("the context of the newest stream has ended")
	}
}

// A receiver that is blocked learns that the connection is lost.
func TestBlockedMailReceiverLearnsOfTheLoss(t *testing.T) {
	calls, ended := make(chan struct{}, 1), make(chan struct{}, 1)
	b := start(t, 2, func(_ *testNode, cfg *Config) {
		cfg.Mail = func(ctx context.Context, _ proto.PeerID, m *proto.Message) error {
			calls <- struct{}{}
			<-ctx.Done()
			ended <- struct{}{}
			return ctx.Err()
		}
	})
	a := start(t, 1, nil)
	if err := openMail(t, link(t, a, b)).Send(t.Context(), bundle(1)); err != nil {
		t.Fatal(err)
	}
	await(t, "the call", calls)
	a.stop()
	await(t, "the end of the context", ended)
	if n := b.mailOffenses(); n > 0 {
		t.Errorf("%v offenses", n)
	}
}

// A peer that acknowledges mail that was not sent, or that sends anything else back, loses
// the stream and is held to account.
func TestBadAnswersOnMailStream(t *testing.T) {
	ack := func(a *proto.Ack) []byte {
		b, err := proto.Encode(nil, a)
		if err != nil {
			t.Fatal(err)
		}
		return frame(t, proto.TypeAck, b)
	}
	for i, answer := range [][]byte{
		ack(&proto.Ack{From: 1, UpTo: 2}),
		ack(&proto.Ack{From: 2, UpTo: 2}),
		ack(&proto.Ack{From: 1, UpTo: 1, Refusals: []*proto.Refusal{{Number: 1, Code: proto.CodeBusy}}}),
		slices.Concat(ack(&proto.Ack{From: 1, UpTo: 1}), ack(&proto.Ack{From: 1, UpTo: 1})),
		frame(t, proto.TypeBundled, []byte("x")),
		frame(t, proto.TypeAck, []byte{0xff}),
		{0},
	} {
		b, a := start(t, 100, takesMail(make(chan *proto.Message))), start(t, byte(i+1), nil)
		b.host.SetStreamHandler(streamMail, func(raw network.Stream) {
			m := new(proto.Message)
			if err := proto.NewReader(raw, proto.MaxFrame).Next(m); err == nil {
				raw.Write(answer)
			}
		})
		s := openMail(t, link(t, a, b))
		if err := s.Send(t.Context(), bundle(1)); err != nil {
			t.Fatal(err)
		}
		await(t, "the end of the stream", s.Done())
		eventually(t, fmt.Sprintf("the offense of answer %d", i), func() bool { return a.mailOffenses() == 1 })
		eventually(t, "nothing is in flight", func() bool { return a.peers.best(b.Peer()).unacked() == 0 })
	}
}
