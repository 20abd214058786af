package backlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// An endedSet holds ended entries in the order in which they were added: oldest
// first.
type endedSet struct {
	entries []endedEntry
}

type endedEntry struct {
	ended int64 // Unix milliseconds
	key   Key
}

func (s *endedSet) add(k Key, ended int64) { s.entries = append(s.entries, endedEntry{ended, k}) }

func (s *endedSet) sort() {
	slices.SortFunc(s.entries, func(a, b endedEntry) int {
		return cmp.Or(cmp.Compare(a.ended, b.ended), a.key.ID.Compare(b.key.ID))
	})
}

// drop removes the oldest n.
func (s *endedSet) drop(n int) {
	s.entries = s.entries[n:]
	if cap(s.entries) > 4096 && len(s.entries) < cap(s.entries)/4 {
		s.entries = slices.Clone(s.entries)
	}
}

// surplus returns how many of the oldest, at most limit, exceed the bounds: more
// than keep of them, or ended at horizon or before.
func (s *endedSet) surplus(keep int, horizon int64, limit int) int {
	n := min(max(len(s.entries)-keep, 0), limit)
	for n < min(len(s.entries), limit) && s.entries[n].ended <= horizon {
		n++
	}
	return n
}

// tidyStep is how many entries Tidy processes at once.
const tidyStep = 256

// A TidyResult counts what Tidy did.
type TidyResult struct {
	Forgotten int // finished records deleted
	Archived  int // dead entries archived and deleted
}

// Tidy brings the ended sets back within their bounds: finished records are
// deleted, dead entries are archived first. While the wall clock is doubted
// nothing is too old (I14).
func (b *Backlog) Tidy(ctx context.Context) (t TidyResult, err error) {
	b.tidying.Lock()
	defer b.tidying.Unlock()
	now, doubted := b.cfg.Clock.Now(), b.cfg.Clock.Doubted()
	horizon := func(age time.Duration) int64 {
		if doubted {
			return math.MinInt64
		}
		return now.Add(-age).UnixMilli()
	}
	for ctx.Err() == nil {
		keys := b.beyond(&b.done, b.cfg.MaxDone, horizon(b.cfg.DoneFor))
		if len(keys) == 0 {
			break
		}
		if err := b.discard(ctx, &b.done, b.buckets.Done, kindState, keys, len(keys), nil); err != nil {
			return t, fmt.Errorf("forget finished tasks: %w", err)
		}
		t.Forgotten += len(keys)
	}
	for ctx.Err() == nil && b.cfg.Archive != nil {
		keys := b.beyond(&b.dead, b.cfg.MaxDead, horizon(b.cfg.DeadFor))
		if len(keys) == 0 {
			break
		}
		n, err := b.archive(ctx, keys)
		if err != nil {
			return t, fmt.Errorf("archive dead letters: %w", err)
		}
		t.Archived += n
	}
	return t, ctx.Err()
}

// beyond returns the oldest keys of a set that exceed its bounds.
func (b *Backlog) beyond(s *endedSet, keep int, horizon int64) []Key {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := s.surplus(keep, horizon, tidyStep)
	keys := make([]Key, n)
	for i := range keys {
		keys[i] = s.entries[i].key
	}
	return keys
}

// archive moves the oldest dead entries to the archive, and returns how many. As
// at a restart, a damaged one is left on disk alone and blocks no lane.
func (b *Backlog) archive(ctx context.Context, keys []Key) (int, error) {
	list, gone := make([]Archived, 0, len(keys)), make([]Key, 0, len(keys))
	lanes := map[Key]string{}
	for _, k := range keys {
		st, err := b.readStored(b.buckets.Dead, k)
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if errors.Is(err, store.ErrCorrupt) {
			b.cfg.Damaged(k.append(nil, kindInitial), err)
			lanes[k] = b.laneOf(k)
			continue
		}
		if err != nil {
			return 0, err
		}
		list, gone = append(list, Archived{k, st}), append(gone, k)
		if l := b.blocks(k, st.Record); l != "" {
			lanes[k] = l
		}
	}
	if err := b.cfg.Archive(ctx, list); err != nil {
		return 0, err
	}
	if err := b.discard(ctx, &b.dead, b.buckets.Dead, kindInitial, gone, len(keys), lanes); err != nil {
		return 0, err
	}
	b.cfg.Archived(len(list))
	return len(list), nil
}

// discard deletes keys, drops the n oldest entries of a set, and unblocks the
// lanes that they blocked.
func (b *Backlog) discard(ctx context.Context, s *endedSet, bk store.Bucket, kind byte, keys []Key, n int, lanes map[Key]string) error {
	var batch store.Batch
	for _, k := range keys {
		batch.Delete(bk, k.append(nil, kind))
	}
	batch.After(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		s.drop(n)
		for k, l := range lanes {
			b.unblock(l, k)
		}
	})
	return b.store.Apply(context.WithoutCancel(ctx), &batch)
}

