package ledger

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// maxTorn is how many torn ends are kept; the oldest are removed first.
const maxTorn = 16

// end decides what is behind the readable part of the log: nothing, a torn end,
// which it repairs, or damage.
func (r *recovery) end() error {
	seg := r.segments[len(r.segments)-1]
	torn, to, err := r.survey(seg)
	if err != nil {
		return err
	}
	if newest := r.newest(); r.tail.last < newest {
		return &DamageError{seg.path, r.tail.off, fmt.Sprintf("the log ends with batch %d, and there is a checkpoint at %d", r.tail.last, newest)}
	}
	from := r.tail.off
	if r.unbegun {
		from = 0
	}
	if torn {
		if err := r.cutOff(seg, from, to); err != nil {
			return fmt.Errorf("repair the end of %s: %w", seg.path, err)
		}
	}
	if !r.unbegun {
		return nil
	}
	seg.prev = r.tail.crc
	seg.end.Store(segmentHead)
	return writeHeader(seg.file, seg.size, segmentHeader{id: r.id, first: seg.first, prev: seg.prev})
}

// survey reports whether something was written behind the tail that does not
// verify, and up to where it may reach. It is damage if something behind it was
// written when it was on disk.
func (r *recovery) survey(seg *segment) (torn bool, to int64, err error) {
	w, t := newWindow(seg.file, seg.size), r.tail
	if seg.size-t.off < batchHead {
		return false, t.off, nil
	}
	all, err := w.traces(t)
	if err != nil {
		return false, 0, err
	}
	behind, err := w.bytes(t.off, batchHead)
	if err != nil {
		return false, 0, err
	}
	torn = len(all) > 0 || !r.unbegun && !allZero(behind)
	damaged := false
	err = w.verified(r.id, t, all, func(x *trace, _ uint32) bool {
		damaged = x.h.synced()
		return !damaged
	})
	if err != nil {
		return false, 0, err
	}
	if damaged {
		off := t.off
		if r.unbegun {
			off = 0
		}
		return false, 0, &DamageError{seg.path, off, "something does not verify, and what is behind it was written when it was on disk"}
	}
	to = t.off + MaxBatch
	for i := range all {
		to = max(to, all[i].end())
	}
	return torn, min(to, seg.size), nil
}

// cutOff copies the bytes of seg between from and to to a file of their own and
// replaces them with zeros. A copy that fails, on a full disk, does not stop it.
func (r *recovery) cutOff(seg *segment, from, to int64) error {
	name := fmt.Sprintf("%s%s-%d-%d", tornPrefix, r.cfg.Clock.Now().UTC().Format("20060102T150405.000Z"), seg.first, from)
	if err := r.setAside(name, seg, from, to); err != nil {
		r.cfg.Logger.Warn("ledger: could not keep what is cut off", "err", err)
	} else {
		r.aside = name
	}
	r.cfg.Logger.Warn("ledger: the log has a torn end, cutting it off", "segment", filepath.Base(seg.path), "at", from, "last", r.tail.last, "kept", r.aside)
	return writeZeros(seg.file, from, to, func() bool { return false })
}

func (r *recovery) setAside(name string, seg *segment, from, to int64) error {
	path := filepath.Join(r.dir, name)
	f, err := r.cfg.fs.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.NewOffsetWriter(f, 0), io.NewSectionReader(seg.file, from, to-from))
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, r.cfg.fs.Remove(path))
	}
	for kept := append(r.folder.torn, name); len(kept) > maxTorn; kept = kept[1:] {
		if err := r.cfg.fs.Remove(filepath.Join(r.dir, kept[0])); err != nil {
			return err
		}
	}
	return nil
}
