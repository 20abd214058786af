package storetest

import (
	"github.com/balefire/balefire/store"
)

// Faults is an engine whose calls go through hooks, which may count, block,
// panic, or return an error in the engine's place. A nil hook does nothing. The
// hooks must not change while the engine is in use.
type Faults struct {
	store.Engine
	BeforeCommit  func(ops []store.Op) error // an error: nothing is written
	AfterCommit   func(ops []store.Op) error // an error: written, but reported as failed
	BeforeGet     func(b store.Bucket, key []byte) error
	BeforeScan    func(b store.Bucket) error
	OnStats       func(s *store.Stats) // may change what is reported
	BeforeCompact func() error
}

// Commit implements [store.Engine].
func (f *Faults) Commit(ops []store.Op) error {
	if f.BeforeCommit != nil {
		if err := f.BeforeCommit(ops); err != nil {
			return err
		}
	}
	if err := f.Engine.Commit(ops); err != nil {
		return err
	}
	if f.AfterCommit != nil {
		return f.AfterCommit(ops)
	}
	return nil
}

// Get implements [store.Engine].
func (f *Faults) Get(b store.Bucket, key []byte) ([]byte, bool, error) {
	if f.BeforeGet != nil {
		if err := f.BeforeGet(b, key); err != nil {
			return nil, false, err
		}
	}
	return f.Engine.Get(b, key)
}

// Scan implements [store.Engine].
func (f *Faults) Scan(b store.Bucket, start, end []byte, limit int) ([]store.Pair, error) {
	if f.BeforeScan != nil {
		if err := f.BeforeScan(b); err != nil {
			return nil, err
		}
	}
	return f.Engine.Scan(b, start, end, limit)
}

// Compact implements [store.Engine].
func (f *Faults) Compact() error {
	if f.BeforeCompact != nil {
		if err := f.BeforeCompact(); err != nil {
			return err
		}
	}
	return f.Engine.Compact()
}

// Stats implements [store.Engine].
func (f *Faults) Stats() store.Stats {
	s := f.Engine.Stats()
	if f.OnStats != nil {
		f.OnStats(&s)
	}
	return s
}
