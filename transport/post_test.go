package transport

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
)

// Large posted messages arrive in order among the numbered frames and do not affect their Acks;
// the others are in order among themselves.
func TestPostsInterleaveWithTasks(t *testing.T) {
	got, small := make(chan *proto.Message, 64), make(chan *proto.Message, 64)
	b := start(t, 2, func(n *testNode, _ *Config) {
		n.recv.receive = func(_ context.Context, _ proto.PeerID, msgs []*proto.Message) (Answer, error) {
			for _, m := range msgs {
				if m.GetType() == proto.TypeRenew {
					small <- m
				} else {
					got <- m
				}
			}
			return Answer{}, nil
		}
	})
	a := start(t, 1, nil)
	if err := a.Post(b.Peer(), renewal("0")); !errors.Is(err, ErrNotConnected) || a.Behind(b.Peer(), 1) {
		t.Errorf("without a link: %v", err)
	}
	l := link(t, a, b)
	for i, step := range []func() error{
		func() error { return l.Send(t.Context(), []*proto.Message{data(1)}) },
		func() error { return a.Post(b.Peer(), renewal("1"), grant("2"), renewal("2"), grant("3")) },
		func() error { return l.Send(t.Context(), []*proto.Message{data(4)}) },
	} {
		if err := step(); err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
	}
	for i, want := range []string{"1", "2", "3", "4", "1", "2"} {
		if m := await(t, "message "+want, []chan *proto.Message{got, small}[i/4]); m.GetId() != want {
			t.Fatalf("message %s, want %s", m.GetId(), want)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for upTo := uint64(0); upTo < 2; {
		ack, err := l.Answers(ctx)
		if err != nil {
			t.Fatal(err)
		}
		upTo = ack.GetUpTo()
	}
	if err := a.Post(b.Peer(), data(5)); !errors.Is(err, ErrProtocol) {
		t.Errorf("a task was posted: %v", err)
	}
}

// A node that does not serve lease streams gets all on its task stream.
func TestPostsToAnOlderNode(t *testing.T) {
	l := newLink(&conn{clock: clock.Runtime()}, nil, Config{})
	if l.laneFor(true) != &l.sender || l.laneFor(false) != &l.sender {
		t.Error("another stream is used")
	}
}

// What no node sends on a lease stream costs the stream and counts as an offense.
func TestBadLeaseFrames(t *testing.T) {
	for i, bad := range [][]byte{frame(t, proto.TypeData, []byte("x")), frame(t, proto.TypeBundle, []byte("x")), frame(t, proto.TypePing, []byte("x")), {2, 0xff, 0xff}} {
		b := start(t, 100, nil)
		a := start(t, byte(i+1), func(n *testNode, _ *Config) { n.recv.hold = make(chan struct{}) }) // no second link takes the place of this stream
		defer close(a.recv.hold)
		link(t, a, b)
		eventually(t, "the lease stream of the link", func() bool { // the newest stream ends those before it
			b.peers.mu.Lock()
			defer b.peers.mu.Unlock()
			return b.peers.get(a.Peer()).leases.endNewest != nil
		})
		if err := openRaw(t, a.peers.best(b.Peer()).raw, streamLease).ends(append(frame(t, proto.TypeRenew, []byte("x")), bad...)); isTimeout(err) {
			t.Errorf("%x: the stream stays: %v", bad, err)
		}
		eventually(t, "the offense", func() bool { return testutil.ToFloat64(b.met.offenses.WithLabelValues("lease")) == 1 })
	}
}

// A link is behind while a posted message waits for long, and until its answer may have come.
func TestLinkIsBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSender(&conn{clock: clock.Runtime()}, nil)
		write := func([]byte) error { time.Sleep(10 * time.Second); return nil }
		ctx, cancel := context.WithCancel(t.Context())
		go s.writeAll(ctx.Done(), write, func() {})
		expect := func(after time.Duration, want bool) {
			t.Helper()
			if time.Sleep(after); s.behind() != want {
				t.Errorf("behind: %v, want %v", !want, want)
			}
		}
		if err := s.post(grant("1")); err != nil {
			t.Fatal(err)
		}
		expect(postDelay/2, false)
		if err := s.post(grant("2")); err != nil {
			t.Fatal(err)
		}
		expect(postDelay, true)
		expect(10*time.Second, true) // the first one is written, the second one waits
		expect(10*time.Second, true) // both are
		expect(postRest, false)
		cancel()
	})
}

func grant(id string) *proto.Message {
	return &proto.Message{Type: proto.TypeGrant, Id: id, Payload: make([]byte, smallPost+1)}
}

func renewal(id string) *proto.Message {
	return &proto.Message{Type: proto.TypeRenew, Id: id, Payload: []byte{}}
}

// Post never waits: what does not fit in the write queue is refused.
func TestPostsAreBounded(t *testing.T) {
	l := newLink(&conn{clock: clock.Runtime()}, nil, Config{})
	big := &proto.Message{Type: proto.TypeGrant, Payload: make([]byte, 300<<10)}
	var err error
	n := 0
	for ; err == nil && n < 100; n++ {
		err = l.post(big)
	}
	if !errors.Is(err, ErrPostFull) || n > maxPosted/(300<<10)+2 {
		t.Errorf("%v after %d posts", err, n)
	}
}
