package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/ownership"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// Mover transfers tasks from one home of a queue to the next.
type Mover struct{ *Queues }

// arrival checks a task that an old home hands over. It accepts an expired task: it was
// accepted in time and must end here. For the same reason it does not check the
// membership of the origin again: the certificate may have been renewed, expired or
// revoked since, and a task that no home accepts never ends. The node that is granted
// the task checks the membership as of the grant.
func (m Mover) arrival(h *proto.Handoff) (inbox.Arrival, error) {
	a, err := m.open(h.GetTask().GetEnvelope())
	a.Ahead = m.ahead(h, &a.Header)
	switch {
	case err != nil:
		return a, err
	case string(a.Header.ID[:]) != string(h.GetLease().GetTask()) || a.Content.GetQueue() != h.GetLease().GetQueue():
		return a, identity.BadForm("it does not match its lease")
	case a.Header.Streamed() && !m.parts.Bodies.Has(&a.Header):
		return a, &identity.CheckError{Code: proto.CodeNeedBody, Err: errors.New("its body is not here yet")}
	}
	return a, nil
}

// ahead returns how far the clock of the origin of a task is ahead of this node's: its old
// home tells how much of its time is left.
func (m Mover) ahead(h *proto.Handoff, signed *proto.Header) time.Duration {
	if h.GetClockMs() == 0 {
		return 0
	}
	left := min(h.GetLease().GetNotAfterMs()-h.GetClockMs(), signed.NotAfter-signed.Created)
	ahead := signed.NotAfter - left - m.cfg.Clock.Now().UnixMilli()
	if d := time.Duration(ahead) * time.Millisecond; d.Abs() >= proto.ClockNoise {
		return d
	}
	return 0
}

// OpenHandoff opens a task that an old home hands over.
func (qs *Queues) OpenHandoff(env *proto.Envelope) (inbox.Arrival, ownership.Task, error) {
	a, err := Mover{qs}.open(env)
	if err != nil {
		return a, ownership.Task{}, err
	}
	return a, handedTask(&a), nil
}

// open checks and decodes the sealed envelope of a task's origin.
func (m Mover) open(env *proto.Envelope) (inbox.Arrival, error) {
	header, err := proto.ParseHeader(env.GetHeader())
	if err != nil {
		return inbox.Arrival{}, err
	}
	checks := m.parts.Checks()
	checks.Self, checks.Member, checks.Now = header.Target, nil, time.UnixMilli(header.Created)
	opened, err := checks.Check(env)
	if err != nil {
		return inbox.Arrival{}, err
	}
	content := new(proto.Content)
	if err := proto.DecodeKnown(opened.Content, content); err != nil {
		return inbox.Arrival{}, err
	}
	if header.What != proto.WhatTask || content.GetQueue() == "" {
		return inbox.Arrival{}, identity.BadForm("it is not a task of a queue")
	}
	return inbox.Arrival{
		Header: header, Content: content, Envelope: env, Key: opened.Key,
		Digest: identity.EnvelopeLeaf(env.GetHeader(), env.GetBody(), proto.WhatTask),
	}, identity.CheckContent(&header, content)
}

// Check checks a task and decodes it.
func (m Mover) Check(from proto.PeerID, h *proto.Handoff) (ownership.Task, error) {
	a, err := m.arrival(h)
	if err != nil {
		return ownership.Task{}, fmt.Errorf("a task that %s hands over: %w", from.Short(), err)
	}
	t := handedTask(&a)
	if v := m.rule(a.Content, a.Header.Origin); v.Code == proto.CodeDenied {
		t.Denied = v.Detail
	}
	return t, nil
}

// handedTask converts a task that an old home hands over for the ownership subsystem.
func handedTask(a *inbox.Arrival) ownership.Task {
	c := a.Content
	return ownership.Task{
		ID: a.Header.ID, Origin: a.Header.Origin, Sent: a.Header.Target, Queue: c.GetQueue(), Kind: c.GetKind(), Class: c.GetClass(),
		Mode: c.GetMode(), Key: c.GetOrderingKey(), Block: c.GetOnDead() == "block",
		NotBefore: a.NotBefore(), NotAfter: a.NotAfter(), Options: c.GetOptions(),
	}
}

// Adopt prepares to accept a task that is handed over.
func (m Mover) Adopt(h *proto.Handoff) (into func(*store.Batch), drop func(), err error) {
	a, err := m.arrival(h)
	if err != nil {
		return nil, nil, err
	}
	ad, err := m.parts.Inbox.Adopt(&a)
	if err != nil {
		return nil, nil, err
	}
	into = func(b *store.Batch) {
		ad.Into(b)
		if a.Header.Streamed() {
			b.After(func() { m.parts.Bodies.Track(a.Header.ID, a.Header.Origin) })
		}
	}
	return into, ad.Drop, nil
}

// HandedOff removes tasks that their new home has accepted.
func (m Mover) HandedOff(ids []proto.TaskID, home proto.PeerID) {
	name, _ := m.parts.Book.Identify(home[:])
	if err := m.parts.Inbox.Moved(context.Background(), ids, name); err != nil {
		m.cfg.Logger.Warn("could not remove tasks that moved", "tasks", len(ids), "err", err)
	}
	for _, id := range ids {
		m.parts.Bodies.Untrack(id)
	}
}
