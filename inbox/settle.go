package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/backlog"
)

const (
	settleEvery = 200 * time.Millisecond // between two writes of watermarks
	settleStep  = 256                    // ids of an origin that are forgotten at once
	ageEvery    = 10 * time.Minute       // between two searches for ids to drop because of their age
)

// Settle takes an origin's statement that every task it sent to this node up to seq is
// accepted, refused or ended and will never be sent again. From now on such a task is
// refused unless it is here. [Inbox.Run] writes the watermark and then forgets what has
// finished. A watermark never decreases.
func (in *Inbox) Settle(from proto.PeerID, seq proto.Seq) {
	if !in.dedup.settle(from, seq) {
		return
	}
	signal(in.dirty)
}

// setFinished records that a task has ended, and wakes maintain if its origin has settled it
// meanwhile.
func (in *Inbox) setFinished(id proto.TaskID, e entry, origin proto.PeerID, keep bool) {
	if in.dedup.setFinished(id, e, origin, keep) {
		signal(in.dirty)
	}
}

// maintain writes watermarks and forgets finished tasks, until ctx ends.
func (in *Inbox) maintain(ctx context.Context) error {
	age := time.NewTicker(ageEvery)
	defer age.Stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			return in.forgetSettled(context.WithoutCancel(ctx))
		case <-age.C:
			err = in.forgetOld(ctx)
		case <-in.dirty:
			if err = in.forgetSettled(ctx); err == nil {
				clock.Pause(ctx, settleEvery)
			}
		}
		if err != nil {
			return err
		}
	}
}

// forgetSettled writes the watermarks that have risen, then deletes what they cover. If the
// process dies in between, the watermark covers more than it needs to.
func (in *Inbox) forgetSettled(ctx context.Context) error {
	for {
		steps := in.dedup.nextSettlements(settleStep)
		if len(steps) == 0 {
			return nil
		}
		err := in.writeMarks(ctx, steps)
		for _, s := range steps {
			e := err
			if e == nil {
				e = in.forget(ctx, taskKeys(s.ids))
			}
			in.dedup.applySettlement(s, err, e)
			err = errors.Join(err, e)
		}
		if err != nil {
			return fmt.Errorf("settle: %w", err)
		}
	}
}

func (in *Inbox) writeMarks(ctx context.Context, steps []settlement) error {
	if err := in.cfg.Fail(PointSettle); err != nil {
		return err
	}
	var b store.Batch
	for _, s := range steps {
		if s.raised {
			b.Put(store.Dedup, watermarkKey(s.origin.peer), appendSeq(nil, s.watermark))
		}
	}
	if b.Len() > 0 {
		if err := in.store.Apply(context.WithoutCancel(ctx), &b); err != nil {
			return err
		}
	}
	return in.cfg.Fail(PointSettled)
}

// forgetOld drops old finished ids of which every copy is refused: first the marks of
// origins that are no longer members are raised, then the ids are deleted (I12). It does
// nothing while the clock is unreliable.
func (in *Inbox) forgetOld(ctx context.Context) error {
	if in.cfg.Clock.Doubted() {
		return nil
	}
	s := in.dedup.agedEntries(in.nowMs(), in.parts.Gone)
	if len(s.ids)+len(s.tombstones) == 0 {
		return nil
	}
	if err := in.writeMarks(ctx, s.marks); err != nil {
		return fmt.Errorf("raise the marks of former members: %w", err)
	}
	for _, m := range s.marks {
		in.dedup.applySettlement(m, nil, nil)
	}
	keys := taskKeys(s.ids)
	for _, id := range s.tombstones {
		keys = append(keys, tombstoneKey(id))
	}
	err := in.forget(ctx, keys)
	if err == nil {
		in.dedup.dropAged(s)
	}
	return err
}

func taskKeys(ids []proto.TaskID) []backlog.Key {
	keys := make([]backlog.Key, len(ids))
	for i, id := range ids {
		keys[i] = backlog.TaskKey(id)
	}
	return keys
}

// forget deletes the records of finished tasks.
func (in *Inbox) forget(ctx context.Context, keys []backlog.Key) error {
	for len(keys) > 0 {
		n := min(len(keys), settleStep)
		edits := make([]backlog.Edit, n)
		for i, k := range keys[:n] {
			edits[i] = in.editUnread(k)
		}
		drop := func(int, *proto.Record) backlog.Action { return backlog.Drop }
		for _, err := range in.queue.Change(ctx, edits, drop) {
			if err != nil && !errors.Is(err, backlog.ErrNotFound) {
				return fmt.Errorf("forget finished tasks: %w", err)
			}
		}
		keys = keys[n:]
	}
	return nil
}

// noRecord stands for the record of an entry that is deleted.
var noRecord = new(proto.Record)

// editUnread returns an edit that deletes an entry without reading its record.
func (in *Inbox) editUnread(k backlog.Key) backlog.Edit {
	at, _ := in.queue.Peek(k)
	return backlog.Edit{Key: k, Record: noRecord, Version: at.Version}
}
