package node

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/balefire/balefire/bodies"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/queue"
	"github.com/balefire/balefire/transport"
)

// admit accepts the body of a task for a queue here, unless the limit of such bodies is
// reached.
func (bt *bodyTransfer) admit(a *inbox.Arrival, object *bodies.Manifest) (*incomingBody, *proto.OfferReply, error) {
	id, limit := a.Header.ID, bt.node.cfg.Limits.QueueBodies
	bt.mu.Lock()
	_, known := bt.arriving[id]
	full := !known && len(bt.queued)+len(bt.arriving) >= limit
	if !full {
		bt.arriving[id] = 0
	}
	bt.mu.Unlock()
	if full {
		return nil, &proto.OfferReply{Code: proto.CodeFull, Detail: fmt.Sprintf("%d large bodies of queue tasks are stored here, which is the limit", limit)}, nil
	}
	sink, reply, err := bt.node.openBody(proto.CodeNeedBody, "", &a.Header, object, bodies.Terms{})
	if sink == nil {
		bt.arrived(id, err == nil && reply.GetCode() == proto.CodeOK)
		return nil, reply, err
	}
	sink.onEnd = func(whole bool) { bt.arrived(id, whole) }
	return sink, reply, err
}

// arrived records that the body of a task is complete, or that its stream ended early.
func (bt *bodyTransfer) arrived(id proto.TaskID, whole bool) {
	bt.mu.Lock()
	defer bt.mu.Unlock()
	if delete(bt.arriving, id); whole && !bt.queued[id] {
		bt.arriving[id] = max(bt.node.cfg.Clock.Mono(), 1)
	}
}

// Track counts a task of a queue whose body is large.
func (bt *bodyTransfer) Track(id proto.TaskID) {
	bt.mu.Lock()
	defer bt.mu.Unlock()
	delete(bt.arriving, id)
	bt.queued[id] = true
}

// Has reports whether the object that a header names is here.
func (bt *bodyTransfer) Has(h *proto.Header) bool {
	return bt.node.storage.Blobs.Has(objectOf(h))
}

// Untrack forgets a task that has ended here or has moved to another home, and the results
// of its runs that no record refers to.
func (bt *bodyTransfer) Untrack(id proto.TaskID) {
	bt.mu.Lock()
	others := bt.ownerResults[id]
	delete(bt.queued, id)
	delete(bt.arriving, id)
	delete(bt.verified, id)
	delete(bt.ownerResults, id)
	bt.mu.Unlock()
	for _, name := range others {
		bt.node.storage.Blobs.Drop(name)
	}
}

// Room returns the reason why a task with a large body cannot be accepted now, or
// CodeOK.
func (bt *bodyTransfer) Room(l inbox.Leased) proto.Code {
	h, err := proto.ParseHeader(l.Envelope.GetHeader())
	_, size, _ := h.Object()
	u := bt.node.storage.Blobs.Usage()
	switch {
	case err != nil || l.Body == "" || bt.node.storage.Blobs.Has(l.Body):
		return proto.CodeOK
	case size > bt.node.cfg.Store.MaxBlob:
		return proto.CodeTooLarge
	case bt.node.storage.Store.Full() || u.MaxTotal > 0 && u.Bytes+size > u.MaxTotal:
		return proto.CodeFull
	}
	return proto.CodeOK
}

// Fetch lets a granted task wait for a slot once its body is here. The ownership
// subsystem calls it.
func (bt *bodyTransfer) Fetch(l inbox.Leased, queue string) {
	if l.Body != "" {
		bt.mu.Lock()
		bt.granted[l.ID] = l.Body
		if !bt.node.storage.Blobs.Has(l.Body) {
			bt.fetching[l.ID] = &bodyFetch{lease: l, queue: queue, progressAt: bt.node.cfg.Clock.Mono()}
			bt.enqueue(func(context.Context) { bt.node.Queues.Driver.Fetch(l.ID, true) })
			bt.mu.Unlock()
			return
		}
		bt.mu.Unlock()
	}
	bt.node.inbox.Lease(l)
}

// Stop no longer waits for the body of a task, and discards it unless a handler is using
// it.
func (bt *bodyTransfer) Stop(id proto.TaskID) {
	bt.mu.Lock()
	delete(bt.fetching, id)
	bt.mu.Unlock()
	if !bt.node.inbox.Working(id) {
		bt.Release(id)
	}
}

