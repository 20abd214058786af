package ledger

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/balefire/balefire/store"
)

// noState writes an empty checkpoint.
func noState(io.Writer) error { return nil }

// fill writes entries of 300 bytes, numbered from n on, until there are so many
// segments.
func fill(t testing.TB, l *Ledger, n, segments int) (next int, places []Place) {
	t.Helper()
	for ; l.Stats().Segments < segments; n++ {
		b := make([]byte, 300)
		binary.BigEndian.PutUint64(b, uint64(n))
		places = append(places, add(t, l, b))
	}
	return n, places
}

// checkpointTwice makes what was written unnecessary for a start.
func checkpointTwice(t testing.TB, l *Ledger) {
	t.Helper()
	for range 2 {
		add(t, l, []byte("x"))
		if err := l.Checkpoint(l.Stats().Last, noState); err != nil {
			t.Fatal(err)
		}
	}
}

// Released segments are used again, whatever they still have of earlier batches:
// only few files are ever made, and the end of the log is clean.
func TestReleasedSegmentsAreUsedAgain(t *testing.T) {
	fs := newFaultFS()
	made := 0
	fs.hook = func(call, name string) error {
		if call == "create" && strings.HasPrefix(name, sparePrefix) {
			made++
		}
		return nil
	}
	cfg := small(fs)
	cfg.Segment = 4 * page // what is behind the first page is not overwritten when it is begun
	l := mustOpen(t, dir, cfg)
	next := 0
	for range 30 {
		next, _ = fill(t, l, next, 4)
		checkpointTwice(t, l)
		l.Release(func(uint64, int64) bool { return false })
		if s := l.Stats(); s.Segments > 3 || s.Spares > maxSpares {
			t.Fatalf("after a release: %+v", s)
		}
	}
	first, last := l.Stats().First, l.Stats().Last
	mustClose(t, l)
	if made > 8 {
		t.Errorf("%d files were made for %d entries", made, next)
	}
	for turn := range 20 {
		l = mustOpen(t, dir, cfg)
		if s := l.Stats(); s.Torn != "" || s.Last != last || s.First != first || s.Spares > 1 {
			t.Fatalf("after a clean stop: %+v, want the batches %d to %d", s, first, last)
		}
		for range turn % 4 {
			add(t, l, make([]byte, 1+137*turn%900))
			last++
		}
		mustClose(t, l)
	}
}

// What looks like a batch of a recycled file never verifies, even with the index and
// place that are next: its CRC continues another one.
func TestStaleBatchesNeverVerify(t *testing.T) {
	fs := newFaultFS()
	l := mustOpen(t, dir, small(fs))
	add(t, l, []byte("first"))
	end := int64(segmentHead + padded(batchHead+entryHead+5))
	mustClose(t, l)

	stale := make([]byte, 64)
	h := batchHeader{kind: KindEntries, length: 56, count: 1, index: 2}
	putEntry(stale, batchHead, []byte("stale..."))
	h.put(stale)
	path := segmentPath(dir, 1)
	for _, id := range []ID{l.id, {1}} {
		for _, prev := range []uint32{0, 1, rand.Uint32()} {
			files := fs.content()
			id.seal(prev, stale[:56])
			copy(files[path][end:], stale)
			l := mustOpen(t, dir, small(newFaultFSOf(files)))
			if s := l.Stats(); s.Last != 1 || s.Torn == "" {
				t.Errorf("id %v, CRC %d: %+v", id, prev, s)
			}
		}
	}
}

