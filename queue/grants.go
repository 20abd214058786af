package queue

import (
	"context"
	"errors"
	"time"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/proto"
)

// Runner runs in the inbox what is granted to this node.
type Runner struct{ *Queues }

// Check checks a grant like any other incoming task: its signature, its queue, and
// whether this node would run it.
func (r Runner) Check(from proto.PeerID, g *proto.Grant) proto.Code {
	l, err := r.open(from, g, true)
	if err != nil {
		r.cfg.Logger.Debug("grant declined", "from", from, "err", err)
		if ce, ok := errors.AsType[*identity.CheckError](err); ok {
			return ce.Code
		}
		return proto.CodeBadForm
	}
	switch {
	case r.parts.Stopping() || r.drained.Load():
		return proto.CodeDraining
	case from != r.self && r.gossip.SelfPaused():
		return proto.CodeBusy // it considers itself unhealthy or isolated (I16)
	case from != r.self && r.parts.Store.Full():
		return proto.CodeFull // its own tasks are in this store, and free it by running
	}
	if code := r.parts.Grants.Room(l); code != 0 {
		return code
	}
	return r.parts.Inbox.Leasable(&l)
}

// open decodes the task of a grant. With check it also verifies the signature of the
// task's origin and the right of from to grant it.
func (r Runner) open(from proto.PeerID, g *proto.Grant, check bool) (inbox.Leased, error) {
	env := g.GetEnvelope()
	h, err := proto.ParseHeader(env.GetHeader())
	if err != nil {
		return inbox.Leased{}, err
	}
	checks := r.parts.Checks()
	// The task was sent to the home, which has checked its time by the clock of its origin;
	// its content key is wrapped for this node.
	checks.Self, checks.Signers = h.Target, time.UnixMilli(h.Created)
	var plain []byte
	var key [32]byte
	if check {
		opened, err := checks.Check(env)
		if err != nil {
			return inbox.Leased{}, err
		}
		plain, key = opened.Content, opened.Key
	} else if plain, key, err = r.parts.Keys.Open(env, &h); err != nil {
		return inbox.Leased{}, err
	}
	content := new(proto.Content)
	if err := proto.DecodeKnown(plain, content); err != nil {
		return inbox.Leased{}, err
	}
	switch {
	case h.What != proto.WhatTask || string(h.ID[:]) != string(g.GetClaim().GetTask()):
		return inbox.Leased{}, identity.BadForm("its task does not match its claim")
	case content.GetQueue() == "" || content.GetQueue() != g.GetQueue():
		return inbox.Leased{}, grantDenied("its origin did not send it to this queue")
	case !r.WasHome(g.GetQueue(), from):
		return inbox.Leased{}, grantDenied("it comes from a node that is not known here as a home of the queue")
	case check && !r.mayWork(from):
		return inbox.Leased{}, grantDenied("the home of a queue needs the role work")
	case (g.GetMode() == proto.AtMostOnce) != (content.GetMode() == proto.AtMostOnce) || g.GetLeftMs() > h.NotAfter-h.Created:
		return inbox.Leased{}, identity.BadForm("its mode differs from what its origin signed, or its time is longer")
	}
	if err := identity.CheckContent(&h, content); err != nil {
		return inbox.Leased{}, err
	}
	l := inbox.Leased{
		ID: h.ID, Body: h.ObjectFile(), Kind: content.GetKind(), Origin: h.Origin, Home: from, Queue: content.GetQueue(),
		Mode: content.GetMode(), Size: content.GetBodySize(), Attempts: content.GetOptions().GetMaxAttempts(), Envelope: env, Key: key,
	}
	for _, v := range content.GetDelegates() {
		p, err := proto.PeerIDFrom(v)
		if err != nil {
			return inbox.Leased{}, identity.BadForm("a delegate is not a valid peer id")
		}
		l.Delegates = append(l.Delegates, p)
	}
	return l, nil
}

func grantDenied(why string) error {
	return &identity.CheckError{Code: proto.CodeDenied, Err: errors.New(why)}
}

// Wait queues a task for a slot.
func (r Runner) Wait(from proto.PeerID, g *proto.Grant) {
	l, err := r.open(from, g, false)
	if err != nil {
		r.cfg.Logger.Error("could not decode a granted task again", "from", from, "err", err)
		return
	}
	r.parts.Grants.Fetch(l)
}

// Probe asks the handler of a task what it did before the node died.
func (r Runner) Probe(from proto.PeerID, g *proto.Grant) {
	l, err := r.open(from, g, false)
	if err != nil {
		id := proto.TaskID(g.GetClaim().GetTask())
		r.cfg.Logger.Error("could not decode a granted task again: an operator must check whether it ran", "task", id.String(), "from", from, "err", err)
		r.background.Go(func() { r.Probed(context.Background(), id, handler.Unknown, new(proto.Outcome)) }) // Probe is called by the goroutine that takes the answer
		return
	}
	l.Interrupted = &inbox.LeaseStart{Epoch: proto.Seq{Boot: g.GetClaim().GetEpochBoot(), Counter: g.GetClaim().GetEpochCounter()}, Attempt: g.GetAttempt()}
	r.parts.Grants.Fetch(l)
}

// Stop stops the wait or the run of a task.
func (r Runner) Stop(id proto.TaskID, cancelled, hard bool) {
	r.parts.Grants.Stop(id)
	r.parts.Inbox.StopLease(id, cancelled, hard)
}
