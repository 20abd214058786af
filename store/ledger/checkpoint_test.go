package ledger

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/balefire/balefire/store"
)

// state returns n bytes that compress badly.
func state(n int) []byte {
	rng, b := rand.New(rand.NewPCG(uint64(n), 5)), make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

func writing(b []byte) func(io.Writer) error {
	return func(w io.Writer) error { _, err := w.Write(b); return err }
}

// loaded returns the newest checkpoint.
func loaded(t testing.TB, l *Ledger) (index uint64, got []byte) {
	t.Helper()
	index, err := l.LoadCheckpoint(func(r io.Reader) (err error) { got, err = io.ReadAll(r); return err })
	if err != nil {
		t.Fatal(err)
	}
	return index, got
}

// The newest checkpoint is read, and two are kept.
func TestCheckpoints(t *testing.T) {
	fs := newFaultFS()
	l := mustOpen(t, dir, small(fs))
	if index, got := loaded(t, l); index != 0 || got != nil {
		t.Fatalf("a new ledger has a checkpoint at %d", index)
	}
	for i, size := range []int{0, 1, 100_000, 3 << 20, 77} {
		add(t, l, []byte("x"))
		want := state(size)
		if err := l.Checkpoint(uint64(i+1), writing(want)); err != nil {
			t.Fatal(err)
		}
		if index, got := loaded(t, l); index != uint64(i+1) || !bytes.Equal(got, want) {
			t.Fatalf("checkpoint %d: index %d, %d bytes", i+1, index, len(got))
		}
	}
	d, err := readFolder(fs, dir)
	if err != nil || len(d.checkpoints) != 2 || d.checkpoints[0] != 4 || d.checkpoints[1] != 5 {
		t.Errorf("kept: %v, %v", d.checkpoints, err)
	}
	mustClose(t, l)
	l = mustOpen(t, dir, small(fs))
	if index, got := loaded(t, l); index != 5 || !bytes.Equal(got, state(77)) {
		t.Errorf("after a restart: index %d, %d bytes", index, len(got))
	}
}

// A checkpoint that is not possible, or fails, changes nothing.
func TestCheckpointsThatFail(t *testing.T) {
	fs := newFaultFS()
	var failing string
	boom := errors.New("boom")
	fs.hook = func(call, name string) error {
		if call == failing {
			return boom
		}
		return nil
	}
	l := mustOpen(t, dir, small(fs))
	for range 3 {
		add(t, l, []byte("x"))
	}
	if err := l.Checkpoint(2, writing([]byte("good"))); err != nil {
		t.Fatal(err)
	}
	for _, index := range []uint64{0, 1, 2, 4} {
		if err := l.Checkpoint(index, noState); err == nil {
			t.Errorf("a checkpoint at %d is accepted", index)
		}
	}
	if err := l.Checkpoint(3, func(io.Writer) error { return boom }); !errors.Is(err, boom) {
		t.Errorf("err = %v", err)
	}
	for _, failing = range []string{"create", "write", "sync", "rename"} {
		if err := l.Checkpoint(3, writing(state(1000))); !errors.Is(err, boom) {
			t.Errorf("%s fails: %v", failing, err)
		}
	}
	failing = ""
	if err := l.Err(); err != nil {
		t.Errorf("the ledger failed: %v", err)
	}
	if index, got := loaded(t, l); index != 2 || string(got) != "good" {
		t.Errorf("checkpoint at %d: %q", index, got)
	}
	d, err := readFolder(fs, dir)
	if err != nil || len(d.checkpoints) != 1 || len(d.leftovers) > 1 {
		t.Errorf("%+v, %v", d, err)
	}
}

// A checkpoint syncs what is relaxed first.
func TestCheckpointSyncsTheLog(t *testing.T) {
	l := mustOpen(t, dir, small(newFaultFS()))
	if err := l.Queue([]Entry{{Data: []byte("x"), Relaxed: true}}).Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := l.Checkpoint(1, noState); err != nil || l.Stats().Synced != 1 {
		t.Errorf("%v, %+v", err, l.Stats())
	}
}

// If the newest checkpoint is cut short or has a flipped bit anywhere, the one
// before it is used, and the next one replaces it.
func TestDamagedCheckpoint(t *testing.T) {
	fs := newFaultFS()
	l := mustOpen(t, dir, small(fs))
	for i := range 3 {
		add(t, l, []byte("x"))
		if i < 2 {
			if err := l.Checkpoint(uint64(i+1), writing(state(40+i))); err != nil {
				t.Fatal(err)
			}
		}
	}
	mustClose(t, l)
	files := fs.content()
	path := checkpointPath(dir, 2)
	good := files[path]
	var damaged [][]byte
	for i := range good {
		damaged = append(damaged, good[:i])
		b := bytes.Clone(good)
		b[i] ^= 1 << (i % 8)
		damaged = append(damaged, b)
	}
	damaged = append(damaged, append(bytes.Clone(good), 0), files[checkpointPath(dir, 1)])
	for i, b := range damaged {
		files[path] = b
		fs := newFaultFSOf(files)
		l := mustOpen(t, dir, small(fs))
		if index, got := loaded(t, l); index != 1 || !bytes.Equal(got, state(40)) {
			t.Fatalf("case %d: checkpoint at %d", i, index)
		}
		if err := l.Checkpoint(2, writing([]byte("new"))); err != nil {
			t.Fatal(err)
		}
		mustClose(t, l)
		l = mustOpen(t, dir, small(fs))
		if index, got := loaded(t, l); index != 2 || string(got) != "new" {
			t.Fatalf("case %d: checkpoint at %d after it was replaced", i, index)
		}
		mustClose(t, l)
	}
}

// A log that ends before its newest checkpoint is damaged: a checkpoint is made of
// what is on disk.
func TestLogEndsBeforeItsCheckpoint(t *testing.T) {
	fs := newFaultFS()
	l := mustOpen(t, dir, small(fs))
	p := add(t, l, []byte("xxxxxxxx"))
	if err := l.Checkpoint(1, noState); err != nil {
		t.Fatal(err)
	}
	mustClose(t, l)
	files := fs.content()
	files[segmentPath(dir, 1)][p.Offset] ^= 1
	if _, err := Open(dir, small(newFaultFSOf(files))); !isDamage(err) || !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("err = %v", err)
	}
}
