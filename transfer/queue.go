package transfer

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
	"github.com/balefire/balefire/transport"
)

// admit accepts the body of a task for a queue here, unless such bodies have no place left.
func (t *Transfers) admit(a *inbox.Arrival, object *bodies.Manifest) (*incomingBody, *proto.OfferReply, error) {
	id, origin := a.Header.ID, a.Header.Origin
	if why := t.take(id, origin, 0); why != "" {
		return nil, &proto.OfferReply{Code: proto.CodeFull, Detail: why}, nil
	}
	sink, reply, err := t.receive(proto.CodeNeedBody, "", &a.Header, object, bodies.Terms{})
	if sink == nil {
		t.arrived(id, origin, err == nil && reply.GetCode() == proto.CodeOK)
		return nil, reply, err
	}
	sink.onEnd = func(whole bool) { t.arrived(id, origin, whole) }
	return sink, reply, err
}

// Has reports whether the object that a header names is here.
func (t *Transfers) Has(h *proto.Header) bool {
	return t.Bodies.Has(h.ObjectFile())
}

// Untrack forgets a task that has ended here or has moved to another home, and the results
// of its runs that no record refers to.
func (t *Transfers) Untrack(id proto.TaskID) {
	t.mu.Lock()
	others := t.ownerResults[id]
	t.places.drop(id)
	delete(t.verified, id)
	delete(t.ownerResults, id)
	t.mu.Unlock()
	for _, name := range others {
		t.Bodies.Drop(name)
	}
}

// Room returns the reason why a task with a large body cannot be accepted now, or
// CodeOK.
func (t *Transfers) Room(l inbox.Leased) proto.Code {
	h, err := proto.ParseHeader(l.Envelope.GetHeader())
	_, size, _ := h.Object()
	switch {
	case err != nil || l.Body == "" || t.Bodies.Has(l.Body):
		return proto.CodeOK
	case size > t.MaxBlob:
		return proto.CodeTooLarge
	case t.Full() || !t.Bodies.Fits(size):
		return proto.CodeFull
	}
	return proto.CodeOK
}

// Fetch lets a granted task wait for a slot once its body is here. The ownership
// subsystem calls it.
func (t *Transfers) Fetch(l inbox.Leased) {
	if l.Body != "" {
		t.mu.Lock()
		t.granted[l.ID] = l.Body
		if !t.Bodies.Has(l.Body) {
			t.fetching[l.ID] = &bodyFetch{lease: l, progressAt: t.Clock.Mono()}
			t.enqueue(func(context.Context) { t.leases.Fetch(l.ID, true) })
			t.mu.Unlock()
			return
		}
		t.mu.Unlock()
	}
	t.inbox.Lease(l)
}

// Stop no longer waits for the body of a task, and discards it unless a handler is using
// it.
func (t *Transfers) Stop(id proto.TaskID) {
	t.mu.Lock()
	delete(t.fetching, id)
	t.mu.Unlock()
	if !t.inbox.Working(id) {
		t.Release(id)
	}
}

// Release discards the body of a task whose run here is over.
func (t *Transfers) Release(id proto.TaskID) {
	t.mu.Lock()
	name := t.granted[id]
	delete(t.granted, id)
	t.mu.Unlock()
	t.Bodies.Drop(name)
}

// errNotAwaited refuses a body that is no longer awaited.
var errNotAwaited = &transport.CodeError{Code: proto.CodeStale, Detail: "the body is not awaited here"}

// offerGrant accepts the body of a task granted to this node, from its home.
func (t *Transfers) offerGrant(from proto.PeerID, env *proto.Envelope, object *bodies.Manifest) (*incomingBody, *proto.OfferReply, error) {
	h, err := proto.ParseHeader(env.GetHeader())
	if err != nil {
		return nil, nil, err
	}
	t.mu.Lock()
	a := t.fetching[h.ID]
	t.mu.Unlock()
	if a == nil || from != a.lease.Home && !t.queues.IsHome(a.lease.Queue, from) || h.ObjectFile() != a.lease.Body {
		return nil, &proto.OfferReply{Code: errNotAwaited.Code, Detail: errNotAwaited.Detail}, nil
	}
	sink, reply, err := t.receive(proto.CodeNeedBody, "", &h, object, bodies.Terms{Task: h.ID})
	if sink != nil {
		sink.onProgress = func() error { return t.progressed(h.ID) }
		sink.onEnd = func(whole bool) { t.fetched(h.ID, whole) }
	} else if err == nil && reply.GetCode() == proto.CodeOK {
		t.fetched(h.ID, true)
	}
	return sink, reply, err
}

// progressed records that bytes of an awaited body arrived.
func (t *Transfers) progressed(id proto.TaskID) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.fetching[id]
	if a == nil {
		return errNotAwaited
	}
	a.progressAt = t.Clock.Mono()
	return nil
}

// fetched lets a task wait for a slot if its body is complete.
func (t *Transfers) fetched(id proto.TaskID, whole bool) {
	t.mu.Lock()
	a := t.fetching[id]
	if whole {
		delete(t.fetching, id)
	}
	t.mu.Unlock()
	if a == nil || !whole {
		return
	}
	t.leases.Fetch(id, false)
	t.inbox.Lease(a.lease)
}

