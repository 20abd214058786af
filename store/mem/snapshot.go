package mem

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/balefire/balefire/store"
)

// Snapshot implements [store.Engine]. It writes one file, the puts that make the content;
// only the tests of this package read it.
func (e *Engine) Snapshot(dir string) error {
	ops, err := e.puts()
	if err == nil {
		err = os.Mkdir(dir, 0o700)
	}
	if err != nil {
		return fmt.Errorf("mem: snapshot: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "mem.snapshot"), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("mem: snapshot: %w", err)
	}
	err = json.NewEncoder(f).Encode(ops)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("mem: snapshot: %w", err)
	}
	return nil
}

// puts returns a consistent view of all records. Nobody changes their bytes.
func (e *Engine) puts() (ops []store.Op, err error) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if e.closed {
		return nil, errClosed
	}
	for _, b := range store.Buckets() {
		e.buckets[b].Scan(func(p store.Pair) bool {
			ops = append(ops, store.Op{Bucket: b, Key: p.Key, Val: p.Val})
			return true
		})
	}
	return ops, nil
}