// Release discards the body of a task whose run here is over.
func (bt *bodyTransfer) Release(id proto.TaskID) {
	bt.mu.Lock()
	name := bt.granted[id]
	delete(bt.granted, id)
	bt.mu.Unlock()
	bt.node.storage.Blobs.Drop(name)
}

// errNotAwaited refuses a body that is no longer awaited.
var errNotAwaited = &transport.CodeError{Code: proto.CodeStale, Detail: "the body is not awaited here"}

// offerGrant accepts the body of a task granted to this node, from its home.
func (bt *bodyTransfer) offerGrant(from proto.PeerID, env *proto.Envelope, object *bodies.Manifest) (*incomingBody, *proto.OfferReply, error) {
	h, err := proto.ParseHeader(env.GetHeader())
	if err != nil {
		return nil, nil, err
	}
	bt.mu.Lock()
	a := bt.fetching[h.ID]
	bt.mu.Unlock()
	if a == nil || from != a.lease.Home && !bt.node.Queues.IsHome(a.queue, from) || objectOf(&h) != a.lease.Body {
		return nil, &proto.OfferReply{Code: errNotAwaited.Code, Detail: errNotAwaited.Detail}, nil
	}
	sink, reply, err := bt.node.openBody(proto.CodeNeedBody, "", &h, object, bodies.Terms{Task: h.ID})
	if sink != nil {
		sink.onProgress = func() error { return bt.progressed(h.ID) }
		sink.onEnd = func(whole bool) { bt.fetched(h.ID, whole) }
	} else if err == nil && reply.GetCode() == proto.CodeOK {
		bt.fetched(h.ID, true)
	}
	return sink, reply, err
}

// progressed records that bytes of an awaited body arrived.
func (bt *bodyTransfer) progressed(id proto.TaskID) error {
	bt.mu.Lock()
	defer bt.mu.Unlock()
	a := bt.fetching[id]
	if a == nil {
		return errNotAwaited
	}
	a.progressAt = bt.node.cfg.Clock.Mono()
	return nil
}

// fetched lets a task wait for a slot if its body is complete.
func (bt *bodyTransfer) fetched(id proto.TaskID, whole bool) {
	bt.mu.Lock()
	a := bt.fetching[id]
	if whole {
		delete(bt.fetching, id)
	}
	bt.mu.Unlock()
	if a == nil || !whole {
		return
	}
	bt.node.Queues.Driver.Fetch(id, false)
	bt.node.inbox.Lease(a.lease)
}

// offerResult accepts the result of a lease if it would count in the current state (I4).
func (bt *bodyTransfer) offerResult(ctx context.Context, from proto.PeerID, m *proto.Message, object *bodies.Manifest) (*incomingBody, *proto.OfferReply, error) {
	h, o, err := queue.Results{Queues: bt.node.Queues}.Open(from, m)
	if err != nil {
		return nil, nil, err
	}
	if !h.Streamed() {
		return nil, nil, identity.BadForm("the envelope has no streamed body")
	}
	code, err := bt.node.Queues.Driver.PreviewResult(ctx, from, h.ID, o)
	switch {
	case err != nil:
		return nil, &proto.OfferReply{Code: proto.CodeBusy, Detail: "the node is stopping"}, nil
	case code == proto.CodeOK:
		return nil, &proto.OfferReply{Code: proto.CodeDuplicate, Detail: "the result is already committed"}, nil
	case code == proto.CodeTooLarge:
		return nil, &proto.OfferReply{}, nil // the result ends the task without its body
	}
	// It must be accepted even if there is no space for new work, because it frees the
	// body of its task (I13).
	name := fileOf(o.GetObject())
	sink, reply, err := bt.node.openBody(code, "the result does not count here: "+code.Name(), h, object, bodies.Terms{Essential: true, Task: h.ID})
	if sink != nil {
		bt.mu.Lock()
		if !slices.Contains(bt.ownerResults[h.ID], name) {
			bt.ownerResults[h.ID] = append(bt.ownerResults[h.ID], name)
		}
		bt.mu.Unlock()
		sink.onEnd = func(bool) { bt.resultArrived(h.ID, name) }
	}
	return sink, reply, err
}

// resultArrived removes a result whose task was dropped in the meantime. That is impossible
// before its stream ends, which takes a while if the owner is dead.
func (bt *bodyTransfer) resultArrived(id proto.TaskID, name string) {
	bt.mu.Lock()
	wanted := slices.Contains(bt.ownerResults[id], name)
	bt.mu.Unlock()
	if !wanted {
		bt.node.storage.Blobs.Drop(name)
	}
}

