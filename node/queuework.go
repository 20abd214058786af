package node

import (
	"context"
	"errors"
	"fmt"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/ownership"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// ownershipCustody gives the ownership subsystem access to the tasks of its queues, which are
// stored in the inbox.
type ownershipCustody struct{ node *Node }

// Tasks returns the tasks that have not ended.
func (c ownershipCustody) Tasks() ([]ownership.Task, error) {
	found, err := c.node.inbox.Queued()
	if err != nil {
		return nil, err
	}
	all := make([]ownership.Task, len(found))
	for i, l := range found {
		all[i] = leaseTask(l.Key.ID, l.Record)
		all[i].MayHaveRun = c.node.mayHaveRun(l.Record)
		c.node.bodyTransfer.track(l.Key.ID, l.Record)
	}
	return all, nil
}

// mayHaveRun reports whether a task may have run according to records that this node's
// store has lost.
func (n *Node) mayHaveRun(r *proto.Record) ownership.MayHaveRun {
	switch may, here := n.inbox.MayHaveRun(r); {
	case here:
		return ownership.PresentBeforeLoss
	case may:
		return ownership.CreatedBeforeLoss
	}
	return ownership.CertainlyNotRun
}

// Envelope returns a task as signed by its origin, with the content key wrapped for p.
func (c ownershipCustody) Envelope(id proto.TaskID, p proto.PeerID) (*proto.Envelope, error) {
	n := c.node
	st, err := n.inbox.QueuedTask(id)
	if err != nil {
		return nil, err
	}
	to, ok := n.book.KeyRecord(p)
	switch {
	case !ok:
		return nil, fmt.Errorf("the sealing key of %s is not known", p.Short())
	case !n.mayWork(p):
		return nil, fmt.Errorf("%s does not have the role work", p.Short())
	}
	if len(st.GetKey()) != 32 {
		return nil, fmt.Errorf("the content key of %s is not stored", id)
	}
	e := st.GetEnvelope()
	slot, err := n.sealer.WrapKey(e.GetHeader(), to, [32]byte(st.GetKey()))
	if err != nil {
		return nil, err
	}
	return &proto.Envelope{Header: e.GetHeader(), Body: e.GetBody(), Slot: slot, Path: e.GetPath(), Index: e.GetIndex(), Signature: e.GetSignature()}, nil
}

// End ends a task with the owner's outcome, or with the home's if the home ended it
// itself.
func (c ownershipCustody) End(ctx context.Context, e ownership.End, o *proto.Outcome, also func(*store.Batch)) error {
	out := &proto.Outcome{State: e.State, Reason: e.Reason}
	if o != nil {
		out.ExitCode, out.Stderr, out.Body, out.BodyDigest = o.GetExitCode(), o.GetStderr(), o.GetBody(), o.GetBodyDigest()
		out.ContentType, out.Truncated, out.StartedMs = o.GetContentType(), o.GetTruncated(), o.GetStartedMs()
		out.BodySize, out.BodyKey, out.BodySuite = o.GetBodySize(), o.GetBodyKey(), o.GetBodySuite()
	}
	defer c.node.bodyTransfer.untrack(e.Task, leasedBlob(e.Task, out.BodyKey))
	for i, g := range e.Grants {
		name, _ := c.node.peerNameID(g.GetOwner())
		a := &proto.Attempt{Number: uint32(i + 1), StartedMs: g.GetTimeMs(), FinishedMs: g.GetEndedMs(), ExitCode: out.ExitCode, Error: proto.Clip(g.GetEnded(), 128)}
		switch {
		case g.GetEnded() != ownership.EndedByResult:
			a.ExitCode = 0
		case e.State == proto.Success:
			a.Error = ""
		default:
			a.Error = proto.Clip(out.Reason, 128)
		}
		out.Attempts = append(out.Attempts, a)
		out.Events = append(out.Events, g.Event(uint32(i+1), name))
	}
	return c.node.inbox.EndQueued(ctx, e.Task, out, also)
}

// ownershipRunner runs in the inbox what is granted to this node.
type ownershipRunner struct{ node *Node }

// Check checks a grant like any other incoming task: its signature, its queue, and
// whether this node would run it.
func (r ownershipRunner) Check(from proto.PeerID, g *proto.Grant) proto.Code {
	l, err := r.open(from, g, true)
	if err != nil {
		r.node.log.Debug("grant declined", "from", from, "err", err)
		if ce, ok := errors.AsType[*identity.CheckError](err); ok {
			return ce.Code
		}
		return proto.CodeBadForm
	}
	switch {
	case r.node.draining.Load() || r.node.queues.drained.Load():
		return proto.CodeDraining
	case from != r.node.keys.Peer() && r.node.gossip.SelfPaused():
		return proto.CodeBusy // it considers itself unhealthy or isolated (I16)
	}
	if code := r.node.bodyTransfer.checkSpace(l); code != 0 {
		return code
	}
	return r.node.inbox.Leasable(l.Kind, l.Origin, l.Delegates, l.Size)
}

// open decodes the task of a grant. With check it also verifies the signature of the
// task's origin and the right of from to grant it.
func (r ownershipRunner) open(from proto.PeerID, g *proto.Grant, check bool) (inbox.Leased, error) {
	n, env := r.node, g.GetEnvelope()
	h, err := proto.ParseHeader(env.GetHeader())
	if err != nil {
		return inbox.Leased{}, err
	}
	checks := n.checks()
	checks.Self = h.Target // the task was sent to the home; its content key is wrapped for this node
	var plain []byte
	var key [32]byte
	if check {
		opened, err := checks.Check(env)
		if err != nil {
			return inbox.Leased{}, err
		}
		plain, key = opened.Content, opened.Key
	} else if plain, key, err = n.keys.Open(env, &h); err != nil {
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
	case !n.queues.driver.WasHome(g.GetQueue(), from):
		return inbox.Leased{}, grantDenied("it comes from a node that is not known here as a home of the queue")
	case check && !n.mayWork(from):
		return inbox.Leased{}, grantDenied("the home of a queue needs the role work")
	case atMostOnce(g.GetMode()) != atMostOnce(content.GetMode()) || g.GetNotAfterMs() != h.NotAfter:
		return inbox.Leased{}, identity.BadForm("its mode or expiry time differs from what its origin signed")
	}
	if err := identity.CheckContent(&h, content); err != nil {
		return inbox.Leased{}, err
	}
	l := inbox.Leased{ID: h.ID, Kind: content.GetKind(), Origin: h.Origin, Home: from, Mode: content.GetMode(), Size: content.GetBodySize(), Attempts: content.GetMaxAttempts(), Envelope: env, Key: key}
	switch {
	case !h.Streamed():
	case from == n.keys.Peer():
		l.Body = inbox.BodyName(h.ID)
	default:
		l.Body = grantedBlob(h.ID)
	}
	for _, v := range content.GetVouchers() {
		p, err := proto.PeerIDFrom(v)
		if err != nil {
			return inbox.Leased{}, identity.BadForm("a voucher is not a valid peer id")
		}
		l.Delegates = append(l.Delegates, p)
	}
	return l, nil
}

func atMostOnce(m proto.Mode) bool { return m == proto.AtMostOnce }

func grantDenied(why string) error {
	return &identity.CheckError{Code: proto.CodeDenied, Err: errors.New(why)}
}

// Wait queues a task for a slot.
func (r ownershipRunner) Wait(from proto.PeerID, g *proto.Grant) {
	l, err := r.open(from, g, false)
	if err != nil {
		r.node.log.Error("could not decode a granted task again", "from", from, "err", err)
		return
	}
	r.node.bodyTransfer.fetch(l, g.GetQueue())
}

// Probe asks the handler of a task what it did before the node died.
func (r ownershipRunner) Probe(from proto.PeerID, g *proto.Grant) {
	l, err := r.open(from, g, false)
	if err != nil {
		id := proto.TaskID(g.GetClaim().GetTask())
		r.node.log.Error("could not decode a granted task again: an operator must check whether it ran", "task", id.String(), "from", from, "err", err)
		go r.node.queues.Probed(context.Background(), id, handler.Unknown, new(proto.Outcome)) // in a goroutine: Probe is called by the goroutine that takes the answer
		return
	}
	l.ProbeOnly = true
	r.node.bodyTransfer.fetch(l, g.GetQueue())
}

// Stop stops the wait or the run of a task.
func (r ownershipRunner) Stop(id proto.TaskID, cancelled bool) {
	r.node.bodyTransfer.stopFetch(id)
	r.node.inbox.StopLease(id, cancelled)
}

// ownershipSealer encrypts and signs results on their way from an owner to a home.
type ownershipSealer struct{ node *Node }

// Seal seals outcomes for a home and signs them as a group.
func (s ownershipSealer) Seal(home proto.PeerID, all []ownership.SealRequest) ([]*proto.Envelope, error) {
	n := s.node
	to, ok := n.book.KeyRecord(home)
	if !ok {
		return nil, fmt.Errorf("the sealing key of %s is not known", home.Short())
	}
	now := n.cfg.Clock.Now()
	sealed, leaves := make([]*proto.Envelope, len(all)), make([][32]byte, len(all))
	for i, x := range all {
		plain, err := proto.Encode(nil, x.Outcome)
		if err != nil {
			return nil, err
		}
		h := proto.Header{
			What: proto.WhatResult, Mesh: n.mesh.ID, ID: x.Task, Origin: n.keys.Peer(), Target: home,
			Seq:     proto.Seq{Boot: x.Outcome.GetEpochBoot(), Counter: x.Outcome.GetEpochCounter()},
			Created: now.UnixMilli(), NotAfter: now.Add(proto.MaxTTL).UnixMilli(),
		}
		if len(x.Outcome.GetBodyKey()) > 0 {
			h.SetStream(uint64(identity.SealedSize(int64(x.Outcome.GetBodySize()))), proto.ChunkSize)
		}
		if sealed[i], _, err = n.sealer.Seal(&h, to, plain); err != nil {
			return nil, err
		}
		leaves[i] = identity.EnvelopeLeaf(sealed[i].GetHeader(), sealed[i].GetBody(), h.What)
	}
	sig, proofs := n.keys.SignGroup(leaves)
	for i, e := range sealed {
		e.Signature, e.Index, e.Path = sig, proofs[i].Index, proofs[i].Path
	}
	return sealed, nil
}

// Unseal verifies and decodes the sealed result of an owner.
func (s ownershipSealer) Unseal(from proto.PeerID, m *proto.Message) (u ownership.Unsealed, err error) {
	h, o, err := s.open(from, m)
	if err != nil {
		u.Task = taskOfResult(m)
		return u, err
	}
	u = ownership.Unsealed{Task: h.ID, Outcome: o}
	if h.Streamed() {
		u.Absent = s.node.bodyTransfer.resultMissing(from, m, h.ID, o)
	}
	return u, nil
}

// taskOfResult returns the task of a sealed result, or zero if it cannot be decoded.
func taskOfResult(m *proto.Message) (id proto.TaskID) {
	env := new(proto.Envelope)
	if proto.DecodeKnown(m.GetPayload(), env) != nil {
		return id
	}
	if h, err := proto.ParseHeader(env.GetHeader()); err == nil {
		id = h.ID
	}
	return id
}

// open verifies and decodes the sealed result of an owner, except a streamed body.
func (s ownershipSealer) open(from proto.PeerID, m *proto.Message) (*proto.Header, *proto.Outcome, error) {
	env, o := new(proto.Envelope), new(proto.Outcome)
	if err := proto.DecodeKnown(m.GetPayload(), env); err != nil {
		return nil, nil, err
	}
	opened, err := s.node.checks().Check(env)
	if err != nil {
		return nil, nil, err
	}
	h := &opened.Header
	if h.What != proto.WhatResult || h.Origin != from {
		return nil, nil, identity.BadForm("it is not a result of %s", from.Short())
	}
	if err := proto.DecodeKnown(opened.Content, o); err != nil {
		return nil, nil, err
	}
	sealed, _, streamed := h.Stream()
	if !streamed {
		o.BodyKey, o.BodySuite = nil, 0
		return h, o, identity.CheckBody(o.GetBody(), o.GetBodySize(), o.GetBodyDigest())
	}
	plain, err := identity.PlainSize(int64(sealed))
	if err != nil || uint64(plain) != o.GetBodySize() || len(o.GetBodyKey()) != 32 || len(o.GetBodyDigest()) != 32 || len(o.GetBody()) > 0 {
		return nil, nil, identity.BadForm("its stream has %d bytes, its content states %d", plain, o.GetBodySize())
	}
	if o.GetBodySuite() > 255 {
		return nil, nil, identity.BadForm("suite %d does not exist", o.GetBodySuite())
	}
	if _, err := identity.NewStreamOpener([32]byte(o.GetBodyKey()), byte(o.GetBodySuite()), proto.WhatResult); err != nil {
		return nil, nil, &identity.CheckError{Code: proto.CodeUnknownVersion, Err: err}
	}
	return h, o, nil
}
