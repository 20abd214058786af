package outbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/backlog"
)

// What became of a dead letter.
const (
	StatusNew      = "new"                  // nobody has looked at it
	StatusSeen     = "seen"                 // somebody has
	StatusRedriven = backlog.StatusRedriven // it was made anew as another task
)

// DeadLetters returns up to limit dead letters that match; span and next as in List.
// Results that no home took are among them.
func (o *Outbox) DeadLetters(q Query, span backlog.Span, limit int) (found []Listed, next proto.TaskID, err error) {
	span.Sets, span.Results = []backlog.Set{backlog.Dead}, true
	page, next, err := o.backlog.Page(span, limit, q.matchesDead)
	for _, l := range page {
		found = append(found, Listed{l.Key.ID, l.Record, l.Key.Part == backlog.PartResult})
	}
	return found, next, err
}

// DeadLetter returns one dead letter whole, or ErrNotFound.
func (o *Outbox) DeadLetter(id proto.TaskID) (*proto.Stored, error) {
	_, shelf, err := o.backlog.Get(backlog.TaskKey(id))
	if err != nil {
		return nil, err
	}
	if shelf != backlog.Dead {
		return nil, fmt.Errorf("%w: %s is %v, no dead letter", ErrNotFound, id, shelf)
	}
	return o.backlog.Stored(backlog.TaskKey(id))
}

// MarkSeen notes that somebody has looked at a dead letter.
func (o *Outbox) MarkSeen(ctx context.Context, id proto.TaskID) error {
	return o.backlog.Revise(ctx, backlog.TaskKey(id), func(r *proto.Record) {
		if r.Status == StatusNew || r.Status == "" {
			r.Status = StatusSeen
		}
	})
}

// MarkRedriven notes that an ended task was made anew. A dead letter that held
// its ordering key lets it go on. One that went to another queue is no letter any more.
func (o *Outbox) MarkRedriven(ctx context.Context, id, as proto.TaskID) error {
	to := func(r *proto.Record) backlog.Set {
		if r.MovesTo != "" {
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

// redriveKey is where it is kept that a task was made anew, from the commit of the
// new task to that of the mark on the old one: a crash in between makes no second.
func redriveKey(old []byte) []byte { return append([]byte("r"), old...) }

// RedrivenAs returns the task that was made of id anew when the process died
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
		return as, false, fmt.Errorf("read what was made of task %s: %w", id, err)
	}
	return as, true, nil
}

// PurgeDead deletes the dead letters that match and returns how many; with dryRun
// it only counts them.
func (o *Outbox) PurgeDead(ctx context.Context, q Query, dryRun bool) (int, error) {
	return o.backlog.Purge(ctx, backlog.Dead, q.matchesDead, dryRun)
}

// PurgeDone deletes the finished tasks that match, likewise.
func (o *Outbox) PurgeDone(ctx context.Context, q Query, dryRun bool) (int, error) {
	return o.backlog.Purge(ctx, backlog.Done, q.matches, dryRun)
}
