package store_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/mem"
	"github.com/balefire/balefire/store/storetest"
)

// TestSweeperCyclesThroughBuckets: expired records are removed from disk, in one go if
// there are many, and a store without expiring records is left alone.
func TestSweeperCyclesThroughBuckets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var scans atomic.Int64
		e := mem.New()
		f := &storetest.Faults{Engine: e, BeforeScan: func(store.Bucket) error { scans.Add(1); return nil }}
		s := open(t, f, store.Config{Clock: clock.Runtime(), CompactEvery: -1})
		scans.Store(0)
		time.Sleep(time.Hour)
		if n := scans.Load(); n > 22 {
			t.Errorf("%d scans in an hour of a store where nothing expires", n)
		}
		const n = 5000
		for i := range n {
			b := putBatch(fmt.Sprint("stays", i), "v")
			b.PutUntil(store.Done, fmt.Appendf(nil, "%06d", i), []byte("v"), time.Now().Add(10*time.Minute))
			if err := s.Apply(t.Context(), b); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(9 * time.Minute)
		if got := e.Stats().Keys; got != 2*n+1 {
			t.Errorf("%d keys before the expiry, want %d", got, 2*n+1)
		}
		time.Sleep(3 * time.Minute)
		if got := e.Stats().Keys; got != n+1 {
			t.Errorf("%d keys after the expiry, want %d", got, n+1)
		}
		if c := s.Counters(); c.Swept != n || c.Groups > 6000 {
			t.Errorf("counters %+v, want %d swept in few groups", c, n)
		}
		time.Sleep(time.Minute)
		scans.Store(0)
		time.Sleep(time.Hour)
		if n := scans.Load(); n > 100 {
			t.Errorf("%d scans in an hour after all expiring records are gone", n)
		}
	})
}

// TestClockJumps (I14): a clock that jumps far back expires and hides nothing; one that
// stays there is believed after a day.
func TestClockJumps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
		m := clock.NewManual(start)
		e := mem.New()
		s := open(t, e, store.Config{Clock: m.Clock(), CompactEvery: -1})
		put := func(key string, until time.Time) {
			b := new(store.Batch)
			b.PutUntil(store.Done, []byte(key), nil, until)
			if err := s.Apply(t.Context(), b); err != nil {
				t.Fatal(err)
			}
		}
		there := func(key string, want bool) {
			t.Helper()
			_, err := s.Get(store.Done, []byte(key))
			if err != nil && !errors.Is(err, store.ErrNotFound) || (err == nil) != want {
				t.Errorf("%s at %v: %v, want there %v", key, m.Clock().Now(), err, want)
			}
		}
		put("a", start.Add(time.Hour))
		m.Advance(2 * time.Hour)
		there("a", false)
		m.SetWall(start.Add(2*time.Hour - 4*time.Minute)) // a little: nothing comes back
		there("a", false)
		put("b", start.Add(2*time.Hour+time.Minute))

		m.SetWall(start.AddDate(-1, 0, 0)) // a year: in doubt
		put("c", start.AddDate(-1, 0, 0).Add(time.Hour))
		time.Sleep(10 * time.Minute) // sweeps
		there("b", true)
		there("c", true)
		m.Advance(2 * time.Hour)
		time.Sleep(10 * time.Minute)
		there("c", true)
		m.Advance(23 * time.Hour) // the clock has advanced evenly for a day: it is believed
		time.Sleep(10 * time.Minute)
		there("c", false)
		there("b", true)
	})
}

// TestReserve (I13): below the reserve only new work is refused; freed space is noticed.
func TestReserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var free atomic.Int64
		var broken atomic.Bool
		free.Store(1000)
		cfg := store.Config{Clock: clock.Runtime(), Reserve: 500, Space: func() (int64, int64, error) {
			if broken.Load() {
				return 0, 0, errors.New("no answer")
			}
			return free.Load(), 1 << 20, nil
		}}
		s := open(t, mem.New(), cfg)
		work := func() error {
			b := putBatch("k", string(make([]byte, 100)))
			b.NewWork()
			return s.Apply(t.Context(), b)
		}
		for i := range 4 { // 149 bytes each: the fifth is refused between two measurements
			if err := work(); err != nil {
				t.Fatalf("work %d: %v", i, err)
			}
		}
		if err := work(); !errors.Is(err, store.ErrFull) || !s.Full() {
			t.Errorf("work below the reserve: %v, full %v", err, s.Full())
		}
		if err := s.Apply(t.Context(), putBatch("end", "v")); err != nil {
			t.Errorf("a result below the reserve: %v", err)
		}
		remove := new(store.Batch)
		remove.Delete(store.Inbox, []byte("end"))
		if err := s.Apply(t.Context(), remove); err != nil {
			t.Errorf("a delete below the reserve: %v", err)
		}
		broken.Store(true)
		time.Sleep(5 * time.Second)
		if !s.Full() {
			t.Error("a disk that does not answer counts as free")
		}
		broken.Store(false)
		free.Store(800)
		time.Sleep(5 * time.Second)
		if err := work(); err != nil || s.Full() {
			t.Errorf("work after space came back: %v", err)
		}
	})
}

