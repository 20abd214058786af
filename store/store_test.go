package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/mem"
	"github.com/balefire/balefire/store/storetest"
)

func open(t testing.TB, e store.Engine, cfg store.Config) *store.Store {
	t.Helper()
	s, err := store.Open(e, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func putBatch(key, val string) *store.Batch {
	b := new(store.Batch)
	b.Put(store.Inbox, []byte(key), []byte(val))
	return b
}

// A commitGate holds commits until it is opened.
type commitGate struct {
	entered chan int      // gets the number of operations of each commit
	proceed chan struct{} // each token lets one commit go
}

func newGate() *commitGate { return &commitGate{make(chan int, 8), make(chan struct{})} }

// pass stands in Faults.BeforeCommit. The commit of the schema number passes.
func (g *commitGate) pass(ops []store.Op) error {
	if ops[0].Bucket == store.Meta {
		return nil
	}
	g.entered <- len(ops)
	<-g.proceed
	return nil
}

// TestGroupIsWhatWasQueuedMeanwhile: the batches that came during one commit are
// the next, in the order in which they came.
func TestGroupIsWhatWasQueuedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		s := open(t, &storetest.Faults{Engine: mem.New(), BeforeCommit: g.pass}, store.Config{Clock: clock.Runtime()})
		var wg sync.WaitGroup
		var order []int
		for i := range 100 {
			wg.Go(func() {
				b := putBatch(fmt.Sprint(i), "v")
				b.After(func() { order = append(order, i) })
				if err := s.Apply(t.Context(), b); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		for _, want := range []int{1, 99} {
			if n := <-g.entered; n != want {
				t.Errorf("a group of %d, want %d", n, want)
			}
			g.proceed <- struct{}{}
		}
		wg.Wait()
		if len(order) != 100 || !slices.IsSorted(order) {
			t.Errorf("After ran in the order %v", order)
		}
	})
}

// TestGroupLimits: a group ends at its bounds, a larger batch goes alone.
func TestGroupLimits(t *testing.T) {
	var groups []int
	e := &storetest.Faults{Engine: mem.New(), BeforeCommit: func(ops []store.Op) error {
		groups = append(groups, len(ops))
		return nil
	}}
	s := open(t, e, store.Config{MaxGroupOps: 4, MaxGroupBytes: 1000})
	var many []*store.Batch
	for i, ops := range []int{1, 2, 1, 3, 2, 9, 1} {
		b := new(store.Batch)
		for j := range ops {
			b.Put(store.Inbox, fmt.Appendf(nil, "%d-%d", i, j), nil)
		}
		many = append(many, b)
	}
	many = append(many, putBatch("large", strings.Repeat("x", 900)), putBatch("large2", strings.Repeat("x", 900)))
	for i, err := range s.ApplyMany(t.Context(), many) {
		if err != nil {
			t.Errorf("batch %d: %v", i, err)
		}
	}
	if want := []int{1, 4, 3, 2, 9, 1, 1, 1}; !slices.Equal(groups, want) {
		t.Errorf("groups of %v operations, want %v (the first is the schema number)", groups, want)
	}
}

// TestConflictWaitsForTheDisk (I8): "already there" is said only once what is
// there is durable; if its commit fails, that is what both are told.
func TestConflictWaitsForTheDisk(t *testing.T) {
	boom := errors.New("boom")
	e := &storetest.Faults{Engine: mem.New(), BeforeCommit: func(ops []store.Op) error {
		if ops[0].Bucket == store.Dedup {
			return boom
		}
		return nil
	}}
	s := open(t, e, store.Config{})
	insert := func() *store.Batch {
		b := new(store.Batch)
		b.RequireAbsent(store.Dedup, []byte("id"))
		b.Put(store.Dedup, []byte("id"), nil)
		b.After(func() { t.Error("After ran though the commit failed") })
		return b
	}
	for i, err := range s.ApplyMany(t.Context(), []*store.Batch{insert(), insert()}) {
		if !errors.Is(err, store.ErrFailed) || !errors.Is(err, boom) || errors.Is(err, store.ErrConflict) {
			t.Errorf("batch %d: %v, want ErrFailed", i, err)
		}
	}
}

// TestFirstFailureEndsAllWriting: after a commit error, or a panic of the
// engine, nothing is written any more; reads go on.
func TestFirstFailureEndsAllWriting(t *testing.T) {
	boom := errors.New("boom")
	faults := map[string]*storetest.Faults{
		"before": {BeforeCommit: failOn("bad", func() error { return boom })},
		"after":  {AfterCommit: failOn("bad", func() error { return boom })},
		"panic":  {BeforeCommit: failOn("bad", func() error { panic(boom) })},
	}
	for name, e := range faults {
		t.Run(name, func(t *testing.T) {
			e.Engine = mem.New()
			s := open(t, e, store.Config{})
			if err := s.Apply(t.Context(), putBatch("good", "1")); err != nil || s.Err() != nil {
				t.Fatal(err, s.Err())
			}
			if err := s.Apply(t.Context(), putBatch("bad", "1")); !errors.Is(err, store.ErrFailed) {
				t.Errorf("the failed commit: %v", err)
			}
			select {
			case <-s.Failed():
			default:
				t.Error("Failed is not closed")
			}
			if err := s.Apply(t.Context(), putBatch("next", "1")); !errors.Is(err, store.ErrFailed) {
				t.Errorf("a write after the failure: %v", err)
			}
			if err := s.Compact(t.Context()); !errors.Is(err, store.ErrFailed) {
				t.Errorf("a compaction after the failure: %v", err)
			}
			if val, err := s.Get(store.Inbox, []byte("good")); err != nil || string(val) != "1" {
				t.Errorf("a read after the failure: %q, %v", val, err)
			}
			if _, err := s.Get(store.Inbox, []byte("next")); !errors.Is(err, store.ErrNotFound) {
				t.Errorf("something was written after the failure: %v", err)
			}
		})
	}
}

// failOn returns a hook that fails when the first operation is on the key.
func failOn(key string, fail func() error) func([]store.Op) error {
	return func(ops []store.Op) error {
		if string(ops[0].Key) == key {
			return fail()
		}
		return nil
	}
}

// TestReadErrorFailsOnlyItsBatch: a requirement that cannot be read fails its
// batch, not the group.
func TestReadErrorFailsOnlyItsBatch(t *testing.T) {
	boom := errors.New("bad block")
	e := &storetest.Faults{Engine: mem.New(), BeforeGet: func(_ store.Bucket, key []byte) error {
		if string(key) == "bad" {
			return boom
		}
		return nil
	}}
	s := open(t, e, store.Config{})
	bad := putBatch("x", "1")
	bad.RequireAbsent(store.Inbox, []byte("bad"))
	errs := s.ApplyMany(t.Context(), []*store.Batch{putBatch("a", "1"), bad, putBatch("b", "1")})
	if errs[0] != nil || !errors.Is(errs[1], boom) || errs[2] != nil || s.Err() != nil {
		t.Errorf("%v, failure %v", errs, s.Err())
	}
	if _, err := s.Get(store.Inbox, []byte("x")); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("the batch that could not be checked was written: %v", err)
	}
}

func TestContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		s := open(t, &storetest.Faults{Engine: mem.New(), BeforeCommit: g.pass}, store.Config{Clock: clock.Runtime()})
		ctx, cancel := context.WithCancel(t.Context())
		apply := func(ctx context.Context, key string) chan error {
			err := make(chan error, 1)
			go func() { err <- s.Apply(ctx, putBatch(key, "v")) }()
			synctest.Wait()
			return err
		}
		taken := apply(ctx, "taken")
		<-g.entered
		waiting := apply(ctx, "waiting")
		behind := apply(t.Context(), "behind")
		cancel()
		if err := <-taken; !errors.Is(err, store.ErrUnknown) || !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled while it was written: %v, want ErrUnknown", err)
		}
		if err := <-waiting; errors.Is(err, store.ErrUnknown) || !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled while it waited: %v, want only the context's error", err)
		}
		if err := s.Apply(ctx, putBatch("late", "v")); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled before: %v", err)
		}
		g.proceed <- struct{}{}
		if n := <-g.entered; n != 1 {
			t.Errorf("the next group has %d operations: what was withdrawn is in it", n)
		}
		g.proceed <- struct{}{}
		if err := <-behind; err != nil {
			t.Error(err)
		}
		for key, want := range map[string]bool{"taken": true, "waiting": false, "late": false, "behind": true} {
			if _, err := s.Get(store.Inbox, []byte(key)); (err == nil) != want {
				t.Errorf("%s is there: %v, want %v", key, err == nil, want)
			}
		}
	})
}

