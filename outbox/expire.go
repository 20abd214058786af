package outbox

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/backlog"
)

// expireBatch is how many entries are checked together. expireRetry is when an
// entry is checked again whose end could not be written.
const (
	expireBatch = 256
	expireRetry = time.Minute
)

// expire ends expired entries.
func (o *Outbox) expire(ctx context.Context) error {
	var items []backlog.Item
	for ctx.Err() == nil {
		items = o.backlog.TakeExpired(items[:0], expireBatch, expireRetry)
		if len(items) == 0 {
			return nil
		}
		if err := o.expireSome(ctx, items); err != nil {
			return err
		}
	}
	return nil
}

// expireSome decides about entries that may have expired. If the clock has jumped
// since they were taken they are checked again later.
func (o *Outbox) expireSome(ctx context.Context, items []backlog.Item) error {
	ms, ok := o.trustedNow()
	if !ok {
		return nil
	}
	edits := make([]backlog.Edit, len(items))
	for i, it := range items {
		edits[i].Key = it.Key
	}
	now := time.UnixMilli(ms)
	records, decisions := make([]*proto.Record, len(items)), make([]decision, len(items))
	errs := o.backlog.Change(ctx, edits, func(i int, r *proto.Record) backlog.Action {
		k := edits[i].Key
		sent := k.Part == backlog.PartTask && o.maybeSent(k, r)
		records[i] = r
		decisions[i] = onDeadline(k.Part, r, ms, sent, o.limits)
		switch decisions[i].action {
		case end:
			cause, code, detail := o.expiredBecause(k, r)
			r.Status = StatusNew
			r.Move(decisions[i].state, now, cause, detail)
			r.Events[len(r.Events)-1].Code = code
			if r.Cause == 0 || r.Cause == proto.TaskCancelAsked {
				r.Cause, r.Code, r.Reason = cause, code, cmp.Or(detail, r.Reason)
			}
			return endActionFor(decisions[i].state)
		case drop:
			return backlog.Drop
		}
		return backlog.Keep
	})
	var failed error
	for i, err := range errs {
		k := edits[i].Key
		switch {
		case errors.Is(err, backlog.ErrNotFound):
		case err != nil:
			failed = err
		case decisions[i].action == recheckLater:
			o.backlog.Postpone(k, time.UnixMilli(decisions[i].at))
		case decisions[i].action == end && k.Part == backlog.PartTask:
			o.ended(ctx, k, records[i])
		case decisions[i].action == end:
			o.resultExpired(k, records[i])
		default:
			o.deliveries.drop(k)
		}
	}
	return failed
}

// expiredBecause returns why an entry had not ended when it expired, as far as
// that is known, and the last refusal or failure.
func (o *Outbox) expiredBecause(k backlog.Key, r *proto.Record) (proto.TaskCause, proto.Code, string) {
	switch n := o.deliveries.get(k); {
	case k.Part == backlog.PartResult && n.code == proto.CodeOK:
		return proto.TaskExpiredUnreached, 0, ""
	case k.Part == backlog.PartTask && r.State == proto.Running:
		return proto.TaskExpiredStarted, 0, ""
	case k.Part == backlog.PartTask && r.State != proto.Pending:
		return proto.TaskExpiredAccepted, 0, ""
	default:
		return proto.TaskExpired, n.code, proto.Clip(n.detail, proto.MaxReason)
	}
}
