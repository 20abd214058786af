package ledger

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/store"
)

var time0 = time.Date(2026, 11, 22, 15, 4, 5, 0, time.UTC)

// slowSync returns a file system whose syncs of segments take that long.
func slowSync(d time.Duration) *faultFS {
	fs := newFaultFS()
	fs.hook = func(call, name string) error {
		if call == "sync" {
			time.Sleep(d) // virtual
		}
		return nil
	}
	return fs
}

// virtual returns the config of a ledger in virtual time.
func virtual(fs *faultFS) Config {
	cfg := small(fs)
	cfg.MaxBatch, cfg.Segment, cfg.Clock = 64<<10, 256<<10, clock.Runtime()
	return cfg
}

// What queues during a sync shares the next one, however many callers there are.
func TestCallersShareASync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := mustOpen(t, dir, virtual(slowSync(time.Second)))
		synctest.Wait()
		time.Sleep(time.Minute) // the spare is made
		begin := time.Now()
		var answered atomic.Int64
		for i := range 101 {
			go func() {
				if i > 0 {
					time.Sleep(time.Millisecond) // during the first sync
				}
				if err := l.Queue([]Entry{{Data: data(i, 100)}}).Wait(t.Context()); err != nil {
					t.Error(err)
				}
				answered.Add(1)
			}()
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if s := l.Stats(); answered.Load() != 101 || s.Syncs != 2 || s.Batches != 2 || s.Entries != 101 {
			t.Errorf("after %v: %d answered, %+v", time.Since(begin), answered.Load(), s)
		}
		mustClose(t, l)
	})
}

// With a pace the next batch after one of more than 16 entries keeps its distance, and no
// other does.
func TestPace(t *testing.T) {
	for _, tt := range []struct {
		entries int
		pace    time.Duration
		waits   time.Duration
	}{{17, 0, 0}, {17, 10 * time.Millisecond, 10 * time.Millisecond}, {17, MaxPace, MaxPace}, {16, MaxPace, 0}} {
		t.Run(fmt.Sprint(tt.entries, " entries at ", tt.pace), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := virtual(newFaultFS())
				cfg.Pace = tt.pace
				l := mustOpen(t, dir, cfg)
				synctest.Wait()
				time.Sleep(time.Minute) // the spare is made
				var es []Entry
				for i := range tt.entries {
					es = append(es, Entry{Data: data(i, 100)})
				}
				begin := time.Now()
				for i, want := range []time.Duration{0, tt.waits, tt.waits} { // the second batch is small
					if err := l.Queue(es).Wait(t.Context()); err != nil {
						t.Fatal(err)
					}
					if took := time.Since(begin); took != want {
						t.Errorf("batch %d was answered after %v, want %v", i, took, want)
					}
					es = es[:1]
				}
				mustClose(t, l)
			})
		})
	}
	for _, pace := range []time.Duration{-1, MaxPace + 1} {
		if _, err := (Config{Pace: pace}).withDefaults(); err == nil {
			t.Errorf("a pace of %v is accepted", pace)
		}
	}
}

// Entries of one goroutine are answered in order, in the order of the log, each after
// its sync.
func TestAftersRunInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := mustOpen(t, dir, virtual(slowSync(10*time.Millisecond)))
		var order []int
		var last Place
		var lastIndex uint64
		n := 0
		for call := range 200 {
			var es []Entry
			for range 1 + call%3 {
				i := n
				n++
				es = append(es, Entry{Data: data(i, 2000), Relaxed: call%7 == 0, After: func(index uint64, p Place, err error) {
					if err != nil || index < lastIndex || p.Segment < last.Segment || p.Segment == last.Segment && p.Offset <= last.Offset {
						t.Errorf("entry %d: batch %d at %v after batch %d at %v, %v", i, index, p, lastIndex, last, err)
					}
					order, last, lastIndex = append(order, i), p, index
				}})
			}
			p := l.Queue(es)
			if call%10 == 0 {
				if err := p.Wait(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
		mustClose(t, l)
		if len(order) != n {
			t.Fatalf("%d of %d were answered", len(order), n)
		}
		for i := range order {
			if order[i] != i {
				t.Fatalf("answered in the order %v", order)
			}
		}
	})
}

// With its last answer a call has its entries back: what becomes of them changes no place
// of those that share the batch.
func TestAnsweredEntriesAreTheCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := mustOpen(t, dir, virtual(slowSync(time.Second)))
		synctest.Wait()
		time.Sleep(time.Minute) // the spare is made
		places := make([]Place, 3)
		for i := range places {
			es := make([]Entry, 1)
			es[0] = Entry{Data: data(i, 100), After: func(_ uint64, p Place, err error) {
				if places[i] = p; err != nil {
					t.Error(err)
				}
				clear(es)
			}}
			l.Queue(es)
			if i == 0 {
				time.Sleep(time.Millisecond) // the others wait for its sync, and share a batch
			}
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		for i, p := range places {
			if got, err := l.Read(p, nil); err != nil || !bytes.Equal(got, data(i, 100)) {
				t.Errorf("entry %d at %v: %x, %v", i, p, got, err)
			}
		}
		if s := l.Stats(); s.Batches != 2 {
			t.Errorf("%+v", s)
		}
		mustClose(t, l)
	})
}

