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
func (p *porter) admit(ctx context.Context, a *inbox.Arrival) (*arriving, *proto.OfferReply, error) {
	id, limit := a.Header.ID, p.node.cfg.Limits.QueueBodies
	p.mu.Lock()
	_, known := p.coming[id]
	full := !known && len(p.held)+len(p.coming) >= limit
	if !full {
		p.coming[id] = 0
	}
	p.mu.Unlock()
	if full {
		return nil, &proto.OfferReply{Code: proto.CodeFull, Detail: fmt.Sprintf("%d large bodies of queue tasks are stored here, which is the limit", limit)}, nil
	}
	sink, reply, err := p.node.takeIf(ctx, proto.CodeNeedBody, "", inbox.BodyName(id), &a.Header, a.Digest)
	if sink == nil {
		p.came(id, err == nil && reply.GetCode() == proto.CodeOK)
		return nil, reply, err
	}
	sink.ended = func(whole bool) { p.came(id, whole) }
	return sink, reply, err
}

// came records that the body of a task is complete, or that its stream ended early.
func (p *porter) came(id proto.TaskID, whole bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if delete(p.coming, id); whole && !p.held[id] {
		p.coming[id] = max(p.node.cfg.Clock.Mono(), 1)
	}
}

// hold counts a task of a queue if its body is large.
func (p *porter) hold(id proto.TaskID, r *proto.Record) {
	if r.GetBodyBlob() != "" && r.GetBodySize() > proto.MaxInlineBody {
		p.holdOne(id)
	}
}

func (p *porter) holdOne(id proto.TaskID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.coming, id)
	p.held[id] = true
}

// letGo forgets a task that has ended here with the result in file result, if not empty,
// or that has moved to another home. Results of its other runs are discarded.
func (p *porter) letGo(id proto.TaskID, result string) {
	p.mu.Lock()
	others := p.ends[id]
	delete(p.held, id)
	delete(p.coming, id)
	delete(p.looked, id)
	delete(p.ends, id)
	p.mu.Unlock()
	for _, name := range others {
		if name != result {
			p.discard(name)
		}
	}
}

// roomFor returns the reason why a task with a large body cannot be accepted now, or
// CodeOK.
func (p *porter) roomFor(l inbox.Leased) proto.Code {
	size, u := identity.SealedSize(int64(l.Size)), p.node.ground.blobs.Usage()
	switch {
	case l.Body == "" || l.Body == inbox.BodyName(l.ID):
		return proto.CodeOK
	case size > p.node.cfg.Store.MaxBlob:
		return proto.CodeTooLarge
	case p.node.ground.store.Full() || u.MaxTotal > 0 && u.Bytes+size > u.MaxTotal:
		return proto.CodeFull
	}
	return proto.CodeOK
}

