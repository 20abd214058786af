package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/backlog"
)

// awaited reports whether the target of r, a node or the home of a queue, has accepted the
// task and owes its result.
func awaited(k backlog.Key, r *proto.Record) bool {
	return k.Part == backlog.PartTask && (r.State == proto.Accepted || r.State == proto.Running)
}

// Awaited returns the tasks that p has accepted, by name or as the home of a queue, and
// whose results p owes.
func (o *Outbox) Awaited(p proto.PeerID) (ids []proto.TaskID, err error) {
	states := o.backlog.GroupCounts(string(p[:])).ByState
	if states[proto.Accepted]+states[proto.Running] == 0 {
		return nil, nil
	}
	for cursor := []byte(nil); ; {
		_, next, err := o.backlog.List(backlog.Live, cursor, 1, func(k backlog.Key, r *proto.Record) bool {
			if string(r.Peer) == string(p[:]) && awaited(k, r) {
				ids = append(ids, k.ID)
			}
			return false
		})
		if err != nil || next == nil {
			return ids, err
		}
		cursor = next
	}
}

// HandleUnknown handles the report of p that it does not know a task that it had
// accepted: p was restored from an older backup, or has lost the record. A task
// that may run twice is signed again, with a sequence that the target has not
// settled, and resent: a target that knows that it was restored does not run
// tasks that it may have run before. A task that may not run twice becomes
// INDETERMINATE, until a late result or a person ends it; another one whose
// cancellation was requested is CANCELLED. HandleUnknown reports whether the report
// counted.
func (o *Outbox) HandleUnknown(ctx context.Context, p proto.PeerID, id proto.TaskID) (bool, error) {
	k := backlog.TaskKey(id)
	st, err := o.backlog.Stored(k)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("task %s is unknown to its target: %w", id, err)
	}
	now := o.cfg.Clock.Now()
	switch r := st.Record; {
	case string(r.Peer) != string(p[:]) || !awaited(k, r):
		return false, nil
	case r.Mode == proto.AtMostOnce:
		err = o.forgotten(ctx, p, k, r.Seq(), now, proto.Indeterminate, proto.TaskForgottenOnce)
	case r.Cancel && r.MovesTo == "":
		err = o.forgotten(ctx, p, k, r.Seq(), now, proto.Cancelled, proto.TaskCancelledLost)
	case now.UnixMilli() >= r.NotAfterMs || o.cfg.Reseal == nil:
		return false, nil // it can no longer start: it will expire
	default:
		err = o.resubmit(ctx, p, k, st, now)
	}
	if err != nil {
		return false, fmt.Errorf("task %s is unknown to its target: %w", id, err)
	}
	o.cfg.Logger.Warn("the target of a task no longer knows it", "task", id.String(), "target", p)
	return true, nil
}

// forgotten moves a task that is not sent again to a state, because of cause.
func (o *Outbox) forgotten(ctx context.Context, p proto.PeerID, k backlog.Key, seq proto.Seq, now time.Time, to proto.TaskState, cause proto.TaskCause) error {
	var rec *proto.Record
	errs := o.backlog.Change(ctx, []backlog.Edit{{Key: k}}, func(_ int, r *proto.Record) backlog.Action {
		if r.Seq() != seq || !awaited(k, r) {
			return backlog.Keep
		}
		r.Cause, r.Reason = cause, ""
		r.Move(to, now, r.Cause, "")
		r.Events[len(r.Events)-1].Node = p[:]
		rec = r
		if to.Terminal() {
			return endAction(r)
		}
		return backlog.Write
	})
	switch {
	case errs[0] != nil || rec == nil:
	case to.Terminal():
		o.ended(ctx, k, rec)
	default:
		o.changed(k, rec)
	}
	return errs[0]
}

// resubmit signs a task again and schedules it to be sent.
func (o *Outbox) resubmit(ctx context.Context, p proto.PeerID, k backlog.Key, st *proto.Stored, now time.Time) error {
	old, seq := st.Record.Seq(), o.NextSeq(p)
	st.Record.SeqBoot, st.Record.SeqCounter = seq.Boot, seq.Counter
	rec, err := o.reseal(ctx, k, st, func(r *proto.Record) backlog.Action {
		if r.Seq() != old || !awaited(k, r) {
			return backlog.Keep
		}
		first := r.FirstSeq()
		r.FirstSeqBoot, r.FirstSeqCounter = first.Boot, first.Counter
		r.SeqBoot, r.SeqCounter, r.DueMs = seq.Boot, seq.Counter, 0
		r.Move(proto.Pending, now, proto.TaskForgotten, "")
		r.Events[len(r.Events)-1].Node = p[:]
		return backlog.Requeue
	})
	if rec == nil {
		o.DropSeq(p, seq) // otherwise it stays promised: the outcome may be unknown
	}
	return err
}
