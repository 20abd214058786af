package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/outbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transfer"
	"github.com/balefire/balefire/transport"
)

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

// sortFrames checks the frames and sorts them by type.
func (n *Node) sortFrames(ctx context.Context, from proto.PeerID, msgs []*proto.Message) *frameGroup {
	in := &frameGroup{refusals: make([]*proto.Refusal, len(msgs)), tasks: make([]inbox.Arrival, 0, len(msgs))}
	checks, ahead := n.checksFrom(from)
	for i, m := range msgs {
		if err := n.sortFrame(ctx, in, checks, ahead, from, i, m); err != nil {
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

func (n *Node) sortFrame(ctx context.Context, in *frameGroup, checks *identity.Checks, ahead time.Duration, from proto.PeerID, i int, m *proto.Message) error {
	switch m.GetType() {
	case proto.TypeData:
		a, err := n.openTask(checks, ahead, from, m)
		if err == nil {
			in.tasks, in.taskAt = append(in.tasks, a), append(in.taskAt, i)
		}
		return err
	case proto.TypeResult:
		r, err := n.openResult(ctx, checks, from, m)
		if err == nil {
			in.results, in.resultAt = append(in.results, r), append(in.resultAt, i)
		}
		return err
	case proto.TypeCancel:
		return n.receiveCancel(ctx, in, from, i, m)
	case proto.TypeMark:
		var mark proto.Mark
		if err := proto.DecodeKnown(m.GetPayload(), &mark); err != nil {
			return err
		}
		in.mark = &proto.Seq{Boot: mark.GetBoot(), Counter: mark.GetCounter()}
		return nil
	case proto.TypeSchedule, proto.TypeScheduled:
		if err := n.Schedules.Receive(from, m); err != nil { // no answer is expected
			in.noteOffense(err)
			n.log.Debug("schedule message dropped", "from", from, "err", err)
		}
		return nil
	}
	if err := n.Queues.Receive(from, m); err != nil { // no answer is expected
		in.noteOffense(err)
	}
	return nil
}

// noteOffense records an error that is the fault of the sender and not due to missing
// knowledge of this node.
func (g *frameGroup) noteOffense(err error) {
	if malformed(err) {
		g.offense = err
	}
}

// malformed reports whether err was caused by bytes that no correct node sends.
func malformed(err error) bool {
	return errors.Is(err, proto.ErrMalformed) || errors.Is(err, proto.ErrTooMany) || errors.Is(err, proto.ErrTooLong)
}

// openTask checks a DATA frame. Without couriers, a task is accepted from its origin
// only, whose clock is ahead of this node's.
func (n *Node) openTask(checks *identity.Checks, ahead time.Duration, from proto.PeerID, m *proto.Message) (inbox.Arrival, error) {
	env, opened, err := n.openEnvelope(checks, from, m, proto.WhatTask)
	if err != nil {
		return inbox.Arrival{}, n.unlessAccepted(from, m, err)
	}
	content := new(proto.Content)
	if err := proto.DecodeKnown(opened.Content, content); err != nil {
		return inbox.Arrival{}, err
	}
	if err := identity.CheckContent(&opened.Header, content); err != nil {
		return inbox.Arrival{}, err
	}
	return inbox.Arrival{
		From: from, Header: opened.Header, Content: content, Envelope: env, Key: opened.Key, Ahead: ahead,
		Digest: identity.EnvelopeLeaf(env.GetHeader(), env.GetBody(), proto.WhatTask),
	}, nil
}

// unlessAccepted turns a refusal that would end a task into DUPLICATE if the task is
// already here: it was accepted in time, and its result states its end.
func (n *Node) unlessAccepted(from proto.PeerID, m *proto.Message, refused error) error {
	ce, ok := errors.AsType[*identity.CheckError](refused)
	if !ok || ce.Code != proto.CodeExpired && ce.Code != proto.CodeDenied {
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
	rec, err := n.inbox.Get(h.ID)
	here := err == nil && bytes.Equal(rec.GetPeer(), from[:]) && rec.Seq() == h.Seq
	if !here && !n.outbox.HasPendingResult(h.ID) {
		return refused
	}
	return &identity.CheckError{Code: proto.CodeDuplicate, Err: errors.New("it was accepted before it expired")}
}

func (n *Node) openResult(ctx context.Context, checks *identity.Checks, from proto.PeerID, m *proto.Message) (outbox.ResultIn, error) {
	_, opened, err := n.openEnvelope(checks, from, m, proto.WhatResult)
	if err != nil {
		return outbox.ResultIn{}, err
	}
	outcome := new(proto.Outcome)
	if err := proto.DecodeKnown(opened.Content, outcome); err != nil {
		return outbox.ResultIn{}, err
	}
	if opened.Header.Streamed() || len(outcome.GetBody()) > proto.MaxInlineRecord {
		// The body becomes a file before the commit rule is evaluated, so it must not be
		// written for a result that will be rejected.
		switch code, detail, rec := n.transfers.WantsResult(from, &opened.Header); code {
		case proto.CodeNeedBody:
			if size := transfer.ResultSize(&opened.Header, outcome); rec.GetMaxResult() > 0 && size > rec.GetMaxResult() {
				outcome.Body, outcome.BodySize = nil, size // see outbox.Commit
				return outbox.ResultIn{ID: opened.Header.ID, Seq: opened.Header.Seq, Outcome: outcome}, nil
			}
		case proto.CodeStale:
			return outbox.ResultIn{ID: opened.Header.ID, Seq: opened.Header.Seq, Outcome: outcome}, nil
		default:
			return outbox.ResultIn{}, &identity.CheckError{Code: code, Err: errors.New(detail)}
		}
	}
	return n.resultIn(ctx, opened, outcome)
}

func (n *Node) openEnvelope(checks *identity.Checks, from proto.PeerID, m *proto.Message, what byte) (*proto.Envelope, identity.Verified, error) {
	env := new(proto.Envelope)
	if err := proto.DecodeKnown(m.GetPayload(), env); err != nil {
		return nil, identity.Verified{}, err
	}
	env.Signature = m.GetSignature()
	opened, err := checks.Check(env)
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

func (n *Node) receiveCancel(ctx context.Context, in *frameGroup, from proto.PeerID, i int, m *proto.Message) error {
	var c proto.Cancel
	if err := proto.DecodeKnown(m.GetPayload(), &c); err != nil {
		return err
	}
	id, err := proto.TaskIDFrom(c.GetTask())
	if err != nil {
		return err
	}
	v := n.inbox.Cancel(ctx, from, id, c.GetHard())
	in.refuse(i, v.Code, v.Detail, v.State, 0)
	return nil
}

func (g *frameGroup) refuse(at int, code proto.Code, detail string, state proto.TaskState, retry uint64) {
	if code != proto.CodeOK {
		g.refusals[at] = &proto.Refusal{Number: uint64(at), Code: code, Detail: proto.Clip(detail, 256), State: state, RetryAfterMs: retry}
	}
}

// answer signs one receipt for each accepted task.
func (n *Node) answer(from proto.PeerID, in *frameGroup) transport.Answer {
	a := transport.Answer{Time: n.cfg.Clock.Now().UnixMilli(), Offense: in.offense}
	var statements [][]byte
	for i, t := range in.tasks {
		if in.refusals[in.taskAt[i]] == nil {
			s := outbox.AcceptedStatement(n.mesh.ID, t.Header.ID, n.keys.Peer(), t.Header.Seq, a.Time)
			statements = append(statements, s.Append(make([]byte, 0, proto.StatementSize)))
		}
	}
	for _, r := range in.refusals {
		if r != nil {
			n.refused.add(from, r.Code)
			a.Refusals = append(a.Refusals, r)
		}
	}
	if len(statements) > 0 {
		a.Signature = n.keys.SignAck(statements)
	}
	return a
}

// checksFrom returns the checks of envelopes that a connected peer signed, and how far its
// clock, by which they are dated, is ahead of this node's. A small difference is within
// the error of the measurement.
func (n *Node) checksFrom(from proto.PeerID) (*identity.Checks, time.Duration) {
	c := n.checks()
	ahead, _ := n.net.ClockAhead(from)
	if ahead.Abs() < proto.ClockNoise {
		return c, 0
	}
	c.Signers = c.Now.Add(ahead)
	return c, ahead
}

// checks returns the envelope checks as of now.
func (n *Node) checks() *identity.Checks {
	return &identity.Checks{
		Mesh: n.mesh, Self: n.keys.Peer(), Member: n.book.Renewable, Now: n.cfg.Clock.Now(), Doubted: n.cfg.Clock.Doubted(),
		Verifier: n.verifier, Keys: n.keys,
	}
}