// TestCompactionWaitsForQuiet: a compaction that is due runs when nothing is
// written, or after a minute of writing; a failed one is tried again, but not soon: each
// try may cost what only the end of the process gives back.
func TestCompactionWaitsForQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var due, fail atomic.Bool
		var done atomic.Int64
		e := &storetest.Faults{
			Engine: mem.New(), OnStats: func(s *store.Stats) { s.CompactDue = due.Load() },
			BeforeCompact: func() error {
				done.Add(1)
				if fail.Load() {
					return errors.New("no space")
				}
				due.Store(false)
				return nil
			},
		}
		s := open(t, e, store.Config{Clock: clock.Runtime()})
		write := func(d time.Duration) {
			for range int(d / time.Second) {
				if err := s.Apply(t.Context(), putBatch("k", "v")); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second)
			}
		}
		due.Store(true)
		write(45 * time.Second)
		if n := done.Load(); n != 0 {
			t.Errorf("%d compactions while writers are busy", n)
		}
		write(30 * time.Second)
		if n := done.Load(); n != 1 {
			t.Errorf("%d compactions after more than a minute, want 1", n)
		}
		time.Sleep(time.Minute)
		fail.Store(true)
		due.Store(true)
		time.Sleep(time.Hour)
		if n := done.Load() - 1; n < 5 || n > 6 {
			t.Errorf("%d tries in an hour of compactions that fail, want one in ten minutes", n)
		}
		if n, err := s.CompactFailure(); int64(n) != done.Load()-1 || err == nil || !strings.Contains(err.Error(), "no space") {
			t.Errorf("it tells of %d failures, %v, of %d", n, err, done.Load()-1)
		}
		fail.Store(false)
		time.Sleep(11 * time.Minute)
		if due.Load() || s.Err() != nil {
			t.Errorf("compaction still due: %v, failure %v", due.Load(), s.Err())
		}
		if n, err := s.CompactFailure(); n != 0 || err != nil {
			t.Errorf("after one that succeeded it tells of %d failures, %v", n, err)
		}
	})
}

func TestSchema(t *testing.T) {
	t.Run("a newer one is refused", func(t *testing.T) {
		e := withSchema(t, strconv.Itoa(store.Schema+1))
		if _, err := store.Open(e, store.Config{}); !errors.Is(err, store.ErrNewerSchema) {
			t.Errorf("open: %v", err)
		}
	})
	for _, bad := range []string{"", "x", "0", "-1"} {
		if _, err := store.Open(withSchema(t, bad), store.Config{}); !errors.Is(err, store.ErrCorrupt) {
			t.Errorf("open with schema %q: %v", bad, err)
		}
	}
	t.Run("records without a number are refused", func(t *testing.T) {
		e := mem.New()
		if err := e.Commit([]store.Op{{Bucket: store.Inbox, Key: []byte("k"), Val: make([]byte, 8)}}); err != nil {
			t.Fatal(err)
		}
		if _, err := store.Open(e, store.Config{}); !errors.Is(err, store.ErrCorrupt) {
			t.Errorf("open: %v", err)
		}
	})
	t.Run("an empty store is marked", func(t *testing.T) {
		e := mem.New()
		for range 2 {
			open(t, e, store.Config{})
			if raw, _, err := e.Get(store.Meta, []byte("store/schema")); err != nil || string(raw[8:]) != strconv.Itoa(store.Schema) {
				t.Errorf("schema on disk: %q, %v", raw, err)
			}
		}
	})
}

func withSchema(t *testing.T, number string) store.Engine {
	e := mem.New()
	err := e.Commit([]store.Op{{Bucket: store.Meta, Key: []byte("store/schema"), Val: append(make([]byte, 8), number...)}})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// TestMetrics: a reopened store registers its metrics again, and all metrics are well
// formed.
func TestMetrics(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	e := mem.New()
	for i := range 2 {
		s, err := store.Open(e, store.Config{Registerer: r})
		if err != nil {
			t.Fatalf("open %d: %v", i, err)
		}
		if err := s.Apply(t.Context(), putBatch("k", "v")); err != nil {
			t.Fatal(err)
		}
		families, err := r.Gather()
		if err != nil {
			t.Fatal(err)
		}
		values := map[string]float64{}
		for _, f := range families {
			values[f.GetName()] = f.GetMetric()[0].GetCounter().GetValue()
		}
		if len(values) != 13 || values["balefire_store_operations_total"] != 1 || values["balefire_store_commits_total"] != 1 {
			t.Errorf("metrics: %v", values)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		e = e.Reopen()
	}
	if families, err := r.Gather(); err != nil || len(families) != 0 {
		t.Errorf("%d metrics after close, %v", len(families), err)
	}
}

func TestPrefixEnd(t *testing.T) {
	for in, want := range map[string]string{"a": "b", "a\xff": "b", "\xfe\xff\xff": "\xff", "ab": "ac"} {
		if got := store.PrefixEnd([]byte(in)); string(got) != want {
			t.Errorf("PrefixEnd(%q) = %q, want %q", in, got, want)
		}
	}
	if store.PrefixEnd(nil) != nil || store.PrefixEnd([]byte("\xff\xff")) != nil {
		t.Error("a prefix without an end has one")
	}
}
