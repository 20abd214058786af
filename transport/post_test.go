package transport

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
)

// Posted messages arrive in order among the numbered frames and do not affect their Acks.
func TestPostsInterleaveWithTasks(t *testing.T) {
	got := make(chan *proto.Message, 64)
	b := start(t, 2, func(n *testNode, _ *Config) {
		n.recv.receive = func(_ context.Context, _ proto.PeerID, msgs []*proto.Message) (Answer, error) {
			for _, m := range msgs {
				got <- m
			}
			return Answer{}, nil
		}
	})
	a := start(t, 1, nil)
	if err := a.Post(b.Peer(), renewal("0")); !errors.Is(err, ErrNotConnected) {
		t.Errorf("without a link: %v", err)
	}
	l := link(t, a, b)
	for i, step := range []func() error{
		func() error { return l.Send(t.Context(), []*proto.Message{data(1)}) },
		func() error { return a.Post(b.Peer(), renewal("2"), renewal("3")) },
		func() error { return l.Send(t.Context(), []*proto.Message{data(4)}) },
	} {
		if err := step(); err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
	}
	for _, want := range []string{"1", "2", "3", "4"} {
		select {
		case m := <-got:
			if m.GetId() != want {
				t.Fatalf("message %s, want %s", m.GetId(), want)
			}
		case <-time.After(patience):
			t.Fatal("nothing came")
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

func renewal(id string) *proto.Message {
	return &proto.Message{Type: proto.TypeRenew, Id: id, Payload: []byte{}}
}

// Post never waits: what does not fit in the write queue is refused.
func TestPostsAreBounded(t *testing.T) {
	l := newLink(nil, nil, Config{})
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
