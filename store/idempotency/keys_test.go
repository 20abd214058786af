package idempotency

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/mem"
)

const day = 24 * time.Hour

// A counted engine counts reads.
type counted struct {
	*mem.Engine
	gets, scans atomic.Int64
}

func (c *counted) Get(b store.Bucket, key []byte) ([]byte, bool, error) {
	c.gets.Add(1)
	return c.Engine.Get(b, key)
}

func (c *counted) Scan(b store.Bucket, start, end []byte, limit int) ([]store.Pair, error) {
	c.scans.Add(1)
	return c.Engine.Scan(b, start, end, limit)
}

// A fixture is keys on an in-memory store, under a clock that the test drives. runTick
// replaces Run.
type fixture struct {
	t     testing.TB
	time  *clock.Manual
	disk  *mem.Engine
	store *store.Store
	cfg   Config
	*Keys
}

func newFixture(t testing.TB, cfg Config) *fixture {
	m := clock.NewManual(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	cfg.Prefix, cfg.Clock = 'K', m.Clock()
	b := &fixture{t: t, time: m, disk: mem.New(), cfg: cfg}
	b.up(b.disk)
	return b
}

func (b *fixture) up(e store.Engine) {
	b.t.Helper()
	s, err := store.Open(e, store.Config{Clock: b.cfg.Clock, SweepEvery: -1, CompactEvery: -1})
	if err != nil {
		b.t.Fatal(err)
	}
	if b.Keys, err = Open(s, b.cfg); err != nil {
		b.t.Fatal(err)
	}
	b.store = s
}

// restart reopens the keys after a kill or a stop, with the machine off for so long.
func (b *fixture) restart(kill bool, off time.Duration) {
	b.t.Helper()
	if !kill {
		if err := b.saveIfUsed(b.t.Context(), 0); err != nil {
			b.t.Fatal(err)
		}
	}
	b.disk = b.disk.Reopen()
	b.store.Close()
	b.time.SetWall(b.cfg.Clock.Now().Add(off))
	b.up(b.disk)
}

func (b *fixture) runTick() {
	b.t.Helper()
	if err := b.tick(b.t.Context()); err != nil {
		b.t.Fatal(err)
	}
}

// run lets d pass like Run.
func (b *fixture) run(d time.Duration) {
	for ; d > 0; d -= tickEvery {
		b.time.Advance(min(d, tickEvery))
		b.runTick()
	}
}

func (b *fixture) make(key string) error {
	if !b.TryReserve("") {
		return errors.New("no place")
	}
	var batch store.Batch
	b.RequireAbsent(&batch, []byte(key))
	b.Put(&batch, []byte(key), []byte("of "+key))
	err := b.store.Apply(b.t.Context(), &batch)
	if err != nil {
		b.Release("")
	} else {
		b.Commit("")
	}
	return err
}

func (b *fixture) has(key string) bool {
	b.t.Helper()
	val, err := b.Get([]byte(key))
	if err != nil && !errors.Is(err, store.ErrNotFound) || err == nil && string(val) != "of "+key {
		b.t.Fatalf("key %s: %q, %v", key, val, err)
	}
	return err == nil
}

// I14: a wall clock ten years off, in either direction, while the node runs or is
// stopped, forgets no key; seven days of running time do.
func TestNoWallClockForgetsAKey(t *testing.T) {
	for _, years := range []int{10, -10} {
		b := newFixture(t, Config{})
		b.runTick()
		if err := b.make("a"); err != nil {
			t.Fatal(err)
		}
		b.run(time.Hour)
		b.time.SetWall(b.cfg.Clock.Now().AddDate(years, 0, 0))
		b.run(time.Hour)
		for _, kill := range []bool{false, true} {
			b.restart(kill, time.Duration(years)*365*day)
			b.run(time.Hour)
			if err := b.make("a"); !errors.Is(err, store.ErrConflict) || !b.has("a") {
				t.Errorf("%d years: the key was added again: %v", years, err)
			}
		}
		b.run(7*day - 4*time.Hour - tickEvery)
		if !b.has("a") {
			t.Errorf("%d years: forgotten before 7 days", years)
		}
		b.run(tickEvery + saveEvery + sweepEvery)
		if b.has("a") || b.Count() != 0 {
			t.Errorf("%d years: %d keys after 7 days", years, b.Count())
		}
		if err := b.make("a"); err != nil {
			t.Errorf("%d years: the key is not free: %v", years, err)
		}
	}
}

// I14, I15: whatever clocks, stops and kills do, a key is kept for its period, measured
// in running time of the node, and not much longer.
func TestKeysAreKeptForTheirTime(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := newFixture(t, Config{Limits: Limits{For: day}})
		ran, lost := time.Duration(0), time.Duration(0)
		born := map[string]time.Duration{}
		for i := range rapid.IntRange(1, 40).Draw(rt, "steps") {
			switch rapid.SampledFrom([]string{"make", "run", "run", "suspend", "wall", "stop", "kill"}).Draw(rt, "step") {
			case "make":
				key := fmt.Sprint(i)
				if err := b.make(key); err != nil {
					rt.Fatal(err)
				}
				born[key] = ran
			case "run":
				d := time.Duration(rapid.Int64Range(1, int64(8*time.Hour)).Draw(rt, "for"))
				b.run(d)
				ran += d
			case "suspend":
				d := time.Duration(rapid.Int64Range(1, int64(8*time.Hour)).Draw(rt, "for"))
				b.time.Suspend(d)
				b.runTick()
				ran += d
			case "wall":
				b.time.SetWall(time.Unix(rapid.Int64Range(0, 1<<33).Draw(rt, "wall"), 0))
				b.runTick()
			case "stop":
				b.restart(false, time.Duration(rapid.Int64Range(-int64(1000*day), int64(1000*day)).Draw(rt, "off")))
			case "kill":
				b.restart(true, 0)
				lost += saveEvery + tickEvery
			}
			for key, at := range born {
				if ran-at < day && !b.has(key) {
					rt.Fatalf("key %s was forgotten after %v", key, ran-at)
				}
			}
		}
		b.run(day + lost + sweepEvery + tickEvery)
		for key := range born {
			if b.has(key) {
				rt.Fatalf("key %s is still there", key)
			}
		}
		if b.Count() != 0 {
			rt.Fatalf("%d keys counted, but none is left", b.Count())
		}
	})
}

