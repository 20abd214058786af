package node

import (
	"context"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/nuts"
	"github.com/balefire/balefire/store/pebble"
	"github.com/balefire/balefire/wire"
)

// BenchmarkSubmit measures the cost of submitting a task of 1 KiB, with 128 callers,
// next to that of a record of the same size in the bare store: their ratio is what the
// node adds to its store. The target is not running.
func BenchmarkSubmit(b *testing.B) {
	for _, engine := range []string{datadir.EngineNuts, datadir.EnginePebble} {
		b.Run(engine+"/node", func(b *testing.B) { benchSubmit(b, engine) })
		b.Run(engine+"/store", func(b *testing.B) { benchStore(b, engine) })
	}
}

// BenchmarkTask measures whole tasks of 1 KiB between two nodes on loopback, with a handler
// that does nothing and 256 callers, each of which waits for a result: what both allocate.
func BenchmarkTask(b *testing.B) {
	for _, engine := range []string{datadir.EngineNuts, datadir.EnginePebble} {
		b.Run(engine, func(b *testing.B) { benchTask(b, engine) })
	}
}

func benchTask(b *testing.B, engine string) {
	const callers = 2 * benchCallers
	ended := make(chan struct{}, callers) // a token for each task, for any caller
	home, target := pair(b, func(_ string, c *Config) {
		c.Store.Engine = engine
		c.Limits.Slots, c.Limits.MemoryLimit = callers, 2<<30
		c.Handlers = []wire.HandlerSpec{discard}
		c.Changed = func(_ proto.TaskID, s proto.TaskState) {
			if s.Terminal() {
				ended <- struct{}{}
			}
		}
	})
	body := make([]byte, 1<<10)
	fill(body)
	do := func(int) error {
		_, err := home.Submit(context.Background(), wire.Request{Target: "b", Kind: discard.Kind, Body: body})
		if err == nil {
			<-ended
		}
		return err
	}
	share(b, callers, do) // the links, pools and maps
	b.ReportAllocs()
	share(b, callers, do)
	home.halt()
	target.halt()
}

// discard is a handler that does nothing and may be called before its start is on disk.
var discard = wire.HandlerSpec{Kind: "discard", Type: wire.TypeDiscard, OnCrash: "retry", Allow: []string{"role:send"}}

const benchCallers = 128

func benchSubmit(b *testing.B, engine string) {
	home, target := pair(b, func(_ string, c *Config) {
		c.Store.Engine = engine
		c.Limits.MaxPending, c.Limits.MaxPendingBytes, c.Limits.MemoryLimit = 1<<30, 1<<40, 2<<30
	})
	target.halt()
	body := make([]byte, 1<<10)
	fill(body)
	before := home.storage.Store.Counters()
	b.ReportAllocs()
	share(b, benchCallers, func(int) error {
		_, err := home.Submit(context.Background(), wire.Request{Target: "b", Kind: "discard", Body: body})
		return err
	})
	after := home.storage.Store.Counters()
	b.ReportMetric(float64(after.Bytes-before.Bytes)/float64(b.N), "stored/op")
	b.ReportMetric(float64(b.N)/float64(after.Groups-before.Groups), "tasks/group")
	home.halt()
}

// benchRecord is the size of such a task in the store.
const benchRecord = 1800

func benchStore(b *testing.B, engine string) {
	dir := filepath.Join(b.TempDir(), "store")
	var e store.Engine
	var err error
	if engine == datadir.EnginePebble {
		e, err = pebble.Open(dir, pebble.Config{})
	} else {
		e, err = nuts.Open(dir, nuts.Config{})
	}
	if err != nil {
		b.Fatal(err)
	}
	s, err := store.Open(e, store.Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	noise := make([]byte, 8<<20)
	fill(noise)
	batches := sync.Pool{New: func() any { return new(store.Batch) }}
	b.ReportAllocs()
	share(b, benchCallers, func(i int) error {
		batch := batches.Get().(*store.Batch)
		defer batches.Put(batch)
		batch.Reset()
		var key [18]byte
		id := proto.NewTaskID(time.Now()) // like those of tasks, which are not written in order
		copy(key[:], id[:])
		at := i * 8191 % (len(noise) - benchRecord)
		batch.Put(store.PendingTasks, key[:], noise[at:at+benchRecord])
		return s.Apply(context.Background(), batch)
	})
	b.ReportMetric(float64(b.N)/float64(s.Counters().Groups), "tasks/group")
}

// share has goroutines do b.N operations.
func share(b *testing.B, callers int, do func(i int) error) {
	var next atomic.Int64
	var wg sync.WaitGroup
	b.ResetTimer()
	for range callers {
		wg.Go(func() {
			for {
				i := next.Add(1)
				if i > int64(b.N) {
					return
				}
				if err := do(int(i)); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "tasks/s")
}

// fill fills p with incompressible bytes.
func fill(p []byte) {
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(p)
}
