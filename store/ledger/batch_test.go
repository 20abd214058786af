package ledger

import (
	"bytes"
	"encoding/hex"
	"math"
	"strings"
	"testing"
	"time"
)

// encoded returns the bytes of a batch of these entries.
func encoded(id ID, prev uint32, h batchHeader, entries ...[]byte) []byte {
	n := batchHead
	for _, e := range entries {
		n += entryHead + len(e)
	}
	b := make([]byte, padded(n))
	h.length, h.count = uint32(n), uint16(len(entries))
	at := batchHead
	for _, e := range entries {
		at = putEntry(b, at, e)
	}
	h.put(b)
	id.seal(prev, b)
	return b
}

// The format does not change by accident.
func TestBytesOfTheFormat(t *testing.T) {
	id := ID{1, 2, 3, 15: 16}
	batch := encoded(id, 7, batchHeader{kind: KindEntries, flags: flagSynced, index: 5, term: 6, time: 1795359845000}, []byte("mail"), []byte(""), []byte("x"))
	seg := segmentHeader{size: 64 << 20, id: id, first: 5, term: 6, prev: 7}.encode()
	ident := identity{id, time.UnixMilli(1795359845000)}.encode()
	for name, tt := range map[string]struct {
		got  []byte
		want string
	}{
		"batch":   {batch, "42464c4200000045000000000104000300000000000000050000000000000006000001a203c92a88"},
		"segment": {seg[:], "42464c454447523100000001040000000102030000000000000000000000001000000000000000050000000000000006000000070000000000000000"},
		"LEDGER":  {ident, "42464c45444745520000000100000000010203000000000000000000000000100000"},
	} {
		got := bytes.Clone(tt.got)
		if name == "batch" {
			clear(got[8:12])
		}
		if !strings.HasPrefix(hex.EncodeToString(got), tt.want) {
			t.Errorf("%s: %x", name, got)
		}
	}
}

func TestBatchVerifies(t *testing.T) {
	id := ID{1}
	b := encoded(id, 7, batchHeader{kind: KindEntries, index: 5}, []byte("one"), []byte("two"))
	h, ok := parseBatch(b)
	if !ok || !id.verifies(&h, 7, b) || h.size() != len(b) {
		t.Fatalf("%+v, %v", h, ok)
	}
	if id.verifies(&h, 8, b) || (ID{2}).verifies(&h, 7, b) {
		t.Error("it verifies behind another batch, or in another ledger")
	}
	for i := range b {
		for bit := range 8 {
			b[i] ^= 1 << bit
			if h, ok := parseBatch(b); ok && h.size() == len(b) && id.verifies(&h, 7, b) {
				t.Errorf("bit %d of byte %d makes no difference", bit, i)
			}
			b[i] ^= 1 << bit
		}
	}
}

// Headers that this version does not write are refused, and so are entries that do
// not fill their batch, though the CRC is right.
func TestBadBatchesAreRefused(t *testing.T) {
	good := batchHeader{kind: KindEntries, length: batchHead + entryHead, count: 1, index: 1}
	for name, change := range map[string]func(h *batchHeader){
		"short":              func(h *batchHeader) { h.length = batchHead - 1 },
		"long":               func(h *batchHeader) { h.length = MaxBatch + 1 },
		"no entries":         func(h *batchHeader) { h.count = 0 },
		"too many":           func(h *batchHeader) { h.count, h.length = MaxEntries+1, MaxBatch },
		"more than fit":      func(h *batchHeader) { h.count = 2 },
		"unknown kind":       func(h *batchHeader) { h.kind = 4 },
		"no kind":            func(h *batchHeader) { h.kind = 0 },
		"compressed":         func(h *batchHeader) { h.flags = flagZstd },
		"sealed":             func(h *batchHeader) { h.flags = flagSealed | flagSynced },
		"unknown flag":       func(h *batchHeader) { h.flags = 8 },
		"end with an entry":  func(h *batchHeader) { h.kind = segmentEnd },
		"end that is longer": func(h *batchHeader) { h.kind, h.count = segmentEnd, 0 },
	} {
		h := good
		change(&h)
		b := make([]byte, MaxBatch)
		h.put(b)
		if _, ok := parseBatch(b); ok {
			t.Errorf("%s: accepted", name)
		}
	}
	for name, n := range map[string]uint32{"entry too long": 9, "entry too short": 7, "huge": math.MaxUint32} {
		b := encoded(ID{}, 0, batchHeader{kind: KindEntries, index: 1}, make([]byte, 8))
		b[batchHead], b[batchHead+1], b[batchHead+2], b[batchHead+3] = byte(n>>24), byte(n>>16), byte(n>>8), byte(n)
		ID{}.seal(0, b)
		if h, ok := parseBatch(b); ok && (ID{}).verifies(&h, 0, b) {
			t.Errorf("%s: accepted", name)
		}
	}
	b := encoded(ID{}, 0, batchHeader{kind: KindEntries, index: 1}, []byte("x"))
	b[len(b)-1] = 1
	ID{}.seal(0, b)
	if h, ok := parseBatch(b); ok && (ID{}).verifies(&h, 0, b) {
		t.Error("padding that is not zero: accepted")
	}
}

func TestFollows(t *testing.T) {
	for _, tt := range []struct {
		kind        Kind
		index, last uint64
		want        bool
	}{
		{KindEntries, 1, 0, true}, {KindEntries, 6, 5, true}, {KindEntries, 5, 5, false}, {KindEntries, 7, 5, false}, {KindEntries, 4, 5, false},
		{KindHardState, 5, 5, true}, {KindHardState, 6, 5, false}, {segmentEnd, 5, 5, true}, {segmentEnd, 4, 5, false},
	} {
		if h := (batchHeader{kind: tt.kind, index: tt.index}); h.follows(tt.last) != tt.want {
			t.Errorf("%+v", tt)
		}
	}
}

func TestNamesOfFiles(t *testing.T) {
	if n, ok := numberOf(segmentName(math.MaxUint64), "", segmentSuffix); !ok || n != math.MaxUint64 {
		t.Errorf("%d, %v", n, ok)
	}
	for _, name := range []string{
		"", ".seg", "1.seg", "0000000000000000000x.seg", "+0000000000000000001.seg", "00000000000000000001", "99999999999999999999.seg",
		"000000000000000000001.seg", "checkpoint-1", "checkpoint-00000000000000000001.tmp", "checkpoint-00000000000000000001.seg",
	} {
		if n, ok := numberOf(name, "", segmentSuffix); ok {
			t.Errorf("%q is segment %d", name, n)
		}
		if n, ok := numberOf(name, checkpointPrefix, ""); ok {
			t.Errorf("%q is checkpoint %d", name, n)
		}
	}
}
