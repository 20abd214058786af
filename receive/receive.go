// Package receive takes what peers send about tasks. It checks each frame, gives tasks to
// the inbox and results to the outbox, and answers once what they accepted is on disk.
//
//	frames ─▶ sort ─▶ check, open ─▶ inbox.Accept  ─┐
//	                           └───▶ outbox.Commit ─┴▶ on disk ─▶ refusals, receipts
package receive

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/bodies"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/outbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
)

// The failpoints of this package, at which Parts.Fail is called.
const (
	PointReceive  = "receive"  // a group of frames has arrived and is not on disk
	PointAccepted = "accepted" // the accepted ones are on disk, the ack is not sent
)

// A Receiver receives frames. Its methods are safe for concurrent use.
type Receiver struct{ Parts }

// Parts is what a receiver works with. All are required.
type Parts struct {
	Keys     *identity.Keys
	Mesh     identity.Mesh
	Book     *addressbook.Book
	Verifier *identity.Verifier
	Inbox    *inbox.Inbox
	Outbox   *outbox.Outbox
	Bodies   *bodies.Store
	// Wants returns NEED_BODY while the home still waits for a result, and the record of
	// the task.
	Wants     func(from proto.PeerID, h *proto.Header) (proto.Code, string, *proto.Record)
	Queues    func(from proto.PeerID, m *proto.Message) error // takes a message about shared queues
	Schedules func(from proto.PeerID, m *proto.Message) error // takes one about schedules
	Refused   func(from proto.PeerID, code proto.Code)        // takes note of a refusal
	Ahead     func(proto.PeerID) time.Duration                // how far the clock of a peer is ahead of this node's
	Event     func(kind string, p proto.PeerID, fields map[string]string)
	Fail      func(point string) error
	Clock     clock.Clock
	Logger    *slog.Logger
}

// New returns a receiver.
func New(p Parts) *Receiver { return &Receiver{Parts: p} }

// Receive processes a group of frames of one peer, and returns once everything that it
// accepted is durable (I8). It signs receipts for that. It returns an error instead if it is
// not known whether a task is here.
func (r *Receiver) Receive(ctx context.Context, from proto.PeerID, msgs []*proto.Message) (transport.Answer, error) {
	if err := r.Fail(PointReceive); err != nil {
		return transport.Answer{}, err
	}
	in := r.sort(ctx, from, msgs)
	var unknown error
	for i, v := range r.Inbox.Accept(ctx, in.tasks) {
		unknown = cmp.Or(unknown, v.Unknown)
		in.refuse(in.taskAt[i], v.Code, v.Detail, v.State, uint64(v.RetryAfter.Milliseconds()))
	}
	r.commit(ctx, from, in)
	if in.mark != nil {
		r.Inbox.Settle(from, *in.mark)
	}
	if err := cmp.Or(unknown, r.Inbox.Err()); err != nil {
		return transport.Answer{}, fmt.Errorf("accept a task: %w", err)
	}
	return r.answer(from, in), r.Fail(PointAccepted)
}

// Task opens a task that a peer sends, for the body that belongs to it.
func (r *Receiver) Task(from proto.PeerID, m *proto.Message) (inbox.Arrival, error) {
	checks, ahead := r.checksFrom(from)
	return r.openTask(checks, ahead, from, m)
}

// Result opens the result of a task whose home is this node, for the body that belongs to it.
func (r *Receiver) Result(from proto.PeerID, m *proto.Message) (*proto.Header, error) {
	_, opened, err := r.openEnvelope(r.Checks().CheckInPlace, from, m, proto.WhatResult)
	return &opened.Header, err
}

// NoteRefusal takes note of a peer whose body was refused.
func (r *Receiver) NoteRefusal(from proto.PeerID, code proto.Code) { r.Refused(from, code) }

// checksFrom returns the checks of envelopes that a connected peer signed, and how far its
// clock, by which they are dated, is ahead of this node's. A small difference is within
// the error of the measurement.
func (r *Receiver) checksFrom(from proto.PeerID) (*identity.Checks, time.Duration) {
	c, ahead := r.Checks(), r.Ahead(from)
	if ahead.Abs() < proto.ClockNoise {
		return c, 0
	}
	c.Signers = c.Now.Add(ahead)
	return c, ahead
}

