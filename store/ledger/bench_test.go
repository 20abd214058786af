//go:build unix

package ledger

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// producers queues b.N entries of 1 KiB from n goroutines, in calls of size, each of
// which waits for its answer, and reports the latency and the CPU time of all
// threads.
func producers(b *testing.B, n, size int, relaxed bool) {
	l, err := Open(b.TempDir()+"/ledger", Config{Logger: quiet()})
	if err != nil {
		b.Fatal(err)
	}
	var left atomic.Int64
	left.Store(int64(b.N))
	latency := make([][]time.Duration, n)
	var group sync.WaitGroup
	cpu := cpuTime()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	b.SetBytes(1024)
	b.ResetTimer()
	for i := range n {
		group.Go(func() {
			es := make([]Entry, size)
			for j := range es {
				es[j] = Entry{Data: make([]byte, 1024), Relaxed: relaxed}
			}
			for left.Add(-int64(size)) >= 0 {
				begin := time.Now()
				if err := l.Queue(es).Wait(context.Background()); err != nil {
					b.Error(err)
					return
				}
				latency[i] = append(latency[i], time.Since(begin))
			}
		})
	}
	done := make(chan struct{})
	var keeper sync.WaitGroup
	keeper.Go(func() { release(b, l, done) })
	group.Wait()
	b.StopTimer()
	close(done)
	keeper.Wait()
	runtime.ReadMemStats(&after)
	if all := slices.Sorted(slices.Values(slices.Concat(latency...))); len(all) > 0 {
		b.ReportMetric(float64(all[len(all)/2])/1e6, "p50-ms")
		b.ReportMetric(float64(all[len(all)*99/100])/1e6, "p99-ms")
		b.ReportMetric(float64(all[len(all)*999/1000])/1e6, "p999-ms")
	}
	s := l.Stats()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "entries/s")
	b.ReportMetric(float64(s.Entries)/float64(s.Batches), "entries/batch")
	b.ReportMetric(float64((cpuTime()-cpu).Microseconds())/float64(b.N), "cpu-µs/entry")
	b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/float64(b.N), "B/entry")
	if err := l.Close(); err != nil {
		b.Fatal(err)
	}
}

// release makes checkpoints and releases everything before them, so that segments are
// recycled as when readers keep up.
func release(b *testing.B, l *Ledger, done <-chan struct{}) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
		}
		if s := l.Stats(); s.Last > s.Checkpoint && s.Segments > 1 {
			if err := l.Checkpoint(s.Last, noState); err != nil {
				b.Error(err)
			}
			l.Release(func(uint64, int64) bool { return false })
		}
	}
}

// cpuTime returns the CPU time of this process.
func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// The bare log, entries of 1 KiB, segments recycled: `go test ./store/ledger -run '^$' -bench . -benchtime 5s`.
func BenchmarkProducers64x16(b *testing.B)        { producers(b, 64, 16, false) }
func BenchmarkProducers64x16Relaxed(b *testing.B) { producers(b, 64, 16, true) }
func BenchmarkProducers64x1(b *testing.B)         { producers(b, 64, 1, false) }
func BenchmarkOneCaller(b *testing.B)             { producers(b, 1, 1, false) }
func BenchmarkOneCallerRelaxed(b *testing.B)      { producers(b, 1, 1, true) }

// BenchmarkRead reads entries of 1 KiB from memory.
func BenchmarkRead(b *testing.B) {
	l, err := Open(b.TempDir()+"/ledger", Config{Logger: quiet()})
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	var places []Place
	es := make([]Entry, 1000)
	for i := range es {
		es[i] = Entry{Data: make([]byte, 1024), After: func(_ uint64, p Place, _ error) { places = append(places, p) }}
	}
	if err := l.Queue(es).Wait(context.Background()); err != nil {
		b.Fatal(err)
	}
	dst := make([]byte, 0, 1024)
	for i := 0; b.Loop(); i++ {
		if _, err := l.Read(places[i%len(places)], dst); err != nil {
			b.Fatal(err)
		}
	}
}
