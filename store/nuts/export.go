package nuts

import (
	"cmp"
	"fmt"
	"path/filepath"

	"github.com/gofrs/flock"

	"github.com/balefire/balefire/store"
)

// Export calls fn with the committed transactions of the store in dir, in order, several
// at a time. It reads only the log, in constant memory, and changes nothing; damage to
// acknowledged data is a [store.ErrCorrupt]. A record may be put several times, and be
// deleted later. progress is called with the bytes read. The operations are valid until
// fn returns.
func Export(dir string, progress func(done, total int64), fn func([]store.Op) error) error {
	if err := export(dir, progress, fn); err != nil {
		return fmt.Errorf("export store %s: %w", dir, err)
	}
	return nil
}

func export(dir string, progress func(done, total int64), fn func([]store.Op) error) error {
	n, ok, err := readCurrent(dir)
	if err != nil {
		return err
	}
	if !ok {
		return cmp.Or(checkEmpty(dir), fmt.Errorf("%w: there is no store in %s", store.ErrNotFound, dir))
	}
	gen := genDir(dir, n.num)
	lock := flock.New(filepath.Join(gen, lockFile))
	if ok, err := lock.TryLock(); err != nil || !ok {
		return cmp.Or(err, lockedError(gen))
	}
	defer lock.Close()
	s, err := surveyAll(gen, n.segment, progress)
	if err != nil {
		return err
	}
	x := exporter{last: s.last, fn: fn}
	total, done := s.bytes(), s.bytes()
	for _, seg := range s.segments {
		if seg.num > s.last.segment {
			break
		}
		if err := x.segment(gen, seg); err != nil {
			return err
		}
		done += seg.size
		progress(done, 2*total)
	}
	return x.flush()
}

// An exporter gathers the operations of whole transactions.
type exporter struct {
	last  position // end of the last transaction
	fn    func([]store.Op) error
	whole int // number of ops that belong to committed transactions
	ops   []store.Op
	bytes int
	tx    uint64 // the current one
}

func (x *exporter) segment(gen string, seg segment) error {
	w, closeFile, err := openWindow(segmentPath(gen, seg.num))
	if err != nil {
		return err
	}
	defer closeFile()
	for off := int64(0); (position{seg.num, off}).compare(x.last) < 0; {
		e, b, v, err := w.entryAt(off)
		if err != nil {
			return err
		}
		if v != valid {
			return nil // the rest of a full segment
		}
		if err := x.take(e, b); err != nil {
			return err
		}
		off += e.size()
	}
	return nil
}

// take adds one entry. Entries of uncommitted transactions are dropped.
func (x *exporter) take(e entry, b []byte) error {
	if e.tx != x.tx {
		x.ops, x.tx = x.ops[:x.whole], e.tx
	}
	if e.bucket != voidBucket {
		kv := append([]byte(nil), b[e.header:]...)
		x.ops = append(x.ops, store.Op{Bucket: store.Bucket(e.bucket), Key: kv[:e.key:e.key], Val: kv[e.key:], Delete: !e.set})
		x.bytes += len(kv)
	}
	if !e.committed {
		return nil
	}
	x.whole, x.tx = len(x.ops), 0
	if x.whole < salvageOps && x.bytes < salvageBytes {
		return nil
	}
	return x.flush()
}

func (x *exporter) flush() error {
	if x.whole == 0 {
		return nil
	}
	err := x.fn(x.ops[:x.whole])
	x.ops, x.whole, x.bytes = x.ops[:0], 0, 0
	return err
}
