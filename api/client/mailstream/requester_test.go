package mailstream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/balefire/balefire/wire"
)

// TestRequestsAreReplied asks many questions at once over one box, while the server stops and
// comes back: each gets its own reply, or its bounce.
func TestRequestsAreReplied(t *testing.T) {
	const requests = 60
	f := newFixture(t)
	stop := f.serve()
	ctx := f.ctx()
	r := f.Requester()
	running, end := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- r.Run(running) }()
	var work sync.WaitGroup
	for i := range requests {
		work.Go(func() {
			body := fmt.Sprint(i)
			reply, err := r.Request(ctx, wire.Mail{To: "agent:ceo", Body: []byte(body)})
			switch {
			case i%10 == 9 && !errors.Is(err, wire.ErrBounced):
				t.Errorf("request %s: %v, want a bounce", body, err)
			case i%10 != 9 && (err != nil || string(reply.Body) != "re "+body):
				t.Errorf("request %s: %q, %v", body, reply.Body, err)
			}
		})
	}
	reading, done := context.WithCancel(ctx)
	var reader sync.WaitGroup
	reader.Go(func() {
		n := 0
		for d, err := range f.ReadMail(reading, "agent:ceo", Read{Credit: 8}) {
			if err != nil {
				break
			}
			if d.Mail.Body[len(d.Mail.Body)-1] == '9' {
				_ = d.Reject("no") // if it breaks, the mail comes again
			} else if _, err := d.Reply(ctx, wire.Mail{Body: append([]byte("re "), d.Mail.Body...)}); err == nil {
				_ = d.Ack()
			}
			if n++; n == requests/2 {
				stop()
				stop = f.serve()
			}
		}
	})
	work.Wait()
	done()
	reader.Wait()
	end()
	if err := <-ended; err != nil {
		t.Errorf("the requester ended with %v", err)
	}
}

// TestRequestsThatFail ends requests that nobody replies to, and those that cannot be told apart.
func TestRequestsThatFail(t *testing.T) {
	f := newFixture(t)
	r := f.Requester()
	if _, err := r.Request(canceled(), wire.Mail{To: "agent:ceo"}); !errors.Is(err, context.Canceled) {
		t.Errorf("before there is a node: %v", err)
	}
	if err := r.Run(f.ctx()); err == nil {
		t.Error("a requester without a node runs")
	}
	f.serve()
	running, end := context.WithCancel(f.ctx())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(running) }()
	defer func() { end(); <-ended }()
	first, leave := context.WithCancel(f.ctx())
	left := make(chan error, 1)
	go func() {
		_, err := r.Request(first, wire.Mail{To: "agent:ceo", Correlation: "same"})
		left <- err
	}()
	for d, err := range f.ReadMail(f.ctx(), "agent:ceo", Read{}) {
		if err != nil {
			t.Fatal(err)
		}
		_ = d.Ack() // and no reply
		break
	}
	if _, err := r.Request(f.ctx(), wire.Mail{To: "agent:ceo", Correlation: "same"}); !errors.Is(err, wire.ErrInvalid) {
		t.Errorf("a second request with one correlation: %v", err)
	}
	if _, err := r.Request(f.ctx(), wire.Mail{To: "agent:none"}); !errors.Is(err, wire.ErrNotFound) {
		t.Errorf("a request to nobody: %v", err)
	}
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("a request that was given up: %v", err)
	}
}