// offerResult accepts the result of a lease if it would count in the current state (I4).
func (t *Transfers) offerResult(ctx context.Context, from proto.PeerID, m *proto.Message, object *bodies.Manifest) (*incomingBody, *proto.OfferReply, error) {
	h, o, err := t.queues.OpenResult(from, m)
	if err != nil {
		return nil, nil, err
	}
	if !h.Streamed() {
		return nil, nil, identity.BadForm("the envelope has no streamed body")
	}
	code, err := t.leases.PreviewResult(ctx, from, h.ID, o)
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
	name := o.GetObject().File()
	sink, reply, err := t.receive(code, "the result does not count here: "+code.Name(), h, object, bodies.Terms{Essential: true, Task: h.ID})
	if sink != nil {
		t.mu.Lock()
		if !slices.Contains(t.ownerResults[h.ID], name) {
			t.ownerResults[h.ID] = append(t.ownerResults[h.ID], name)
		}
		t.mu.Unlock()
		sink.onEnd = func(bool) { t.resultArrived(h.ID, name) }
	}
	return sink, reply, err
}

// resultArrived removes a result whose task was dropped in the meantime. That is impossible
// before its stream ends, which takes a while if the owner is dead.
func (t *Transfers) resultArrived(id proto.TaskID, name string) {
	t.mu.Lock()
	wanted := slices.Contains(t.ownerResults[id], name)
	t.mu.Unlock()
	if !wanted {
		t.Bodies.Drop(name)
	}
}

// offerHandoff accepts the body of a task that an old home hands over.
func (t *Transfers) offerHandoff(ctx context.Context, from proto.PeerID, env *proto.Envelope, object *bodies.Manifest) (*incomingBody, *proto.OfferReply, error) {
	a, handed, err := t.queues.OpenHandoff(env)
	if err != nil {
		return nil, nil, err
	}
	code, detail := proto.CodeNeedBody, ""
	may, err := t.leases.MayHandOff(ctx, from, handed)
	switch {
	case err != nil:
		code, detail = proto.CodeBusy, "the node is stopping"
	case !may || !t.queues.IsHome(a.Content.GetQueue(), t.Self):
		code, detail = proto.CodeBusy, "this node does not know yet that the sender hands the queue over to it"
	}
	return t.receive(code, detail, &a.Header, object, bodies.Terms{})
}

// Missing reports whether the body of a result is missing or not verified yet. If the
// body is here, it starts the verification, after which the result is received
// again. If a result fails verification maxCorrupt times, its task ends with that cause
// (I9).
func (t *Transfers) Missing(from proto.PeerID, m *proto.Message, id proto.TaskID, o *proto.Outcome) bool {
	name := o.GetObject().File()
	t.mu.Lock()
	right, corrupt := t.verified[id] == name, t.corrupt[name]
	t.mu.Unlock()
	has := t.Bodies.Has(name)
	switch {
	case corrupt >= maxCorrupt:
		sum := sha256.Sum256(nil)
		o.State, o.Cause, o.Reason = proto.DeadLetter, proto.TaskResultDamaged, ""
		o.Body, o.BodySize, o.BodyDigest, o.Object = nil, 0, sum[:], nil
		return false
	case right && has:
		return false
	case has:
		t.enqueueOnce(transferKey{proto.TypeResult, id, from}, func(ctx context.Context) { t.verify(ctx, from, m, id, name, o) })
	}
	return true
}

// verify verifies the body of a result and then passes the result on again.
func (t *Transfers) verify(ctx context.Context, from proto.PeerID, m *proto.Message, id proto.TaskID, name string, o *proto.Outcome) {
	err := t.Bodies.Verify(ctx, o)
	switch {
	case errors.Is(err, bodies.ErrSealed):
		t.Logger.Error("the body of a result does not match its digest", "task", id.String(), "from", from)
		t.mu.Lock()
		t.corrupt[name]++
		t.mu.Unlock()
		t.Bodies.Drop(name)
	case err != nil:
		t.Logger.Debug("could not read the body of a result", "task", id.String(), "err", err)
		return // the owner sends it again
	default:
		t.mu.Lock()
		t.verified[id] = name
		t.mu.Unlock()
		// The task may have ended by the same result while this copy was read: Untrack came before.
		if code, err := t.leases.PreviewResult(ctx, from, id, o); err != nil || code != proto.CodeNeedBody && code != proto.CodeTooLarge {
			t.mu.Lock()
			delete(t.verified, id)
			t.mu.Unlock()
			t.Bodies.Drop(name)
		}
	}
	if err := t.leases.Receive(from, m); err != nil {
		t.Logger.Debug("result dropped", "task", id.String(), "from", from, "err", err)
	}
}

// Seal seals the file with the result of a run, for whichever node is the home when the
// result is sent. If it cannot be stored, the run has failed and may be retried.
func (t *Transfers) Seal(ctx context.Context, id proto.TaskID, e inbox.LeaseEnd) inbox.LeaseEnd {
	pause := sealBackoff
	for try := 1; ; try++ {
		err := t.trySealResult(ctx, id, e)
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
		t.Logger.Warn("could not store a large result; will retry", "task", id.String(), "try", try, "err", err)
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
		case <-timer.C:
		}
		pause *= 2
	}
}

func (t *Transfers) trySealResult(ctx context.Context, id proto.TaskID, e inbox.LeaseEnd) error {
	ref, _, err := t.Bodies.SealFile(ctx, e.File, t.Suite)
	if err != nil {
		return err
	}
	t.mu.Lock()
	t.ownResults[id] = ref.Name.String()
	t.mu.Unlock()
	t.Bodies.Release(ref.Name.String())
	o := e.Outcome
	o.BodySize, o.BodyDigest, o.Object = uint64(ref.Size), ref.Digest[:], ref.Proto()
	return nil
}
