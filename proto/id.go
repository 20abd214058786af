package proto

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

// A TaskID is a UUIDv7 (RFC 9562): 48 bits of Unix milliseconds, then random. It orders
// tasks roughly by age; nothing else depends on its time.
type TaskID [16]byte

// A MeshID names a mesh: the first 16 bytes of SHA-256 over its root key.
type MeshID [16]byte

// A BootID is a random id of one start of a node.
type BootID [16]byte

// ErrBadID is returned for text that is not a valid id.
var ErrBadID = errors.New("proto: not a task id")

// idEntropy buffers random bytes: one system call serves many ids.
var idEntropy = struct {
	sync.Mutex
	buf [1024]byte
	off int
}{off: 1024}

// lastTime is the end of the year 9999, in Unix milliseconds: JSON has no form for a later time.
const lastTime = 253402300799999

// Time returns Unix milliseconds, which another node may have given, as a time in UTC from 1970 to
// the year 9999.
func Time(ms int64) time.Time { return time.UnixMilli(min(max(ms, 0), lastTime)).UTC() }

// TimeOrNil is [Time] for an optional time: nil if ms is 0.
func TimeOrNil(ms int64) *time.Time {
	if ms == 0 {
		return nil
	}
	return new(Time(ms))
}

// NewTaskID returns a new id for a task created at now.
func NewTaskID(now time.Time) TaskID {
	var id TaskID
	idEntropy.Lock()
	if idEntropy.off+10 > len(idEntropy.buf) {
		rand.Read(idEntropy.buf[:])
		idEntropy.off = 0
	}
	copy(id[6:], idEntropy.buf[idEntropy.off:])
	idEntropy.off += 10
	idEntropy.Unlock()
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(now.UnixMilli()))
	copy(id[:6], ms[2:])
	id[6] = id[6]&0x0f | 0x70
	id[8] = id[8]&0x3f | 0x80
	return id
}

// Time returns the creation time of the id, to the millisecond.
func (id TaskID) Time() time.Time {
	var ms [8]byte
	copy(ms[2:], id[:6])
	return time.UnixMilli(int64(binary.BigEndian.Uint64(ms[:])))
}

// IsZero reports whether id was never set.
func (id TaskID) IsZero() bool { return id == TaskID{} }

// Compare orders ids by their bytes, which is by age.
func (id TaskID) Compare(o TaskID) int { return bytes.Compare(id[:], o[:]) }

// String returns the usual form, 36 characters.
func (id TaskID) String() string {
	var b [36]byte
	hex.Encode(b[:8], id[:4])
	hex.Encode(b[9:13], id[4:6])
	hex.Encode(b[14:18], id[6:8])
	hex.Encode(b[19:23], id[8:10])
	hex.Encode(b[24:], id[10:])
	b[8], b[13], b[18], b[23] = '-', '-', '-', '-'
	return string(b[:])
}

// MarshalText writes the text form, for logs and JSON.
func (id TaskID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// ParseTaskID reads the form that String writes, in either case.
func ParseTaskID(s string) (TaskID, error) {
	var id TaskID
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return id, fmt.Errorf("%w: %.64q", ErrBadID, s)
	}
	h := strings.ReplaceAll(s, "-", "")
	if len(h) != 32 {
		return id, fmt.Errorf("%w: %.64q", ErrBadID, s)
	}
	if _, err := hex.Decode(id[:], []byte(h)); err != nil {
		return TaskID{}, fmt.Errorf("%w: %.64q", ErrBadID, s)
	}
	return id, nil
}

// TaskIDFrom reads an id of exactly 16 bytes.
func TaskIDFrom(b []byte) (TaskID, error) {
	var id TaskID
	if len(b) != len(id) {
		return id, fmt.Errorf("%w: %d bytes", ErrBadID, len(b))
	}
	copy(id[:], b)
	return id, nil
}

// String returns the mesh id in hexadecimal.
func (m MeshID) String() string { return hex.EncodeToString(m[:]) }
