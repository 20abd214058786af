package node

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/outbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/transport"
)

// draft checks a request, gives it an id and a sequence, and seals it for the
// peer that it returns with it.
func (n *Node) draft(ctx context.Context, r *Request) (*outbox.Draft, transport.Peer, error) {
	if n.draining.Load() {
		return nil, transport.Peer{}, fmt.Errorf("%w: submit again after it has started", ErrDraining)
	}
	if err := n.checkRequest(r); err != nil {
		return nil, transport.Peer{}, err
	}
	to, err := n.recipient(r.Target)
	if err != nil {
		return nil, to, err
	}
	now := n.cfg.Clock.Now()
	d := &outbox.Draft{Record: record(r, now), Header: proto.Header{
		What: proto.WhatTask, Mesh: n.mesh.ID, ID: proto.NewTaskID(now), Origin: n.keys.Peer(), Target: to.Peer,
		Created: now.UnixMilli(), NotAfter: now.Add(cmp.Or(r.TTL, proto.DefaultTTL)).UnixMilli(),
	}}
	content := contentOf(r)
	body, err := n.takeBody(ctx, d, content, r)
	if err != nil {
		return nil, to, err
	}
	finishKey(r, d, content)
	d.Header.Seq = n.outbox.NextSeq(to.Peer)
	if err := n.seal(d, to.KeyRecord, content, body); err != nil {
		n.outbox.DropSeq(to.Peer, d.Header.Seq)
		n.dropBody(d)
		return nil, to, err
	}
	return d, to, nil
}

// seal encodes content and seals it into the draft's envelope. A sealed body
// that is too large for a record becomes a file, durable before the record is.
func (n *Node) seal(d *outbox.Draft, to identity.KeyRecord, content *proto.Content, key *[32]byte) error {
	plain, err := proto.Encode(nil, content)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return n.sealBytes(d, to, plain, key)
}

func (n *Node) sealBytes(d *outbox.Draft, to identity.KeyRecord, plain []byte, key *[32]byte) (err error) {
	if key != nil {
		d.Key = *key
		d.Envelope, err = n.sealer.SealWith(d.Key, &d.Header, to, plain)
	} else {
		d.Envelope, d.Key, err = n.sealer.Seal(&d.Header, to, plain)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	d.Leaf = identity.EnvelopeLeaf(d.Envelope.Header, d.Envelope.Body, d.Header.What)
	return n.spill(d)
}

func (n *Node) checkRequest(r *Request) error {
	bad := func(format string, a ...any) error {
		return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, a...))
	}
	args := 0
	for _, a := range r.Args {
		args += len(a)
		if strings.ContainsRune(a, 0) {
			return bad("an argument contains a zero byte")
		}
	}
	switch {
	case r.Target == "":
		return bad("no target: name a peer")
	case !kindRE.MatchString(r.Kind):
		return bad("kind %.60q: it is 1-128 of a-z 0-9 . _ -", r.Kind)
	case r.TTL < 0 || r.TTL > proto.MaxTTL:
		return bad("ttl %s: at most %s", r.TTL, proto.MaxTTL)
	case len(r.Key) > proto.MaxKey || len(r.Order) > proto.MaxKey:
		return bad("a key is longer than %d bytes", proto.MaxKey)
	case args > proto.MaxArgs || len(r.Args) > 256:
		return bad("more than 256 arguments or %d bytes of them: send them as the body", proto.MaxArgs)
	case int64(len(r.Body)) > n.cfg.Limits.Payload:
		return bad("a body of %d bytes, the limit is %d: send it as a file or a stream", len(r.Body), n.cfg.Limits.Payload)
	case !oneOf(r.OnDead, "", "skip", "block"):
		return bad("on_dead %.20q: it is skip or block", r.OnDead)
	case len(r.Labels) > 32:
		return bad("more than 32 labels")
	case r.Delay < 0 || r.Delay > 0 && !r.At.IsZero():
		return bad("a delay is positive, and not given together with a time")
	}
	return nil
}

func contentOf(r *Request) *proto.Content {
	c := &proto.Content{
		Kind: r.Kind, Class: cmp.Or(r.Class, proto.Class_CLASS_NORMAL), IdempotencyKey: r.Key, OrderingKey: r.Order,
		ContentType: r.Type, Traceparent: r.Trace, Args: r.Args, Body: r.Body, Labels: r.Labels, MaxAttempts: r.Retries, OnDead: r.OnDead,
	}
	if !r.RedriveOf.IsZero() {
		c.RedriveOf = r.RedriveOf[:]
	}
	return c
}

func record(r *Request, now time.Time) *proto.Record {
	rec := &proto.Record{
		Class: cmp.Or(r.Class, proto.Class_CLASS_NORMAL), Kind: r.Kind, IdempotencyKey: r.Key, OrderingKey: r.Order,
		Traceparent: r.Trace, Labels: r.Labels, Target: r.Target, OnDead: r.OnDead, MaxAttempts: r.Retries,
	}
	due := r.At
	if r.Delay > 0 {
		due = now.Add(r.Delay)
	}
	if !due.IsZero() {
		rec.DueMs = due.UnixMilli()
	}
	if !r.RedriveOf.IsZero() {
		rec.RedriveOf = r.RedriveOf[:]
	}
	return rec
}

// finishKey sets what idempotency needs: the digest of the whole request, and
// the key itself where it is made of the content.
func finishKey(r *Request, d *outbox.Draft, c *proto.Content) {
	if r.Key == "" {
		return
	}
	h := sha256.New()
	fmt.Fprintf(h, "balefire/v1/request\x00%q %q %q %q %q %x %d", r.Target, r.Kind, r.Order, r.Args, r.Type, c.BodyDigest, c.BodySize)
	sum := h.Sum(nil)
	if r.Key == "auto" {
		c.IdempotencyKey = fmt.Sprintf("auto-%x", sum)
		d.Record.IdempotencyKey = c.IdempotencyKey
	}
	d.Record.RequestDigest = sum
}

func submitted(d *outbox.Draft, to transport.Peer) Submitted {
	return Submitted{
		ID: d.Header.ID.String(), State: proto.TaskState_TASK_STATE_PENDING.Name(),
		Target: cmp.Or(to.Name, to.Peer.Short()), NotAfter: at(d.Header.NotAfter),
	}
}

// known turns a submit whose key was used before into the task of the first.
func (n *Node) known(id proto.TaskID, s Submitted) Submitted {
	s.ID, s.Known = id.String(), true
	rec, err := n.outbox.Get(id)
	if err != nil { // a key is remembered longer than the record of a finished task
		s.State, s.Waits = "", "it has ended; its record is no longer kept"
		return s
	}
	s.State, s.NotAfter = rec.GetState().Name(), at(rec.GetNotAfterMs())
	return s
}

func submitError(err error) error {
	switch {
	case errors.Is(err, outbox.ErrKeyConflict):
		return fmt.Errorf("submit: %w: %w", ErrKeyConflict, err)
	case errors.Is(err, outbox.ErrFull), errors.Is(err, store.ErrFull):
		return fmt.Errorf("submit: %w: %w", ErrFull, err)
	case errors.Is(err, outbox.ErrClosed), errors.Is(err, store.ErrClosed):
		return fmt.Errorf("submit: %w: %w", ErrDraining, err)
	}
	return fmt.Errorf("submit: %w", err)
}
