package outbox

import (
	"context"
	"errors"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/backlog"
)

// expireAtOnce is how many entries are looked at together, lookAgain when an
// entry is looked at again whose end could not be written.
const (
	expireBatch = 256
	expireRetry = time.Minute
)

// expire ends what is past its time.
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

// expireSome rules on entries whose time may be over. If the clock has jumped since
// they were taken they are looked at again.
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
			if r.Reason == "" {
				r.Reason = o.expiredBecause(k, r)
			}
			r.Status = StatusNew
			r.Move(decisions[i].state, now, causeExpired)
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

// expiredBecause says what an entry waited for until its time was over, by what is
// proven about it.
func (o *Outbox) expiredBecause(k backlog.Key, r *proto.Record) string {
	n := o.deliveries.get(k)
	switch {
	case k.Part == backlog.PartResult && n.code == proto.CodeOK:
		return "its time is over; its home was not reached"
	case k.Part == backlog.PartTask && r.State == proto.Running:
		return "its time is over, and that of its longest run; its target had started it, and no result came"
	case k.Part == backlog.PartTask && r.State != proto.Pending:
		return "its time is over, and that of its longest run; its target had accepted it, and no result came"
	case n.code != proto.CodeOK:
		return proto.Clip("its time is over; the last answer was "+n.code.Name()+": "+n.detail, proto.MaxReason)
	case n.detail != "":
		return proto.Clip("its time is over; the last try failed: "+n.detail, proto.MaxReason)
	}
	return "its time is over; it was not delivered, or not answered"
}
