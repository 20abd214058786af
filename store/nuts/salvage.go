package nuts

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/balefire/balefire/store"
)

const (
	salvageOps   = 512     // operations a transaction of the new store holds at most
	salvageBytes = 1 << 20 // and bytes
)

// Salvage copies every committed record that can still be read from the damaged
// store src to a new store dst, which must not exist. src is not modified. The
// report states what was lost. A record whose delete was lost reappears.
func Salvage(src, dst string) (Report, error) {
	r, err := salvage(src, dst)
	if err != nil {
		return r, fmt.Errorf("salvage store %s: %w", src, err)
	}
	return r, nil
}

func salvage(src, dst string) (_ Report, err error) {
	gen, err := salvageSource(src)
	if err != nil {
		return Report{}, err
	}
	if _, err := os.Lstat(dst); !errors.Is(err, fs.ErrNotExist) {
		return Report{}, fmt.Errorf("%s: %w", dst, fs.ErrExist)
	}
	segs, err := listSegments(gen)
	if err != nil {
		return Report{}, err
	}
	db, err := Open(dst, Config{})
	if err != nil {
		return Report{}, err
	}
	defer func() {
		if err = errors.Join(err, db.Close()); err != nil {
			err = errors.Join(err, os.RemoveAll(dst))
		}
	}()
	s := salvager{to: db, report: Report{Generation: filepath.Base(gen), Segments: len(segs), Bytes: sumSizes(segs)}}
	if s.acked, _, err = readMark(gen); err != nil {
		return s.report, err
	}
	want := int64(0)
	for _, seg := range segs {
		if err := s.segment(gen, want, seg); err != nil {
			return s.report, err
		}
		want = seg.num + 1
	}
	if err := s.finish(); err != nil {
		return s.report, err
	}
	if db.Stats().CompactDue {
		return s.report, db.Compact()
	}
	return s.report, nil
}

// salvageSource returns the generation to read: the one that CURRENT names, or
// if that cannot be found the newest that has a log.
func salvageSource(src string) (string, error) {
	if n, ok, err := readCurrent(src); err == nil && ok {
		if _, err := os.Stat(genDir(src, n.num)); err == nil {
			return genDir(src, n.num), nil
		}
	}
	gens, err := filepath.Glob(filepath.Join(src, genPrefix+"*")) // sorted
	if err != nil {
		return "", err
	}
	for i := len(gens) - 1; i >= 0; i-- {
		if segs, err := listSegments(gens[i]); err == nil && len(segs) > 0 {
			return gens[i], nil
		}
	}
	return "", fmt.Errorf("there is no log of a NutsDB store in it: %w", fs.ErrNotExist)
}

// A salvager reads the entries of a damaged log in order and commits them to another
// store, as whole transactions where possible.
type salvager struct {
	to     *DB
	report Report
	acked  position // the log was acknowledged up to here

	ops   []store.Op // of finished transactions, not yet committed
	bytes int

	group []store.Op // of the current transaction
	tx    uint64     // its number; 0: none
	begin position   // of its first entry
	hurt  bool       // bytes were unreadable just before it or in it
}

// segment reads the entries of one log file. want is its expected number.
func (s *salvager) segment(gen string, want int64, seg segment) error {
	for ; want < seg.num; want++ {
		s.lose(Range{File: fmt.Sprintf("%d.dat", want)})
	}
	next, file := int64(0), fmt.Sprintf("%d.dat", seg.num)
	written, err := scanDamaged(segmentPath(gen, seg.num), 0, func(off int64, e entry, b []byte) error {
		if off > next {
			s.lose(Range{file, next, off})
		}
		next = off + e.size()
		return s.take(position{seg.num, off}, e, b)
	})
	if err == nil && written > next {
		s.lose(Range{file, next, written})
	}
	return err
}

func (s *salvager) lose(r Range) {
	s.report.Lost = append(s.report.Lost, r)
	s.hurt = true
}

// take adds an entry to the current transaction.
func (s *salvager) take(p position, e entry, b []byte) error {
	if s.tx != 0 && s.tx != e.tx {
		if err := s.endUnmarked(s.hurt); err != nil {
			return err
		}
	}
	if s.tx == 0 {
		s.tx, s.begin = e.tx, p
	}
	s.report.Entries++
	if e.bucket != voidBucket {
		kv := append([]byte(nil), b[e.header:]...)
		s.group = append(s.group, store.Op{
			Bucket: store.Bucket(e.bucket), Key: kv[:e.key:e.key], Val: kv[e.key:], Delete: !e.set,
		})
	}
	if !e.committed {
		return nil
	}
	if s.hurt {
		s.report.Partial++
	}
	s.hurt = false
	return s.end()
}

// endUnmarked ends a transaction whose commit was not found. It is copied if it is known
// to have been committed.
func (s *salvager) endUnmarked(committed bool) error {
	if !committed {
		s.report.Orphans++
		s.group, s.tx = nil, 0
		return nil
	}
	s.report.Partial++
	return s.end()
}

// end moves the current transaction to those that are committed next.
func (s *salvager) end() error {
	s.report.Transactions++
	for _, op := range s.group {
		s.bytes += len(op.Key) + len(op.Val)
	}
	s.ops = append(s.ops, s.group...)
	s.group, s.tx = nil, 0
	if len(s.ops) < salvageOps && s.bytes < salvageBytes {
		return nil
	}
	return s.commit()
}

func (s *salvager) commit() error {
	if err := s.to.Commit(s.ops); err != nil {
		return err
	}
	s.report.Imported += len(s.ops)
	s.ops, s.bytes = s.ops[:0], 0
	return nil
}

// finish ends the log: an uncommitted transaction at its end counts only if it was
// acknowledged.
func (s *salvager) finish() error {
	if s.tx != 0 {
		if err := s.endUnmarked(s.begin.compare(s.acked) < 0); err != nil {
			return err
		}
	}
	return s.commit()
}
