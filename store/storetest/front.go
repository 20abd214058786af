package storetest

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/store"
)

// RunFront tests what [store.Store] promises, over the engine.
func RunFront(t *testing.T, open Opener) {
	runAll(t, open, []suite{
		{"requirements hold within one group", requirementsInGroup},
		{"one of many inserts wins", insertOnce},
		{"compare and set loses no update", compareAndSet},
		{"a conflict writes nothing", conflictWritesNothing},
		{"expired records are hidden and swept", expiry},
		{"a renewed record survives the sweep", renewal},
		{"a record put after a delete has its new expiry", deleteAndPutAgain},
		{"start sweeps expired records", startSweep},
		{"scan skips expired records and pages", scanExpired},
		{"many writers share groups", manyWriters},
		{"close while busy keeps acknowledged records", closeWhileBusy},
		{"compact and snapshot under load", compactUnderLoad},
	})
}

// epoch is the start time of manual clocks.
var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// A fixture is a store that a test may close and reopen.
type fixture struct {
	*store.Store
	t    testing.TB
	open Opener
	dir  string
	cfg  store.Config
}

func newFixture(t testing.TB, open Opener, cfg store.Config) *fixture {
	b := &fixture{t: t, open: open, dir: t.TempDir(), cfg: cfg}
	b.up()
	t.Cleanup(b.down)
	return b
}

func (b *fixture) up() {
	b.t.Helper()
	e := b.open(b.t, b.dir)
	s, err := store.Open(e, b.cfg)
	if err != nil {
		b.t.Fatalf("open store: %v", err)
	}
	b.Store = s
}

func (b *fixture) down() {
	b.t.Helper()
	if err := b.Close(); err != nil {
		b.t.Errorf("close store: %v", err)
	}
}

func (b *fixture) apply(fill func(*store.Batch)) {
	b.t.Helper()
	var batch store.Batch
	fill(&batch)
	if err := b.Apply(b.t.Context(), &batch); err != nil {
		b.t.Fatalf("apply: %v", err)
	}
}

func (b *fixture) want(bk store.Bucket, key, want string) {
	b.t.Helper()
	val, err := b.Get(bk, []byte(key))
	if err != nil || string(val) != want {
		b.t.Errorf("get %q = %q, %v; want %q", key, val, err, want)
	}
}

func (b *fixture) wantNone(bk store.Bucket, key string) {
	b.t.Helper()
	if val, err := b.Get(bk, []byte(key)); !errors.Is(err, store.ErrNotFound) {
		b.t.Errorf("get %q = %q, %v; want ErrNotFound", key, val, err)
	}
}

// batch returns a batch filled by fill.
func batch(fill func(*store.Batch)) *store.Batch {
	b := new(store.Batch)
	fill(b)
	return b
}

// requirementsInGroup: a requirement sees the disk and the earlier batches of
// its group.
func requirementsInGroup(t *testing.T, open Opener) {
	s := newFixture(t, open, store.Config{})
	k, bk := []byte("lease"), store.Leases
	claim := func(from, to string) *store.Batch {
		return batch(func(b *store.Batch) {
			if from == "" {
				b.RequireAbsent(bk, k)
			} else {
				b.RequireEqual(bk, k, []byte(from))
			}
			if to == "" {
				b.Delete(bk, k)
			} else {
				b.Put(bk, k, []byte(to))
			}
		})
	}
	errs := s.ApplyMany(t.Context(), []*store.Batch{
		claim("", "1"), claim("", "x"), claim("1", "2"), claim("1", "x"), claim("2", ""),
		claim("2", "x"), claim("", "3"), claim("3", "4"),
	})
	want := []bool{true, false, true, false, true, false, true, true}
	for i, err := range errs {
		if want[i] != (err == nil) || err != nil && !errors.Is(err, store.ErrConflict) {
			t.Errorf("batch %d: %v, want success %v", i, err, want[i])
		}
	}
	s.want(bk, "lease", "4")
	if n := s.Counters(); n.Groups != 1 || n.Ops != 5 || n.Batches != 5 || n.Conflicts != 3 {
		t.Errorf("counters %+v, want 5 batches of one operation in one group and 3 conflicts", n)
	}
}

