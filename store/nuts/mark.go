package nuts

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
)

// A mark records how far the log was acknowledged. It is written after each fsync
// of the log and is not synced itself: after a kill it is exact, after a
// power cut it may be old, but it never runs ahead of the log. Without it the
// guard could not tell a torn tail, which may be cut, from a damaged last
// commit, which may not.
//
// Its name sorts before those of the segments, so that copying a folder in use in the
// order of names never yields a mark ahead of its log, unless the folder was listed
// before a segment was created: such a copy is refused and has to be repeated.
type mark struct{ f *os.File }

const (
	markFile  = ".acked"
	markMagic = "bfack1\x00\x00"
	markSize  = 8 + 8 + 8 + 4 // magic, segment, offset, crc: one sector, written in place
)

// openMark opens the mark of the generation in dir, or creates it.
func openMark(dir string) (*mark, error) {
	f, err := os.OpenFile(filepath.Join(dir, markFile), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	return &mark{f}, nil
}

// set records that everything before p is acknowledged.
func (m *mark) set(p position) error {
	b := encodeMark(p)
	if _, err := m.f.WriteAt(b[:], 0); err != nil {
		return fmt.Errorf("note how far the log is acknowledged: %w", err)
	}
	return nil
}

func (m *mark) sync() error  { return m.f.Sync() }
func (m *mark) close() error { return m.f.Close() }

// readMark returns the acknowledged end of the log in dir; ok is false if there is no
// readable mark.
func readMark(dir string) (p position, ok bool, err error) {
	b, err := os.ReadFile(filepath.Join(dir, markFile))
	if errors.Is(err, fs.ErrNotExist) {
		return position{}, false, nil
	}
	if err != nil {
		return position{}, false, err
	}
	p, ok = decodeMark(b)
	return p, ok, nil
}

func encodeMark(p position) (b [markSize]byte) {
	copy(b[:], markMagic)
	binary.LittleEndian.PutUint64(b[8:], uint64(p.segment))
	binary.LittleEndian.PutUint64(b[16:], uint64(p.off))
	binary.LittleEndian.PutUint32(b[24:], crc32.ChecksumIEEE(b[:24]))
	return b
}

func decodeMark(b []byte) (p position, ok bool) {
	if len(b) != markSize || string(b[:8]) != markMagic || crc32.ChecksumIEEE(b[:24]) != binary.LittleEndian.Uint32(b[24:]) {
		return position{}, false
	}
	p = position{int64(binary.LittleEndian.Uint64(b[8:])), int64(binary.LittleEndian.Uint64(b[16:]))}
	return p, p.segment >= 0 && p.off >= 0
}
