package submit

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/outbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// draft checks a request, gives it an id and a sequence number, and seals it for the
// peer that it returns.
func (s *Submitter) draft(ctx context.Context, r *Request) (*outbox.Draft, *addressbook.Peer, error) {
	if s.Draining() {
		return nil, nil, fmt.Errorf("%w: submit again after it has started", wire.ErrDraining)
	}
	class, mode, err := s.checkRequest(&r.Request)
	if err != nil {
		return nil, nil, err
	}
	to, err := s.recipient(r.Target)
	if err != nil {
		return nil, nil, err
	}
	now := s.Clock.Now()
	r.Trace = traceOf(r.Trace)
	d := &outbox.Draft{Record: record(r, class, mode, now), Header: proto.Header{
		What: proto.WhatTask, Mesh: s.Mesh, ID: proto.NewTaskID(now), Origin: s.Keys.Peer(), Target: to.Peer,
		Created: now.UnixMilli(), NotAfter: now.Add(cmp.Or(time.Duration(r.TTL), proto.DefaultTTL)).UnixMilli(),
	}}
	s.Outbox.Stamp(d.Record)
	content := contentPool.Get().(*proto.Content)
	defer releaseContent(content)
	fillContent(content, r, class, mode)
	if err := s.place(ctx, d, content, to.KeyRecord, r); err != nil {
		return nil, nil, err
	}
	setRequestDigest(r, d, content)
	d.Header.Seq = s.Outbox.NextSeq(to.Peer)
	if err := s.seal(d, to.KeyRecord, content); err != nil {
		s.Outbox.DropSeq(to.Peer, d.Header.Seq)
		s.unpin(d.Record.GetBodyBlob(), err)
		return nil, nil, err
	}
	return d, to, nil
}

// contentPool pools task contents, which are needed only until they are sealed.
var contentPool = sync.Pool{New: func() any { return new(proto.Content) }}

func releaseContent(c *proto.Content) {
	c.Reset()
	contentPool.Put(c)
}

// plainPool pools buffers for plaintext; sealing copies it.
var plainPool = sync.Pool{New: func() any { return new([]byte) }}

// maxPooledPlain is the largest buffer that is kept, in bytes.
const maxPooledPlain = 64 << 10

// seal encodes content, a Content or an Outcome, and seals it into the draft's envelope. A
// sealed body that is too large for a record becomes a file, which is durable before the
// record is.
func (s *Sealing) seal(d *outbox.Draft, to identity.KeyRecord, content proto.Body) error {
	buf := plainPool.Get().(*[]byte)
	defer plainPool.Put(buf)
	plain, err := proto.Encode((*buf)[:0], content)
	if err != nil {
		return fmt.Errorf("%w: %w", wire.ErrInvalid, err)
	}
	if cap(plain) <= maxPooledPlain {
		*buf = plain
	}
	if d.Envelope, d.Key, err = s.Sealer.Seal(&d.Header, to, plain); err != nil {
		return fmt.Errorf("%w: %w", wire.ErrInvalid, err)
	}
	d.Leaf = identity.EnvelopeLeaf(d.Envelope.Header, d.Envelope.Body, d.Header.What)
	return s.offload(d)
}