// At the limit a new key is refused until a sweep frees space; no key is evicted for it,
// also after a restart.
func TestLimitRefusesAndForgetsNothing(t *testing.T) {
	b := newFixture(t, Config{Limits: Limits{Max: 700}})
	for i := range 700 {
		if err := b.make(fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	b.run(time.Hour)
	for _, kill := range []bool{false, true} {
		b.restart(kill, 0)
		b.runTick()
		if err := b.make("more"); err == nil || !b.Full() || b.Count() != 700 {
			t.Errorf("a key beyond the limit: %v, %d of %d", err, b.Count(), b.Max())
		}
	}
	b.run(6 * day)
	for i := range 700 {
		if !b.has(fmt.Sprint(i)) {
			t.Fatalf("key %d was forgotten early", i)
		}
	}
	b.run(day)
	if err := b.make("more"); err != nil || b.Count() != 1 {
		t.Errorf("after their time: %v, %d keys", err, b.Count())
	}
}

// A released reservation is free again; one that cannot be refused is counted.
func TestReservations(t *testing.T) {
	b := newFixture(t, Config{Limits: Limits{Max: 2}})
	for i, want := range []bool{true, true, false} {
		if got := b.TryReserve(""); got != want {
			t.Errorf("reservation %d of two: %v", i+1, got)
		}
	}
	b.Reserve("")
	b.Release("")
	if !b.Full() {
		t.Error("reserved a third of two places")
	}
	b.Release("")
	if !b.TryReserve("") {
		t.Error("a released place is not free")
	}
}

// A needed key outlives its period, a renewed one starts a new period, and an unreadable
// record is left alone.
func TestSweepKeepsNeededKeys(t *testing.T) {
	needed := map[string]bool{"of needed": true}
	b := newFixture(t, Config{Needed: func(val []byte) bool { return needed[string(val)] }})
	for _, key := range []string{"needed", "renewed", "plain"} {
		if err := b.make(key); err != nil {
			t.Fatal(err)
		}
	}
	var bad store.Batch
	bad.Put(store.Dedup, []byte("Kbad"), []byte("short"))
	bad.Put(store.Dedup, []byte("Lother"), make([]byte, 20))
	if err := b.store.Apply(t.Context(), &bad); err != nil {
		t.Fatal(err)
	}
	b.run(6 * day)
	var again store.Batch
	b.Put(&again, []byte("renewed"), []byte("of renewed"))
	if err := b.store.Apply(t.Context(), &again); err != nil {
		t.Fatal(err)
	}
	b.run(2 * day)
	if !b.has("needed") || !b.has("renewed") || b.has("plain") {
		t.Errorf("needed %v, renewed %v, plain %v", b.has("needed"), b.has("renewed"), b.has("plain"))
	}
	if _, err := b.Get([]byte("bad")); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("a short record: %v", err)
	}
	if _, err := b.store.Get(store.Dedup, []byte("Lother")); err != nil {
		t.Errorf("a record that is not a key was swept: %v", err)
	}
	delete(needed, "of needed")
	b.run(time.Hour)
	if b.has("needed") {
		t.Error("a key that is no longer needed is still there")
	}
}

// I15: 100 000 keys take no memory here and do not delay the start: a background sweep
// reads them.
func TestManyKeysCostLittleMemory(t *testing.T) { synctest.Test(t, manyKeys) }

func manyKeys(t *testing.T) {
	const n = 100_000
	b := newFixture(t, Config{})
	batches := make([]*store.Batch, 0, 1000)
	for i := range n {
		batch := new(store.Batch)
		b.Reserve("")
		b.Put(batch, fmt.Appendf(nil, "%032d", i), make([]byte, 48))
		if batches = append(batches, batch); len(batches) == cap(batches) {
			if err := errors.Join(b.store.ApplyMany(t.Context(), batches)...); err != nil {
				t.Fatal(err)
			}
			batches = batches[:0]
		}
		b.Commit("")
	}
	b.restart(false, 0)
	b.store.Close()
	e := &counted{Engine: b.disk.Reopen()}
	s, err := store.Open(e, store.Config{Clock: b.cfg.Clock, SweepEvery: -1, CompactEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	heap := heapNow()
	gets, scans := e.gets.Load(), e.scans.Load()
	if b.Keys, err = Open(s, b.cfg); err != nil {
		t.Fatal(err)
	}
	if g, sc := e.gets.Load()-gets, e.scans.Load()-scans; g != 1 || sc != 0 {
		t.Errorf("opening read %d records and %d pages, want one and none", g, sc)
	}
	if b.Count() != n {
		t.Errorf("%d keys counted before the first sweep, want %d", b.Count(), n)
	}
	b.runTick()
	if grown := heapNow() - heap; grown > 1<<20 {
		t.Errorf("%d bytes of memory for %d keys", grown, n)
	}
	if b.Count() != n {
		t.Errorf("%d keys counted, want %d", b.Count(), n)
	}
}

func heapNow() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Run counts first, forgets keys that are due, and stores the age when it ends.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := Config{Prefix: 'K', Limits: Limits{For: time.Hour}, Clock: clock.Runtime()}
		disk := mem.New()
		open := func() (*store.Store, *Keys, func()) {
			s, err := store.Open(disk, store.Config{Clock: cfg.Clock, SweepEvery: -1, CompactEvery: -1})
			if err != nil {
				t.Fatal(err)
			}
			k, err := Open(s, cfg)
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(context.Background())
			done := make(chan struct{})
			go func() { defer close(done); k.Run(ctx) }()
			return s, k, func() { stop(); <-done; s.Close(); disk = disk.Reopen() }
		}
		s, k, stop := open()
		for i := range 3 * sweepStep {
			var b store.Batch
			k.Reserve("")
			k.Put(&b, fmt.Append(nil, i), nil)
			if err := s.Apply(t.Context(), &b); err != nil {
				t.Fatal(err)
			}
			k.Commit("")
		}
		time.Sleep(40*time.Minute + time.Second)
		stop()
		time.Sleep(1000 * time.Hour)
		_, k, stop = open()
		time.Sleep(19 * time.Minute)
		if n := k.Count(); n != 3*sweepStep {
			t.Errorf("%d keys after 59 minutes, want %d", n, 3*sweepStep)
		}
		time.Sleep(sweepEvery + 2*tickEvery)
		if n := k.Count(); n != 0 {
			t.Errorf("%d keys after their hour", n)
		}
		if age := k.Age(); age < 69*time.Minute || age > 72*time.Minute {
			t.Errorf("age = %v, the node ran for 71 minutes", age)
		}
		stop()
	})
}

