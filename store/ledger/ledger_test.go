package ledger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/balefire/balefire/store"
)

// What was answered is there after a restart, at its place and in order.
func TestEntriesSurviveARestart(t *testing.T) {
	dir := t.TempDir() + "/own"
	l := mustOpen(t, dir, small(nil))
	id := l.id
	var want [][]byte
	var places []Place
	for n := range 100 {
		want = append(want, data(n, 500))
		places = append(places, add(t, l, want[n]))
	}
	if s := l.Stats(); s.Last != 100 || s.Synced != 100 || s.Entries != 100 || s.Segments < 5 {
		t.Errorf("stats: %+v", s)
	}
	mustClose(t, l)
	l = mustOpen(t, dir, small(nil))
	if l.id != id {
		t.Error("the id changed")
	}
	if s := l.Stats(); s.Torn != "" || s.Last != 100 {
		t.Errorf("after a clean stop: %+v", s)
	}
	sameEntries(t, replayed(t, l, 1), want)
	for n, p := range places {
		got, err := l.Read(p, []byte("before"))
		if err != nil || string(got[:6]) != "before" || !bytes.Equal(got[6:], want[n]) {
			t.Fatalf("entry %d at %v: %x, %v", n, p, got, err)
		}
	}
	if s := l.Stats(); s.FileReads != 100 {
		t.Errorf("%d reads from files, want 100", s.FileReads)
	}
}

// A read of what was just written needs no file, and one of what left the ring does.
func TestReadIsFromMemoryWhileRecent(t *testing.T) {
	cfg := small(newFaultFS())
	l := mustOpen(t, dir, cfg)
	var places []Place
	for n := range 200 {
		places = append(places, add(t, l, data(n, 900)))
	}
	for n, p := range places {
		got, err := l.Read(p, nil)
		if err != nil || !bytes.Equal(got, data(n, 900)) {
			t.Fatalf("entry %d: %v", n, err)
		}
	}
	reads := l.Stats().FileReads
	if reads == 0 || reads >= 200 {
		t.Fatalf("%d of 200 reads from files", reads)
	}
	for n := 200 - 5; n < 200; n++ {
		if _, err := l.Read(places[n], nil); err != nil {
			t.Fatal(err)
		}
	}
	if l.Stats().FileReads != reads {
		t.Error("one of the last five was read from a file")
	}
}

// Places that are none are refused, wherever they point.
func TestReadRefusesBadPlaces(t *testing.T) {
	fs := newFaultFS()
	l := mustOpen(t, dir, small(fs))
	good := add(t, l, data(1, 300))
	check := func() {
		t.Helper()
		for _, p := range []Place{
			{}, {Segment: 1}, {Segment: 2, Offset: good.Offset, Length: good.Length},
			{1, good.Offset, good.Length + 1}, {1, good.Offset + 8, good.Length}, {1, good.Offset - 1, good.Length},
			{1, math.MaxUint32, math.MaxUint32}, {1, 72, 0}, {1, 200, MaxBatch + 1}, {1, 4096, 8}, {1, good.Offset + 8, good.Length - 8},
		} {
			if _, err := l.Read(p, nil); !errors.Is(err, store.ErrNotFound) && !errors.Is(err, store.ErrCorrupt) {
				t.Errorf("%v: %v", p, err)
			}
		}
		if _, err := l.Read(good, nil); err != nil {
			t.Error(err)
		}
	}
	check()
	mustClose(t, l)
	l = mustOpen(t, dir, small(fs))
	check()
}

// The entries of a call that fit into a batch are in one.
func TestACallIsOneBatchIfItFits(t *testing.T) {
	l := mustOpen(t, dir, small(newFaultFS()))
	indexes := make([]map[uint64]bool, 40)
	var last *Pending
	calls := make([][]Entry, len(indexes))
	for i := range calls {
		indexes[i] = map[uint64]bool{}
		size := batchHead
		for n := 0; ; n++ {
			b := data(i*100+n, 200)
			if size += entryHead + len(b); size > 1024 {
				break
			}
			calls[i] = append(calls[i], Entry{Data: b, After: func(index uint64, _ Place, err error) { indexes[i][index] = true }})
		}
	}
	for _, es := range calls {
		last = l.Queue(es)
	}
	if err := last.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, in := range indexes {
		if len(in) != 1 {
			t.Errorf("call %d is in batches %v", i, in)
		}
	}
}

// A call with more than a batch holds is split; the order stays.
func TestACallLargerThanABatchIsSplit(t *testing.T) {
	l := mustOpen(t, dir, small(newFaultFS()))
	var want [][]byte
	var es []Entry
	for n := range 300 {
		want = append(want, data(n, 100))
		es = append(es, Entry{Data: want[n]})
	}
	if err := l.Queue(es).Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	sameEntries(t, replayed(t, l, 1), want)
	if s := l.Stats(); s.Last < 300*54/1024 {
		t.Errorf("%d batches for %d entries", s.Last, len(es))
	}
}

