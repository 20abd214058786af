package node

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/ownership"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
)

// admit accepts the body of a task for a queue here, unless the limit of such bodies is
// reached.
func (p *bodyTransfer) admit(ctx context.Context, a *inbox.Arrival) (*incomingBody, *proto.OfferReply, error) {
	id, limit := a.Header.ID, p.node.cfg.Limits.QueueBodies
	p.mu.Lock()
	_, known := p.arriving[id]
	full := !known && len(p.queued)+len(p.arriving) >= limit
	if !full {
		p.arriving[id] = 0
	}
	p.mu.Unlock()
	if full {
		return nil, &proto.OfferReply{Code: proto.CodeFull, Detail: fmt.Sprintf("%d large bodies of queue tasks are stored here, which is the limit", limit)}, nil
	}
	sink, reply, err := p.node.openBody(ctx, proto.CodeNeedBody, "", inbox.BodyName(id), &a.Header, a.Digest)
	if sink == nil {
		p.arrived(id, err == nil && reply.GetCode() == proto.CodeOK)
		return nil, reply, err
	}
	sink.onEnd = func(whole bool) { p.arrived(id, whole) }
	return sink, reply, err
}

// arrived records that the body of a task is complete, or that its stream ended early.
func (p *bodyTransfer) arrived(id proto.TaskID, whole bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if delete(p.arriving, id); whole && !p.queued[id] {
		p.arriving[id] = max(p.node.cfg.Clock.Mono(), 1)
	}
}

// track counts a task of a queue if its body is large.
func (p *bodyTransfer) track(id proto.TaskID, r *proto.Record) {
	if r.GetBodyBlob() != "" && r.GetBodySize() > proto.MaxInlineBody {
		p.trackOne(id)
	}
}

func (p *bodyTransfer) trackOne(id proto.TaskID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.arriving, id)
	p.queued[id] = true
}

// untrack forgets a task that has ended here with the result in file result, if not empty,
// or that has moved to another home. Results of its other runs are discarded.
func (p *bodyTransfer) untrack(id proto.TaskID, result string) {
	p.mu.Lock()
	others := p.ownerResults[id]
	delete(p.queued, id)
	delete(p.arriving, id)
	delete(p.verified, id)
	delete(p.ownerResults, id)
	p.mu.Unlock()
	for _, name := range others {
		if name != result {
			p.discard(name)
		}
	}
}

// checkSpace returns the reason why a task with a large body cannot be accepted now, or
// CodeOK.
func (p *bodyTransfer) checkSpace(l inbox.Leased) proto.Code {
	size, u := identity.SealedSize(int64(l.Size)), p.node.storage.blobs.Usage()
	switch {
	case l.Body == "" || l.Body == inbox.BodyName(l.ID):
		return proto.CodeOK
	case size > p.node.cfg.Store.MaxBlob:
		return proto.CodeTooLarge
	case p.node.storage.store.Full() || u.MaxTotal > 0 && u.Bytes+size > u.MaxTotal:
		return proto.CodeFull
	}
	return proto.CodeOK
}

// fetch lets a granted task wait for a slot once its body is here. The ownership
// subsystem calls it.
func (p *bodyTransfer) fetch(l inbox.Leased, queue string) {
	if l.Body != "" && l.Body != inbox.BodyName(l.ID) {
		p.mu.Lock()
		p.granted[l.ID] = true
		if !(inboxBodies{p.node}).Has(l.Body) {
			p.fetching[l.ID] = &bodyFetch{lease: l, queue: queue, progressAt: p.node.cfg.Clock.Mono()}
			p.enqueue(func(context.Context) { p.node.queues.driver.Fetch(l.ID, true) })
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
	}
	p.node.inbox.Lease(l)
}

// stopFetch no longer waits for the body of a task, and discards it unless a handler is using
// it.
func (p *bodyTransfer) stopFetch(id proto.TaskID) {
	p.mu.Lock()
	delete(p.fetching, id)
	p.mu.Unlock()
	if !p.node.inbox.Working(id) {
		p.release(id)
	}
}

// release discards the body of a task whose run here is over.
func (p *bodyTransfer) release(id proto.TaskID) {
	p.mu.Lock()
	had := p.granted[id]
	delete(p.granted, id)
	p.mu.Unlock()
	if had {
		p.discard(grantedBlob(id))
	}
}

// errNotAwaited refuses a body that is no longer awaited.
var errNotAwaited = &transport.CodeError{Code: proto.CodeStale, Detail: "the body is not awaited here"}

// offerGrant accepts the body of a task granted to this node, from its home.
func (p *bodyTransfer) offerGrant(ctx context.Context, from proto.PeerID, env *proto.Envelope) (*incomingBody, *proto.OfferReply, error) {
	h, err := proto.ParseHeader(env.GetHeader())
	if err != nil {
		return nil, nil, err
	}
	p.mu.Lock()
	a := p.fetching[h.ID]
	p.mu.Unlock()
	stale := &proto.OfferReply{Code: errNotAwaited.Code, Detail: errNotAwaited.Detail}
	if a == nil || from != a.lease.Home && !p.node.queues.isHome(queuePrefix+a.queue, from) {
		return nil, stale, nil
	}
	leaf := identity.EnvelopeLeaf(env.GetHeader(), env.GetBody(), proto.WhatTask)
	if leaf != identity.EnvelopeLeaf(a.lease.Envelope.GetHeader(), a.lease.Envelope.GetBody(), proto.WhatTask) {
		return nil, stale, nil
	}
	sink, reply, err := p.node.openBody(ctx, proto.CodeNeedBody, "", a.lease.Body, &h, leaf)
	if sink != nil {
		sink.onProgress = func() error { return p.progressed(h.ID) }
		sink.onEnd = func(whole bool) { p.fetched(h.ID, whole) }
	} else if err == nil && reply.GetCode() == proto.CodeOK {
		p.fetched(h.ID, true)
	}
	return sink, reply, err
}

// progressed records that bytes of an awaited body arrived.
func (p *bodyTransfer) progressed(id proto.TaskID) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.fetching[id]
	if a == nil {
		return errNotAwaited
	}
	a.progressAt = p.node.cfg.Clock.Mono()
	return nil
}

