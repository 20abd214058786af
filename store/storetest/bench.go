package storetest

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/balefire/balefire/store"
)

// Bench measures the front over the engine of open with the writes of one task: a record
// of 1.2 KiB that must not exist yet and two short ones. One benchmark operation is one
// task.
func Bench(b *testing.B, open Opener) {
	for _, callers := range []int{1, 32, 128} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) { bench(b, open, callers, 1) })
	}
	b.Run("callers=128/many=8", func(b *testing.B) { bench(b, open, 128, 8) })
	b.Run("callers=1/many=256", func(b *testing.B) { bench(b, open, 1, 256) })
}

// bench has callers apply b.N tasks in calls of many tasks each.
func bench(b *testing.B, open Opener, callers, many int) {
	s, err := store.Open(open(b, b.TempDir()), store.Config{SweepEvery: -1})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	b.ReportAllocs()
	b.ResetTimer()
	var next atomic.Int64
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			batches := make([]*store.Batch, many)
			for i := range batches {
				batches[i] = new(store.Batch)
			}
			for {
				from := int(next.Add(int64(many))) - many
				n := min(many, b.N-from)
				if n <= 0 {
					return
				}
				for i := range n {
					fillTask(batches[i], uint64(from+i))
				}
				for _, err := range applyAll(b, s, batches[:n]) {
					if err != nil {
						b.Errorf("apply: %v", err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	n := s.Counters()
	b.ReportMetric(float64(n.Batches)/float64(max(n.Groups, 1)), "tasks/group")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "tasks/s")
}

func applyAll(b *testing.B, s *store.Store, batches []*store.Batch) []error {
	if len(batches) == 1 {
		return []error{s.Apply(b.Context(), batches[0])}
	}
	return s.ApplyMany(b.Context(), batches)
}

var body = make([]byte, 1200)

func fillTask(t *store.Batch, n uint64) {
	var key [16]byte
	binary.BigEndian.PutUint64(key[:], n)
	t.Reset()
	t.RequireAbsent(store.PendingTasks, key[:])
	t.Put(store.PendingTasks, key[:], body)
	t.Put(store.Leases, key[:], body[:60])
	t.Put(store.Peers, key[:1], body[:20])
}
