package ledger

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/balefire/balefire/store"
)

// A snapshot is one of a history.
type snapshot struct {
	dir    string
	queued [][]byte // what it may have
	sure   int      // how much of it was answered before
}

// snapshot makes a snapshot.
func (h *history) snapshot(l *Ledger) {
	h.mu.Lock()
	c := snapshot{dir: fmt.Sprintf("node/copy-%d-%d", h.lives, len(h.copies)), sure: len(h.places)}
	h.mu.Unlock()
	err := l.Snapshot(c.dir)
	if err != nil {
		if !errors.Is(err, errPower) {
			h.fatalf("snapshot: %v", err)
		}
		return
	}
	h.mu.Lock()
	c.queued = slices.Clone(h.queued)
	h.mu.Unlock()
	h.copies = append(h.copies, c)
}

// checkCopies compares the snapshots, as they are now, with what they must and may have.
// They are in the files of the history until the fifth later one was made.
func (h *history) checkCopies() {
	h.t.Helper()
	files := h.fs.content()
	for _, c := range h.copies {
		mine := maps.Clone(files)
		maps.DeleteFunc(mine, func(name string, _ []byte) bool { return filepath.Dir(name) != c.dir })
		fs := newFaultFSOf(mine)
		if r, err := inspect(fs, c.dir, func(Batch) error { return nil }); err != nil || len(r.Damage) > 0 || r.Torn {
			h.fatalf("%s: %+v, %v", c.dir, r, err)
		}
		l, err := Open(c.dir, small(fs))
		if err != nil {
			h.fatalf("open %s: %v", c.dir, err)
		}
		if _, _, _, _, ok := h.compare(l, c.queued, c.sure); !ok {
			h.fatalf("%s cannot be read", c.dir)
		}
		if err := l.Queue([]Entry{{Data: []byte("more")}}).Wait(h.t.Context()); err != nil {
			h.fatalf("write to %s: %v", c.dir, err)
		}
		mustClose(h.t, l)
	}
	h.copies = h.copies[max(len(h.copies)-5, 0):]
}

// Snapshots that were made while four goroutines wrote and segments were released have a
// prefix of the log with all that was answered before, also after their segments were
// released, and are not changed by a ledger that is opened from them.
func TestSnapshotUnderLoad(t *testing.T) {
	top := t.TempDir()
	cfg := Config{Segment: 64 << 10, MaxBatch: 8 << 10, Ring: 1, Logger: quiet()}
	l := mustOpen(t, filepath.Join(top, "ledger"), cfg)
	var mu sync.Mutex
	var written [][]byte // as the log has it
	var newest uint64
	ctx, stop := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	for w := range 4 {
		writers.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				b := data(w<<32|n, 3000)
				err := l.Queue([]Entry{{Data: b, Relaxed: n%2 == 0, After: func(index uint64, _ Place, _ error) {
					mu.Lock()
					defer mu.Unlock()
					written, newest = append(written, b), index
				}}}).Wait(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	answered := func() (int, uint64) {
		mu.Lock()
		defer mu.Unlock()
		return len(written), newest
	}
	var copies []string
	var sure []int
	for i := range 6 {
		for _, from := answered(); ; time.Sleep(time.Millisecond) { // until there is more
			if _, now := answered(); now > from+50 {
				break
			}
		}
		n, index := answered()
		dir := filepath.Join(top, fmt.Sprint("copy", i))
		if err := l.Snapshot(dir); err != nil {
			t.Fatal(err)
		}
		copies, sure = append(copies, dir), append(sure, n)
		if i%2 == 1 {
			if err := l.Checkpoint(index-1, func(w io.Writer) error { return binary.Write(w, binary.BigEndian, index) }); err != nil {
				t.Fatal(err)
			}
			l.Release(func(uint64, int64) bool { return false })
		}
	}
	stop()
	writers.Wait()
	mustClose(t, l)
	for i, dir := range copies {
		c := mustOpen(t, dir, cfg)
		first := c.Stats().First
		got := replayed(t, c, first)
		if first == 1 && len(got) < sure[i] {
			t.Errorf("%s has %d entries, %d were answered", dir, len(got), sure[i])
		}
		at := slices.IndexFunc(written, func(b []byte) bool { return bytes.Equal(b, got[0]) })
		if at < 0 || first == 1 && at != 0 || at+len(got) < sure[i] {
			t.Fatalf("%s has entries %d to %d, %d were answered", dir, at, at+len(got), sure[i])
		}
		sameEntries(t, got, written[at:at+len(got)])
		mustClose(t, c)
	}
}

// Writers and their syncs do not wait for a copy; releasing does, and then the segments
// that the copy has are not used again. Where nothing can be linked, everything is copied.
func TestSnapshotStopsNobody(t *testing.T) {
	for _, links := range []bool{true, false} {
		fs := newFaultFS()
		reached, proceed := make(chan struct{}), make(chan struct{})
		var first atomic.Bool
		fs.hook = func(call, name string) error {
			switch {
			case call == "link" && !links:
				return errors.ErrUnsupported
			case call == "create" && strings.HasSuffix(name, segmentSuffix): // of the copy: the ledger renames
				if !first.Swap(true) {
					close(reached)
					<-proceed
				}
			}
			return nil
		}
		l := mustOpen(t, dir, small(fs))
		next, _ := fill(t, l, 0, 3)
		checkpointTwice(t, l)
		copied := make(chan error, 1)
		go func() { copied <- l.Snapshot("node/copy") }()
		<-reached
		before := l.Stats()
		fill(t, l, next, 5)
		l.Release(func(uint64, int64) bool { return false })
		if s := l.Stats(); s.Last == before.Last || s.First != before.First {
			t.Errorf("%+v, then %+v", before, s)
		}
		close(proceed)
		if err := <-copied; err != nil {
			t.Fatal(err)
		}
		checkpointTwice(t, l)
		l.Release(func(uint64, int64) bool { return false })
		if s := l.Stats(); s.First == before.First {
			t.Errorf("%+v", s)
		}
		fill(t, l, 0, 6)
		got := replayed(t, mustOpen(t, "node/copy", small(fs)), 1)
		if len(got) != next+2 {
			t.Fatalf("the copy has %d entries, want %d", len(got), next+2)
		}
		for n := range next {
			if binary.BigEndian.Uint64(got[n]) != uint64(n) {
				t.Fatalf("entry %d is %x", n, got[n])
			}
		}
	}
}

// A folder with something in it is refused, a closed ledger too, and what an interrupted
// copy leaves is no ledger.
func TestSnapshotFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	l := mustOpen(t, path, Config{Logger: quiet()})
	add(t, l, []byte("x"))
	if err := l.Snapshot(path); !errors.Is(err, os.ErrExist) {
		t.Errorf("into itself: %v", err)
	}
	mustClose(t, l)
	if err := l.Snapshot(path + "-copy"); !errors.Is(err, store.ErrClosed) {
		t.Errorf("of a closed one: %v", err)
	}
	fs := newFaultFS()
	fs.hook = func(call, name string) error {
		if call == "create" && strings.HasPrefix(name, identityName) && fs.names[segmentPath("node/copy", 1)] != nil {
			return errPower
		}
		return nil
	}
	l = mustOpen(t, dir, small(fs))
	add(t, l, []byte("x"))
	if err := l.Snapshot("node/copy"); !errors.Is(err, errPower) {
		t.Errorf("without LEDGER: %v", err)
	}
	if _, err := Open("node/copy", small(fs)); !isDamage(err) {
		t.Errorf("a copy without LEDGER: %v", err)
	}
}