// insertOnce: of many concurrent inserts of one key, one succeeds (I12).
func insertOnce(t *testing.T, open Opener) {
	s := newFixture(t, open, store.Config{})
	for round := range 5 {
		key := []byte(fmt.Sprint(round))
		var won atomic.Int32
		var winner atomic.Value
		var wg sync.WaitGroup
		for i := range 32 {
			wg.Go(func() {
				val := fmt.Sprint(i)
				err := s.Apply(t.Context(), batch(func(b *store.Batch) {
					b.RequireAbsent(store.Dedup, key)
					b.Put(store.Dedup, key, []byte(val))
				}))
				switch {
				case err == nil:
					won.Add(1)
					winner.Store(val)
				case !errors.Is(err, store.ErrConflict):
					t.Errorf("apply: %v", err)
				}
			})
		}
		wg.Wait()
		if won.Load() != 1 {
			t.Fatalf("%d inserts of one key succeeded", won.Load())
		}
		s.want(store.Dedup, string(key), winner.Load().(string))
	}
}

// compareAndSet: concurrent increments by compare-and-set lose none (I4).
func compareAndSet(t *testing.T, open Opener) {
	s := newFixture(t, open, store.Config{})
	key := []byte("n")
	s.apply(func(b *store.Batch) { b.Put(store.Leases, key, []byte("0")) })
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for done := 0; done < 25; {
				old, err := s.Get(store.Leases, key)
				if err != nil {
					t.Errorf("get: %v", err)
					return
				}
				n, _ := strconv.Atoi(string(old))
				err = s.Apply(t.Context(), batch(func(b *store.Batch) {
					b.RequireEqual(store.Leases, key, old)
					b.Put(store.Leases, key, []byte(strconv.Itoa(n+1)))
				}))
				if err == nil {
					done++
				} else if !errors.Is(err, store.ErrConflict) {
					t.Errorf("apply: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	s.want(store.Leases, "n", "200")
}

func conflictWritesNothing(t *testing.T, open Opener) {
	s := newFixture(t, open, store.Config{})
	s.apply(func(b *store.Batch) { b.Put(store.Meta, []byte("a"), nil) })
	ran := false
	err := s.Apply(t.Context(), batch(func(b *store.Batch) {
		b.Put(store.Inbox, []byte("x"), []byte("1"))
		b.RequireEqual(store.Meta, []byte("a"), []byte("other"))
		b.Delete(store.Meta, []byte("a"))
		b.After(func() { ran = true })
	}))
	if !errors.Is(err, store.ErrConflict) {
		t.Errorf("apply: %v, want ErrConflict", err)
	}
	s.wantNone(store.Inbox, "x")
	s.want(store.Meta, "a", "")
	if ran {
		t.Error("After ran for a batch that was not written")
	}
	s.apply(func(b *store.Batch) {
		b.RequireEqual(store.Meta, []byte("a"), nil)
		b.RequireAbsent(store.Inbox, []byte("x"))
	})
}

// sweepCfg configures a store whose sweeper runs only at open.
func sweepCfg(m *clock.Manual) store.Config {
	return store.Config{Clock: m.Clock(), SweepEvery: -1, CompactEvery: -1}
}

func expiry(t *testing.T, open Opener) {
	m := clock.NewManual(epoch)
	s := newFixture(t, open, sweepCfg(m))
	bk := store.Done
	s.apply(func(b *store.Batch) {
		b.PutUntil(bk, []byte("short"), []byte("s"), epoch.Add(time.Second))
		b.PutUntil(bk, []byte("long"), []byte("l"), epoch.Add(time.Hour))
		b.PutUntil(bk, []byte("ever"), []byte("e"), time.Time{})
		b.PutUntil(bk, []byte("past"), []byte("p"), epoch.AddDate(-60, 0, 0))
	})
	m.Advance(999 * time.Millisecond)
	s.want(bk, "short", "s")
	s.wantNone(bk, "past")
	m.Advance(time.Millisecond)
	s.wantNone(bk, "short")
	s.want(bk, "long", "l")

	s.apply(func(b *store.Batch) { // expired records count as absent
		b.RequireAbsent(bk, []byte("short"))
		b.PutUntil(bk, []byte("short"), []byte("again"), epoch.Add(time.Minute))
	})
	err := s.Apply(t.Context(), batch(func(b *store.Batch) { b.RequireEqual(bk, []byte("past"), []byte("p")) }))
	if !errors.Is(err, store.ErrConflict) {
		t.Errorf("an expired record still satisfies RequireEqual: %v", err)
	}
	m.Advance(30 * 24 * time.Hour)
	s.wantNone(bk, "short")
	s.wantNone(bk, "long")
	s.want(bk, "ever", "e")
}

// renewal: a record renewed just before its expiry is not swept.
func renewal(t *testing.T, open Opener) {
	m := clock.NewManual(epoch)
	s := newFixture(t, open, sweepCfg(m))
	key := func(i int) []byte { return fmt.Appendf(nil, "%04d", i) }
	for i := range 300 {
		s.apply(func(b *store.Batch) { b.PutUntil(store.Leases, key(i), []byte("1"), epoch.Add(time.Second)) })
	}
	m.Advance(999 * time.Millisecond)
	for i := 0; i < 300; i += 2 {
		s.apply(func(b *store.Batch) {
			b.RequireEqual(store.Leases, key(i), []byte("1"))
			b.PutUntil(store.Leases, key(i), []byte("2"), epoch.Add(time.Hour))
		})
	}
	m.Advance(time.Millisecond)
	s.down()
	s.up()
	if n := s.Counters().Swept; n != 150 {
		t.Errorf("%d records swept at start, want the 150 that were not renewed", n)
	}
	for i := range 300 {
		if i%2 == 0 {
			s.want(store.Leases, string(key(i)), "2")
		} else {
			s.wantNone(store.Leases, string(key(i)))
		}
	}
}

func deleteAndPutAgain(t *testing.T, open Opener) {
	m := clock.NewManual(epoch)
	s := newFixture(t, open, sweepCfg(m))
	bk, key := store.Leases, []byte("k")
	s.apply(func(b *store.Batch) { b.PutUntil(bk, key, []byte("1"), epoch.Add(2*time.Second)) })
	s.apply(func(b *store.Batch) { b.Delete(bk, key) })
	s.apply(func(b *store.Batch) { b.PutUntil(bk, key, []byte("2"), epoch.Add(time.Hour)) })
	m.Advance(10 * time.Second)
	s.want(bk, "k", "2")
	s.apply(func(b *store.Batch) { b.Put(bk, key, []byte("3")) })
	m.Advance(1000 * time.Hour)
	s.want(bk, "k", "3")
	s.down()
	s.up()
	s.want(bk, "k", "3")
}

func startSweep(t *testing.T, open Opener) {
	m := clock.NewManual(epoch)
	s := newFixture(t, open, sweepCfg(m))
	for _, bk := range []store.Bucket{store.Done, store.Meta} {
		for i := range 600 {
			s.apply(func(b *store.Batch) {
				b.PutUntil(bk, fmt.Appendf(nil, "%d", i), []byte("v"), epoch.Add(time.Minute))
			})
		}
	}
	s.apply(func(b *store.Batch) { b.Put(store.Meta, []byte("stays"), []byte("v")) })
	s.down()
	m.Advance(time.Minute)
	s.up()
	if n := s.Counters().Swept; n != 1200 {
		t.Errorf("%d swept, want 1200", n)
	}
	s.down()
	e := open(t, s.dir)
	if got := Dump(t, e); len(got) != 2 {
		t.Errorf("the engine still holds %d records, want the schema number and one more: %.10q", len(got), got)
	}
	closeEngine(t, e)
	s.up()
}

func scanExpired(t *testing.T, open Opener) {
	m := clock.NewManual(epoch)
	s := newFixture(t, open, sweepCfg(m))
	for i := range 40 {
		s.apply(func(b *store.Batch) {
			until := time.Time{}
			if i%4 != 0 {
				until = epoch.Add(time.Second)
			}
			b.PutUntil(store.Inbox, fmt.Appendf(nil, "%02d", i), nil, until)
		})
	}
	m.Advance(time.Minute)
	var keys []string
	for start, pages := []byte(nil), 0; ; pages++ {
		page, next, err := s.Scan(store.Inbox, start, []byte("32"), 3)
		if err != nil || len(page) > 3 || pages > 10 {
			t.Fatalf("page %d: %d pairs, %v", pages, len(page), err)
		}
		for _, p := range page {
			keys = append(keys, string(p.Key))
		}
		if next == nil {
			break
		}
		start = next
	}
	if want := []string{"00", "04", "08", "12", "16", "20", "24", "28"}; !slices.Equal(keys, want) {
		t.Errorf("pages contain %q, want %q", keys, want)
	}
	n := 0
	for p, err := range s.All(store.Inbox, []byte("10"), nil) {
		if err != nil || len(p.Val) != 0 {
			t.Errorf("all: %q, %v", p, err)
		}
		n++
	}
	if n != 7 {
		t.Errorf("all returns %d pairs from 10 on, want 7", n)
	}
}

// manyWriters: every acknowledged batch is stored, and a group contains more than one.
func manyWriters(t *testing.T, open Opener) {
	s := newFixture(t, open, store.Config{})
	const writers, each = 32, 20
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			var b store.Batch
			for i := range each {
				b.Reset()
				b.Put(store.PendingTasks, fmt.Appendf(nil, "%d/%d", w, i), fmt.Appendf(nil, "%d", w*i))
				b.Put(store.Dedup, fmt.Appendf(nil, "%d/%d", w, i), nil)
				if err := s.Apply(t.Context(), &b); err != nil {
					t.Errorf("apply: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	for range 2 {
		for w := range writers {
			for i := range each {
				s.want(store.PendingTasks, fmt.Sprintf("%d/%d", w, i), fmt.Sprint(w*i))
			}
		}
		s.down()
		s.up()
	}
}

// closeWhileBusy: batches acknowledged with nil before or during Close are stored, those
// answered with ErrClosed are not (I1).
func closeWhileBusy(t *testing.T, open Opener) {
	s := newFixture(t, open, store.Config{})
	const writers = 16
	acked := make([]int, writers)
	var wg, going sync.WaitGroup
	going.Add(writers)
	for w := range writers {
		wg.Go(func() {
			for i := 1; ; i++ {
				err := s.Apply(t.Context(), batch(func(b *store.Batch) { b.Put(store.Inbox, []byte{byte(w)}, fmt.Appendf(nil, "%d", i)) }))
				if i == 3 {
					going.Done()
				}
				if err != nil {
					if !errors.Is(err, store.ErrClosed) {
						t.Errorf("apply while closing: %v", err)
					}
					return
				}
				acked[w] = i
			}
		})
	}
	going.Wait()
	s.down()
	wg.Wait()
	if _, err := s.Get(store.Inbox, []byte{0}); !errors.Is(err, store.ErrClosed) {
		t.Errorf("get after close: %v", err)
	}
	s.up()
	for w, n := range acked {
		s.want(store.Inbox, string([]byte{byte(w)}), fmt.Sprint(n))
	}
}

func compactUnderLoad(t *testing.T, open Opener) {
	s := newFixture(t, open, store.Config{})
	var wg sync.WaitGroup
	stop := make(chan struct{})
	acked := 0
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			err := s.Apply(t.Context(), batch(func(b *store.Batch) {
				b.Put(store.Inbox, fmt.Appendf(nil, "%d", acked), []byte("v"))
				if acked > 10 {
					b.Delete(store.Inbox, fmt.Appendf(nil, "%d", acked-10))
				}
			}))
			if err != nil {
				t.Errorf("apply: %v", err)
				return
			}
			acked++
		}
	})
	for range 3 {
		if err := s.Compact(t.Context()); err != nil {
			t.Errorf("compact: %v", err)
		}
	}
	if err := s.Snapshot(t.TempDir() + "/copy"); err != nil {
		t.Errorf("snapshot: %v", err)
	}
	close(stop)
	wg.Wait()
	s.down()
	s.up()
	pairs, _, err := s.Scan(store.Inbox, nil, nil, 0)
	if want := min(acked, 11); err != nil || len(pairs) < min(want, 10) || len(pairs) > want {
		t.Errorf("%d records after %d acknowledged, %v", len(pairs), acked, err)
	}
}
