package nuts

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"github.com/balefire/balefire/disk"
)

// maxQuarantine is how many torn tails are kept; the oldest are removed first.
const maxQuarantine = 16

// repair makes the surveyed log readable for NutsDB: data after the last commit is copied
// to the folder quarantine and cut off, and entries that were never committed but lie
// between commits are voided. judge must have returned nil. The next repair completes an
// interrupted one.
func (s *survey) repair(quarantine string, log *slog.Logger) error {
	log.Warn("store: the log does not end with a commit, cutting it there",
		"generation", filepath.Base(s.dir), "at", s.last.String(), "bytes", s.torn, "voided", len(s.orphans))
	if err := s.setAside(quarantine); err != nil {
		log.Warn("store: could not keep what was cut off", "err", err) // a full disk must not stop the repair
	}
	for _, group := range s.orphans {
		if err := voidGroup(s.dir, group); err != nil {
			return fmt.Errorf("void a transaction that was never committed: %w", err)
		}
	}
	for _, seg := range slices.Backward(s.segments[s.last.segment+1:]) {
		if err := os.Remove(segmentPath(s.dir, seg.num)); err != nil {
			return fmt.Errorf("cut off the log's tail: %w", err)
		}
	}
	if err := truncate(segmentPath(s.dir, s.last.segment), s.last.off); err != nil {
		return fmt.Errorf("cut off the log's tail: %w", err)
	}
	return disk.SyncDir(s.dir)
}

// setAside copies the data after the last commit into the folder quarantine.
func (s *survey) setAside(quarantine string) error {
	if s.torn == 0 {
		return nil
	}
	if err := os.MkdirAll(quarantine, 0o700); err != nil {
		return err
	}
	for _, seg := range s.segments[s.last.segment:] {
		from := int64(0)
		if seg.num == s.last.segment {
			from = s.last.off
		}
		n, err := scanDamaged(segmentPath(s.dir, seg.num), from, func(int64, entry, []byte) error { return nil })
		if err != nil || n == 0 {
			return err
		}
		name := fmt.Sprintf("%s-%d-%d.bin", filepath.Base(s.dir), seg.num, from)
		if err := copyRange(filepath.Join(quarantine, name), segmentPath(s.dir, seg.num), from, n); err != nil {
			return err
		}
	}
	return pruneQuarantine(quarantine)
}

// pruneQuarantine keeps only the newest tails.
func pruneQuarantine(dir string) error {
	files, err := os.ReadDir(dir)
	if err != nil || len(files) <= maxQuarantine {
		return err
	}
	age := func(e os.DirEntry) int64 {
		if info, err := e.Info(); err == nil {
			return info.ModTime().UnixNano()
		}
		return 0
	}
	slices.SortFunc(files, func(a, b os.DirEntry) int { return cmp.Compare(age(a), age(b)) })
	for _, f := range files[:len(files)-maxQuarantine] {
		if err := os.Remove(filepath.Join(dir, f.Name())); err != nil {
			return err
		}
	}
	return nil
}

// copyRange copies n bytes of src, starting at byte from, into the new file dst; a failed
// copy leaves no file.
func copyRange(dst, src string, from, n int64) (err error) {
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(dst, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err = cmp.Or(err, out.Close()); err != nil {
			_ = os.Remove(dst)
		}
	}()
	if _, err := io.Copy(out, io.NewSectionReader(in, from, n)); err != nil {
		return err
	}
	return out.Sync()
}

// voidGroup rewrites the entries of a transaction that was never committed, in place and
// with the same lengths, so that NutsDB reads a committed transaction of a nonexistent
// bucket and skips it.
func voidGroup(dir string, group []locatedEntry) error {
	for i, p := range group {
		f, err := os.OpenFile(segmentPath(dir, p.segment), os.O_RDWR, 0)
		if err != nil {
			return err
		}
		b := make([]byte, p.size())
		_, err = f.ReadAt(b, p.off)
		if err == nil {
			b[p.bucketOff] = voidBucket
			if i == len(group)-1 {
				b[p.statusOff] = 1
			}
			binary.LittleEndian.PutUint32(b, crc32.ChecksumIEEE(b[4:]))
			_, err = f.WriteAt(b, p.off)
		}
		if err := cmp.Or(err, f.Sync(), f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// truncate durably cuts the file at size.
func truncate(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	err = f.Truncate(size)
	if err == nil {
		err = f.Sync()
	}
	return cmp.Or(err, f.Close())
}
