package backlog

import (
	"errors"
	"fmt"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// StatusRedriven is the status of a dead entry that was resubmitted as another
// task. It no longer blocks its lane.
const StatusRedriven = "redriven"

// An Action is the outcome of a decision about an entry.
type Action byte

// The actions.
const (
	Keep      Action = iota // nothing changed, nothing is written
	Write                   // the record is written; a taken entry stays taken
	Requeue                 // the record is written; the entry waits for its DueMs again
	Tombstone               // the record is written and the initial record deleted: the entry has ended and only its record is kept
	Drop                    // the entry is deleted without a trace
	ToDone                  // it ends and its record is kept in Done
	ToDead                  // it ends and is kept whole in Dead
)

// A Decide function decides about an entry. It may change r, its current record;
// it must be quick and depend only on its argument.
type Decide func(r *proto.Record) Action

// A NewEntry is an entry to be added.
type NewEntry struct {
	Key    Key
	Stored *proto.Stored // the initial record; read, never kept
	// Encoded is the encoded initial record, for a caller that has encoded it
	// already; nil: it is encoded here.
	Encoded []byte
	// BypassLimits adds the entry even if the backlog or the disk is full: for
	// entries that running work needs to end.
	BypassLimits bool
	// With adds operations and requirements that are committed together with this
	// entry; nil for none. It is called once, unless the entry is refused before.
	With func(*store.Batch)
}

// An Edit names an entry to be changed.
type Edit struct {
	Key Key
	// Record is the record as the caller read it when the entry had this Version,
	// which saves a read; it is changed in place. Nil: it is read.
	Record  *proto.Record
	Version uint32
}

// A PendingChange is a change that has been decided and is not yet on disk. Until
// it is written or discarded no other change of the entry is possible.
type PendingChange struct {
	b      *Backlog
	e      *entry
	old    *entry // the entry that e replaces; mostly nil
	rec    *proto.Record
	action Action
	add    bool
	val    []byte // what is written: the initial record of an added entry, otherwise the record
	closed bool   // applied or discarded; guarded by b.mu
}

// Reserve prepares to add n, for a caller that writes it with its own batch;
// n.With is not called. It fails with ErrExists, a [FullError] or
// store.ErrTooLarge.
func (b *Backlog) Reserve(n NewEntry) (*PendingChange, error) {
	return b.prepareAdd(n, false)
}

// Replace is Reserve for the key of an ended entry of which only a [Tombstone] is
// left: the new one replaces it. For any other entry it returns ErrExists.
func (b *Backlog) Replace(n NewEntry) (*PendingChange, error) {
	return b.prepareAdd(n, true)
}

func (b *Backlog) prepareAdd(n NewEntry, again bool) (*PendingChange, error) {
	val, err := n.encode(nil)
	if err == nil {
		err = b.store.Fits(len(val)) // the caller's batch holds more than this
	}
	if err != nil {
		return nil, err
	}
	s, err := b.reserve(n, len(val), again)
	if err != nil {
		return nil, err
	}
	s.val = val
	return &s, nil
}

// Prepare waits until no other change of the entry is being written and decides.
// A nil change without an error means that the decision was to keep the entry as
// it is.
func (b *Backlog) Prepare(ed Edit, decide Decide) (*PendingChange, error) {
	e, err := b.acquire(ed.Key)
	if err != nil {
		return nil, err
	}
	s := &PendingChange{b: b, e: e}
	if err = s.decide(ed, decide); err == nil && s.action != Keep {
		s.val, err = s.encode(nil)
	}
	if err != nil || s.action == Keep {
		s.Discard()
		return nil, err
	}
	return s, nil
}

// Record returns the new record.
func (s *PendingChange) Record() *proto.Record { return s.rec }

// AddTo adds the change to batch. Memory follows once the batch is on disk. If
// the batch is not applied, or refused, the caller must Discard the change.
func (s *PendingChange) AddTo(batch *store.Batch) {
	s.ops(batch, s.val)
	batch.After(func() {
		s.b.mu.Lock()
		defer s.b.mu.Unlock()
		s.apply()
		s.b.wakeWaiters()
	})
}

// ReplaceInitial adds to batch a new initial record of the entry. The record in
// st must be that of the change.
func (s *PendingChange) ReplaceInitial(batch *store.Batch, st *proto.Stored) error {
	val, err := proto.Encode(nil, st)
	if err != nil {
		return fmt.Errorf("encode %v: %w", s.e.key, err)
	}
	batch.Put(s.b.buckets.Live, s.e.key.append(nil, kindInitial), val)
	return nil
}

// Discard gives up the change. It does nothing if the change was written.
func (s *PendingChange) Discard() {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	s.rollback()
	s.b.wakeWaiters()
}

// encode returns the encoding of n. It may overwrite buf.
func (n *NewEntry) encode(buf []byte) ([]byte, error) {
	if n.Encoded != nil {
		return n.Encoded, nil
	}
	val, err := proto.Encode(buf, n.Stored)
	if err != nil {
		return nil, fmt.Errorf("add %v: %w", n.Key, err)
	}
	return val, nil
}

// reserve makes room for a new entry of this size; with again it may replace a
// tombstone.
func (b *Backlog) reserve(n NewEntry, size int, again bool) (PendingChange, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	old := b.entries[n.Key]
	if old != nil && (!again || !old.isTombstone()) {
		return PendingChange{}, fmt.Errorf("%w: %v", ErrExists, n.Key)
	}
	count, bytes := b.totals.live+b.reserved.live, b.totals.bytes+b.reserved.bytes
	if !n.BypassLimits && (count >= b.cfg.MaxEntries || bytes+int64(size) > b.cfg.MaxBytes) {
		return PendingChange{}, &FullError{Count: count, MaxCount: b.cfg.MaxEntries, Bytes: bytes, MaxBytes: b.cfg.MaxBytes}
	}
	e := &entry{key: n.Key, size: uint32(size), busy: true, hasInitial: true, place: adding, xpos: -1}
	b.entries[n.Key] = e
	b.reserved.live++
	b.reserved.bytes += int64(size)
	return PendingChange{b: b, e: e, old: old, rec: n.Stored.Record, add: true}, nil
}

// acquire marks an entry busy, once it is not.
func (b *Backlog) acquire(k Key) (*entry, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
		e := b.entries[k]
		switch {
		case e == nil:
			return nil, fmt.Errorf("%w: %v", ErrNotFound, k)
		case !e.busy:
			b.markBusy(e)
			return e, nil
		}
		b.awaitIdle()
	}
}

