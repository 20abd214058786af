package pebble

import (
	"bytes"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"

	"github.com/balefire/balefire/store"
)

// errClosed is returned to readers after Close.
var errClosed = errors.New("pebble: engine is closed")

// A view is the store after one durable commit. It lives as long as it is the
// newest or has readers.
type view struct {
	snap *pebble.Snapshot
	refs int64 // atomic
}

func (v *view) release() {
	if atomic.AddInt64(&v.refs, -1) == 0 {
		v.snap.Close() // its only error is that it was closed before
	}
}

// publish makes v the view of all later readers.
func (d *DB) publish(v *view) {
	d.mu.Lock()
	old := d.view
	d.view = v
	d.mu.Unlock()
	old.release()
}

// acquire returns the newest view; the caller releases it.
func (d *DB) acquire() (*view, error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.view == nil {
		return nil, errClosed
	}
	atomic.AddInt64(&d.view.refs, 1)
	return d.view, nil
}

// Get implements [store.Engine].
func (d *DB) Get(b store.Bucket, key []byte) (val []byte, ok bool, err error) {
	v, err := d.acquire()
	if err != nil {
		return nil, false, err
	}
	defer v.release()
	var buf [64]byte
	want := diskKey(buf[:0], b, key)
	it, err := v.snap.NewIter(&pebble.IterOptions{UseL6Filters: true})
	if err != nil {
		return nil, false, fmt.Errorf("pebble: get: %w", mark(err))
	}
	if ok = it.SeekPrefixGE(want); ok && bytes.Equal(it.Key(), want) {
		raw, verr := it.ValueAndErr()
		err = verr
		val = append(make([]byte, 0, len(raw)), raw...)
	} else {
		ok = false
	}
	if err = errors.Join(err, it.Error(), it.Close()); err != nil {
		return nil, false, fmt.Errorf("pebble: get: %w", mark(err))
	}
	return val, ok, nil
}

// Scan implements [store.Engine].
func (d *DB) Scan(b store.Bucket, start, end []byte, limit int) ([]store.Pair, error) {
	v, err := d.acquire()
	if err != nil {
		return nil, err
	}
	defer v.release()
	bounds := &pebble.IterOptions{LowerBound: diskKey(nil, b, start), UpperBound: []byte{byte(b) + 1}}
	if end != nil {
		bounds.UpperBound = diskKey(nil, b, end)
	}
	it, err := v.snap.NewIter(bounds)
	if err != nil {
		return nil, fmt.Errorf("pebble: scan: %w", mark(err))
	}
	page, err := pairs(it, min(limit, store.MaxScan))
	if err = errors.Join(err, it.Close()); err != nil {
		return nil, fmt.Errorf("pebble: scan: %w", mark(err))
	}
	return page, nil
}

// pairs copies what it finds, at most limit.
func pairs(it *pebble.Iterator, limit int) (page []store.Pair, err error) {
	for ok := it.First(); ok && len(page) < limit; ok = it.Next() {
		val, err := it.ValueAndErr()
		if err != nil {
			return nil, err
		}
		key := it.Key()[1:]
		buf := make([]byte, len(key)+len(val))
		n := copy(buf, key)
		copy(buf[n:], val)
		page = append(page, store.Pair{Key: buf[:n:n], Val: buf[n:]})
	}
	return page, it.Error()
}

// diskKey appends the key as it is on disk to buf.
func diskKey(buf []byte, b store.Bucket, key []byte) []byte {
	return append(append(buf, byte(b)), key...)
}
