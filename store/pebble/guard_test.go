package pebble

import (
	"encoding/binary"
	"hash/crc32"
	"testing"
)

// logOf writes a log of chunks with the given payload sizes, each of which says
// that all before it was synced, and returns where each begins.
func logOf(sizes ...int) (data []byte, starts []int) {
	for _, n := range sizes {
		if left := blockSize - len(data)%blockSize; left < logHeader+n {
			data = append(data, make([]byte, left)...)
		}
		at := len(data)
		starts = append(starts, at)
		data = append(data, make([]byte, logHeader+n)...)
		c := data[at:]
		binary.LittleEndian.PutUint16(c[4:], uint16(n))
		c[6] = 9
		binary.LittleEndian.PutUint32(c[7:], 7)
		binary.LittleEndian.PutUint64(c[11:], uint64(at))
		sum := crc32.Checksum(c[6:], castagnoli)
		binary.LittleEndian.PutUint32(c, (sum>>15|sum<<17)+0xa282ead8)
	}
	return data, starts
}

// TestGuardTellsDamageFromATornEnd: a log that ends anywhere is torn, a log that
// goes on after the damage is not.
func TestGuardTellsDamageFromATornEnd(t *testing.T) {
	data, starts := logOf(100, 10, 200, 0, 50)
	find := func(data []byte) (int, bool) {
		s := scanner{data: data, log: true, logNo: 7}
		at, _, found := s.damage()
		return at, found
	}
	for end := range len(data) + 1 {
		if at, found := find(data[:end]); found {
			t.Fatalf("cut at %d: damage at %d", end, at)
		}
	}
	last := starts[len(starts)-1]
	for i := range data {
		bad := append([]byte(nil), data...)
		bad[i] ^= 4
		at, found := find(bad)
		if found != (i < last) {
			t.Fatalf("flip at %d: found %v", i, found)
		}
		if found && (at > i || at+1000 < i) {
			t.Fatalf("flip at %d: reported at %d", i, at)
		}
	}
	if _, found := find(append(data, make([]byte, 1000)...)); found {
		t.Error("zeros after the end are damage")
	}
	recycled := scanner{data: data, log: true, logNo: 8}
	if _, _, found := recycled.damage(); found {
		t.Error("what an older log left behind is damage")
	}
}

// TestGuardCrossesBlocks: the padding at the end of a block is no damage.
func TestGuardCrossesBlocks(t *testing.T) {
	data, starts := logOf(30000, 2720, 30000, 100)
	if starts[2] != blockSize {
		t.Fatalf("the chunks begin at %v, want the third at a block", starts)
	}
	s := scanner{data: data, log: true, logNo: 7}
	if at, _, found := s.damage(); found {
		t.Errorf("damage at %d", at)
	}
	data[starts[1]+logHeader] ^= 1
	if at, later, found := s.damage(); !found || at != starts[1] || later != starts[2] {
		t.Errorf("damage at %d seen from %d, found %v", at, later, found)
	}
}

// FuzzGuard: no file makes the guard panic, and none that is cut from a good one
// is called damaged.
func FuzzGuard(f *testing.F) {
	good, _ := logOf(5, 0, 70)
	f.Add(good, uint32(7))
	f.Add(good[:30], uint32(7))
	f.Add([]byte{1, 2, 3, 4, 0xff, 0xff, 9, 7, 0, 0, 0}, uint32(7))
	f.Fuzz(func(t *testing.T, data []byte, number uint32) {
		for _, log := range []bool{false, true} {
			s := scanner{data: data, log: log, logNo: number}
			at, later, found := s.damage()
			if found && (at < 0 || at >= later || later >= len(data)) {
				t.Errorf("damage at %d seen from %d in %d bytes", at, later, len(data))
			}
		}
	})
}