// TestCloseWritesWhatIsQueued: Close lets the queue go to disk and refuses the rest.
func TestCloseWritesWhatIsQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, e := newGate(), mem.New()
		s := open(t, &storetest.Faults{Engine: e, BeforeCommit: g.pass}, store.Config{Clock: clock.Runtime()})
		errs := make(chan error, 8)
		for i := range 8 {
			go func() { errs <- s.Apply(t.Context(), putBatch(fmt.Sprint(i), "v")) }()
		}
		synctest.Wait()
		closed := make(chan error)
		go func() { closed <- s.Close() }()
		synctest.Wait()
		if err := s.Apply(t.Context(), putBatch("late", "v")); !errors.Is(err, store.ErrClosed) {
			t.Errorf("apply while closing: %v", err)
		}
		close(g.proceed)
		for range 8 {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
		s2 := open(t, e.Reopen(), store.Config{Clock: clock.Runtime()})
		pairs, _, err := s2.Scan(store.Inbox, nil, nil, 0)
		if err != nil || len(pairs) != 8 {
			t.Errorf("%d records, %v", len(pairs), err)
		}
		if _, err := s.Get(store.Inbox, []byte("0")); !errors.Is(err, store.ErrClosed) {
			t.Errorf("get after close: %v", err)
		}
		if _, _, err := s.Scan(store.Inbox, nil, nil, 0); !errors.Is(err, store.ErrClosed) {
			t.Errorf("scan after close: %v", err)
		}
		if err := s.Snapshot(t.TempDir() + "/s"); !errors.Is(err, store.ErrClosed) {
			t.Errorf("snapshot after close: %v", err)
		}
	})
}