// A relaxed entry is answered without a sync, which follows within SyncEvery; with a
// durable one in its batch it waits. Close syncs.
func TestRelaxedIsSyncedSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := newFaultFS()
		l := mustOpen(t, dir, virtual(fs))
		synctest.Wait()
		relaxed := func() {
			t.Helper()
			if err := l.Queue([]Entry{{Data: []byte("x"), Relaxed: true}}).Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		for range 3 {
			before := l.Stats().Syncs
			relaxed()
			if l.Stats().Syncs != before {
				t.Error("a relaxed entry waits for a sync")
			}
			time.Sleep(100*time.Millisecond - 1)
			synctest.Wait()
			if l.Stats().Syncs != before {
				t.Error("it is synced too early")
			}
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			if s := l.Stats(); s.Syncs != before+1 || s.Synced != s.Last {
				t.Errorf("after 100 ms: %+v", s)
			}
			time.Sleep(time.Second)
			synctest.Wait()
			if s := l.Stats(); s.Syncs != before+1 {
				t.Errorf("synced without need: %+v", s)
			}
		}
		// Many at a time: the syncs keep their distance.
		before := l.Stats().Syncs
		for range 1000 {
			relaxed()
			time.Sleep(time.Millisecond)
		}
		synctest.Wait()
		if n := l.Stats().Syncs - before; n < 9 || n > 11 {
			t.Errorf("%d syncs a second", n)
		}
		relaxed()
		add(t, l, []byte("durable"))
		if s := l.Stats(); s.Synced != s.Last {
			t.Errorf("a durable entry does not sync what is before it: %+v", s)
		}
		relaxed()
		mustClose(t, l)
		if s := l.Stats(); s.Synced != s.Last {
			t.Errorf("closed without a sync: %+v", s)
		}
	})
}

// Much that is relaxed is synced before SyncEvery, so that no sync takes long.
func TestRelaxedIsSyncedInPieces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := virtual(newFaultFS())
		cfg.MaxBatch, cfg.Segment, cfg.SyncEvery = MaxBatch, 16<<20, time.Hour
		l := mustOpen(t, dir, cfg)
		for n := range 11 {
			if err := l.Queue([]Entry{{Data: make([]byte, MaxBatch-batchHead-entryHead), Relaxed: true}}).Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if s := l.Stats(); s.Syncs != uint64((n+1)/4) {
				t.Errorf("%d syncs after %d MiB", s.Syncs, n+1)
			}
		}
		mustClose(t, l)
	})
}

// Readers, writers, checkpoints and releases at once; every read is of the right
// entry or says that the segment was released.
func TestConcurrentUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := mustOpen(t, dir, func() Config { c := small(slowSync(time.Millisecond)); c.Clock = clock.Runtime(); return c }())
		stop := make(chan struct{})
		var read atomic.Int64
		for w := range 4 {
			go func() {
				for n := w; ; n += 4 {
					select {
					case <-stop:
						return
					default:
					}
					want := data(n, 700)
					got, err := l.Read(add(t, l, want), nil)
					if err == nil && fmt.Sprint(got) != fmt.Sprint(want) {
						t.Errorf("entry %d is wrong", n)
					} else if err == nil {
						read.Add(1)
					}
				}
			}()
		}
		go func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(20 * time.Millisecond):
				}
				if err := l.Checkpoint(l.Stats().Last, noState); err != nil {
					t.Error(err)
				}
				l.Release(func(uint64, int64) bool { return false })
				from := l.Stats().Checkpoint + 1
				if err := l.Replay(from, func(Batch) error { return nil }); err != nil {
					t.Error(err)
				}
			}
		}()
		time.Sleep(2 * time.Second)
		close(stop)
		synctest.Wait()
		mustClose(t, l)
		if s := l.Stats(); read.Load() < 100 || s.Segments > 40 {
			t.Errorf("%d reads, %+v", read.Load(), s)
		}
	})
}

// Each batch that is written is timed, with its sync unless all of it is relaxed; what writes
// nothing is not.
func TestCommitsAreTimed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var took []time.Duration
		cfg := virtual(slowSync(10 * time.Millisecond))
		cfg.Committed = func(d time.Duration) { took = append(took, d) }
		l := mustOpen(t, dir, cfg)
		for i := range 4 {
			if err := l.Queue([]Entry{{Data: data(i, 100), Relaxed: i%2 == 1}}).Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Queue([]Entry{{Data: make([]byte, cfg.MaxBatch)}}).Wait(t.Context()); !errors.Is(err, store.ErrTooLarge) {
			t.Errorf("too large: %v", err)
		}
		mustClose(t, l)
		if want := []time.Duration{10 * time.Millisecond, 0, 10 * time.Millisecond, 0}; !slices.Equal(took, want) {
			t.Errorf("commits took %v, want %v", took, want)
		}
	})
}
