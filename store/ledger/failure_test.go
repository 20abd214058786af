package ledger

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/store"
)

// The first write or sync of the log that fails stops it: nothing is answered as
// written from then on, and after the next open all that was answered is there.
func TestFirstFailureStopsTheLog(t *testing.T) {
	boom := errors.New("input/output error")
	for _, call := range []string{"write", "sync", "rename", "syncdir"} {
		for skip := range 12 {
			fs := newFaultFS()
			var armed atomic.Bool
			calls := 0
			fs.hook = func(c, name string) error {
				if !armed.Load() || c != call || !strings.HasSuffix(name, segmentSuffix) && c != "syncdir" {
					return nil
				}
				if calls++; calls > skip {
					return boom
				}
				return nil
			}
			l := mustOpen(t, dir, small(fs))
			armed.Store(true)
			answered, failed := uint64(0), 0
			for failed < 3 {
				var after error
				es := []Entry{{Data: make([]byte, 500), After: func(index uint64, _ Place, err error) {
					if after = err; err == nil {
						answered = index
					}
				}}}
				err := l.Queue(es).Wait(t.Context())
				if !errors.Is(err, after) || failed > 0 && err == nil {
					t.Fatalf("%s %d: Wait: %v, After: %v, after %d failures", call, skip, err, after, failed)
				}
				if err != nil {
					if !errors.Is(err, store.ErrFailed) || !errors.Is(err, boom) {
						t.Fatalf("%s %d: %v", call, skip, err)
					}
					failed++
				}
			}
			select {
			case <-l.Failed():
			default:
				t.Errorf("%s %d: Failed is not closed", call, skip)
			}
			if err := l.Checkpoint(answered, noState); answered > 0 && !errors.Is(err, store.ErrFailed) && call != "syncdir" {
				t.Errorf("%s %d: a checkpoint: %v", call, skip, err)
			}
			l.Release(func(uint64, int64) bool { t.Error("Release asks"); return true })
			if err := l.Close(); !errors.Is(err, store.ErrFailed) {
				t.Errorf("%s %d: Close: %v", call, skip, err)
			}
			armed.Store(false)
			l = mustOpen(t, dir, small(fs.afterKill()))
			if last := l.Stats().Last; last < answered || last > answered+1 {
				t.Errorf("%s %d: there are %d batches, %d were answered", call, skip, last, answered)
			}
		}
	}
}

// What a sync that failed did not bring to the disk is there after the next open, a power cut later too.
func TestOpenAfterAFailedSync(t *testing.T) {
	fs := newFaultFS()
	var armed atomic.Bool
	fs.hook = func(call, name string) error {
		if armed.Load() && call == "sync" && strings.HasSuffix(name, segmentSuffix) {
			return errors.New("input/output error")
		}
		return nil
	}
	cfg := small(fs)
	cfg.SyncEvery = time.Hour // only the durable entry
	l := mustOpen(t, dir, cfg)
	want := [][]byte{data(0, 300), data(1, 300), data(2, 300), data(3, 300)}
	add(t, l, want[0])
	armed.Store(true)
	for _, relaxed := range []bool{true, false} {
		if err := l.Queue([]Entry{{Data: want[1], Relaxed: relaxed}}).Wait(t.Context()); relaxed != (err == nil) {
			t.Fatal(err)
		}
		want[1], want[2] = want[2], want[1]
	}
	armed.Store(false)
	for i := range 2 {
		fs = fs.afterKill()
		l = mustOpen(t, dir, small(fs))
		if i == 0 {
			add(t, l, want[3])
		}
		sameEntries(t, replayed(t, l, 1), want)
		fs = fs.afterCut(rand.New(rand.NewPCG(1, 1)), 0)
	}
}

// I13: new work is refused while the disk has less than its reserve. What is no new work passes, in the same call too, and both pass when
// there is room again.
func TestFull(t *testing.T) {
	var free atomic.Int64
	free.Store(1 << 40)
	man := clock.NewManual(time0)
	tests := []struct {
		name   string
		cfg    Config
		fill   func(l *Ledger)
		reason error
		empty  func(l *Ledger)
	}{
		{"reserve of the disk", Config{Space: func() (int64, int64, error) { return free.Load(), 1 << 40, nil }, Reserve: 1 << 20, Clock: man.Clock()},
			func(*Ledger) { free.Store(1<<20 - 1); man.Advance(askEvery) }, store.ErrNoDisk,
			func(*Ledger) { free.Store(1 << 20); man.Advance(askEvery) }},
		{"default reserve", Config{Space: func() (int64, int64, error) { return free.Load(), 1 << 40, nil }, Clock: man.Clock()},
			func(*Ledger) { free.Store(1<<40/20 - 1); man.Advance(askEvery) }, store.ErrNoDisk,
			func(*Ledger) { free.Store(1 << 40 / 20); man.Advance(askEvery) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			free.Store(1 << 40)
			base := small(newFaultFS())
			tt.cfg.Segment, tt.cfg.MaxBatch, tt.cfg.Logger, tt.cfg.fs = base.Segment, base.MaxBatch, base.Logger, base.fs
			l := mustOpen(t, dir, tt.cfg)
			try := func() (work, end error) {
				work, end = errors.New("no answer"), errors.New("no answer")
				es := []Entry{
					{Data: []byte("task"), NewWork: true, After: func(_ uint64, _ Place, err error) { work = err }},
					{Data: []byte("end"), After: func(_ uint64, _ Place, err error) { end = err }},
				}
				if err := l.Queue(es).Wait(t.Context()); !errors.Is(err, work) {
					t.Errorf("Wait: %v, After: %v", err, work)
				}
				return work, end
			}
			for range 2 {
				if work, end := try(); work != nil || end != nil || l.Refuses() != nil {
					t.Errorf("with room: %v, %v, %v", work, end, l.Refuses())
				}
				tt.fill(l)
				work, end := try()
				if !errors.Is(work, tt.reason) || !errors.Is(work, store.ErrFull) || end != nil || !errors.Is(l.Refuses(), tt.reason) {
					t.Errorf("without room: %v, %v, %v", work, end, l.Refuses())
				}
				tt.empty(l)
			}
		})
	}
}