func TestBadInput(t *testing.T) {
	s := open(t, mem.New(), store.Config{MaxValue: 100, MaxBatchBytes: 1000})
	long := strings.Repeat("k", store.MaxKey)
	tests := []struct {
		name string
		fill func(*store.Batch)
		want error
	}{
		{"empty key", func(b *store.Batch) { b.Put(store.Meta, nil, nil) }, store.ErrKey},
		{"empty key deleted", func(b *store.Batch) { b.Delete(store.Meta, []byte{}) }, store.ErrKey},
		{"empty key required", func(b *store.Batch) { b.RequireAbsent(store.Meta, nil) }, store.ErrKey},
		{"key too long", func(b *store.Batch) { b.Put(store.Meta, []byte(long+"k"), nil) }, store.ErrKey},
		{"bucket 0", func(b *store.Batch) { b.Put(0, []byte("k"), nil) }, store.ErrKey},
		{"bucket 12", func(b *store.Batch) { b.RequireEqual(12, []byte("k"), nil) }, store.ErrKey},
		{"value too large", func(b *store.Batch) { b.Put(store.Meta, []byte("k"), make([]byte, 101)) }, store.ErrTooLarge},
		{"batch too large", func(b *store.Batch) {
			for i := range 8 {
				b.Put(store.Meta, []byte{byte(i)}, make([]byte, 100))
			}
		}, store.ErrTooLarge},
		{"longest key", func(b *store.Batch) { b.Put(store.Meta, []byte(long), make([]byte, 100)) }, nil},
		{"nothing", func(b *store.Batch) {}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := new(store.Batch)
			ran := false
			b.After(func() { ran = true })
			tt.fill(b)
			err := s.Apply(t.Context(), b)
			if !errors.Is(err, tt.want) {
				t.Errorf("apply: %v, want %v", err, tt.want)
			}
			if ran != (err == nil) {
				t.Errorf("After ran: %v, error %v", ran, err)
			}
		})
	}
	if _, err := s.Get(store.Meta, nil); !errors.Is(err, store.ErrKey) {
		t.Errorf("get of an empty key: %v", err)
	}
	if _, _, err := s.Scan(77, nil, nil, 0); !errors.Is(err, store.ErrKey) {
		t.Errorf("scan of no bucket: %v", err)
	}
	if n := s.Counters(); n.Refused != 8 || n.Groups != 1 {
		t.Errorf("counters %+v, want 8 refused and one group", n)
	}
}

