package nuts

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"time"

	"github.com/nutsdb/nutsdb"

	"github.com/balefire/balefire/store"
)

// errWedged means that NutsDB panicked inside a transaction. Its lock stays held,
// so no call of that database may ever be made again.
var errWedged = errors.New("NutsDB panicked and is unusable")

// lockFile is what NutsDB locks in its folder while it is open.
const lockFile = nutsdb.FLockName

// raw is NutsDB reduced to the calls that can be trusted. Apart from the ten that the
// lint test allows, it reads two exported fields and the effective options.
type raw struct {
	dir    string
	db     *nutsdb.DB
	wedged bool // NutsDB's lock will never be released
}

// openRaw opens the NutsDB folder dir, which the guard must have passed.
func openRaw(dir string, segment int64) (r *raw, err error) {
	defer func() {
		if p := recover(); p != nil {
			r, err = nil, fmt.Errorf("%w: NutsDB panicked on opening %s: %v", store.ErrCorrupt, dir, p)
		}
		if err != nil && !errors.Is(err, store.ErrLocked) {
			dropLock(dir) // a failed Open keeps its lock on an unreachable file
		}
	}()
	o := nutsdb.DefaultOptions
	o.Dir = dir
	o.EntryIdxMode = nutsdb.HintKeyValAndRAMIdxMode
	o.RWMode = nutsdb.FileIO
	o.SyncEnable = true
	o.SegmentSize = segment
	o.NodeNum = 1
	o.CommitBufferSize = 1 << 20
	o.MergeInterval = 0
	o.EnableMergeV2 = false
	o.EnableHintFile = false
	o.EnableWatch = false
	o.ExpiredDeleteType = nutsdb.TimeHeap // the time wheel wakes up 100 times a second; nothing expires here
	db, err := nutsdb.Open(o)
	switch {
	case errors.Is(err, nutsdb.ErrDirLocked):
		return nil, lockedError(dir)
	case err != nil:
		return nil, err
	}
	r = &raw{dir: dir, db: db}
	if err := r.checkSettings(segment); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

// dropLock makes the folder lockable again after NutsDB failed without unlocking it: the
// lock stays on an unlinked file. Windows does not remove an open file; there the folder
// stays locked until the process ends or the file is garbage collected.
func dropLock(dir string) { _ = os.Remove(filepath.Join(dir, lockFile)) }

// checkSettings checks the settings that NutsDB effectively uses: durability depends on
// three of them, and no other call would reveal that one changed.
func (r *raw) checkSettings(segment int64) error {
	opt := reflect.ValueOf(r.db).Elem().FieldByName("opt")
	want := []struct {
		field string
		value any
	}{
		{"SyncEnable", true},
		{"RWMode", nutsdb.FileIO},
		{"EntryIdxMode", nutsdb.HintKeyValAndRAMIdxMode},
		{"SegmentSize", segment},
		{"MergeInterval", time.Duration(0)},
		{"EnableMergeV2", false},
		{"EnableHintFile", false},
		{"EnableWatch", false},
	}
	for _, w := range want {
		if got := opt.FieldByName(w.field); !got.Equal(reflect.ValueOf(w.value)) {
			return fmt.Errorf("nuts: NutsDB runs with %s = %v instead of %v: refusing to use it", w.field, got, w.value)
		}
	}
	return nil
}

// createBuckets creates all buckets in one transaction, in the order of their numbers, so
// that NutsDB's bucket ids equal these numbers.
func (r *raw) createBuckets() error {
	return r.update(func(tx *nutsdb.Tx) error {
		for _, b := range store.Buckets() {
			if err := tx.NewKVBucket(b.String()); err != nil {
				return err
			}
		}
		return nil
	})
}

// warm creates and releases an iterator on each bucket. The first iterator on an
// empty bucket writes to a map, which must not happen under a read lock.
func (r *raw) warm() error {
	return r.update(func(tx *nutsdb.Tx) error {
		for _, b := range store.Buckets() {
			if !tx.ExistBucket(nutsdb.DataStructureBTree, b.String()) {
				return fmt.Errorf("%w: bucket %s is missing", store.ErrCorrupt, b)
			}
			if it := nutsdb.NewIterator(tx, b.String(), nutsdb.IteratorOptions{}); it != nil {
				it.Release()
			}
		}
		return nil
	})
}

func (r *raw) get(b store.Bucket, key []byte) (val []byte, ok bool, err error) {
	err = r.db.View(func(tx *nutsdb.Tx) error {
		v, err := tx.Get(b.String(), key)
		if errors.Is(err, nutsdb.ErrKeyNotFound) {
			return nil
		}
		if err == nil {
			val, ok = append(make([]byte, 0, len(v)), v...), true
		}
		return err
	})
	return val, ok, err
}

func (r *raw) scan(b store.Bucket, start, end []byte, limit int) (pairs []store.Pair, err error) {
	err = r.each(b, start, func(k, v []byte) bool {
		if len(pairs) >= limit || end != nil && bytes.Compare(k, end) >= 0 {
			return false
		}
		kv := join(k, v)
		pairs = append(pairs, store.Pair{Key: kv[:len(k):len(k)], Val: kv[len(k):]})
		return true
	})
	return pairs, err
}

// each calls fn with the pairs from start on until fn returns false. The slices
// are NutsDB's own: fn must neither change them nor call back into r.
func (r *raw) each(b store.Bucket, start []byte, fn func(k, v []byte) bool) error {
	return r.db.View(func(tx *nutsdb.Tx) error {
		it := nutsdb.NewIterator(tx, b.String(), nutsdb.IteratorOptions{})
		if it == nil {
			return fmt.Errorf("%w: bucket %s is missing", store.ErrCorrupt, b)
		}
		defer it.Release()
		if len(start) > 0 {
			it.Seek(start)
		}
		for ; it.Valid(); it.Next() {
			v, err := it.Value()
			if err != nil {
				return err
			}
			if !fn(it.Key(), v) {
				return nil
			}
		}
		return nil
	})
}

// commit writes ops as one transaction. NutsDB keeps the slices of a put as they
// are: they must never change.
func (r *raw) commit(ops []store.Op) error {
	return r.update(func(tx *nutsdb.Tx) error {
		for i := range ops {
			op := &ops[i]
			if op.Delete {
				if err := tx.Delete(op.Bucket.String(), op.Key); err != nil && !errors.Is(err, nutsdb.ErrKeyNotFound) {
					return err
				}
				continue
			}
			if err := tx.Put(op.Bucket.String(), op.Key, op.Val, nutsdb.Persistent); err != nil {
				return err
			}
		}
		return nil
	})
}

// update runs fn in a writing transaction. A panic of fn is an error; one of
// NutsDB's own commit is [errWedged].
func (r *raw) update(fn func(tx *nutsdb.Tx) error) error {
	err := r.db.Update(func(tx *nutsdb.Tx) (err error) {
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("panic in a transaction: %v", p)
			}
		}()
		return fn(tx)
	})
	if err != nil && strings.HasPrefix(err.Error(), "panic when executing tx") {
		r.wedged = true
		return fmt.Errorf("%w: %w", errWedged, err)
	}
	return err
}

// position returns where the next transaction will be written. Only the
// goroutine that commits may call it.
func (r *raw) position() position {
	return position{r.db.MaxFileID, r.db.ActiveFile.ActualSize}
}

func (r *raw) close() (err error) {
	defer func() {
		if p := recover(); p != nil { // after a failed switch of segments NutsDB has no active file
			err = fmt.Errorf("NutsDB panicked on closing: %v", p)
		}
		if err != nil {
			dropLock(r.dir)
		}
	}()
	if r.wedged {
		return errWedged // Close would wait forever
	}
	return r.db.Close()
}

// join returns k and v in one fresh slice, never nil: NutsDB reads a nil value
// as "look at the start of the log" and returns another record's.
func join(k, v []byte) []byte {
	return append(append(make([]byte, 0, len(k)+len(v)), k...), v...)
}
