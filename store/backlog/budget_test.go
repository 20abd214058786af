package backlog

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// TestWriteBudget counts the cost of a task: one operation to add it, one per change,
// three to end it, no reads, and few commits for many tasks.
func TestWriteBudget(t *testing.T) {
	w := newFixture(t, Config{Parked: func(_ Key, r *proto.Record) bool { return r.State == accepted }})
	const n = 1000
	var news []NewEntry
	for range n {
		news = append(news, w.task("p", classNormal))
	}
	count := func(f func()) (ops, groups, reads int64) {
		before := w.store.Counters()
		f()
		after := w.store.Counters()
		return after.Ops - before.Ops, after.Groups - before.Groups, after.Reads - before.Reads
	}
	check := func(what string, want int64, f func()) {
		t.Helper()
		if ops, groups, reads := count(f); ops != want*n || reads != 0 || groups > 3*want+1 {
			t.Errorf("%s: %d operations, %d reads in %d commits for %d tasks, want %d each and none", what, ops, reads, groups, n, want)
		}
	}
	check("add", 1, func() { w.add(news...) })
	edits := make([]Edit, n)
	for i, it := range w.Take(nil, "p", n) {
		for _, n := range news {
			if n.Key == it.Key {
				edits[i] = Edit{Key: it.Key, Record: n.Stored.Record, Version: it.Version}
			}
		}
	}
	change := func(f func(r *proto.Record) Action) func() {
		return func() {
			if err := errors.Join(w.Change(t.Context(), edits, func(_ int, r *proto.Record) Action { return f(r) })...); err != nil {
				t.Fatal(err)
			}
		}
	}
	check("accepted", 1, change(func(r *proto.Record) Action { r.State = accepted; return Write }))
	check("nothing", 0, change(func(*proto.Record) Action { return Keep }))
	check("done", 3, change(func(r *proto.Record) Action { r.State = success; return ToDone }))
}

// TestStaleRecordInEditIsIgnored: a caller with a stale record decides on the newer one.
func TestStaleRecordInEditIsIgnored(t *testing.T) {
	w := newFixture(t, Config{})
	k := w.addOne("p", classNormal, nil)
	it := w.Take(nil, "p", 1)[0]
	st, err := w.Read(it)
	if err != nil {
		t.Fatal(err)
	}
	w.change(k, func(r *proto.Record) Action { r.Cancel = true; return Write })
	errs := w.Change(t.Context(), []Edit{{Key: k, Record: st.Record, Version: it.Version}}, func(_ int, r *proto.Record) Action {
		if !r.Cancel {
			t.Error("decided on a stale record")
		}
		return Keep
	})
	if errs[0] != nil {
		t.Error(errs[0])
	}
}

// TestMemory bounds the memory of a pending entry: at most 250 bytes in addition to the
// store's own.
func TestMemory(t *testing.T) {
	const n = 100_000
	w := newFixture(t, Config{MaxEntries: n + 1, MaxBytes: 1 << 30})
	for range n / 500 {
		var news []NewEntry
		for range 500 {
			task := w.task("p", classNormal)
			task.Stored.Record.NotAfterMs = task.Stored.Record.CreatedMs + 1000
			news = append(news, task)
		}
		w.add(news...)
	}
	w.addOne("p", classNormal, nil) // the store releases the last large batch
	w.reopen()
	w.Backlog = nil
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	w.reopen()
	each := float64(heap()-before) / n
	if w.Stats().Live != n+1 {
		t.Fatalf("%d live", w.Stats().Live)
	}
	t.Logf("%.0f bytes an entry", each)
	if each > 250 {
		t.Errorf("%.0f bytes an entry, want at most 250", each)
	}
	runtime.KeepAlive(w)
}