// markBusy marks e busy and removes it from its heap.
func (b *Backlog) markBusy(e *entry) {
	e.busy = true
	if e.place == ready || e.place == waiting {
		b.dequeue(e)
		e.place = changing
	}
}

// awaitIdle waits for some entry to become idle.
func (b *Backlog) awaitIdle() {
	b.waiters++
	b.idle.Wait()
	b.waiters--
}

// wakeWaiters wakes the goroutines waiting for a busy entry.
func (b *Backlog) wakeWaiters() {
	if b.waiters > 0 {
		b.idle.Broadcast()
	}
}

// decide reads the record, unless the caller passed it, and makes the decision.
func (s *PendingChange) decide(ed Edit, decide Decide) (err error) {
	s.rec = ed.Record
	if s.rec == nil || ed.Version != s.e.version {
		if s.rec, err = s.b.read(s.e); err != nil {
			return fmt.Errorf("read %v: %w", ed.Key, err)
		}
	}
	s.action = decide(s.rec)
	return nil
}

// encode appends to dst what the change writes.
func (s *PendingChange) encode(dst []byte) ([]byte, error) {
	switch s.action {
	case Write, Requeue, Tombstone, ToDone:
		return proto.Encode(dst, s.rec)
	case ToDead:
		st, err := s.b.readInitial(s.e.key)
		if errors.Is(err, store.ErrNotFound) {
			st, err = &proto.Stored{}, nil // a tombstone has no body
		}
		if err != nil {
			return dst, fmt.Errorf("read %v: %w", s.e.key, err)
		}
		st.Record = s.rec
		return proto.Encode(dst, st)
	}
	return dst, nil
}