// await lets a granted task wait for a slot once its body is here. The ownership
// subsystem calls it.
func (p *porter) await(l inbox.Leased, queue string) {
	if l.Body != "" && l.Body != inbox.BodyName(l.ID) {
		p.mu.Lock()
		p.ours[l.ID] = true
		if !(inboxBodies{p.node}).Has(l.Body) {
			p.awaits[l.ID] = &awaited{lease: l, queue: queue, moved: p.node.cfg.Clock.Mono()}
			p.send(func(context.Context) { p.node.queues.driver.Fetch(l.ID, true) })
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
	}
	p.node.inbox.Lease(l)
}

// stop no longer waits for the body of a task, and discards it unless a handler is using
// it.
func (p *porter) stop(id proto.TaskID) {
	p.mu.Lock()
	delete(p.awaits, id)
	p.mu.Unlock()
	if !p.node.inbox.Working(id) {
		p.ran(id)
	}
}

// ran discards the body of a task whose run here is over.
func (p *porter) ran(id proto.TaskID) {
	p.mu.Lock()
	had := p.ours[id]
	delete(p.ours, id)
	p.mu.Unlock()
	if had {
		p.discard(grantedBlob(id))
	}
}

// errUnawaited refuses a body that is no longer awaited.
var errUnawaited = &transport.CodeError{Code: proto.CodeStale, Detail: "the body is not awaited here"}

// offeredGrant accepts the body of a task granted to this node, from its home.
func (p *porter) offeredGrant(ctx context.Context, from proto.PeerID, env *proto.Envelope) (*arriving, *proto.OfferReply, error) {
	h, err := proto.ParseHeader(env.GetHeader())
	if err != nil {
		return nil, nil, err
	}
	p.mu.Lock()
	a := p.awaits[h.ID]
	p.mu.Unlock()
	stale := &proto.OfferReply{Code: errUnawaited.Code, Detail: errUnawaited.Detail}
	if a == nil || from != a.lease.Home && !p.node.queues.stands(queuePrefix+a.queue, from) {
		return nil, stale, nil
	}
	leaf := identity.EnvelopeLeaf(env.GetHeader(), env.GetBody(), proto.WhatTask)
	if leaf != identity.EnvelopeLeaf(a.lease.Envelope.GetHeader(), a.lease.Envelope.GetBody(), proto.WhatTask) {
		return nil, stale, nil
	}
	sink, reply, err := p.node.takeIf(ctx, proto.CodeNeedBody, "", a.lease.Body, &h, leaf)
	if sink != nil {
		sink.moved = func() error { return p.moved(h.ID) }
		sink.ended = func(whole bool) { p.fetched(h.ID, whole) }
	} else if err == nil && reply.GetCode() == proto.CodeOK {
		p.fetched(h.ID, true)
	}
	return sink, reply, err
}

// moved records that bytes of an awaited body arrived.
func (p *porter) moved(id proto.TaskID) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.awaits[id]
	if a == nil {
		return errUnawaited
	}
	a.moved = p.node.cfg.Clock.Mono()
	return nil
}

