package mailstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// A Requester sends requests and waits for their replies, many at once: one box has the replies
// to all. Its methods are safe for concurrent use; they work while [Requester.Run] runs.
type Requester struct {
	c      *Client
	mailer *Mailer
	box    chan string // has the name of the box for replies when there is one

	mu      sync.Mutex
	waiting map[string]chan wire.ReceivedMail // by correlation; each has room for one
}

// Requester returns a requester. It sends nothing: see [Requester.Run].
func (c *Client) Requester() *Requester {
	return &Requester{c: c, mailer: c.Mailer(), box: make(chan string, 1), waiting: map[string]chan wire.ReceivedMail{}}
}

// Run makes a box for replies and reads it until ctx is done. It must be called once. The box
// is removed an hour later.
func (r *Requester) Run(ctx context.Context) error {
	plain := client.New(r.c.socket)
	defer plain.Close()
	box, err := plain.NewReplyBox(ctx, wire.NewReplyBox{})
	if err != nil {
		return err
	}
	r.box <- box.Box
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return r.mailer.Run(ctx) })
	g.Go(func() error {
		for d, err := range r.c.ReadMail(ctx, box.Box, Read{Reader: "requester"}) {
			if err != nil {
				return err
			}
			r.take(d.Mail)
			_ = d.Ack() // a connection that broke delivers it again, and nobody waits for it then
		}
		return nil
	})
	if err := g.Wait(); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// take hands a reply, or a bounce, to the request that waits for it. A late one is dropped.
func (r *Requester) take(m wire.ReceivedMail) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if answer := r.waiting[m.Correlation]; answer != nil {
		answer <- m
		delete(r.waiting, m.Correlation)
	}
}

// Request sends a mail and waits for its reply until ctx is done. A reply that comes later is
// dropped. The error wraps [wire.ErrBounced] if the mail was not delivered. Mail must not name a
// correlation that another request has.
func (r *Requester) Request(ctx context.Context, m wire.Mail) (wire.ReceivedMail, error) {
	select {
	case m.ReplyTo = <-r.box:
		r.box <- m.ReplyTo
	case <-ctx.Done():
		return wire.ReceivedMail{}, fmt.Errorf("request to %s: %w", m.To, ctx.Err())
	}
	m.Correlation = cmp.Or(m.Correlation, proto.NewMailID(time.Now()).String())
	answer := make(chan wire.ReceivedMail, 1)
	r.mu.Lock()
	_, used := r.waiting[m.Correlation]
	if !used {
		r.waiting[m.Correlation] = answer
	}
	r.mu.Unlock()
	if used {
		return wire.ReceivedMail{}, fmt.Errorf("%w: another request has the correlation %.64q", wire.ErrInvalid, m.Correlation)
	}
	defer func() {
		r.mu.Lock()
		delete(r.waiting, m.Correlation)
		r.mu.Unlock()
	}()
	sent, err := r.mailer.Send(ctx, m)
	if err != nil {
		return wire.ReceivedMail{}, err
	}
	select {
	case reply := <-answer:
		if reply.Type == wire.TypeBounce {
			return reply, wire.BouncedError(sent.ID, reply.Body)
		}
		return reply, nil
	case <-ctx.Done():
		return wire.ReceivedMail{}, fmt.Errorf("wait for the reply to mail %s: %w", sent.ID, ctx.Err())
	}
}
