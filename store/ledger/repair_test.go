package ledger

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/balefire/balefire/clock"
)

// relaxedTail returns a ledger with one durable batch and three that are relaxed and
// not synced, and where the batches are in the segment.
func relaxedTail(t *testing.T, cfg Config) (offs []int64) {
	t.Helper()
	l := mustOpen(t, dir, cfg)
	note := func(_ uint64, p Place, _ error) { offs = append(offs, int64(p.Offset)-entryHead-batchHead) }
	for n := range 4 {
		if err := l.Queue([]Entry{{Data: fmt.Appendf(nil, "entry-%d", n), Relaxed: n > 0, After: note}}).Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	mustClose(t, l)
	return offs
}

// still returns a config whose clock stands still and whose relaxed batches are not
// synced before Close.
func still(fs fileSystem) Config {
	cfg := small(fs)
	cfg.Clock = clock.NewManual(time0).Clock()
	return cfg
}

// A power cut that loses one of several batches that were not synced is no damage,
// though the ones behind it can be read.
func TestHoleInWhatWasNotSyncedIsATornEnd(t *testing.T) {
	fs := newFaultFS()
	offs := relaxedTail(t, still(fs))
	path := segmentPath(dir, 1)
	for hole := 1; hole <= 3; hole++ {
		for _, what := range []int64{0, 8, 20, batchHead + entryHead} { // magic, CRC, index, data
			files := fs.content()
			files[path][offs[hole]+what] ^= 0x10
			broken := newFaultFSOf(files)
			l := mustOpen(t, dir, small(broken))
			s := l.Stats()
			if s.Last != uint64(hole) || s.Torn == "" {
				t.Fatalf("hole in batch %d, byte %d: %+v", hole+1, what, s)
			}
			if aside := broken.content()[filepath.Join(dir, s.Torn)]; !bytes.HasPrefix(aside, files[path][offs[hole]:]) {
				t.Errorf("what was cut off is not kept: %d bytes", len(aside))
			}
			mustClose(t, l)
			l = mustOpen(t, dir, small(broken))
			if s := l.Stats(); s.Torn != "" {
				t.Errorf("it is still torn after its repair: %+v", s)
			}
		}
	}
	files := fs.content()
	files[path][offs[0]+batchHead+entryHead] ^= 1
	if _, err := Open(dir, small(newFaultFSOf(files))); !isDamage(err) {
		t.Errorf("damage to what was synced: %v", err)
	}
}

// A batch that was cut off never comes back, not even behind a new batch with the
// same bytes as the one that was lost before it.
func TestWhatWasCutOffNeverComesBack(t *testing.T) {
	fs := newFaultFS()
	offs := relaxedTail(t, still(fs))
	files := fs.content()
	path := segmentPath(dir, 1)
	lost := bytes.Clone(files[path][offs[1]:offs[2]])
	files[path][offs[1]+batchHead+entryHead] ^= 1
	fs = newFaultFSOf(files)
	mustClose(t, mustOpen(t, dir, still(fs)))
	files = fs.content()
	copy(files[path][offs[1]:], lost) // the same entry again, in the same millisecond
	l := mustOpen(t, dir, still(newFaultFSOf(files)))
	if s := l.Stats(); s.Last != 2 {
		t.Errorf("%+v, want 2 batches", s)
	}
}

// Few torn ends are kept, and one that cannot be kept, on a full disk, does not stop
// the start.
func TestTornEndsAreLimited(t *testing.T) {
	man := clock.NewManual(time0)
	fs := newFaultFS()
	cfg := small(fs)
	cfg.Clock = man.Clock()
	mustClose(t, mustOpen(t, dir, cfg))
	full := false
	tear := func() string {
		t.Helper()
		files := fs.content()
		copy(files[segmentPath(dir, 1)][segmentHead:], "torn")
		fs = newFaultFSOf(files)
		fs.hook = func(call, name string) error {
			if full && strings.HasPrefix(name, tornPrefix) && call == "write" {
				return fmt.Errorf("no space left on device")
			}
			return nil
		}
		cfg.fs = fs
		l := mustOpen(t, dir, cfg)
		mustClose(t, l)
		return l.Stats().Torn
	}
	var last string
	for range maxTorn + 5 {
		man.Advance(1e9)
		last = tear()
	}
	d, err := readFolder(fs, dir)
	if err != nil || len(d.torn) != maxTorn || d.torn[maxTorn-1] != last {
		t.Errorf("%d are kept: %v, %v", len(d.torn), d.torn, err)
	}
	full = true
	if name := tear(); name != "" {
		t.Errorf("kept as %q on a full disk", name)
	}
}

// A ledger whose LEDGER is missing is refused once anything was in it, and made again
// if a crash interrupted its making.
func TestLostIdentity(t *testing.T) {
	fs := newFaultFS()
	l := mustOpen(t, dir, small(fs))
	empty := fs.content()
	add(t, l, []byte("x"))
	mustClose(t, l)
	full := fs.content()
	path := filepath.Join(dir, identityName)
	delete(empty, path)
	delete(full, path)
	if _, err := Open(dir, small(newFaultFSOf(full))); !isDamage(err) {
		t.Errorf("with a batch: %v", err)
	}
	mustOpen(t, dir, small(newFaultFSOf(empty)))
	for _, name := range []string{checkpointPath(dir, 3), segmentPath(dir, 2)} {
		files := map[string][]byte{name: make([]byte, 4096)}
		if _, err := Open(dir, small(newFaultFSOf(files))); !isDamage(err) {
			t.Errorf("with only %s: %v", name, err)
		}
	}
}