// A batch has at most MaxEntries entries.
func TestManySmallEntries(t *testing.T) {
	cfg := Config{Segment: 2 << 20, Logger: quiet(), fs: newFaultFS()}
	l := mustOpen(t, dir, cfg)
	es := make([]Entry, 2*MaxEntries+1)
	if err := l.Queue(es).Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	var counts []int
	if err := l.Replay(1, func(b Batch) error { counts = append(counts, b.Count); return nil }); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(counts) != fmt.Sprint([]int{MaxEntries, MaxEntries, 1}) {
		t.Errorf("entries of the batches: %v", counts)
	}
}

// Limits: the largest entry passes, one byte more does not, and does not stop the
// others.
func TestTooLarge(t *testing.T) {
	l := mustOpen(t, dir, small(newFaultFS()))
	most := 1024 - batchHead - entryHead
	add(t, l, make([]byte, most))
	var errs []error
	after := func(_ uint64, _ Place, err error) { errs = append(errs, err) }
	es := []Entry{{Data: []byte("a"), After: after}, {Data: make([]byte, most+1), After: after}, {Data: []byte("b"), After: after}}
	if err := l.Queue(es).Wait(t.Context()); !errors.Is(err, store.ErrTooLarge) {
		t.Errorf("err = %v", err)
	}
	if len(errs) != 3 || errs[0] != nil || !errors.Is(errs[1], store.ErrTooLarge) || errs[2] != nil {
		t.Errorf("errors: %v", errs)
	}
	if got := replayed(t, l, 2); len(got) != 2 || string(got[0]) != "a" || string(got[1]) != "b" {
		t.Errorf("replayed %q", got)
	}
}

func TestConfigIsChecked(t *testing.T) {
	for _, cfg := range []Config{
		{MaxBatch: 100}, {MaxBatch: 1001}, {MaxBatch: MaxBatch + 8}, {Segment: MaxSegment + 1}, {Segment: 1 << 20}, {Segment: -1}, {MaxBatch: -8},
	} {
		cfg.fs = newFaultFS()
		if _, err := Open(dir, cfg); err == nil {
			t.Errorf("%+v is accepted", cfg)
		}
	}
}

func TestClosed(t *testing.T) {
	l := mustOpen(t, dir, small(newFaultFS()))
	p := add(t, l, []byte("x"))
	queued := l.Queue([]Entry{{Data: []byte("y")}})
	mustClose(t, l)
	if err := queued.Wait(t.Context()); err != nil {
		t.Errorf("queued before Close: %v", err)
	}
	es := []Entry{{Data: []byte("z"), After: func(uint64, Place, error) { t.Error("After was called") }}}
	_, readErr := l.Read(p, nil)
	_, loadErr := l.LoadCheckpoint(nil)
	for name, err := range map[string]error{
		"Queue": l.Queue(es).Wait(t.Context()), "Read": readErr, "Replay": l.Replay(1, nil),
		"Checkpoint": l.Checkpoint(1, nil), "LoadCheckpoint": loadErr,
	} {
		if !errors.Is(err, store.ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	l.Release(nil)
	if err := l.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

func TestWaitEndsWithItsContext(t *testing.T) {
	l := mustOpen(t, dir, small(newFaultFS()))
	hold := make(chan struct{})
	first := l.Queue([]Entry{{After: func(uint64, Place, error) { <-hold }}})
	second := l.Queue([]Entry{{Data: []byte("late")}})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := second.Wait(ctx); !errors.Is(err, store.ErrUnknown) || !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}
	if err := second.Wait(t.Context()); !errors.Is(err, store.ErrUnknown) {
		t.Errorf("waiting again: %v", err)
	}
	close(hold)
	if err := first.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	mustClose(t, l)
	if got := l.Stats().Entries; got != 2 {
		t.Errorf("%d entries were written, want both", got)
	}
}

// Replay begins where it is told, stops with the function's error and knows the end.
func TestReplay(t *testing.T) {
	l := mustOpen(t, dir, small(newFaultFS()))
	for n := range 50 {
		add(t, l, data(n, 300))
	}
	for _, from := range []uint64{0, 1, 2, 17, 49, 50, 51, math.MaxUint64} {
		next := max(from, 1)
		err := l.Replay(from, func(b Batch) error {
			if b.Index != next || b.Kind != KindEntries || b.Term != 0 || b.Count != 1 || b.Time.IsZero() {
				t.Fatalf("from %d: %+v, want batch %d", from, b, next)
			}
			next++
			return nil
		})
		if err != nil || next != max(from, 51) {
			t.Errorf("from %d: ended before %d, %v", from, next, err)
		}
	}
	stop := errors.New("stop")
	calls := 0
	if err := l.Replay(1, func(Batch) error { calls++; return stop }); err != stop || calls != 1 {
		t.Errorf("%d calls, %v", calls, err)
	}
}