// TestBatchIsReused: a batch copies what it is given, and may be filled again
// after Apply.
func TestBatchIsReused(t *testing.T) {
	s := open(t, mem.New(), store.Config{})
	var b store.Batch
	key, val := []byte("key0"), bytes.Repeat([]byte("v"), 700)
	for i := range 5 {
		b.Reset()
		if b.Len() != 0 || b.Bytes() != 0 {
			t.Fatalf("after Reset: %d operations, %d bytes", b.Len(), b.Bytes())
		}
		for j := range 10 {
			key[3], val[0] = byte('0'+j), byte('a'+i)
			b.Put(store.Done, key, val)
		}
		b.RequireAbsent(store.Meta, key)
		clear(val[:1])
		if err := s.Apply(t.Context(), &b); err != nil {
			t.Fatal(err)
		}
	}
	pairs, _, err := s.Scan(store.Done, nil, nil, 0)
	if err != nil || len(pairs) != 10 {
		t.Fatalf("%d pairs, %v", len(pairs), err)
	}
	for j, p := range pairs {
		if string(p.Key) != fmt.Sprintf("key%d", j) || p.Val[0] != 'e' || len(p.Val) != 700 {
			t.Errorf("pair %d is %q=%.3q of %d bytes", j, p.Key, p.Val, len(p.Val))
		}
	}
}

// TestWriteBudget: a commit reads only what requirements ask, and writes only
// what batches say.
func TestWriteBudget(t *testing.T) {
	var gets int
	e := &storetest.Faults{Engine: mem.New(), BeforeGet: func(store.Bucket, []byte) error { gets++; return nil }}
	s := open(t, e, store.Config{})
	gets = 0
	var many []*store.Batch
	for i := range 10 {
		b := putBatch(fmt.Sprint(i), "v")
		b.PutUntil(store.Done, []byte{byte(i)}, nil, time.Now().Add(time.Hour))
		b.Delete(store.Peers, []byte("p"))
		if i%2 == 0 {
			b.RequireAbsent(store.Dedup, []byte{byte(i)})
		}
		many = append(many, b)
	}
	for _, err := range s.ApplyMany(t.Context(), many) {
		if err != nil {
			t.Error(err)
		}
	}
	n := s.Counters()
	want := store.Counters{Groups: 1, Batches: 10, Ops: 30, Reads: 5, Bytes: n.Bytes}
	if n != want || gets != 5 {
		t.Errorf("counters %+v and %d reads, want %+v", n, gets, want)
	}
}

// TestDamagedRecord: a record without room for its expiry is reported, not served.
func TestDamagedRecord(t *testing.T) {
	e := mem.New()
	s := open(t, e, store.Config{})
	if err := e.Commit([]store.Op{{Bucket: store.Inbox, Key: []byte("k"), Val: []byte("short")}}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(store.Inbox, []byte("k")); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("get: %v", err)
	}
	if _, _, err := s.Scan(store.Inbox, nil, nil, 0); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("scan: %v", err)
	}
	b := new(store.Batch)
	b.RequireAbsent(store.Inbox, []byte("k"))
	if err := s.Apply(t.Context(), b); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("a requirement on it: %v", err)
	}
}