// fetched lets a task wait for a slot if its body is complete. A body that is no longer
// needed is removed only now, because it cannot be removed during its stream.
func (p *bodyTransfer) fetched(id proto.TaskID, whole bool) {
	p.mu.Lock()
	a, needed := p.fetching[id], p.granted[id]
	if whole {
		delete(p.fetching, id)
	}
	p.mu.Unlock()
	if !needed {
		p.discard(grantedBlob(id))
	}
	if a == nil || !whole {
		return
	}
	p.node.queues.driver.Fetch(id, false)
	p.node.inbox.Lease(a.lease)
}

// offerResult accepts the result of a lease if it would count in the current state (I4).
func (p *bodyTransfer) offerResult(ctx context.Context, from proto.PeerID, m *proto.Message) (*incomingBody, *proto.OfferReply, error) {
	h, o, err := ownershipSealer{p.node}.open(from, m)
	if err != nil {
		return nil, nil, err
	}
	if !h.Streamed() {
		return nil, nil, badForm("the envelope has no streamed body")
	}
	code, err := p.node.queues.driver.PreviewResult(ctx, from, h.ID, o)
	switch {
	case err != nil:
		return nil, &proto.OfferReply{Code: proto.CodeBusy, Detail: "the node is stopping"}, nil
	case code == proto.CodeOK:
		return nil, &proto.OfferReply{Code: proto.CodeDuplicate, Detail: "the result is already committed"}, nil
	case code == proto.CodeTooLarge:
		sealed, _, _ := h.Stream()
		return nil, &proto.OfferReply{Offset: sealed}, nil // the result ends the task without its body
	}
	// Each try seals the envelope again, but not the body.
	leaf := sha256.Sum256(append(append([]byte("balefire/v1/lease result\x00"), o.GetBodyKey()...), o.GetBodyDigest()...))
	name := leasedBlob(h.ID, o.GetBodyKey())
	// It must be accepted even if there is no space for new work, because it frees the
	// body of its task (I13).
	sink, reply, err := p.node.openBodyIn(ctx, p.node.storage.blobs.Essential(), code, "the result does not count here: "+code.Name(), name, h, leaf)
	if sink != nil {
		p.mu.Lock()
		if !slices.Contains(p.ownerResults[h.ID], name) {
			p.ownerResults[h.ID] = append(p.ownerResults[h.ID], name)
		}
		p.mu.Unlock()
		sink.onEnd = func(bool) { p.resultArrived(h.ID, name) }
	}
	return sink, reply, err
}

// resultArrived removes a result whose task was dropped in the meantime. That is impossible
// before its stream ends, which takes a while if the owner is dead.
func (p *bodyTransfer) resultArrived(id proto.TaskID, name string) {
	p.mu.Lock()
	wanted := slices.Contains(p.ownerResults[id], name)
	p.mu.Unlock()
	if !wanted {
		p.discard(name)
	}
}

// offerHandoff accepts the body of a task that an old home hands over.
func (p *bodyTransfer) offerHandoff(ctx context.Context, from proto.PeerID, env *proto.Envelope) (*incomingBody, *proto.OfferReply, error) {
	a, err := ownershipMover{p.node}.open(env)
	if err != nil {
		return nil, nil, err
	}
	code, detail := proto.CodeNeedBody, ""
	may, err := p.node.queues.driver.MayHandOff(ctx, from, handoffTask(&a))
	switch {
	case err != nil:
		code, detail = proto.CodeBusy, "the node is stopping"
	case !may || !p.node.queues.isHome(queuePrefix+a.Content.GetQueue(), p.node.keys.Peer()):
		code, detail = proto.CodeBusy, "this node does not know yet that the sender hands the queue over to it"
	}
	return p.node.openBody(ctx, code, detail, inbox.BodyName(a.Header.ID), &a.Header, a.Digest)
}

