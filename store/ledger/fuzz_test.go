package ledger

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"testing"
)

// FuzzBatch decodes any bytes as a batch. What is accepted stays within its bounds,
// and is what its parts encode to.
func FuzzBatch(f *testing.F) {
	f.Add(encoded(ID{1}, 7, batchHeader{kind: KindEntries, index: 5}, []byte("one"), []byte("two")), uint32(7))
	f.Add(encoded(ID{1}, 0, batchHeader{kind: segmentEnd, index: 5, flags: flagSynced}), uint32(0))
	f.Add(encoded(ID{1}, 0, batchHeader{kind: KindHardState, index: 5, term: 9}, []byte("vote")), uint32(0))
	f.Add(make([]byte, 100), uint32(0))
	f.Fuzz(func(t *testing.T, b []byte, prev uint32) {
		id := ID{1}
		h, ok := parseBatch(b)
		if !ok || h.size() > len(b) {
			return
		}
		b = bytes.Clone(b[:h.size()])
		h.crc = id.seal(prev, b) // as if it were right: what is inside matters
		if !id.verifies(&h, prev, b) {
			return
		}
		var entries [][]byte
		for p, data := range newBatch(1, 64, &h, b).Entries() {
			if !bytes.Equal(b[p.Offset-64:][:p.Length], data) {
				t.Fatalf("entry at %v", p)
			}
			entries = append(entries, data)
		}
		if len(entries) != int(h.count) {
			t.Fatalf("%d entries of %d", len(entries), h.count)
		}
		again := encoded(id, prev, h, entries...)
		at := batchHead
		for _, e := range entries { // the CRCs of entries are not looked at here
			copy(again[at+4:at+8], b[at+4:at+8])
			at += entryHead + len(e)
		}
		id.seal(prev, again)
		if !bytes.Equal(again, b) {
			t.Fatalf("%x is encoded as %x", b, again)
		}
	})
}

// FuzzHeaders decodes any bytes as each of the small headers. What is accepted is
// what it encodes to.
func FuzzHeaders(f *testing.F) {
	seg := segmentHeader{size: 4096, id: ID{1}, first: 7, term: 1, prev: 9}.encode()
	f.Add(seg[:])
	f.Add(identity{id: ID{1}, made: time0}.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, n := range []int{identityBytes, segmentHead} { // lets the fuzzer past the CRC
			if len(b) == n {
				b = bytes.Clone(b)
				binary.BigEndian.PutUint32(b[n-4:], crc32.Checksum(b[:n-4], castagnoli))
			}
		}
		if i, ok := parseIdentity(b); ok && !bytes.Equal(i.encode(), b) {
			t.Errorf("%x is encoded as %x", b, i.encode())
		}
		if h, ok := parseSegment(b); ok {
			if again := h.encode(); !bytes.Equal(again[:], b[:segmentHead]) {
				t.Errorf("%x is encoded as %x", b, again)
			}
		}
	})
}

// FuzzCheckpoint reads any bytes as a checkpoint, with the CRC made right.
func FuzzCheckpoint(f *testing.F) {
	for _, n := range []int{0, 10, 5000} {
		var b bytes.Buffer
		if err := encodeCheckpoint(&b, ID{1}, 3, 1, writing(state(n))); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 4 {
			b = bytes.Clone(b)
			binary.BigEndian.PutUint32(b[len(b)-4:], crc32.Checksum(b[:len(b)-4], castagnoli))
		}
		what, err := checkCheckpoint(bytes.NewReader(b), int64(len(b)), ID{1}, 3)
		if err != nil {
			t.Fatal(err)
		}
		if what != "" {
			return
		}
		_ = decodeCheckpoint(bytes.NewReader(b), int64(len(b)), func(r io.Reader) error {
			_, err := io.Copy(io.Discard, io.LimitReader(r, 1<<20))
			return err
		})
	})
}

// FuzzOpen opens a ledger whose last segment has any bytes behind the first batch.
// It opens with that batch, or refuses with a DamageError; what it opened it opens
// again, unchanged and without a repair; Salvage reads no less.
func FuzzOpen(f *testing.F) {
	fs := newFaultFS()
	l := mustOpen(f, dir, small(fs))
	first := add(f, l, []byte("first"))
	for n := range 8 {
		add(f, l, data(n, 300))
	}
	if err := l.Close(); err != nil {
		f.Fatal(err)
	}
	files := fs.content()
	path := segmentPath(dir, 1)
	begin := padded(int(first.Offset + first.Length))
	whole := files[path][begin:]
	f.Add(bytes.Clone(whole))
	f.Add(bytes.Clone(whole[:500]))
	flipped := bytes.Clone(whole)
	flipped[700] ^= 1
	f.Add(flipped)
	f.Add(append(make([]byte, 512), whole[512:]...))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		segment := bytes.Clone(files[path])
		clear(segment[begin:])
		copy(segment[begin:], b)
		fs := newFaultFS()
		for name, content := range files {
			fs.names[name] = &inode{data: bytes.Clone(content), dirty: map[int]bool{}}
		}
		fs.names[path].data = segment
		found := 0
		report, err := inspect(fs, dir, func(Batch) error { found++; return nil })
		if err != nil {
			t.Fatal(err)
		}
		l, err := Open(dir, small(fs))
		if err != nil {
			if _, ok := errors.AsType[*DamageError](err); !ok || len(report.Damage) == 0 {
				t.Fatalf("Open: %v; Check: %+v", err, report)
			}
			return
		}
		got := replayed(t, l, 1)
		if len(got) == 0 || string(got[0]) != "first" || found < len(got) || len(report.Damage) > 0 {
			t.Fatalf("%d entries, %d salvaged, %+v", len(got), found, report)
		}
		add(t, l, []byte("next"))
		mustClose(t, l)
		again := mustOpen(t, dir, small(fs))
		sameEntries(t, replayed(t, again, 1), append(got, []byte("next")))
		if s := again.Stats(); s.Torn != "" {
			t.Fatalf("torn after a clean stop: %+v", s)
		}
		mustClose(t, again)
	})
}
