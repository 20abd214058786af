package outbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/backlog"
)

// The statuses of a dead letter.
const (
	StatusNew      = "new"
	StatusRedriven = backlog.StatusRedriven // it was resubmitted as another task
)

// DeadLetters returns up to limit dead letters that match; span and next as in
// List. They include results that no home accepted.
func (o *Outbox) DeadLetters(q Query, span backlog.Span, limit int) (found []Listed, next proto.TaskID, err error) {
	span.Sets, span.Results = []backlog.Set{backlog.Dead}, true
	page, next, err := o.backlog.Page(span, limit, q.matchesDead)
	for _, l := range page {
		found = append(found, Listed{l.Key.ID, l.Record, l.Key.Part == backlog.PartResult})
	}
	return found, next, err
}

// MarkRedriven records that an ended task was resubmitted. A dead letter that
// blocked its ordering key unblocks it. One that moved to another queue is no
// longer a dead letter.
func (o *Outbox) MarkRedriven(ctx context.Context, id, as proto.TaskID) error {
	to := func(r *proto.Record) backlog.Set {
		if moving(r) {
			return backlog.Done
		}
		return backlog.Dead
	}
	return o.backlog.ReviseTo(ctx, backlog.TaskKey(id), to, func(r *proto.Record) {
		r.Status, r.RedrivenAs, r.MovesTo = StatusRedriven, as.String(), ""
	}, func(b *store.Batch) {
		b.Delete(store.Dedup, redriveKey(id[:]))
		b.Delete(store.Dedup, moveKey(id[:]))
	})
}

// redriveKey returns the key that records a redrive, from the commit of the new
// task until the old one is marked: a crash in between must not create a second
// task.
func redriveKey(old []byte) []byte { return append([]byte("r"), old...) }

// RedrivenAs returns the task that id was resubmitted as if the process died
// before [Outbox.MarkRedriven].
func (o *Outbox) RedrivenAs(id proto.TaskID) (as proto.TaskID, ok bool, err error) {
	b, err := o.store.Get(store.Dedup, redriveKey(id[:]))
	if errors.Is(err, store.ErrNotFound) {
		return as, false, nil
	}
	if err == nil {
		as, err = proto.TaskIDFrom(b)
	}
	if err != nil {
		return as, false, fmt.Errorf("read the redrive of task %s: %w", id, err)
	}
	return as, true, nil
}

// PurgeDead deletes the matching dead letters and returns how many; with dryRun
// it only counts them.
func (o *Outbox) PurgeDead(ctx context.Context, q Query, dryRun bool) (int, error) {
	return o.backlog.Purge(ctx, backlog.Dead, q.matchesDead, dryRun)
}

// PurgeDone deletes the matching finished tasks likewise.
func (o *Outbox) PurgeDone(ctx context.Context, q Query, dryRun bool) (int, error) {
	return o.backlog.Purge(ctx, backlog.Done, q.matches, dryRun)
}
