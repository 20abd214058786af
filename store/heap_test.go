package store_test

import (
	"errors"
	"math"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/mem"
)

// TestShortMemoryRefusesNewWork (I13, I15): while the heap exceeds its limit, new work is
// refused with an error that states this; everything else succeeds.
func TestShortMemoryRefusesNewWork(t *testing.T) {
	var used atomic.Int64
	s := open(t, mem.New(), store.Config{Memory: func() (int64, int64) { return used.Load(), 100 }})
	news := func() error {
		b := putBatch("new", "v")
		b.NewWork()
		return s.Apply(t.Context(), b)
	}
	if err := news(); err != nil {
		t.Fatal(err)
	}
	used.Store(101)
	if err := news(); !errors.Is(err, store.ErrFull) || !errors.Is(err, store.ErrNoMemory) || errors.Is(err, store.ErrNoDisk) {
		t.Errorf("with no memory left new work: %v", err)
	}
	if err := s.Apply(t.Context(), putBatch("result", "v")); err != nil {
		t.Errorf("with no memory left a result: %v", err)
	}
	used.Store(100)
	if err := news(); err != nil {
		t.Errorf("with memory again new work: %v", err)
	}
}

// TestRefusalIsReportedOnce (I13): a full disk is reported once, its recovery too, and
// flapping causes no further reports.
func TestRefusalIsReportedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var free, used atomic.Int64
		var told []error
		free.Store(1 << 30)
		open(t, mem.New(), store.Config{
			Clock: clock.Runtime(), CompactEvery: -1, SweepEvery: -1, Reserve: 1 << 20,
			Space:     func() (int64, int64, error) { return free.Load(), 1 << 40, nil },
			Memory:    func() (int64, int64) { return used.Load(), 100 },
			OnRefusal: func(why error) { told = append(told, why) },
		})
		expect := func(want ...error) {
			t.Helper()
			synctest.Wait()
			if !slices.Equal(told, want) {
				t.Fatalf("reported %v, want %v", told, want)
			}
		}
		time.Sleep(time.Minute)
		expect()
		free.Store(0)
		time.Sleep(time.Minute)
		expect(store.ErrNoDisk)
		for range 10 { // it flaps
			free.Store(1 << 30)
			time.Sleep(3 * time.Second)
			free.Store(0)
			time.Sleep(3 * time.Second)
		}
		expect(store.ErrNoDisk)
		free.Store(1 << 30)
		time.Sleep(time.Minute)
		expect(store.ErrNoDisk, nil)
		used.Store(200)
		time.Sleep(time.Minute)
		expect(store.ErrNoDisk, nil, store.ErrNoMemory)
	})
}

// TestHeapInUse: live heap memory is measured, and its bound is below the limit of the
// runtime.
func TestHeapInUse(t *testing.T) {
	before := debug.SetMemoryLimit(math.MaxInt64)
	t.Cleanup(func() { debug.SetMemoryLimit(before) })
	if store.HeapInUse() != nil {
		t.Error("without a limit memory is measured")
	}
	debug.SetMemoryLimit(1 << 30)
	keep := make([]byte, 8<<20)
	debug.FreeOSMemory()
	used, limit := store.HeapInUse()()
	if used < int64(len(keep)) || limit != 768<<20 {
		t.Errorf("%d of %d bytes are in use", used, limit)
	}
	keep[0] = 1
}

func BenchmarkHeapInUse(b *testing.B) {
	debug.SetMemoryLimit(1 << 30)
	ask := store.HeapInUse()
	for b.Loop() {
		ask()
	}
}