// resultMissing reports whether the body of a result is missing or not verified yet. If the
// body is here, absent starts the verification, after which the result is received
// again. If a result fails verification maxSpoilt times, its task ends with that reason
// (I9).
func (p *bodyTransfer) resultMissing(from proto.PeerID, m *proto.Message, id proto.TaskID, o *proto.Outcome) bool {
	name := leasedBlob(id, o.GetBodyKey())
	p.mu.Lock()
	right, corrupt := p.verified[id] == name, p.corrupt[name]
	p.mu.Unlock()
	has := (inboxBodies{p.node}).Has(name)
	switch {
	case corrupt >= maxCorrupt:
		sum := sha256.Sum256(nil)
		o.State, o.Reason = proto.DeadLetter, "its result does not match its digest (I9)"
		o.Body, o.BodySize, o.BodyDigest, o.BodyKey, o.BodySuite = nil, 0, sum[:], nil, 0
		return false
	case right && has:
		return false
	case has:
		p.enqueueOnce(transferKey{proto.TypeResult, id, from}, func(ctx context.Context) { p.verify(ctx, from, m, id, name, o) })
	}
	return true
}

// verify verifies the body of a result and then passes the result on again.
func (p *bodyTransfer) verify(ctx context.Context, from proto.PeerID, m *proto.Message, id proto.TaskID, name string, o *proto.Outcome) {
	err := p.digest(ctx, name, o)
	switch {
	case errors.Is(err, errForgedBody):
		p.node.log.Error("the body of a result does not match its digest", "task", id.String(), "from", from)
		p.mu.Lock()
		p.corrupt[name]++
		p.mu.Unlock()
		p.node.removeSealed(name)
	case err != nil:
		p.node.log.Debug("could not read the body of a result", "task", id.String(), "err", err)
		return // the owner sends it again
	default:
		p.mu.Lock()
		p.verified[id] = name
		p.mu.Unlock()
	}
	if err := p.node.queues.driver.Receive(from, m); err != nil {
		p.node.log.Debug("result dropped", "task", id.String(), "from", from, "err", err)
	}
}

// digest checks the sealed body of a result against its signed size and digest.
func (p *bodyTransfer) digest(ctx context.Context, name string, o *proto.Outcome) error {
	r, err := openSealed(p.node.storage.blobs, name, [32]byte(o.GetBodyKey()), byte(o.GetBodySuite()), proto.WhatResult)
	if err != nil {
		return err
	}
	defer r.Close()
	sum := sha256.New()
	size, err := io.Copy(sum, contextReader{ctx, r})
	switch {
	case err != nil:
		return err
	case uint64(size) != o.GetBodySize() || string(sum.Sum(nil)) != string(o.GetBodyDigest()):
		return errForgedBody
	}
	return nil
}

// sealResult seals the file with the result of a run, for whichever node is the home when the
// result is sent. If it cannot be stored, the run has failed and may be retried.
func (p *bodyTransfer) sealResult(ctx context.Context, id proto.TaskID, e inbox.LeaseEnd) inbox.LeaseEnd {
	pause := sealBackoff
	for try := 1; ; try++ {
		err := p.trySealResult(ctx, id, e)
		switch {
		case err == nil:
			e.File = ""
			return e
		case ctx.Err() != nil:
			return inbox.LeaseEnd{Cause: proto.CauseStopped, Reason: "the node stopped before the result was stored"}
		case try == sealTries:
			why := fmt.Sprintf("its result of %d bytes could not be stored: %v", e.Outcome.GetBodySize(), err)
			return inbox.LeaseEnd{Cause: proto.CauseFailed, Reason: proto.Clip(why, proto.MaxReason)}
		}
		p.node.log.Warn("could not store a large result; will retry", "task", id.String(), "try", try, "err", err)
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			t.Stop()
		case <-t.C:
		}
		pause *= 2
	}
}

func (p *bodyTransfer) trySealResult(ctx context.Context, id proto.TaskID, e inbox.LeaseEnd) error {
	file, err := os.Open(e.File)
	if err != nil {
		return err
	}
	defer file.Close()
	key, suite := newContentKey(), p.node.keys.SealingKey().Suite
	name := leasedBlob(id, key[:])
	p.mu.Lock()
	p.ownResults[id] = name
	p.mu.Unlock()
	size, sum, err := p.node.sealInto(ctx, p.node.storage.blobs.Essential(), name, key, suite, proto.WhatResult, file)
	if err != nil {
		p.mu.Lock()
		delete(p.ownResults, id)
		p.mu.Unlock()
		return p.node.bodyError(err)
	}
	o := e.Outcome
	o.BodySize, o.BodyDigest, o.BodyKey, o.BodySuite = uint64(size), sum, key[:], uint32(suite)
	return nil
}

var _ ownership.Bodies = (*bodyTransfer)(nil)
