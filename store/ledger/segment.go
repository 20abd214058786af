package ledger

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

const (
	segmentHead    = 64 // bytes of the header of a segment
	segmentMagic   = "BFLEDGR1"
	segmentVersion = 1
	segmentSuffix  = ".seg"
)

// A segmentHeader is the header of a segment.
type segmentHeader struct {
	size  uint32 // bytes of the file
	id    ID
	first uint64 // index of its first batch
	term  uint64 // of its first batch
	prev  uint32 // CRC of the batch before it
}

// encode returns the bytes of h.
func (h segmentHeader) encode() [segmentHead]byte {
	var b [segmentHead]byte
	copy(b[:], segmentMagic)
	binary.BigEndian.PutUint32(b[8:], segmentVersion)
	binary.BigEndian.PutUint32(b[12:], h.size)
	copy(b[16:], h.id[:])
	binary.BigEndian.PutUint64(b[32:], h.first)
	binary.BigEndian.PutUint64(b[40:], h.term)
	binary.BigEndian.PutUint32(b[48:], h.prev)
	binary.BigEndian.PutUint32(b[60:], crc32.Checksum(b[:60], castagnoli))
	return b
}

// parseSegment reads the header at the start of b. ok is false if it is none that
// this version writes.
func parseSegment(b []byte) (h segmentHeader, ok bool) {
	if len(b) < segmentHead || string(b[:8]) != segmentMagic ||
		binary.BigEndian.Uint32(b[60:]) != crc32.Checksum(b[:60], castagnoli) ||
		binary.BigEndian.Uint32(b[8:]) != segmentVersion || binary.BigEndian.Uint64(b[52:]) != 0 {
		return h, false
	}
	h = segmentHeader{
		size:  binary.BigEndian.Uint32(b[12:]),
		id:    ID(b[16:32]),
		first: binary.BigEndian.Uint64(b[32:]),
		term:  binary.BigEndian.Uint64(b[40:]),
		prev:  binary.BigEndian.Uint32(b[48:]),
	}
	return h, true
}

// segmentName returns the name of the segment whose first batch has this index.
func segmentName(first uint64) string { return fmt.Sprintf("%020d"+segmentSuffix, first) }

// numberOf returns the number between prefix and suffix in a name of 20 digits.
func numberOf(name, prefix, suffix string) (n uint64, ok bool) {
	digits, ok := strings.CutSuffix(strings.TrimPrefix(name, prefix), suffix)
	if !ok || !strings.HasPrefix(name, prefix) || len(digits) != 20 || strings.Trim(digits, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	return n, err == nil
}

// A segment is one open file of the log.
type segment struct {
	first uint64
	path  string
	size  int64  // bytes of the file
	prev  uint32 // CRC of the batch before it

	end atomic.Int64 // where answered batches end; size if that is not known

	mu   sync.RWMutex // held for reading while the file is read
	file file
	gone bool // released or closed
}

// readAt reads len(b) bytes at off. ok is false if the segment was released.
func (s *segment) readAt(b []byte, off int64) (ok bool, err error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.gone {
		return false, nil
	}
	if _, err := s.file.ReadAt(b, off); err != nil {
		return true, fmt.Errorf("read %s: %w", s.path, err)
	}
	return true, nil
}

// close makes the file unavailable to readers.
func (s *segment) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return nil
	}
	s.gone = true
	return s.file.Close()
}
