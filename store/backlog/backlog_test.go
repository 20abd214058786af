package backlog

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/mem"
)

var testBuckets = Buckets{Live: store.PendingTasks, Done: store.Done, Dead: store.DeadLetters}

// A fixture is a backlog over a store in memory with a clock that the test drives.
type fixture struct {
	t     testing.TB
	store *store.Store
	clock *clock.Manual
	cfg   Config
	*Backlog
	n uint64
}

func newFixture(t testing.TB, cfg Config) *fixture {
	t.Helper()
	w := &fixture{t: t, clock: clock.NewManual(time.UnixMilli(1_700_000_000_000)), cfg: cfg}
	s, err := store.Open(mem.New(), store.Config{Clock: w.clock.Clock(), SweepEvery: -1, CompactEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	w.store = s
	w.cfg.Clock = w.clock.Clock()
	w.reopen()
	return w
}

// reopen rebuilds the backlog from the store, like a restart.
func (w *fixture) reopen() {
	w.t.Helper()
	b, err := Open(w.store, testBuckets, w.cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	w.Backlog = b
}

// task returns a pending task of the class for the group.
func (w *fixture) task(group string, c proto.Class) NewEntry {
	w.n++
	id := proto.NewTaskID(w.clock.Clock().Now())
	sum := sha256.Sum256(binary.BigEndian.AppendUint64(nil, w.n))
	copy(id[9:], sum[:]) // unordered, but the same in every run
	id[6], id[7] = 0x70, 0
	return NewEntry{Key: TaskKey(id), Stored: &proto.Stored{
		Envelope: &proto.Envelope{Header: []byte("header"), Body: make([]byte, 100)},
		Record: &proto.Record{
			State: proto.Pending, Class: c, Peer: []byte(group),
			SeqBoot: 1, SeqCounter: w.n, CreatedMs: w.clock.Clock().Now().UnixMilli(),
		},
	}}
}

func (w *fixture) add(news ...NewEntry) {
	w.t.Helper()
	if err := errors.Join(w.Add(w.t.Context(), news)...); err != nil {
		w.t.Fatal(err)
	}
}

// addOne adds a task and returns its key.
func (w *fixture) addOne(group string, c proto.Class, set func(*proto.Record)) Key {
	w.t.Helper()
	n := w.task(group, c)
	if set != nil {
		set(n.Stored.Record)
	}
	w.add(n)
	return n.Key
}

func (w *fixture) change(k Key, f func(r *proto.Record) Action) {
	w.t.Helper()
	if err := w.Change(w.t.Context(), []Edit{{Key: k}}, func(_ int, r *proto.Record) Action { return f(r) })[0]; err != nil {
		w.t.Fatal(err)
	}
}

// end moves the task to a terminal state and the matching set.
func (w *fixture) end(k Key, state proto.TaskState) {
	w.t.Helper()
	w.change(k, func(r *proto.Record) Action {
		r.Move(state, w.clock.Clock().Now(), 0, "test")
		if state == proto.Success {
			return ToDone
		}
		return ToDead
	})
}

func (w *fixture) takeAll(group string) []Key {
	var keys []Key
	for _, it := range w.Take(nil, group, 1<<20) {
		keys = append(keys, it.Key)
	}
	return keys
}

const (
	pending  = proto.Pending
	accepted = proto.Accepted
	success  = proto.Success
	failed   = proto.Failed
)

var classNormal = proto.Normal

func TestEntryFromAddToDone(t *testing.T) {
	w := newFixture(t, Config{})
	k := w.addOne("p", classNormal, nil)
	if err := w.Add(t.Context(), []NewEntry{{Key: k, Stored: w.task("p", classNormal).Stored}})[0]; !errors.Is(err, ErrExists) {
		t.Errorf("second add of one key: %v, want ErrExists", err)
	}
	items := w.Take(nil, "p", 10)
	if len(items) != 1 || items[0].Key != k || items[0].Version != 0 {
		t.Fatalf("took %+v, want the one entry", items)
	}
	if again := w.Take(nil, "p", 10); len(again) != 0 {
		t.Errorf("a taken entry was taken again: %v", again)
	}
	w.change(k, func(r *proto.Record) Action { r.State = accepted; return Write })
	if r, set, err := w.Get(k); err != nil || set != Live || r.State != accepted {
		t.Errorf("get = %v on %v, %v", r, set, err)
	}
	w.end(k, success)
	if _, set, err := w.Get(k); err != nil || set != Done {
		t.Errorf("after the end it is in %v, %v", set, err)
	}
	if _, err := w.Stored(k); !errors.Is(err, ErrNotFound) {
		t.Errorf("the body of a done entry is still there: %v", err)
	}
	if st := w.Stats(); st.Live != 0 || st.Bytes != 0 || st.Done != 1 {
		t.Errorf("stats = %+v", st)
	}
	if errs := w.Change(t.Context(), []Edit{{Key: k}}, nil); !errors.Is(errs[0], ErrNotFound) {
		t.Errorf("change of an ended entry: %v, want ErrNotFound", errs[0])
	}
}

// TestDeadKeepsTheBody: a redrive seals the body again, so dead entries are kept whole.
func TestDeadKeepsTheBody(t *testing.T) {
	w := newFixture(t, Config{})
	k := w.addOne("p", classNormal, nil)
	w.end(k, failed)
	st, err := w.Stored(k)
	if err != nil || len(st.Envelope.GetBody()) != 100 || st.Record.State != failed {
		t.Errorf("stored = %v, %v", st, err)
	}
}

// TestCapacity covers S02: work above the limits is refused with the full limit named,
// and writes needed to finish work still succeed.
func TestCapacity(t *testing.T) {
	w := newFixture(t, Config{MaxEntries: 3})
	for range 3 {
		w.addOne("p", classNormal, nil)
	}
	err := w.Add(t.Context(), []NewEntry{w.task("p", classNormal)})[0]
	var full *FullError
	if !errors.Is(err, ErrFull) || !errors.As(err, &full) || full.Count != 3 {
		t.Fatalf("fourth entry: %v, want a FullError with 3", err)
	}
	unlimited := w.task("p", classNormal)
	unlimited.BypassLimits = true
	w.add(unlimited)
	keys := w.takeAll("p")
	w.end(keys[0], success)
	w.end(keys[1], success)
	w.addOne("p", classNormal, nil) // S03: it accepts new work again on its own

	w = newFixture(t, Config{MaxBytes: 300})
	w.addOne("p", classNormal, nil)
	for err = nil; err == nil; {
		err = w.Add(t.Context(), []NewEntry{w.task("p", classNormal)})[0]
	}
	if !errors.Is(err, ErrFull) || w.Stats().Bytes > 300 {
		t.Errorf("bytes limit: %v with %d bytes", err, w.Stats().Bytes)
	}
}

func TestConflictInWithWritesNothing(t *testing.T) {
	w := newFixture(t, Config{})
	var b store.Batch
	b.Put(store.Dedup, []byte("k"), []byte("first"))
	if err := w.store.Apply(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	bad, good := w.task("p", classNormal), w.task("p", classNormal)
	bad.With = func(b *store.Batch) { b.RequireAbsent(store.Dedup, []byte("k")) }
	errs := w.Add(t.Context(), []NewEntry{bad, good})
	if !errors.Is(errs[0], store.ErrConflict) || errs[1] != nil {
		t.Fatalf("errs = %v", errs)
	}
	if keys := w.takeAll("p"); len(keys) != 1 || keys[0] != good.Key {
		t.Errorf("took %v, want only %v", keys, good.Key)
	}
	if _, _, err := w.Get(bad.Key); !errors.Is(err, ErrNotFound) {
		t.Errorf("the refused entry: %v", err)
	}
	bad.With = nil
	w.add(bad)
}

func TestRetryWaitsForItsTime(t *testing.T) {
	w := newFixture(t, Config{})
	k := w.addOne("p", classNormal, nil)
	w.takeAll("p")
	w.Release(k, 3*time.Second)
	if wait, ok := w.Next("p"); !ok || wait != 3*time.Second {
		t.Errorf("next = %v, %v", wait, ok)
	}
	w.clock.Advance(2999 * time.Millisecond)
	if keys := w.takeAll("p"); len(keys) != 0 {
		t.Fatal("taken before its time")
	}
	w.clock.SetWall(time.UnixMilli(0)) // I14: a jump of the wall clock does not delay a retry
	w.clock.Advance(time.Millisecond)
	if keys := w.takeAll("p"); len(keys) != 1 {
		t.Fatal("not taken at its time")
	}
	w.change(k, func(r *proto.Record) Action {
		r.Attempts, r.DueMs = 1, w.clock.Clock().Now().Add(time.Minute).UnixMilli()
		return Requeue
	})
	w.reopen()
	if wait, ok := w.Next("p"); !ok || wait != time.Minute {
		t.Errorf("after reopening next = %v, %v", wait, ok)
	}
	w.clock.SetWall(time.UnixMilli(-1e12)) // a retry never waits longer than MaxWait
	w.reopen()
	if wait, ok := w.Next("p"); !ok || wait != 5*time.Minute {
		t.Errorf("with the wall set back next = %v, %v", wait, ok)
	}
}

// TestAWaitThatSpentNothingIsNoTimeOfDay: the wait after a start that could not be made ends in
// its time, also when the wall clock is set back meanwhile.
func TestAWaitThatSpentNothingIsNoTimeOfDay(t *testing.T) {
	w := newFixture(t, Config{})
	k := w.addOne("p", classNormal, nil)
	w.change(k, func(r *proto.Record) Action {
		r.State, r.DueMs = proto.Retrying, w.clock.Clock().Now().Add(20*time.Second).UnixMilli()
		return Requeue
	})
	w.clock.SetWall(w.clock.Clock().Now().Add(-10 * 24 * time.Hour))
	if wait, ok := w.Next("p"); !ok || wait != 20*time.Second {
		t.Errorf("next = %v, %v, want 20 s", wait, ok)
	}
	w.reopen()
	if wait, ok := w.Next("p"); !ok || wait > 5*time.Minute {
		t.Errorf("after reopening next = %v, %v, want at most MaxWait", wait, ok)
	}
}

// TestRequestedDueTimeFollowsTheWallClock: a task for eight o'clock starts at eight
// o'clock even if the wall clock is corrected in between.
func TestRequestedDueTimeFollowsTheWallClock(t *testing.T) {
	w := newFixture(t, Config{})
	at := w.clock.Clock().Now().Add(time.Hour)
	w.addOne("p", classNormal, func(r *proto.Record) { r.DueMs = at.UnixMilli() })
	w.clock.SetWall(at.Add(-time.Minute))
	if wait, ok := w.Next("p"); !ok || wait != time.Minute {
		t.Errorf("next = %v, %v, want a minute", wait, ok)
	}
	w.clock.Advance(time.Minute)
	if keys := w.takeAll("p"); len(keys) != 1 {
		t.Error("not taken at its time")
	}
}

// TestDueTimeOfAnyPlaceFollowsTheWallClock: so does the time of one that waits behind
// another of its lane, and of one that is changed before the correction was noticed.
func TestDueTimeOfAnyPlaceFollowsTheWallClock(t *testing.T) {
	for _, changed := range []bool{false, true} {
		w := newFixture(t, Config{})
		at := w.clock.Clock().Now().Add(72 * time.Hour)
		inLane := func(r *proto.Record) { r.OrderingKey = "k" }
		first := w.addOne("p", classNormal, inLane)
		later := w.addOne("p", classNormal, func(r *proto.Record) { inLane(r); r.DueMs = at.UnixMilli() })
		if changed { // it waits for its time
			w.end(first, success)
		}
		w.clock.SetWall(at.Add(-time.Minute))
		if changed {
			w.change(later, func(r *proto.Record) Action { r.Reason = "noted"; return Write })
		} else {
			w.takeAll("p")
			w.end(first, success)
		}
		if wait, ok := w.Next("p"); !ok || wait != time.Minute {
			t.Errorf("changed %v: next = %v, %v, want a minute", changed, wait, ok)
		}
		w.clock.Advance(time.Minute)
		if keys := w.takeAll("p"); len(keys) != 1 {
			t.Errorf("changed %v: not taken at its time", changed)
		}
	}
}

func TestWakeGroup(t *testing.T) {
	w := newFixture(t, Config{})
	w.WakeGroup("p")
	for name, c := range map[string]<-chan struct{}{"the group": w.Wake("p"), "any": w.WakeAny()} {
		select {
		case <-c:
		default:
			t.Errorf("no notification for %s", name)
		}
	}
}

func TestTakeAnyTakesOnlyEligibleGroups(t *testing.T) {
	w := newFixture(t, Config{})
	w.addOne("busy", proto.Critical, nil)
	k := w.addOne("free", proto.Low, nil)
	it, ok := w.TakeAny(func(g string) bool { return g == "free" }, nil)
	if !ok || it.Key != k {
		t.Errorf("took %v, %v", it.Key, ok)
	}
}

func TestExpiry(t *testing.T) {
	w := newFixture(t, Config{})
	now := w.clock.Clock().Now()
	var keys []Key
	for i := range 3 {
		keys = append(keys, w.addOne("p", classNormal, func(r *proto.Record) {
			r.NotAfterMs = now.Add(time.Duration(3-i) * time.Minute).UnixMilli()
		}))
	}
	if at, ok := w.NextExpiry(); !ok || !at.Equal(now.Add(time.Minute)) {
		t.Errorf("next expiry %v, %v", at, ok)
	}
	w.clock.Advance(2 * time.Minute)
	got := w.TakeExpired(nil, 10, time.Second)
	if len(got) != 2 || got[0].Key != keys[2] || got[1].Key != keys[1] {
		t.Fatalf("expired %v", got)
	}
	if more := w.TakeExpired(nil, 10, time.Second); len(more) != 0 {
		t.Errorf("returned again at once: %v", more)
	}
	w.Postpone(keys[1], now.Add(time.Hour))
	w.end(keys[2], failed)
	w.clock.Advance(2 * time.Minute)
	if got := w.TakeExpired(nil, 10, time.Second); len(got) != 1 || got[0].Key != keys[0] {
		t.Errorf("then expired %v", got)
	}
}

func TestListPagesAreWhole(t *testing.T) {
	w := newFixture(t, Config{})
	want := map[Key]proto.TaskState{}
	for i := range 300 {
		k := w.addOne(fmt.Sprint("p", i%3), classNormal, nil)
		want[k] = pending
		if i%2 == 0 {
			w.change(k, func(r *proto.Record) Action { r.State = accepted; return Write })
			want[k] = accepted
		}
	}
	for _, limit := range []int{1, 7, 128, 1000} {
		got := map[Key]proto.TaskState{}
		for cursor := []byte(nil); ; {
			page, next, err := w.List(Live, cursor, limit, nil)
			if err != nil || len(page) > limit {
				t.Fatalf("page of %d: %v", len(page), err)
			}
			for _, l := range page {
				if _, twice := got[l.Key]; twice {
					t.Fatalf("%v listed twice", l.Key)
				}
				got[l.Key] = l.Record.State
			}
			if next == nil {
				break
			}
			cursor = next
		}
		if len(got) != len(want) {
			t.Fatalf("limit %d: listed %d, want %d", limit, len(got), len(want))
		}
		for k, s := range want {
			if got[k] != s {
				t.Fatalf("limit %d: %v is %v, want %v", limit, k, got[k], s)
			}
		}
	}
}

// TestChangesOfOneEntryAreSerial: two goroutines that change one entry see each other's
// changes, whichever comes first.
func TestChangesOfOneEntryAreSerial(t *testing.T) {
	w := newFixture(t, Config{})
	k, other := w.addOne("p", classNormal, nil), w.addOne("p", classNormal, nil)
	done := make(chan error, 8)
	for i := range 8 {
		go func() {
			edits := []Edit{{Key: k}, {Key: other}, {Key: k}}
			if i%2 == 0 {
				edits[0], edits[1] = edits[1], edits[0]
			}
			var err error
			for range 50 {
				err = errors.Join(err, errors.Join(w.Change(context.Background(), edits, func(_ int, r *proto.Record) Action {
					r.Abandons++
					return Write
				})...))
			}
			done <- err
		}()
	}
	for range 8 {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	r, _, _ := w.Get(k)
	o, _, _ := w.Get(other)
	if r.GetAbandons() != 800 || o.GetAbandons() != 400 {
		t.Errorf("%d and %d changes counted, want 800 and 400", r.GetAbandons(), o.GetAbandons())
	}
}