// Purge deletes the entries of Done or Dead that match, nil all, and returns how
// many. With dryRun it only counts them.
func (b *Backlog) Purge(ctx context.Context, sh Set, match func(Key, *proto.Record) bool, dryRun bool) (n int, err error) {
	b.tidying.Lock()
	defer b.tidying.Unlock()
	if sh == Live {
		return 0, errors.New("backlog: live entries are not purged; cancel them")
	}
	for cursor := []byte(nil); ; {
		found, next, err := b.List(sh, cursor, tidyStep, match)
		if err == nil && !dryRun && len(found) > 0 {
			err = b.purge(ctx, sh, found)
		}
		if err != nil {
			return n, fmt.Errorf("purge %v: %w", sh, err)
		}
		n += len(found)
		if next == nil || ctx.Err() != nil {
			return n, ctx.Err()
		}
		cursor = next
	}
}

// purge deletes these entries of a set.
func (b *Backlog) purge(ctx context.Context, sh Set, found []Listed) error {
	s, bk, kind := b.endedSet(sh)
	dropped := make(map[Key]bool, len(found))
	var batch store.Batch
	for _, l := range found {
		dropped[l.Key] = true
		batch.Delete(bk, l.Key.append(nil, kind))
	}
	batch.After(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		s.entries = slices.DeleteFunc(s.entries, func(m endedEntry) bool { return dropped[m.key] })
		for _, l := range found {
			if sh == Dead {
				b.unblock(b.blocks(l.Key, l.Record), l.Key)
			}
		}
	})
	return b.store.Apply(context.WithoutCancel(ctx), &batch)
}

func (b *Backlog) endedSet(sh Set) (*endedSet, store.Bucket, byte) {
	if sh == Done {
		return &b.done, b.buckets.Done, kindState
	}
	return &b.dead, b.buckets.Dead, kindInitial
}

// Revise changes the record of an ended entry, such as its status. A dead one
// whose status becomes StatusRedriven unblocks its lane. change must not alter
// when the entry ended.
func (b *Backlog) Revise(ctx context.Context, k Key, change func(*proto.Record)) error {
	return b.ReviseTo(ctx, k, func(*proto.Record) Set { return Dead }, change, func(*store.Batch) {})
}

// ReviseTo is Revise, but moves a dead entry to the set that to returns for its
// old record; in Done only the record is kept. The operations that also adds are
// in the same batch.
func (b *Backlog) ReviseTo(ctx context.Context, k Key, to func(*proto.Record) Set, change func(*proto.Record), also func(*store.Batch)) error {
	b.tidying.Lock()
	defer b.tidying.Unlock()
	if b.buckets.Dead != 0 {
		st, err := b.readStored(b.buckets.Dead, k)
		if err == nil && to(st.Record) == Done {
			return b.reviseToDone(ctx, k, st.Record, change, also)
		}
	}
	var batch store.Batch
	err := b.reviseDone(&batch, k, change)
	if errors.Is(err, store.ErrNotFound) {
		err = b.reviseDead(&batch, k, change)
	}
	if errors.Is(err, store.ErrNotFound) {
		return fmt.Errorf("%w: %v has not ended", ErrNotFound, k)
	}
	if err != nil {
		return fmt.Errorf("revise %v: %w", k, err)
	}
	also(&batch)
	return b.store.Apply(context.WithoutCancel(ctx), &batch)
}

func (b *Backlog) reviseToDone(ctx context.Context, k Key, r *proto.Record, change func(*proto.Record), also func(*store.Batch)) error {
	lane := b.blocks(k, r)
	change(r)
	val, err := proto.Encode(nil, r)
	if err != nil {
		return fmt.Errorf("settle %v: %w", k, err)
	}
	var batch store.Batch
	batch.Delete(b.buckets.Dead, k.append(nil, kindInitial))
	batch.Put(b.buckets.Done, k.append(nil, kindState), val)
	also(&batch)
	batch.After(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.dead.entries = slices.DeleteFunc(b.dead.entries, func(m endedEntry) bool { return m.key == k })
		b.done.add(k, r.EndedMs)
		if lane != "" {
			b.unblock(lane, k)
		}
	})
	return b.store.Apply(context.WithoutCancel(ctx), &batch)
}

func (b *Backlog) reviseDone(batch *store.Batch, k Key, change func(*proto.Record)) error {
	r, err := b.doneRecord(k)
	if err != nil {
		return err
	}
	change(r)
	val, err := proto.Encode(nil, r)
	if err == nil {
		batch.Put(b.buckets.Done, k.append(nil, kindState), val)
	}
	return err
}

func (b *Backlog) reviseDead(batch *store.Batch, k Key, change func(*proto.Record)) error {
	if b.buckets.Dead == 0 {
		return store.ErrNotFound
	}
	st, err := b.readStored(b.buckets.Dead, k)
	if err != nil {
		return err
	}
	held := b.blocks(k, st.Record)
	change(st.Record)
	val, err := proto.Encode(nil, st)
	if err != nil {
		return err
	}
	batch.Put(b.buckets.Dead, k.append(nil, kindInitial), val)
	batch.After(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if held != "" && b.blocks(k, st.Record) == "" {
			b.unblock(held, k)
		}
	})
	return nil
}