// Segments of which something is needed stay: for a start from the older
// checkpoint, or because they are live. The others cannot be read any more.
func TestReleaseKeepsWhatIsNeeded(t *testing.T) {
	fs := newFaultFS()
	l := mustOpen(t, dir, small(fs))
	next, places := fill(t, l, 0, 4)
	none := func(uint64, int64) bool { return false }
	l.Release(none)
	if err := l.Checkpoint(l.Stats().Last, noState); err != nil {
		t.Fatal(err)
	}
	l.Release(none)
	if s := l.Stats(); s.Segments != 4 || s.First != 1 {
		t.Fatalf("released with less than two checkpoints: %+v", s)
	}
	older := l.Stats().Last
	_, more := fill(t, l, next, 7)
	if err := l.Checkpoint(l.Stats().Last, noState); err != nil {
		t.Fatal(err)
	}
	second := places[len(places)/2].Segment
	var asked []uint64
	l.Release(func(segment uint64, _ int64) bool { asked = append(asked, segment); return segment == second })
	if s := l.Stats(); s.First != second || s.Segments != 5 {
		t.Fatalf("asked for %v, kept %d: %+v", asked, second, s)
	}
	read := func() {
		t.Helper()
		for _, p := range append(places, more...) {
			_, err := l.Read(p, nil)
			_, inMemory := l.ring.read(p, nil)
			gone := p.Segment != second && p.Segment < places[len(places)-1].Segment
			if gone && !inMemory && !errors.Is(err, store.ErrNotFound) || !gone && err != nil {
				t.Fatalf("place %v: %v", p, err)
			}
		}
		if err := l.Replay(older+1, func(Batch) error { return nil }); err != nil {
			t.Errorf("replay since the older checkpoint: %v", err)
		}
		if err := l.Replay(1, func(Batch) error { return nil }); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("replay of what was released: %v", err)
		}
		if err := l.Replay(second, func(Batch) error { return nil }); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("replay over what was released: %v", err)
		}
	}
	read()
	mustClose(t, l)

	// The newest checkpoint is damaged: the older one has all that it needs.
	files := fs.content()
	files[checkpointPath(dir, l.Stats().Checkpoint)][50] ^= 1
	fs = newFaultFSOf(files)
	l = mustOpen(t, dir, small(fs))
	if s := l.Stats(); s.Checkpoint != older {
		t.Fatalf("%+v, want the checkpoint at %d", s, older)
	}
	read()
	mustClose(t, l)

	files[checkpointPath(dir, older)][50] ^= 1
	if _, err := Open(dir, small(newFaultFSOf(files))); !isDamage(err) {
		t.Errorf("without any checkpoint: %v", err)
	}
}

// A segment that cannot be released is reported and stays on disk; the log goes on.
func TestReleaseThatFails(t *testing.T) {
	fs := newFaultFS()
	failing := false
	fs.hook = func(call, name string) error {
		if failing && (call == "rename" && strings.HasPrefix(name, sparePrefix) || call == "remove") {
			return errors.New("it is in use")
		}
		return nil
	}
	l := mustOpen(t, dir, small(fs))
	fill(t, l, 0, 9)
	checkpointTwice(t, l)
	failing = true
	l.Release(func(uint64, int64) bool { return false })
	add(t, l, []byte("on"))
	if s := l.Stats(); s.Spares > 1 {
		t.Errorf("%+v", s)
	}
	mustClose(t, l)
	failing = false
	l = mustOpen(t, dir, small(fs))
	if s := l.Stats(); s.First != 1 {
		t.Errorf("after the next open: %+v", s)
	}
	l.Release(func(uint64, int64) bool { return false })
	if s := l.Stats(); s.First == 1 {
		t.Errorf("not released the second time: %+v", s)
	}
}

// A crash at any call while a segment is begun or released leaves a ledger that
// opens with all that was answered.
func TestCrashAtEachCall(t *testing.T) {
	for left := 0; ; left++ {
		fs := newFaultFS()
		l := mustOpen(t, dir, small(fs))
		fill(t, l, 0, 3)
		checkpointTwice(t, l)
		fs.mu.Lock()
		fs.left = left
		fs.mu.Unlock()
		l.Release(func(uint64, int64) bool { return false })
		answered := l.Stats().Last
		for range 30 {
			if l.Queue([]Entry{{Data: make([]byte, 300)}}).Wait(t.Context()) != nil {
				break
			}
			answered++
		}
		done := !fs.isCut()
		_ = l.Close()
		rng := rand.New(rand.NewPCG(uint64(left), 3))
		for name, after := range map[string]*faultFS{"kill": fs.afterKill(), "all lost": fs.afterCut(rng, 0), "all kept": fs.afterCut(rng, 1)} {
			l, err := Open(dir, small(after))
			if err != nil {
				t.Fatalf("call %d, %s: %v", left, name, err)
			}
			if last := l.Stats().Last; last < answered {
				t.Errorf("call %d, %s: %d batches of %d", left, name, last, answered)
			}
			mustClose(t, l)
		}
		if done {
			if left < 20 {
				t.Errorf("only %d calls", left)
			}
			return
		}
	}
}

// Leftovers of an interrupted run are removed, other files are left alone.
func TestLeftoversAreRemoved(t *testing.T) {
	fs := newFaultFS()
	mustClose(t, mustOpen(t, dir, small(fs)))
	files := fs.content()
	for _, name := range []string{"spare-77", "checkpoint-00000000000000000001.tmp", "LEDGER.tmp", "notes.txt", "1.seg", "00000000000000000001.seg.bak"} {
		files[dir+"/"+name] = []byte("x")
	}
	fs = newFaultFSOf(files)
	mustClose(t, mustOpen(t, dir, small(fs)))
	names := fmt.Sprint(fs.Names(dir))
	for name, want := range map[string]bool{"spare-77": false, ".tmp": false, "notes.txt": true, " 1.seg": true, "seg.bak": true} {
		if strings.Contains(names, name) != want {
			t.Errorf("%s: %v in %s", name, !want, names)
		}
	}
}