// TestChangeInTheCallersBatch: a change in the caller's own batch is applied completely
// or not at all, in the store and in memory.
func TestChangeInTheCallersBatch(t *testing.T) {
	w := newFixture(t, Config{})
	k := w.addOne("p", classNormal, nil)
	finish := func(r *proto.Record) Action { r.State = success; return ToDone }
	for _, conflict := range []bool{true, false} {
		step, err := w.Prepare(Edit{Key: k}, finish)
		if err != nil || step.Record().State != success {
			t.Fatal(step, err)
		}
		if got := w.takeAll("p"); len(got) != 0 {
			t.Fatal("taken while its end is being written")
		}
		n := w.task("q", classNormal)
		n.BypassLimits = true
		n.With = func(b *store.Batch) {
			step.AddTo(b)
			if conflict {
				b.RequireEqual(store.Meta, []byte("none"), []byte("such"))
			}
		}
		err = w.Add(context.Background(), []NewEntry{n})[0]
		if conflict != errors.Is(err, store.ErrConflict) {
			t.Fatal(err)
		}
		if conflict {
			step.Discard()
			if got := w.takeAll("p"); len(got) != 1 {
				t.Fatal("missing after the conflict")
			}
			continue
		}
		step.Discard() // too late: nothing happens
		if _, set, _ := w.Get(k); set != Done || w.Stats().Live != 1 {
			t.Errorf("it is in %v, %d live", set, w.Stats().Live)
		}
	}
}

// TestLaneAdvancesPastABusyEntry: the head of a lane ends while a change of the second
// entry is being written; whether that change is written or discarded, the second entry
// is next.
func TestLaneAdvancesPastABusyEntry(t *testing.T) {
	for _, written := range []bool{true, false} {
		w := newFixture(t, Config{})
		inLane := func(r *proto.Record) { r.OrderingKey = "k" }
		first, second := w.addOne("p", classNormal, inLane), w.addOne("p", classNormal, inLane)
		step, err := w.Prepare(Edit{Key: second}, func(r *proto.Record) Action { r.Reason = "noted"; return Write })
		if err != nil {
			t.Fatal(err)
		}
		w.end(first, success)
		if got := w.takeAll("p"); len(got) != 0 {
			t.Fatal("taken while it is being written")
		}
		if written {
			var b store.Batch
			step.AddTo(&b)
			if err := w.store.Apply(t.Context(), &b); err != nil {
				t.Fatal(err)
			}
		} else {
			step.Discard()
		}
		if got := w.takeAll("p"); len(got) != 1 || got[0] != second {
			t.Errorf("written %v: took %v", written, got)
		}
	}
}

// TestTombstoneIsKept: a tombstone takes a record, but neither a body nor capacity for
// new work.
func TestTombstoneIsKept(t *testing.T) {
	w := newFixture(t, Config{MaxEntries: 1})
	k := w.addOne("p", classNormal, nil)
	w.change(k, func(r *proto.Record) Action { r.State = success; return Tombstone })
	for range 2 {
		if st := w.Stats(); st.Live != 0 || st.Kept != 1 || st.Bytes != 0 {
			t.Errorf("stats = %+v", st)
		}
		if len(w.takeAll("p")) != 0 {
			t.Error("an ended entry was taken")
		}
		if err := w.Add(t.Context(), []NewEntry{{Key: k, Stored: w.task("p", classNormal).Stored}})[0]; !errors.Is(err, ErrExists) {
			t.Errorf("it was added again: %v", err)
		}
		if r, set, err := w.Get(k); err != nil || set != Live || r.State != success {
			t.Errorf("get = %v, %v, %v", r, set, err)
		}
		w.reopen()
	}
	w.addOne("p", classNormal, nil)
	w.change(k, func(*proto.Record) Action { return Drop })
	if _, _, err := w.Get(k); !errors.Is(err, ErrNotFound) {
		t.Errorf("after it was dropped: %v", err)
	}
}

