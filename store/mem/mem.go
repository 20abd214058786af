// Package mem is an in-memory store engine for tests, for simulations in virtual time,
// and for nodes that need no durability.
//
//	New ──▶ Engine ── Close ──▶ Reopen ──▶ Engine   as after a restart
package mem

import (
	"bytes"
	"errors"
	"fmt"
	"sync"

	"github.com/tidwall/btree"

	"github.com/balefire/balefire/store"
)

// errClosed is returned by an engine that was closed or reopened.
var errClosed = errors.New("mem: engine is closed")

// An Engine keeps each bucket in a B-tree. A commit is durable at once, in the
// sense that [Engine.Reopen] finds it.
type Engine struct {
	mu      sync.RWMutex
	buckets map[store.Bucket]*tree
	size    int64 // bytes of all keys and values
	keys    int64
	closed  bool
}

type tree = btree.BTreeG[store.Pair]

var _ store.Engine = (*Engine)(nil)

// New returns an empty engine.
func New() *Engine {
	e := &Engine{buckets: make(map[store.Bucket]*tree)}
	for _, b := range store.Buckets() {
		less := func(a, b store.Pair) bool { return bytes.Compare(a.Key, b.Key) < 0 }
		e.buckets[b] = btree.NewBTreeGOptions(less, btree.Options{NoLocks: true})
	}
	return e
}

// Reopen returns a new engine with everything committed to e, as a restart after a power
// cut would, and closes e if it is open.
func (e *Engine) Reopen() *Engine {
	e.mu.Lock()
	defer e.mu.Unlock()
	next := &Engine{buckets: e.buckets, size: e.size, keys: e.keys}
	e.buckets, e.size, e.keys, e.closed = nil, 0, 0, true
	return next
}

// bucket returns the tree of b. The caller holds the lock.
func (e *Engine) bucket(b store.Bucket) (*tree, error) {
	if e.closed {
		return nil, errClosed
	}
	t, ok := e.buckets[b]
	if !ok {
		return nil, fmt.Errorf("mem: no bucket %v", b)
	}
	return t, nil
}

// Get implements [store.Engine].
func (e *Engine) Get(b store.Bucket, key []byte) (val []byte, ok bool, err error) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	t, err := e.bucket(b)
	if err != nil {
		return nil, false, err
	}
	p, ok := t.Get(store.Pair{Key: key})
	if !ok {
		return nil, false, nil
	}
	return clone(p.Val), true, nil
}

// Scan implements [store.Engine].
func (e *Engine) Scan(b store.Bucket, start, end []byte, limit int) ([]store.Pair, error) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	t, err := e.bucket(b)
	if err != nil {
		return nil, err
	}
	var page []store.Pair
	t.Ascend(store.Pair{Key: start}, func(p store.Pair) bool {
		if len(page) == min(limit, store.MaxScan) || end != nil && bytes.Compare(p.Key, end) >= 0 {
			return false
		}
		page = append(page, copyPair(p.Key, p.Val))
		return true
	})
	return page, nil
}

// Commit implements [store.Engine].
func (e *Engine) Commit(ops []store.Op) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, op := range ops { // check everything before the first change: all or none
		if _, err := e.bucket(op.Bucket); err != nil {
			return err
		}
	}
	for _, op := range ops {
		t := e.buckets[op.Bucket]
		var old store.Pair
		var replaced bool
		if op.Delete {
			old, replaced = t.Delete(store.Pair{Key: op.Key})
		} else {
			p := copyPair(op.Key, op.Val)
			old, replaced = t.Set(p)
			e.keys++
			e.size += int64(len(p.Key) + len(p.Val))
		}
		if replaced {
			e.keys--
			e.size -= int64(len(old.Key) + len(old.Val))
		}
	}
	return nil
}

// Compact implements [store.Engine]: there is nothing to do.
func (e *Engine) Compact() error {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if e.closed {
		return errClosed
	}
	return nil
}

// Stats implements [store.Engine].
func (e *Engine) Stats() store.Stats {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return store.Stats{Engine: "mem", LiveBytes: e.size, Keys: e.keys}
}

// Close implements [store.Engine]. [Engine.Reopen] returns the committed data.
func (e *Engine) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	return nil
}

// copyPair copies key and val with one allocation.
func copyPair(key, val []byte) store.Pair {
	buf := make([]byte, len(key)+len(val))
	n := copy(buf, key)
	copy(buf[n:], val)
	return store.Pair{Key: buf[:n:n], Val: buf[n:]}
}

func clone(p []byte) []byte { return append(make([]byte, 0, len(p)), p...) }