// FuzzState: any bytes on disk give an error or a state, never a panic.
func FuzzState(f *testing.F) {
	f.Add([]byte{})
	f.Add(state{age: 5, kept: 7}.encode())
	f.Add(make([]byte, 16))
	f.Fuzz(func(t *testing.T, b []byte) {
		st, err := parseState(b)
		if err == nil && (st.age < 0 || st.kept < 0 || string(st.encode()) != string(b)) {
			t.Errorf("%x gives %+v", b, st)
		}
		if made, ok := stamp(b); ok && (made < 0 || len(b) < stampLen) {
			t.Errorf("%x was made at %d", b, made)
		}
	})
}

// TestOneOwnerLeavesSpaceForOthers: an owner may have nine times the free keys, also
// after a restart once the keys are counted. Keys of others do not count toward its
// share, and when nothing is free the share refuses nobody.
func TestOneOwnerLeavesSpaceForOthers(t *testing.T) {
	b := newFixture(t, Config{Limits: Limits{Max: 100}, Owner: func(key []byte) string { return string(key[:1]) }})
	make := func(owner string, n int) (made int) {
		t.Helper()
		for ; made < n && b.WithinShare(owner); made++ {
			key := fmt.Append(nil, owner, b.Count())
			b.Reserve(owner)
			var batch store.Batch
			b.Put(&batch, key, []byte("v"))
			if err := b.store.Apply(t.Context(), &batch); err != nil {
				t.Fatal(err)
			}
			b.Commit(owner)
		}
		return made
	}
	if n := make("a", 200); n != 90 {
		t.Errorf("one owner alone has %d of 100 keys, want 90", n)
	}
	if n := make("b", 5); n != 5 || b.WithinShare("a") {
		t.Errorf("another got %d of 5; the first may have more: %v", n, b.WithinShare("a"))
	}
	for _, kill := range []bool{false, true} {
		b.restart(kill, 0)
		b.runTick()
		if b.WithinShare("a") || !b.WithinShare("b") || b.Count() != 95 {
			t.Errorf("after a restart with %d keys the first may have more: %v; the other: %v", b.Count(), b.WithinShare("a"), b.WithinShare("b"))
		}
	}
	for range 5 {
		b.Reserve("c")
	}
	if !b.Full() || !b.WithinShare("a") {
		t.Error("the share refuses although nothing is free")
	}
	for range 5 {
		b.Release("c")
	}
	b.run(8 * day)
	if !b.WithinShare("a") || b.Count() != 0 {
		t.Errorf("after their time %d keys are kept", b.Count())
	}
	if len(b.owners) != 0 {
		t.Errorf("without keys %v is counted", b.owners)
	}
}
