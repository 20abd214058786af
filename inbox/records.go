package inbox

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// What the inbox keeps in the Dedup bucket, by the first byte of the key:
//
//	m origin 32                  settled mark: boot 8 | counter 8
//	S origin 32 | SHA-256(key)   the success of an idempotency key, see package
//	                             store/idempotency: id 16 | Record
//
// All numbers are big endian.
const (
	prefixWatermark = 'm'
	prefixSuccess   = 'S'
)

func watermarkKey(p proto.PeerID) []byte { return append([]byte{prefixWatermark}, p[:]...) }

// successKey returns the key under which the success of an idempotency key is stored.
func successKey(p proto.PeerID, key string) []byte {
	sum := sha256.Sum256([]byte(key))
	return append(append(make([]byte, 0, len(p)+len(sum)), p[:]...), sum[:]...)
}

// ownerOfSuccess returns the origin of a stored success, as bytes.
func ownerOfSuccess(key []byte) string { return string(key[:min(len(key), len(proto.PeerID{}))]) }

func appendSeq(dst []byte, s proto.Seq) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(dst, s.Boot), s.Counter)
}

func seqFrom(b []byte) proto.Seq {
	return proto.Seq{Boot: binary.BigEndian.Uint64(b), Counter: binary.BigEndian.Uint64(b[8:])}
}

// parseWatermark reads a settled mark from its pair.
func parseWatermark(p store.Pair) (from proto.PeerID, mark proto.Seq, err error) {
	if len(p.Key) != 1+len(from) || len(p.Val) != 16 {
		return from, mark, fmt.Errorf("%w: the settled mark at %x", store.ErrCorrupt, p.Key)
	}
	copy(from[:], p.Key[1:])
	return from, seqFrom(p.Val), nil
}

// A success is what is stored of the first success of an idempotency key.
type success struct {
	id     proto.TaskID
	record *proto.Record // only result, digest, size and type
}

func (s success) encode() ([]byte, error) {
	return proto.Encode(s.id[:len(s.id):len(s.id)], s.record)
}

func parseSuccess(b []byte) (s success, err error) {
	if len(b) < len(s.id) {
		return s, fmt.Errorf("%w: the success of a key", store.ErrCorrupt)
	}
	copy(s.id[:], b)
	s.record = new(proto.Record)
	if err := proto.Decode(b[len(s.id):], s.record); err != nil {
		return s, fmt.Errorf("read the success of a key: %w", err)
	}
	return s, nil
}
