package pebble

import (
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/balefire/balefire/store"
)

// Commit implements [store.Engine].
func (d *DB) Commit(ops []store.Op) error {
	if err := d.monitor.failed(); err != nil {
		return err
	}
	b := d.db.NewBatch()
	for i := range ops {
		if err := add(b, &ops[i]); err != nil {
			b.Close()
			return err
		}
	}
	if err := d.write(b); err != nil {
		return fmt.Errorf("pebble: commit: %w", err)
	}
	d.publish(&view{snap: d.db.NewSnapshot(), refs: 1})
	return nil
}

// add copies op into b.
func add(b *pebble.Batch, op *store.Op) error {
	if !op.Bucket.Valid() {
		return fmt.Errorf("pebble: no bucket %v", op.Bucket)
	}
	if op.Delete {
		w := b.DeleteDeferred(1 + len(op.Key))
		w.Key[0] = byte(op.Bucket)
		copy(w.Key[1:], op.Key)
		return w.Finish()
	}
	w := b.SetDeferred(1+len(op.Key), len(op.Val))
	w.Key[0] = byte(op.Bucket)
	copy(w.Key[1:], op.Key)
	copy(w.Value, op.Val)
	return w.Finish()
}

// write commits b in a goroutine of its own: Pebble waits forever for space on
// the disk, and ends the goroutine of a failed log write. Close waits for a write
// that was given up.
func (d *DB) write(b *pebble.Batch) error {
	done := make(chan error, 1)
	d.writing.Go(func() {
		err := errors.New("ended by pebble")
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("pebble panicked: %v", p)
			}
			done <- err
		}()
		err = errors.Join(b.Commit(pebble.Sync), b.Close())
	})
	timer := time.NewTimer(d.cfg.CommitTimeout)
	defer timer.Stop()
	select {
	case err := <-done:
		if dead := d.monitor.failed(); dead != nil {
			return dead
		}
		return err
	case <-d.monitor.fatal:
		return d.monitor.failed()
	case <-timer.C:
		return fmt.Errorf("%w for %v: %w", ErrStuck, d.cfg.CommitTimeout, d.monitor.why())
	}
}
