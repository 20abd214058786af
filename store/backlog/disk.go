package backlog

import (
	"errors"
	"fmt"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// readInitial reads the initial record of an entry.
func (b *Backlog) readInitial(k Key) (*proto.Stored, error) {
	return b.readStored(b.buckets.Live, k)
}

func (b *Backlog) readStored(bk store.Bucket, k Key) (*proto.Stored, error) {
	val, err := b.store.Get(bk, k.append(nil, kindInitial))
	if err != nil {
		return nil, err
	}
	st, err := decodeStored(val)
	if err != nil {
		return nil, fmt.Errorf("%w: %v: %w", store.ErrCorrupt, k, err)
	}
	return st, nil
}

// decodeStored decodes an initial record.
func decodeStored(val []byte) (*proto.Stored, error) {
	st := new(proto.Stored)
	if err := proto.Decode(val, st); err != nil {
		return nil, err
	}
	if st.Record == nil {
		st.Record = new(proto.Record)
	}
	return st, nil
}

func (b *Backlog) readRecord(bk store.Bucket, k Key) (*proto.Record, error) {
	val, err := b.store.Get(bk, k.append(nil, kindState))
	if err != nil {
		return nil, err
	}
	r := new(proto.Record)
	if err := proto.Decode(val, r); err != nil {
		return nil, fmt.Errorf("%w: %v: %w", store.ErrCorrupt, k, err)
	}
	return r, nil
}

// read reads the record of a busy entry.
func (b *Backlog) read(e *entry) (*proto.Record, error) {
	if e.version > 0 {
		return b.readRecord(b.buckets.Live, e.key)
	}
	st, err := b.readInitial(e.key)
	if err != nil {
		return nil, err
	}
	return st.Record, nil
}

// A Set is one of the three sets that an entry may be in on disk: live, done or
// dead.
type Set byte

// The sets.
const (
	Live Set = iota
	Done
	Dead
)

// String returns the set's name.
func (s Set) String() string { return [...]string{"live", "done", "dead"}[s] }

// Get reads the record of an entry from any set, or returns ErrNotFound.
func (b *Backlog) Get(k Key) (*proto.Record, Set, error) {
	for range 2 { // it may move to another set between two reads
		for _, look := range []struct {
			set  Set
			read func(Key) (*proto.Record, error)
		}{{Live, b.liveRecord}, {Done, b.doneRecord}, {Dead, b.deadRecord}} {
			r, err := look.read(k)
			if err == nil {
				return r, look.set, nil
			}
			if !errors.Is(err, store.ErrNotFound) {
				return nil, 0, fmt.Errorf("get %v: %w", k, err)
			}
		}
	}
	return nil, 0, fmt.Errorf("%w: %v", ErrNotFound, k)
}

func (b *Backlog) liveRecord(k Key) (*proto.Record, error) {
	r, err := b.readRecord(b.buckets.Live, k)
	if !errors.Is(err, store.ErrNotFound) {
		return r, err
	}
	st, err := b.readInitial(k)
	if err != nil {
		return nil, err
	}
	if newer, err := b.readRecord(b.buckets.Live, k); err == nil {
		return newer, nil // changed between the two reads
	}
	return st.Record, nil
}

func (b *Backlog) doneRecord(k Key) (*proto.Record, error) {
	if b.buckets.Done == 0 {
		return nil, store.ErrNotFound
	}
	return b.readRecord(b.buckets.Done, k)
}

func (b *Backlog) deadRecord(k Key) (*proto.Record, error) {
	if b.buckets.Dead == 0 {
		return nil, store.ErrNotFound
	}
	st, err := b.readStored(b.buckets.Dead, k)
	if err != nil {
		return nil, err
	}
	return st.Record, nil
}

// Read reads a taken entry with its envelope, with a single read if it was never
// changed.
func (b *Backlog) Read(it Item) (*proto.Stored, error) {
	if it.Version > 0 {
		return b.Stored(it.Key)
	}
	st, err := b.readInitial(it.Key)
	if errors.Is(err, store.ErrNotFound) {
		return nil, fmt.Errorf("%w: %v", ErrNotFound, it.Key)
	}
	return st, err
}

// Stored reads an entry with its envelope and current record. It finds live and
// dead entries; of done ones only the record is kept: see Get.
func (b *Backlog) Stored(k Key) (*proto.Stored, error) {
	st, err := b.readInitial(k)
	if err == nil {
		r, err := b.readRecord(b.buckets.Live, k)
		switch {
		case err == nil:
			st.Record = r
		case !errors.Is(err, store.ErrNotFound):
			return nil, fmt.Errorf("read %v: %w", k, err)
		}
		return st, nil
	}
	if errors.Is(err, store.ErrNotFound) && b.buckets.Dead != 0 {
		st, err = b.readStored(b.buckets.Dead, k)
	}
	if errors.Is(err, store.ErrNotFound) {
		return nil, fmt.Errorf("%w: %v", ErrNotFound, k)
	}
	if err != nil {
		return nil, fmt.Errorf("read %v: %w", k, err)
	}
	return st, nil
}
