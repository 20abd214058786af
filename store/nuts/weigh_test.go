package nuts

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"github.com/balefire/balefire/store"
)

// TestWeigherTracksLiveRecords: the peak is that of the records that live at a
// time, exact for a few, and close for many more than are looked at.
func TestWeigherTracksLiveRecords(t *testing.T) {
	w := newWeigher()
	put := func(key string, val int) {
		e := entry{header: 4, key: len(key), val: val, bucket: 1, set: true}
		w.add(e, append([]byte("head"+key), make([]byte, val)...))
	}
	del := func(key string) { w.add(entry{header: 4, key: len(key), bucket: 1}, []byte("head"+key)) }
	for range 1000 {
		put("key", 100)
		del("key")
		put("other", 50)
	}
	if want := MemoryOf(3, 100) + MemoryOf(5, 50); w.peak != want {
		t.Errorf("of two small records the peak is %d, want %d", w.peak, want)
	}

	w = newWeigher()
	const many = 10 * maxSample
	var want int64
	for i := range many {
		put(fmt.Sprintf("%08d", i), i%512)
		want += MemoryOf(8, i%512)
	}
	if len(w.sizes) > maxSample {
		t.Errorf("%d records are kept, more than %d", len(w.sizes), maxSample)
	}
	if off := float64(w.peak)/float64(want) - 1; off < -0.05 || off > 0.05 {
		t.Errorf("of %d records the peak is %d, %+.1f %% off", many, w.peak, 100*off)
	}
}

// TestStoreThatNeedsTooMuchMemoryIsRefused (I15): a store that does not fit is refused
// before it is loaded, with what it needs and the way out, nothing of it changed;
// with enough memory it opens. The estimate is near what the heap really holds.
func TestStoreThatNeedsTooMuchMemoryIsRefused(t *testing.T) {
	dir := t.TempDir() + "/store"
	d := open(t, dir)
	const n, size = 4000, 1000
	for i := 0; i < n; i += 100 {
		ops := make([]store.Op, 100)
		for j := range ops {
			ops[j] = put(store.Inbox, fmt.Sprintf("%016d", i+j), strings.Repeat("x", size))
		}
		commit(t, d, ops...)
	}
	want := dump(t, d)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	cfg := quiet()
	cfg.MaxMemory = 4 << 20
	_, err := Open(dir, cfg)
	if !errors.Is(err, store.ErrNeedsMemory) || !strings.Contains(err.Error(), "about 5 MiB") || !strings.Contains(err.Error(), "--to pebble") {
		t.Fatalf("with %d bytes: %v", cfg.MaxMemory, err)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	cfg.MaxMemory = 6 << 20
	d, err = Open(dir, cfg)
	if err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if used, guess := int64(after.HeapAlloc)-int64(before.HeapAlloc), n*MemoryOf(16, size); used > guess*5/4 {
		t.Errorf("the store takes %d bytes, %d were reckoned", used, guess)
	}
	same(t, dump(t, d), want)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestExportIsTheStore: what Export tells, put into an empty map in its order, is
// what the store holds, over segments, deletes, and a tail that was torn.
func TestExportIsTheStore(t *testing.T) {
	dir := t.TempDir() + "/store"
	d := open(t, dir)
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 40 {
		var ops []store.Op
		for i := range 50 {
			ops = append(ops, put(store.Bucket(1+rnd.IntN(3)), fmt.Sprint(rnd.IntN(500)), strings.Repeat("v", rnd.IntN(600))))
			if i%3 == 0 {
				ops = append(ops, del(store.Bucket(1+rnd.IntN(3)), fmt.Sprint(rnd.IntN(500))))
			}
		}
		commit(t, d, ops...)
	}
	want, pos := dump(t, d), d.gen.pos
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if pos.segment < 2 {
		t.Fatalf("the log ends at %v: it should have more segments", pos)
	}
	expect := func() {
		t.Helper()
		got, calls, last := map[string]string{}, 0, int64(0)
		err := Export(dir, func(done, total int64) { last = done - total }, func(ops []store.Op) error {
			calls++
			for _, op := range ops {
				k := fmt.Sprintf("%s/%s", op.Bucket, op.Key)
				delete(got, k)
				if !op.Delete {
					got[k] = string(op.Val)
				}
			}
			return nil
		})
		if err != nil || calls > 50 || last != 0 {
			t.Fatalf("%d calls, %d bytes short, %v", calls, last, err)
		}
		if !maps.Equal(got, want) {
			t.Errorf("%d records were told, the store has %d, and they differ", len(got), len(want))
		}
	}
	expect()
	seg := segmentPath(genDir(dir, 1), pos.segment)
	log := read(t, seg)
	copy(log[pos.off:], "a torn tail")
	write(t, seg, log)
	expect()
	binary.LittleEndian.PutUint64(log[:8], 0) // damage
	write(t, seg, log)
	if err := Export(dir, func(int64, int64) {}, func([]store.Op) error { return nil }); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("a damaged store was exported: %v", err)
	}
}
