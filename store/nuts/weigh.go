package nuts

import (
	"fmt"
	"hash/maphash"

	"github.com/balefire/balefire/store"
)

// NutsDB keeps every record in memory. The memory of a record besides its key and value:
// the index entry, the record, and the allocator's rounding.
const (
	recordMemory  = 224 // bytes per record
	roundingShare = 8   // and an eighth of key and value
)

// MemoryOf estimates the memory in bytes of a record with a key and a value of these
// sizes.
func MemoryOf(key, val int) int64 {
	n := int64(key + val)
	return recordMemory + n + n/roundingShare
}

// maxSample is the largest number of records in the sample of a weigher.
const maxSample = 1 << 16

// A weigher estimates, while a log is read, how much memory its records will take
// at most, without keeping them: it follows a sample of the keys, chosen by
// their hash, and halves the sample when it grows too large. So it takes a few
// MiB for a log of any size and is exact for a small one.
type weigher struct {
	seed  maphash.Seed
	sizes map[uint64]int64 // of the live records in the sample
	mask  uint64           // a key is in the sample when these bits of its hash are 0
	total int64            // of sizes
	peak  int64            // estimated peak for all records over the log
}

func newWeigher() *weigher {
	return &weigher{seed: maphash.MakeSeed(), sizes: map[uint64]int64{}}
}

// add processes one entry of the log; b holds its bytes.
func (w *weigher) add(e entry, b []byte) {
	var h maphash.Hash
	h.SetSeed(w.seed)
	_ = h.WriteByte(e.bucket)
	_, _ = h.Write(b[e.header : e.header+e.key])
	sum := h.Sum64()
	if sum&w.mask != 0 {
		return
	}
	w.total -= w.sizes[sum]
	if !e.set {
		delete(w.sizes, sum)
		return
	}
	n := MemoryOf(e.key, e.val)
	w.sizes[sum] = n
	w.total += n
	if len(w.sizes) > maxSample {
		w.halve()
	}
	w.peak = max(w.peak, w.total*int64(w.mask+1))
}

func (w *weigher) halve() {
	w.mask = w.mask<<1 | 1
	for sum, n := range w.sizes {
		if sum&w.mask != 0 {
			w.total -= n
			delete(w.sizes, sum)
		}
	}
}

// fits refuses a log whose records need more than limit bytes; 0 means no limit.
func (w *weigher) fits(limit int64) error {
	if limit <= 0 || w.peak <= limit {
		return nil
	}
	return fmt.Errorf("%w: NutsDB keeps every record in memory, these need about %d MiB, and the node may use %d MiB: "+
		"give it more memory (limits.memory_limit, or the limit of its container), or convert the store: balefire-node store migrate --to pebble",
		store.ErrNeedsMemory, w.peak>>20, limit>>20)
}