func (s *Submitter) checkRequest(r *wire.Request) (class proto.Class, mode proto.Mode, err error) {
	bad := func(format string, a ...any) (proto.Class, proto.Mode, error) {
		return 0, 0, fmt.Errorf("%w: %s", wire.ErrInvalid, fmt.Sprintf(format, a...))
	}
	if class, err = proto.ParseClass(r.Class); err != nil {
		return bad("%v", err)
	}
	if mode, err = proto.ParseMode(r.Mode); err != nil {
		return bad("%v", err)
	}
	_, queued := proto.QueueOf(r.Target)
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
	case !proto.ValidKind(r.Kind):
		return bad("kind %.60q: use 1-128 of a-z 0-9 . _ -", r.Kind)
	case r.TTL < 0 || time.Duration(r.TTL) > proto.MaxTTL:
		return bad("ttl %s: must be positive and at most 30 days", r.TTL)
	case len(r.Key) > proto.MaxKey:
		return bad("the idempotency key has %d bytes, the limit is %d", len(r.Key), proto.MaxKey)
	case len(r.Order) > proto.MaxKey:
		return bad("the ordering key has %d bytes, the limit is %d", len(r.Order), proto.MaxKey)
	case args > proto.MaxArgs || len(r.Args) > 256:
		return bad("more than 256 arguments or %d bytes of arguments: send them as the body", proto.MaxArgs)
	case int64(len(r.Body)) > s.MaxBody:
		return bad("a body of %d bytes, the limit is %d: send it as a file or a stream", len(r.Body), s.MaxBody)
	case !oneOf(r.OnDead, "", "skip", "block"):
		return bad("on_dead %.20q: must be skip or block", r.OnDead)
	case len(r.Labels) > 32:
		return bad("more than 32 labels")
	case r.Delay < 0 || r.Delay > 0 && !r.At.IsZero():
		return bad("a delay must be positive and cannot be combined with a time")
	}
	if ttl := cmp.Or(time.Duration(r.TTL), proto.DefaultTTL); time.Duration(r.Delay) >= ttl || !r.At.IsZero() && !r.At.Before(s.Clock.Now().Add(ttl)) {
		return bad("the task could not start before its ttl of %s has ended: give it a longer one, at most 30 days", wire.Duration(ttl))
	}
	return class, mode, checkOptions(r, queued)
}

// fillContent fills the empty c with the parts of r that the target needs.
func fillContent(c *proto.Content, r *Request, class proto.Class, mode proto.Mode) {
	c.Kind, c.Class, c.ContentType, c.Traceparent = r.Kind, class, r.Type, r.Trace
	c.IdempotencyKey, c.OrderingKey, c.Args, c.Body = r.Key, r.Order, r.Args, r.Body
	c.Labels, c.OnDead, c.Mode, c.Options, c.Delegates = r.Labels, r.OnDead, mode, options(&r.Request), r.Delegates
	if !r.Of.IsZero() {
		c.RedriveOf = slices.Clone(r.Of[:]) // so that r itself can stay on the stack
	}
	c.Queue, _ = proto.QueueOf(r.Target)
}

func record(r *Request, class proto.Class, mode proto.Mode, now time.Time) *proto.Record {
	rec := &proto.Record{
		Class: class, Kind: r.Kind, IdempotencyKey: r.Key, OrderingKey: r.Order,
		Traceparent: r.Trace, Labels: r.Labels, Target: r.Target, OnDead: r.OnDead, Mode: mode, Options: options(&r.Request),
	}
	if _, queued := proto.QueueOf(r.Target); queued {
		rec.OnDead = "" // the home of the queue handles dead heads, for all origins
	}
	due := r.At
	if r.Delay > 0 {
		due = now.Add(time.Duration(r.Delay))
	}
	if !due.IsZero() {
		rec.DueMs, rec.DueNamed = due.UnixMilli(), r.Delay == 0
	}
	if !r.Of.IsZero() {
		rec.RedriveOf = slices.Clone(r.Of[:])
	}
	return rec
}

// setRequestDigest sets the fields for idempotency: the digest of what a repetition must agree in,
// and the key itself if it is derived from that. A task that must not start twice has the same
// derived key and another digest, so that it does not pass for one that may.
func setRequestDigest(r *Request, d *outbox.Draft, c *proto.Content) {
	if r.Key == "" {
		return
	}
	h := sha256.New()
	fmt.Fprintf(h, "balefire/v1/request\x00%q %q %q %q %q %x %d", r.Target, r.Kind, r.Order, r.Args, r.Type, c.BodyDigest, c.BodySize)
	if len(r.Require)+len(r.Prefer) > 0 {
		fmt.Fprintf(h, " %q %q", r.Require, r.Prefer)
	}
	sum := h.Sum(nil)
	if r.Key == "auto" {
		c.IdempotencyKey = fmt.Sprintf("auto-%x", sum)
		d.Record.IdempotencyKey = c.IdempotencyKey
	}
	if c.GetMode() == proto.AtMostOnce {
		fmt.Fprintf(h, " %s", c.GetMode().Name())
		sum = h.Sum(nil)
	}
	if d.Record.RequestDigest = sum; len(r.KeyDigest) > 0 {
		d.Record.RequestDigest = r.KeyDigest
	}
}

func oneOf(s string, words ...string) bool { return slices.Contains(words, s) }