// fetched lets a task wait for a slot if its body is complete. A body that is no longer
// needed is removed only now, because it cannot be removed during its stream.
func (p *porter) fetched(id proto.TaskID, whole bool) {
	p.mu.Lock()
	a, needed := p.awaits[id], p.ours[id]
	if whole {
		delete(p.awaits, id)
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

// offeredEnd accepts the result of a lease if it would count in the current state (I4).
func (p *porter) offeredEnd(ctx context.Context, from proto.PeerID, m *proto.Message) (*arriving, *proto.OfferReply, error) {
	h, o, err := leaseSeals{p.node}.open(from, m)
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
	sink, reply, err := p.node.takeInto(ctx, p.node.ground.blobs.Essential(), code, "the result does not count here: "+code.Name(), name, h, leaf)
	if sink != nil {
		p.mu.Lock()
		if !slices.Contains(p.ends[h.ID], name) {
			p.ends[h.ID] = append(p.ends[h.ID], name)
		}
		p.mu.Unlock()
		sink.ended = func(bool) { p.endCame(h.ID, name) }
	}
	return sink, reply, err
}

// endCame removes a result whose task was dropped in the meantime. That is impossible
// before its stream ends, which takes a while if the owner is dead.
func (p *porter) endCame(id proto.TaskID, name string) {
	p.mu.Lock()
	wanted := slices.Contains(p.ends[id], name)
	p.mu.Unlock()
	if !wanted {
		p.discard(name)
	}
}

// offeredHandoff accepts the body of a task that an old home hands over.
func (p *porter) offeredHandoff(ctx context.Context, from proto.PeerID, env *proto.Envelope) (*arriving, *proto.OfferReply, error) {
	a, err := mover{p.node}.opened(env)
	if err != nil {
		return nil, nil, err
	}
	code, detail := proto.CodeNeedBody, ""
	may, err := p.node.queues.driver.MayHandOff(ctx, from, movedTask(&a))
	switch {
	case err != nil:
		code, detail = proto.CodeBusy, "the node is stopping"
	case !may || !p.node.queues.stands(queuePrefix+a.Content.GetQueue(), p.node.keys.Peer()):
		code, detail = proto.CodeBusy, "this node does not know yet that the sender hands the queue over to it"
	}
	return p.node.takeIf(ctx, code, detail, inbox.BodyName(a.Header.ID), &a.Header, a.Digest)
}

// absent reports whether the body of a result is missing or not verified yet. If the
// body is here, absent starts the verification, after which the result is received
// again. If a result fails verification maxSpoilt times, its task ends with that reason
// (I9).
func (p *porter) absent(from proto.PeerID, m *proto.Message, id proto.TaskID, o *proto.Outcome) bool {
	name := leasedBlob(id, o.GetBodyKey())
	p.mu.Lock()
	right, spoilt := p.looked[id] == name, p.spoilt[name]
	p.mu.Unlock()
	has := (inboxBodies{p.node}).Has(name)
	switch {
	case spoilt >= maxSpoilt:
		sum := sha256.Sum256(nil)
		o.State, o.Reason = proto.DeadLetter, "its result does not match its digest (I9)"
		o.Body, o.BodySize, o.BodyDigest, o.BodyKey, o.BodySuite = nil, 0, sum[:], nil, 0
		return false
	case right && has:
		return false
	case has:
		p.once(errand{proto.TypeResult, id, from}, func(ctx context.Context) { p.look(ctx, from, m, id, name, o) })
	}
	return true
}

// look verifies the body of a result and then passes the result on again.
func (p *porter) look(ctx context.Context, from proto.PeerID, m *proto.Message, id proto.TaskID, name string, o *proto.Outcome) {
	err := p.digest(ctx, name, o)
	switch {
	case errors.Is(err, errForgedBody):
		p.node.log.Error("the body of a result does not match its digest", "task", id.String(), "from", from)
		p.mu.Lock()
		p.spoilt[name]++
		p.mu.Unlock()
		p.node.forgetArrived(name)
	case err != nil:
		p.node.log.Debug("could not read the body of a result", "task", id.String(), "err", err)
		return // the owner sends it again
	default:
		p.mu.Lock()
		p.looked[id] = name
		p.mu.Unlock()
	}
	if err := p.node.queues.driver.Receive(from, m); err != nil {
		p.node.log.Debug("result dropped", "task", id.String(), "from", from, "err", err)
	}
}

// digest checks the sealed body of a result against its signed size and digest.
func (p *porter) digest(ctx context.Context, name string, o *proto.Outcome) error {
	r, err := openSealed(p.node.ground.blobs, name, [32]byte(o.GetBodyKey()), byte(o.GetBodySuite()), proto.WhatResult)
	if err != nil {
		return err
	}
	defer r.Close()
	sum := sha256.New()
	size, err := io.Copy(sum, contextual{ctx, r})
	switch {
	case err != nil:
		return err
	case uint64(size) != o.GetBodySize() || string(sum.Sum(nil)) != string(o.GetBodyDigest()):
		return errForgedBody
	}
	return nil
}

// pack seals the file with the result of a run, for whichever node is the home when the
// result is sent. If it cannot be stored, the run has failed and may be retried.
func (p *porter) pack(ctx context.Context, id proto.TaskID, e inbox.LeaseEnd) inbox.LeaseEnd {
	pause := packPause
	for try := 1; ; try++ {
		err := p.tryPack(ctx, id, e)
		switch {
		case err == nil:
			e.File = ""
			return e
		case ctx.Err() != nil:
			return inbox.LeaseEnd{Cause: proto.CauseStopped, Reason: "the node stopped before the result was stored"}
		case try == packTries:
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

func (p *porter) tryPack(ctx context.Context, id proto.TaskID, e inbox.LeaseEnd) error {
	file, err := os.Open(e.File)
	if err != nil {
		return err
	}
	defer file.Close()
	key, suite := newContentKey(), p.node.keys.SealingKey().Suite
	name := leasedBlob(id, key[:])
	p.mu.Lock()
	p.own[id] = name
	p.mu.Unlock()
	size, sum, err := p.node.sealInto(ctx, p.node.ground.blobs.Essential(), name, key, suite, proto.WhatResult, file)
	if err != nil {
		p.mu.Lock()
		delete(p.own, id)
		p.mu.Unlock()
		return p.node.bodyError(err)
	}
	o := e.Outcome
	o.BodySize, o.BodyDigest, o.BodyKey, o.BodySuite = uint64(size), sum, key[:], uint32(suite)
	return nil
}

var _ ownership.Bodies = (*porter)(nil)