// Checks returns the envelope checks as of now.
func (r *Receiver) Checks() *identity.Checks {
	return &identity.Checks{
		Mesh: r.Mesh, Self: r.Keys.Peer(), Member: r.Book.Renewable, Now: r.Clock.Now(), Doubted: r.Clock.Doubted(),
		Verifier: r.Verifier, Keys: r.Keys,
	}
}

// A frameGroup is a group of frames of one peer, sorted by type, with the index of each
// frame in the group.
type frameGroup struct {
	tasks    []inbox.Arrival
	taskAt   []int
	results  []outbox.ResultIn
	resultAt []int
	refusals []*proto.Refusal // by index; nil: accepted
	mark     *proto.Seq
	offense  error // see transport.Answer
}

// sort checks the frames and sorts them by type.
func (r *Receiver) sort(ctx context.Context, from proto.PeerID, msgs []*proto.Message) *frameGroup {
	in := &frameGroup{refusals: make([]*proto.Refusal, len(msgs))}
	switch n := len(msgs); { // mostly all are of one type
	case n > 0 && msgs[0].GetType() == proto.TypeData:
		in.tasks, in.taskAt = make([]inbox.Arrival, 0, n), make([]int, 0, n)
	case n > 0 && msgs[0].GetType() == proto.TypeResult:
		in.results, in.resultAt = make([]outbox.ResultIn, 0, n), make([]int, 0, n)
	}
	checks, ahead := r.checksFrom(from)
	for i, m := range msgs {
		if err := r.sortFrame(ctx, in, checks, ahead, from, i, m); err != nil {
			in.noteOffense(err)
			code := proto.CodeBadForm
			if ce, ok := errors.AsType[*identity.CheckError](err); ok {
				code = ce.Code
			}
			in.refuse(i, code, err.Error(), 0, 0)
		}
	}
	return in
}

func (r *Receiver) sortFrame(ctx context.Context, in *frameGroup, checks *identity.Checks, ahead time.Duration, from proto.PeerID, i int, m *proto.Message) error {
	switch m.GetType() {
	case proto.TypeData:
		a, err := r.openTask(checks, ahead, from, m)
		if err == nil {
			in.tasks, in.taskAt = append(in.tasks, a), append(in.taskAt, i)
		}
		return err
	case proto.TypeResult:
		result, err := r.openResult(ctx, checks, from, m)
		if err == nil {
			in.results, in.resultAt = append(in.results, result), append(in.resultAt, i)
		}
		return err
	case proto.TypeCancel:
		return r.cancel(ctx, in, from, i, m)
	case proto.TypeMark:
		var mark proto.Mark
		if err := proto.DecodeKnown(m.GetPayload(), &mark); err != nil {
			return err
		}
		in.mark = &proto.Seq{Boot: mark.GetBoot(), Counter: mark.GetCounter()}
		return nil
	case proto.TypeSchedule, proto.TypeScheduled:
		if err := r.Schedules(from, m); err != nil { // no answer is expected
			in.noteOffense(err)
			r.Logger.Debug("schedule message dropped", "from", from, "err", err)
		}
		return nil
	}
	if err := r.Queues(from, m); err != nil { // no answer is expected
		in.noteOffense(err)
	}
	return nil
}

// noteOffense records an error that is the fault of the sender and not due to missing
// knowledge of this node.
func (g *frameGroup) noteOffense(err error) {
	if proto.Malformed(err) {
		g.offense = err
	}
}

// openTask checks a DATA frame. Without couriers, a task is accepted from its origin
// only, whose clock is ahead of this node's.
func (r *Receiver) openTask(checks *identity.Checks, ahead time.Duration, from proto.PeerID, m *proto.Message) (inbox.Arrival, error) {
	env, opened, err := r.openEnvelope(checks.Check, from, m, proto.WhatTask)
	if err != nil {
		return inbox.Arrival{}, r.unlessAccepted(from, m, err)
	}
	content := new(proto.Content)
	if err := decode(opened.Content, content); err != nil {
		return inbox.Arrival{}, err
	}
	if err := identity.CheckContent(&opened.Header, content); err != nil {
		return inbox.Arrival{}, err
	}
	return inbox.Arrival{
		Header: opened.Header, Content: content, Envelope: env, Key: opened.Key, Ahead: ahead,
		Digest: identity.EnvelopeLeaf(env.GetHeader(), env.GetBody(), proto.WhatTask),
	}, nil
}

