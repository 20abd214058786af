package ledger

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// The ring has what a list of the last batches has, unchanged, as far as its room
// goes; it never has anything else.
func TestRingIsAListOfTheLastBatches(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	for _, room := range []int{3000, 4096, 10000} {
		r := newRing(room)
		type kept struct {
			p    Place
			data []byte
			n    int
		}
		var all []kept
		off, segment := int64(segmentHead), uint64(1)
		for n := range 1000 {
			b := data(n, 1000)
			size := padded(batchHead + entryHead + len(b))
			extra := rng.IntN(100)
			buf := r.reserve(size + extra)
			putEntry(buf, batchHead, b)
			for i := size; i < len(buf); i++ {
				buf[i] = 0xff
			}
			r.publish(segment, off, size)
			all = append(all, kept{Place{segment, uint32(off) + batchHead + entryHead, uint32(len(b))}, b, size})
			off += int64(size)
			if rng.IntN(20) == 0 {
				segment, off = uint64(n+2), segmentHead
			}
			total, there := 0, true
			for i := len(all) - 1; i >= max(0, len(all)-20); i-- {
				k := all[i]
				got, ok := r.read(k.p, nil)
				if ok && !bytes.Equal(got, k.data) {
					t.Fatalf("room of %d: entry %d of %d is wrong", room, i, n)
				}
				if ok && !there {
					t.Fatalf("room of %d: entry %d is there, a newer one is not", room, i)
				}
				there = ok
				if total += k.n; !ok && total+2*1200 < room {
					t.Fatalf("room of %d: entry %d of %d is gone after %d bytes", room, i, n, total)
				}
			}
		}
	}
}

// The number of batches in the ring is limited, too.
func TestRingOfTinyBatches(t *testing.T) {
	r := newRing(10 * 48)
	for n := range 100 {
		r.reserve(48)
		r.publish(1, int64(64+48*n), 48)
		if r.count > len(r.spans) || r.count > 10 {
			t.Fatalf("%d batches", r.count)
		}
	}
	if _, ok := r.read(Place{1, 64 + 99*48 + 48, 0}, nil); !ok {
		t.Error("the last one is not there")
	}
	if out, ok := r.read(Place{1, 64 + 48, 0}, []byte("x")); ok || !bytes.Equal(out, []byte("x")) {
		t.Error("the first one is there")
	}
}
