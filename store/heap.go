package store

import (
	"errors"
	"math"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
)

// A heap monitors the memory of the process.
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

// heapShare is the share of the runtime's memory limit that may be in use before
// new work is refused. The rest is for the collector to keep up, for work accepted
// until its next run, and for results.
const heapShare = 0.75

// measureEvery is how many calls one measurement serves: it takes a microsecond,
// and the value changes only with a collection.
const measureEvery = 16

// HeapInUse returns a function for [Config.Memory]: the live heap after the last
// collection, and three quarters of the memory limit of the Go runtime, which
// must be set before the store is opened. It returns nil if no limit is set.
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

// A refusalMonitor tracks whether new work is refused.
type refusalMonitor struct {
	notify  func(why error)
	collect func()

	current    error // as last reported
	okTicks    int   // consecutive ticks in which new work was accepted
	shortTicks int   // ticks in which memory was short
}

// Ticks of a [refusalMonitor].
const (
	okTicksToClear  = 3 // ticks in which new work is accepted before that is reported
	shortTicksPerGC = 5 // ticks between two collections while memory is short
)

// tick reports changes: a refusal at once, its end once it lasts. While memory is
// short it triggers a collection, which an idle node would not do by itself, to
// measure the heap again.
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