// offerHandoff accepts the body of a task that an old home hands over.
func (bt *bodyTransfer) offerHandoff(ctx context.Context, from proto.PeerID, env *proto.Envelope, object *bodies.Manifest) (*incomingBody, *proto.OfferReply, error) {
	a, err := queue.Mover{Queues: bt.node.Queues}.Open(env)
	if err != nil {
		return nil, nil, err
	}
	code, detail := proto.CodeNeedBody, ""
	may, err := bt.node.Queues.Driver.MayHandOff(ctx, from, queue.HandedTask(&a))
	switch {
	case err != nil:
		code, detail = proto.CodeBusy, "the node is stopping"
	case !may || !bt.node.Queues.IsHome(a.Content.GetQueue(), bt.node.keys.Peer()):
		code, detail = proto.CodeBusy, "this node does not know yet that the sender hands the queue over to it"
	}
	return bt.node.openBody(code, detail, &a.Header, object, bodies.Terms{})
}

// Missing reports whether the body of a result is missing or not verified yet. If the
// body is here, it starts the verification, after which the result is received
// again. If a result fails verification maxCorrupt times, its task ends with that reason
// (I9).
func (bt *bodyTransfer) Missing(from proto.PeerID, m *proto.Message, id proto.TaskID, o *proto.Outcome) bool {
	name := fileOf(o.GetObject())
	bt.mu.Lock()
	right, corrupt := bt.verified[id] == name, bt.corrupt[name]
	bt.mu.Unlock()
	has := bt.node.storage.Blobs.Has(name)
	switch {
	case corrupt >= maxCorrupt:
		sum := sha256.Sum256(nil)
		o.State, o.Reason = proto.DeadLetter, damagedReason
		o.Body, o.BodySize, o.BodyDigest, o.Object = nil, 0, sum[:], nil
		return false
	case right && has:
		return false
	case has:
		bt.enqueueOnce(transferKey{proto.TypeResult, id, from}, func(ctx context.Context) { bt.verify(ctx, from, m, id, name, o) })
	}
	return true
}

// verify verifies the body of a result and then passes the result on again.
func (bt *bodyTransfer) verify(ctx context.Context, from proto.PeerID, m *proto.Message, id proto.TaskID, name string, o *proto.Outcome) {
	err := bt.node.verifyObject(ctx, o)
	switch {
	case errors.Is(err, bodies.ErrSealed):
		bt.node.log.Error("the body of a result does not match its digest", "task", id.String(), "from", from)
		bt.mu.Lock()
		bt.corrupt[name]++
		bt.mu.Unlock()
		bt.node.storage.Blobs.Drop(name)
	case err != nil:
		bt.node.log.Debug("could not read the body of a result", "task", id.String(), "err", err)
		return // the owner sends it again
	default:
		bt.mu.Lock()
		bt.verified[id] = name
		bt.mu.Unlock()
	}
	if err := bt.node.Queues.Driver.Receive(from, m); err != nil {
		bt.node.log.Debug("result dropped", "task", id.String(), "from", from, "err", err)
	}
}

// Seal seals the file with the result of a run, for whichever node is the home when the
// result is sent. If it cannot be stored, the run has failed and may be retried.
func (bt *bodyTransfer) Seal(ctx context.Context, id proto.TaskID, e inbox.LeaseEnd) inbox.LeaseEnd {
	pause := sealBackoff
	for try := 1; ; try++ {
		err := bt.trySealResult(ctx, id, e)
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
		bt.node.log.Warn("could not store a large result; will retry", "task", id.String(), "try", try, "err", err)
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			t.Stop()
		case <-t.C:
		}
		pause *= 2
	}
}

func (bt *bodyTransfer) trySealResult(ctx context.Context, id proto.TaskID, e inbox.LeaseEnd) error {
	ref, _, err := bt.node.sealFile(ctx, e.File, bt.node.bodySuite(bt.node.keys.Peer()))
	if err != nil {
		return bt.node.bodyError(err)
	}
	bt.mu.Lock()
	bt.ownResults[id] = ref.Name.String()
	bt.mu.Unlock()
	bt.node.storage.Blobs.Release(ref.Name.String())
	o := e.Outcome
	o.BodySize, o.BodyDigest, o.Object = uint64(ref.Size), ref.Digest[:], ref.Proto()
	return nil
}
