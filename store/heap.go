package store

import (
	"errors"
	"math"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
)

// A heap watches the memory of the process.
type heap struct {
	ask func() (used, limit int64) // nil: never full
}

func (h *heap) full() bool {
	if h.ask == nil {
		return false
	}
	used, limit := h.ask()
	return used > limit
}

// heapShare is how much of the runtime's memory limit may be in use before new
// work is refused. The collector needs the rest to keep up; what is taken in
// until it has run again, and results, fit in there, too.
const heapShare = 0.75

// measureEvery is how many answers one measurement serves: it takes a microsecond
// and changes with each collection alone.
const measureEvery = 16

// HeapInUse returns a function for [Config.Memory]: what lived in the heap after
// the last collection, and three quarters of the memory limit of the Go runtime,
// which is set before the store is opened. It is nil where no limit is set.
func HeapInUse() func() (used, limit int64) {
	limit := debug.SetMemoryLimit(-1)
	if limit == math.MaxInt64 {
		return nil
	}
	most := int64(float64(limit) * heapShare)
	var calls, live atomic.Int64
	return func() (used, limit int64) {
		if calls.Add(1)%measureEvery == 1 {
			s := [1]metrics.Sample{{Name: "/gc/heap/live:bytes"}}
			if metrics.Read(s[:]); s[0].Value.Kind() == metrics.KindUint64 {
				live.Store(int64(s[0].Value.Uint64()))
			}
		}
		return live.Load(), most
	}
}

// A refusalMonitor follows whether new work is refused.
type refusalMonitor struct {
	notify  func(why error)
	collect func()

	current    error // as told last
	okTicks    int   // turns in a row in which new work was taken
	shortTicks int   // turns in which memory was short
}

// Turns of [refusalMonitor].
const (
	okTicksToClear  = 3 // new work is taken for so long before that is told
	shortTicksPerGC = 5 // between two collections while memory is short
)

// tick tells a change: a refusal at once, its end when it lasts. While memory is
// short it has the heap measured again, which an idle node does not do by itself.
func (f *refusalMonitor) tick(why error) {
	if why == nil {
		if f.okTicks++; f.current != nil && f.okTicks >= okTicksToClear {
			f.current = nil
			f.notify(nil)
		}
		return
	}
	f.okTicks = 0
	if !errors.Is(f.current, why) {
		f.current = why
		f.notify(why)
	}
	if errors.Is(why, ErrNoMemory) {
		if f.shortTicks++; f.shortTicks%shortTicksPerGC == 0 {
			f.collect()
		}
	}
}