// TestTombstoneIsReplaced: a caller may replace a tombstone with a new task; until that
// is written, or if it is discarded, the tombstone stays.
func TestTombstoneIsReplaced(t *testing.T) {
	w := newFixture(t, Config{})
	k := w.addOne("p", classNormal, nil)
	again := w.task("q", classNormal)
	again.Key = k
	if _, err := w.Replace(again); !errors.Is(err, ErrExists) {
		t.Fatalf("a live one was replaced: %v", err)
	}
	w.change(k, func(r *proto.Record) Action { r.State = success; return Tombstone })
	for _, drop := range []bool{true, false} {
		step, err := w.Replace(again)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Replace(again); !errors.Is(err, ErrExists) {
			t.Fatalf("replaced twice at once: %v", err)
		}
		if drop {
			step.Discard()
			if st := w.Stats(); st.Live != 0 || st.Kept != 1 {
				t.Errorf("after the drop: %+v", st)
			}
			continue
		}
		var batch store.Batch
		step.AddTo(&batch)
		if err := w.store.Apply(t.Context(), &batch); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if st := w.Stats(); st.Live != 1 || st.Kept != 0 || st.Bytes == 0 {
			t.Errorf("stats = %+v", st)
		}
		got, err := w.Stored(k)
		if err != nil || got.Record.State.Terminal() {
			t.Errorf("it is %v: %v", got.GetRecord(), err)
		}
		w.reopen()
	}
	if items := w.takeAll("q"); len(items) != 1 || items[0] != k {
		t.Errorf("taken: %v", items)
	}
}