// A ledger is not made where its first segment would use the reserve; one that exists is
// opened there (I13).
func TestNewLedgerLeavesTheReserve(t *testing.T) {
	free, cfg := int64(0), small(newFaultFS())
	cfg.Reserve, cfg.Space = 1000, func() (int64, int64, error) { return free, 1 << 40, nil }
	free = cfg.Reserve + cfg.Segment - 1
	if _, err := Open(dir, cfg); !errors.Is(err, store.ErrNoDisk) {
		t.Fatalf("made without room: %v", err)
	}
	if exists(cfg.fs, dir) {
		t.Error("what was refused exists")
	}
	free++
	if err := mustOpen(t, dir, cfg).Close(); err != nil {
		t.Fatal(err)
	}
	free = 0
	if l := mustOpen(t, dir, cfg); !errors.Is(l.Refuses(), store.ErrNoDisk) {
		t.Errorf("without room: %v", l.Refuses())
	}
}

// Without an answer about the disk the last one counts; it is asked once a second.
func TestSpaceIsAskedOnceASecond(t *testing.T) {
	man := clock.NewManual(time0)
	calls, answer := 0, error(nil)
	cfg := Config{Clock: man.Clock(), Reserve: 100, Space: func() (int64, int64, error) { calls++; return 99, 1000, answer }}
	s := &space{cfg: &cfg}
	for range 5 {
		if !s.below() || calls != 1 {
			t.Fatalf("%d calls", calls)
		}
	}
	answer = errors.New("no answer")
	man.Advance(askEvery)
	if !s.below() || calls != 2 {
		t.Errorf("%d calls", calls)
	}
	cfg.Reserve = -1
	answer = nil
	man.Advance(askEvery)
	if s.below() {
		t.Error("there is a reserve without one")
	}
}

// When the disk has no room for the next segment, everything that does not fit into
// the last one is refused, nothing fails, and it goes on once there is room.
func TestNoRoomForASegment(t *testing.T) {
	man := clock.NewManual(time0)
	fs := newFaultFS()
	var full atomic.Bool
	var tries atomic.Int64
	fs.hook = func(call, name string) error {
		if strings.HasPrefix(name, sparePrefix) && call == "write" && full.Load() {
			tries.Add(1)
			return errors.New("no space left on device")
		}
		return nil
	}
	cfg := small(fs)
	cfg.Clock = man.Clock()
	l := mustOpen(t, dir, cfg)
	var want [][]byte
	n := 0
	write := func() error {
		b := data(n, 400)
		n++
		err := l.Queue([]Entry{{Data: b}}).Wait(t.Context())
		if err == nil {
			want = append(want, b)
		}
		return err
	}
	for write() == nil && l.Stats().Segments < 3 {
	}
	full.Store(true)
	refused := 0
	for refused < 50 {
		if err := write(); err != nil {
			if !errors.Is(err, store.ErrFull) || errors.Is(err, store.ErrFailed) {
				t.Fatal(err)
			}
			refused++
		}
	}
	if tries.Load() > 3 {
		t.Errorf("%d tries to make a segment within a second", tries.Load())
	}
	full.Store(false)
	man.Advance(askEvery)
	for range 30 {
		if err := write(); err != nil {
			t.Fatal(err)
		}
	}
	mustClose(t, l)
	l = mustOpen(t, dir, cfg)
	sameEntries(t, replayed(t, l, 1), want)
}

// A folder that cannot be used is told, with nothing left open or running.
func TestOpenThatFails(t *testing.T) {
	boom := errors.New("boom")
	for _, call := range []string{"create", "write", "sync", "rename", "syncdir"} {
		for skip := range 4 {
			fs := newFaultFS()
			n := 0
			failing := true
			fs.hook = func(c, name string) error {
				if failing && c == call {
					if n++; n > skip {
						return fmt.Errorf("%s %s: %w", c, name, boom)
					}
				}
				return nil
			}
			l, err := Open(dir, small(fs))
			if err == nil { // the goroutine of spares may have met it
				mustClose(t, l)
			} else if !errors.Is(err, boom) {
				t.Errorf("%s %d: %v", call, skip, err)
			}
			failing = false
			l, err = Open(dir, small(fs))
			if err != nil {
				t.Fatalf("%s %d: after an interrupted start: %v", call, skip, err)
			}
			mustClose(t, l)
		}
	}
}

// The failpoint is passed when a batch is written and before it is synced and answered.
func TestFailpointBeforeTheSync(t *testing.T) {
	cfg, killed := still(newFaultFS()), errors.New("killed")
	cfg.Fail = func(point string) error {
		if point != PointWritten {
			t.Errorf("the point %q", point)
		}
		return killed
	}
	l := mustOpen(t, dir, cfg)
	if err := l.Queue([]Entry{{Data: []byte("x")}}).Wait(t.Context()); !errors.Is(err, killed) || !errors.Is(err, store.ErrFailed) {
		t.Errorf("the answer is %v", err)
	}
	if s := l.Stats(); s.Batches != 1 || s.Syncs != 0 || s.Last != 0 {
		t.Errorf("%+v, want one batch that is not synced", s)
	}
}