// ops adds the operations of the change to batch.
func (s *PendingChange) ops(batch *store.Batch, val []byte) {
	var arr [keySize]byte
	k, bk := s.e.key.append(arr[:0], kindInitial), s.b.buckets
	if s.add {
		batch.Put(bk.Live, k, val)
		if s.old != nil {
			k[keySize-1] = kindState
			batch.Delete(bk.Live, k)
		}
		return
	}
	ends := s.action == Drop || s.action == ToDone || s.action == ToDead
	if s.e.hasInitial && (ends || s.action == Tombstone) {
		batch.Delete(bk.Live, k)
	}
	if s.action == ToDead {
		batch.Put(bk.Dead, k, val)
	}
	k[keySize-1] = kindState
	if s.action == ToDone {
		batch.Put(bk.Done, k, val)
	}
	switch {
	case !ends:
		batch.Put(bk.Live, k, val)
	case s.e.version > 0:
		batch.Delete(bk.Live, k)
	}
	if ends && s.action != Drop && s.b.cfg.Ended != nil {
		s.alsoEnded(batch)
	}
}

// alsoEnded adds the operations of Config.Ended to batch.
func (s *PendingChange) alsoEnded(batch *store.Batch) {
	before := batch.Len()
	s.b.cfg.Ended(s.e.key, s.rec, batch)
	if n := batch.Len() - before; n > MaxEndedOps {
		panic(fmt.Sprintf("backlog: Config.Ended added %d operations for %v, limit %d; keep what it writes in fewer records", n, s.e.key, MaxEndedOps))
	}
}

// apply updates memory after the write. It runs under b.mu, once.
func (s *PendingChange) apply() {
	if s.closed {
		return
	}
	s.closed = true
	b, e := s.b, s.e
	e.busy = false
	if s.add {
		b.reserved.live--
		b.reserved.bytes -= int64(e.size)
		e.place = changing
		if s.old != nil {
			b.count(s.old, -1)
			s.old.place = removed
		}
		b.admit(e, s.rec)
		b.position(e, s.rec)
		return
	}
	b.count(e, -1)
	switch s.action {
	case Drop:
		b.end(e, removed)
	case ToDone:
		b.done.add(e.key, s.rec.EndedMs)
		b.end(e, removed)
	case ToDead:
		b.dead.add(e.key, s.rec.EndedMs)
		if e.lane != nil && b.blocks(e.key, s.rec) != "" {
			b.end(e, blocking)
		} else {
			b.end(e, removed)
		}
	default:
		b.applyRecord(e, s.rec, s.action)
		b.count(e, 1)
	}
}

// applyRecord updates e to its new record.
func (b *Backlog) applyRecord(e *entry, r *proto.Record, a Action) {
	b.followWall() // or describe may, and the due time kept below would be the old one
	due, absolute, was := e.due, e.absolute, e.place
	e.version++
	b.describe(e, r)
	if a == Tombstone {
		e.hasInitial = false
	}
	if r.State.Terminal() {
		b.leaveLane(e)
	}
	switch {
	case a == Write && was == taken && !b.cfg.Parked(e.key, r) && !r.State.Terminal():
		b.expire(e)
		return
	case a == Write && was != parked:
		e.due, e.absolute = due, absolute // a change of the record alone keeps the due time
	}
	b.position(e, r)
}

// rollback restores memory after a change that was not written. It runs under
// b.mu.
func (s *PendingChange) rollback() {
	if s.closed {
		return
	}
	s.closed = true
	b, e := s.b, s.e
	e.busy = false
	if s.add {
		b.reserved.live--
		b.reserved.bytes -= int64(e.size)
		delete(b.entries, e.key)
		if s.old != nil {
			b.entries[e.key] = s.old
		}
		e.place = removed
		return
	}
	if e.place == changing || e.place == queuedBehind {
		b.enqueue(e)
	}
}