// unlessAccepted turns a refusal into DUPLICATE if the task is already here: its home would
// take any other answer as proof that it is not. Bytes that are wrong are refused all the same.
func (r *Receiver) unlessAccepted(from proto.PeerID, m *proto.Message, refused error) error {
	ce, ok := errors.AsType[*identity.CheckError](refused)
	if !ok || ce.Code == proto.CodeBadForm || ce.Code == proto.CodeBadSignature || ce.Code == proto.CodeTooLarge {
		return refused
	}
	env := new(proto.Envelope)
	if proto.DecodeKnown(m.GetPayload(), env) != nil {
		return refused
	}
	h, err := proto.ParseHeader(env.GetHeader())
	if err != nil {
		return refused
	}
	rec, err := r.Inbox.Get(h.ID)
	here := err == nil && bytes.Equal(rec.GetPeer(), from[:]) && rec.Seq() == h.Seq
	if !here && !r.Outbox.HasPendingResult(h.ID) {
		return refused
	}
	return &identity.CheckError{Code: proto.CodeDuplicate, Err: errors.New("it was accepted before")}
}

// openEnvelope decodes the envelope of a frame and checks it. It may share the memory of the
// frame, which must not be used again.
func (r *Receiver) openEnvelope(check func(*proto.Envelope) (identity.Verified, error), from proto.PeerID, m *proto.Message, what byte) (*proto.Envelope, identity.Verified, error) {
	env := new(proto.Envelope)
	if err := decode(m.GetPayload(), env); err != nil {
		return nil, identity.Verified{}, err
	}
	env.Signature = m.GetSignature()
	opened, err := check(env)
	if err != nil {
		return nil, opened, err
	}
	switch {
	case opened.Header.What != what:
		return nil, opened, identity.BadForm("a %d in a message of type %s", opened.Header.What, m.GetType())
	case opened.Header.Origin != from:
		return nil, opened, &identity.CheckError{Code: proto.CodeDenied, Err: fmt.Errorf("made by %s, sent by %s: this node accepts no tasks or results from couriers", opened.Header.Origin.Short(), from.Short())}
	}
	return env, opened, nil
}

// maxUnknown is how many bytes that this node does not know may stay in memory with a message.
const maxUnknown = 256

// decode decodes b into m, which may share its memory then.
func decode(b []byte, m proto.Body) error {
	err := proto.DecodeShared(b, m)
	if err == nil && len(b) > proto.Size(m)+maxUnknown {
		err = proto.DecodeKnown(b, m)
	}
	return err
}

func (r *Receiver) cancel(ctx context.Context, in *frameGroup, from proto.PeerID, i int, m *proto.Message) error {
	var c proto.Cancel
	if err := proto.DecodeKnown(m.GetPayload(), &c); err != nil {
		return err
	}
	id, err := proto.TaskIDFrom(c.GetTask())
	if err != nil {
		return err
	}
	v := r.Inbox.Cancel(ctx, from, id, c.GetHard())
	in.refuse(i, v.Code, v.Detail, v.State, 0)
	return nil
}

func (g *frameGroup) refuse(at int, code proto.Code, detail string, state proto.TaskState, retry uint64) {
	if code != proto.CodeOK {
		g.refusals[at] = &proto.Refusal{Number: uint64(at), Code: code, Detail: proto.Clip(detail, 256), State: state, RetryAfterMs: retry}
	}
}

// answer signs one receipt for each accepted task.
func (r *Receiver) answer(from proto.PeerID, in *frameGroup) transport.Answer {
	a := transport.Answer{Time: r.Clock.Now().UnixMilli(), Offense: in.offense}
	statements := make([][]byte, 0, len(in.tasks))
	buf := make([]byte, 0, len(in.tasks)*proto.StatementSize)
	for i := range in.tasks {
		if h := &in.tasks[i].Header; in.refusals[in.taskAt[i]] == nil {
			s := outbox.AcceptedStatement(r.Mesh.ID, h.ID, r.Keys.Peer(), h.Seq, a.Time)
			from := len(buf)
			buf = s.Append(buf)
			statements = append(statements, buf[from:len(buf):len(buf)])
		}
	}
	for _, refusal := range in.refusals {
		if refusal != nil {
			r.Refused(from, refusal.Code)
			a.Refusals = append(a.Refusals, refusal)
		}
	}
	if len(statements) > 0 {
		a.Signature = r.Keys.SignAck(statements)
	}
	return a
}