// TestDamagedRecordIsLeftAlone covers S48: an unreadable record affects only itself.
func TestDamagedRecordIsLeftAlone(t *testing.T) {
	w := newFixture(t, Config{})
	good, bad := w.addOne("p", classNormal, nil), w.addOne("p", classNormal, nil)
	var b store.Batch
	b.Put(store.PendingTasks, bad.append(nil, kindInitial), []byte{0xff, 0xff, 0xff})
	b.Put(store.PendingTasks, []byte("stray"), nil)
	if err := w.store.Apply(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	damaged := 0
	w.cfg.Damaged = func([]byte, error) { damaged++ }
	w.reopen()
	if got := w.takeAll("p"); len(got) != 1 || got[0] != good || damaged != 2 {
		t.Errorf("took %v, %d damaged", got, damaged)
	}
	if l, _, err := w.List(Live, nil, 10, nil); err != nil || len(l) != 1 {
		t.Errorf("listed %v, %v", l, err)
	}
	if _, err := w.store.Get(store.PendingTasks, bad.append(nil, kindInitial)); err != nil {
		t.Errorf("the damaged record: %v", err)
	}
}

// TestDamagedStateIsNotForgotten: an entry whose newest record is unreadable is neither
// taken as it was at its beginning (I6, I7) nor forgotten, and holds up no other of its lane.
func TestDamagedStateIsNotForgotten(t *testing.T) {
	w := newFixture(t, Config{})
	inLane := func(r *proto.Record) { r.OrderingKey = "k" }
	bad, good, ended := w.addOne("p", classNormal, inLane), w.addOne("p", classNormal, inLane), w.addOne("p", classNormal, nil)
	w.change(bad, func(r *proto.Record) Action { r.Attempts = 1; return Requeue })
	w.change(ended, func(r *proto.Record) Action { r.State = success; return Tombstone })
	var b store.Batch
	for _, k := range []Key{bad, ended} {
		b.Put(store.PendingTasks, k.append(nil, kindState), []byte{0xff, 0xff, 0xff})
	}
	if err := w.store.Apply(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	damaged := 0
	w.cfg.Damaged = func([]byte, error) { damaged++ }
	w.reopen()
	if got := w.takeAll("p"); len(got) != 1 || got[0] != good || damaged != 2 {
		t.Errorf("took %v, want %v; %d damaged", got, good, damaged)
	}
	for _, k := range []Key{bad, ended} {
		again := w.task("p", classNormal)
		again.Key = k
		if err := w.Add(t.Context(), []NewEntry{again})[0]; !errors.Is(err, ErrExists) {
			t.Errorf("added again: %v, want ErrExists", err)
		}
		if _, _, err := w.Get(k); !errors.Is(err, store.ErrCorrupt) {
			t.Errorf("get: %v, want ErrCorrupt", err)
		}
		if err := w.Change(t.Context(), []Edit{{Key: k}}, func(int, *proto.Record) Action { return Drop })[0]; !errors.Is(err, store.ErrCorrupt) {
			t.Errorf("change: %v, want ErrCorrupt", err)
		}
	}
	if got := w.TakeExpired(nil, 9, time.Hour); len(got) != 0 {
		t.Errorf("expired: %v", got)
	}
}

// TestClosedStoreLeavesMemoryUnchanged: a failed write changes nothing visible.
func TestClosedStoreLeavesMemoryUnchanged(t *testing.T) {
	w := newFixture(t, Config{})
	k := w.addOne("p", classNormal, nil)
	w.store.Close()
	if err := w.Add(t.Context(), []NewEntry{w.task("p", classNormal)})[0]; err == nil {
		t.Error("added to a closed store")
	}
	held := &proto.Record{State: pending, Peer: []byte("p")}
	if err := w.Change(t.Context(), []Edit{{Key: k, Record: held}}, func(_ int, r *proto.Record) Action { return Drop })[0]; err == nil {
		t.Error("changed in a closed store")
	}
	if st := w.Stats(); st.Live != 1 || len(w.takeAll("p")) != 1 {
		t.Errorf("stats = %+v", st)
	}
}

func FuzzKey(f *testing.F) {
	f.Add(Key{Part: PartTask}.append(nil, kindInitial))
	f.Add(Key{Part: PartResult}.append(nil, kindState))
	f.Add([]byte("short"))
	f.Add(make([]byte, 19))
	f.Fuzz(func(t *testing.T, b []byte) {
		k, kind, err := parseKey(b)
		if err != nil {
			if !errors.Is(err, store.ErrCorrupt) {
				t.Errorf("untyped error %v", err)
			}
			return
		}
		if again := k.append(nil, kind); string(again) != string(b) {
			t.Errorf("%x reads as %v and writes as %x", b, k, again)
		}
	})
}

func FuzzRecord(f *testing.F) {
	w := newFixture(f, Config{})
	n := w.task("p", classNormal)
	initial, _ := proto.Encode(nil, n.Stored)
	state, _ := proto.Encode(nil, n.Stored.Record)
	f.Add(byte(kindInitial), initial)
	f.Add(byte(kindState), state)
	f.Add(byte(kindInitial), []byte{})
	f.Add(byte(kindState), []byte{0xff})
	f.Fuzz(func(t *testing.T, kind byte, val []byte) {
		r, err := decodeRecord(kind&1, val)
		if err == nil && r == nil {
			t.Error("no record and no error")
		}
	})
}

func BenchmarkAddTakeChangeEnd(b *testing.B) {
	w := newFixture(b, Config{MaxEntries: 1 << 30, MaxBytes: 1 << 40, MaxDone: 1, Parked: func(_ Key, r *proto.Record) bool { return r.State == accepted }})
	const group = 256
	b.ReportAllocs()
	for range b.N/group + 1 {
		b.StopTimer()
		news := make([]NewEntry, group)
		for i := range news {
			news[i] = w.task("p", classNormal)
		}
		b.StartTimer()
		w.Add(context.Background(), news)
		items := w.Take(nil, "p", group)
		edits := make([]Edit, len(items))
		for i, it := range items {
			edits[i] = Edit{Key: it.Key, Record: news[i].Stored.Record, Version: it.Version}
		}
		w.Change(context.Background(), edits, func(_ int, r *proto.Record) Action { r.State = accepted; return Write })
		b.StopTimer()
		w.Change(context.Background(), edits, func(int, *proto.Record) Action { return Drop })
		b.StartTimer()
	}
}
