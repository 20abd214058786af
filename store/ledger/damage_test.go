package ledger

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/balefire/balefire/store"
)

// A specimen is a ledger of three segments in memory, to be damaged.
type specimen struct {
	files   map[string][]byte
	entries [][]byte
	places  []Place
	begins  map[string][]int64 // offsets of the batches, by segment
	ends    map[string]int64   // where the batches end
	last    string             // path of the last segment
}

func newSpecimen(t testing.TB) *specimen {
	t.Helper()
	fs := newFaultFS()
	cfg := small(fs)
	cfg.Segment, cfg.MaxBatch = 2048, 512
	v := &specimen{begins: map[string][]int64{}, ends: map[string]int64{}}
	l := mustOpen(t, dir, cfg)
	for n := 0; l.Stats().Segments < 3 || len(v.begins[segmentPath(dir, v.places[len(v.places)-1].Segment)]) < 3; n++ {
		v.entries = append(v.entries, data(n, 250))
		p := add(t, l, v.entries[n])
		v.places = append(v.places, p)
		v.last = segmentPath(dir, p.Segment)
		begin := int64(p.Offset) - entryHead - batchHead
		v.begins[v.last] = append(v.begins[v.last], begin)
		v.ends[v.last] = int64(padded(int(p.Offset + p.Length)))
	}
	mustClose(t, l)
	v.files = fs.content()
	for name := range v.files {
		if strings.Contains(name, sparePrefix) {
			delete(v.files, name)
		}
	}
	return v
}

func (v *specimen) segments() (paths []string) {
	for path := range v.begins {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	return paths
}

// with returns the files with one of them changed.
func (v *specimen) with(path string, b []byte) *faultFS {
	fs := newFaultFSOf(v.files)
	fs.names[path].data, fs.names[path].synced = bytes.Clone(b), bytes.Clone(b)
	return fs
}

// opens opens the ledger and returns how many of the first entries it has. It fails
// the test if any other entry can be read.
func (v *specimen) opens(t *testing.T, what string, fs *faultFS) (n int, torn bool, err error) {
	t.Helper()
	cfg := small(fs)
	cfg.Segment, cfg.MaxBatch = 2048, 512
	l, err := Open(dir, cfg)
	if err != nil {
		if !isDamage(err) {
			t.Fatalf("%s: err = %v, want a DamageError", what, err)
		}
		return 0, false, err
	}
	defer l.Close()
	got := replayed(t, l, 1)
	if len(got) > len(v.entries) {
		t.Fatalf("%s: %d entries of %d", what, len(got), len(v.entries))
	}
	sameEntries(t, got, v.entries[:len(got)])
	for i, p := range v.places {
		b, err := l.Read(p, nil)
		if err != nil && (i < len(got) || !errors.Is(err, store.ErrNotFound) && !errors.Is(err, store.ErrCorrupt)) {
			t.Fatalf("%s: entry %d: %v", what, i, err)
		}
		if err == nil && !bytes.Equal(b, v.entries[i]) {
			t.Fatalf("%s: entry %d is wrong", what, i)
		}
	}
	if l.Stats().Torn != "" {
		aside := fs.content()[filepath.Join(dir, l.Stats().Torn)]
		if len(aside) == 0 {
			t.Fatalf("%s: what was cut off is not kept", what)
		}
	}
	return len(got), l.Stats().Torn != "", nil
}

// A flip of any bit of three segments is found (BALEFIRE_LONG=1; otherwise one bit
// of each byte). In the last batch it may be a power cut: the batch is set aside.
// Anywhere else in what was written it is refused, with the file and the offset of
// the batch. No wrong entry is ever read.
func TestEachBitFlip(t *testing.T) {
	v := newSpecimen(t)
	for _, path := range v.segments() {
		for i := range v.files[path] {
			for bit := range 8 {
				if !long && bit != i%8 {
					continue
				}
				v.flip(t, path, int64(i), bit)
			}
		}
	}
}

func (v *specimen) flip(t *testing.T, path string, off int64, bit int) {
	t.Helper()
	what := fmt.Sprintf("bit %d of byte %d of %s", bit, off, filepath.Base(path))
	b := bytes.Clone(v.files[path])
	b[off] ^= 1 << bit
	n, torn, err := v.opens(t, what, v.with(path, b))
	begins, end := v.begins[path], v.ends[path]
	lastBegin := begins[len(begins)-1]
	written := end
	if path != v.last {
		lastBegin, written = end, end+batchHead // the end of the segment counts
	}
	damage, damaged := errors.AsType[*DamageError](err)
	switch {
	case path == v.last && off >= lastBegin && off < end:
		if damaged || !torn || n != len(v.entries)-1 {
			t.Fatalf("%s, in the last batch: %d of %d entries, torn %v, %v", what, n, len(v.entries), torn, err)
		}
	case off < written:
		i, found := slices.BinarySearch(begins, off)
		at := int64(0)
		if !found && i > 0 {
			at = begins[i-1]
		} else if found {
			at = off
		}
		if off >= lastBegin {
			at = lastBegin
		}
		if !damaged || damage.File != path || damage.Offset != at {
			t.Fatalf("%s: %v; want damage at %d", what, err, at)
		}
	case damaged || n != len(v.entries):
		t.Fatalf("%s, where nothing is: %d of %d entries, %v", what, n, len(v.entries), err)
	}
}

// A segment that is too short is refused, however much is missing.
func TestEachTruncation(t *testing.T) {
	v := newSpecimen(t)
	for _, path := range v.segments() {
		for n := range v.files[path] {
			what := fmt.Sprintf("%s of %d bytes", filepath.Base(path), n)
			_, _, err := v.opens(t, what, v.with(path, v.files[path][:n]))
			damage, ok := errors.AsType[*DamageError](err)
			if !ok || damage.File != path {
				t.Fatalf("%s: %v", what, err)
			}
		}
	}
}

// Zeros in place of any 512 bytes: set aside where they reach into the last batch,
// refused elsewhere, and never a wrong entry.
func TestEachLostSector(t *testing.T) {
	v := newSpecimen(t)
	for _, path := range v.segments() {
		for off := 0; off+sector <= len(v.files[path]); off += 8 {
			b := bytes.Clone(v.files[path])
			clear(b[off : off+sector])
			what := fmt.Sprintf("zeros at %d of %s", off, filepath.Base(path))
			n, _, err := v.opens(t, what, v.with(path, b))
			begins := v.begins[path]
			if path != v.last && int64(off) < v.ends[path] && err == nil {
				t.Fatalf("%s: opened with %d entries", what, n)
			}
			if path == v.last && int64(off+sector) <= begins[len(begins)-1]-batchHead && err == nil {
				t.Fatalf("%s: opened with %d entries", what, n)
			}
		}
	}
}

// A missing file is refused, with its consequences named.
func TestMissingFiles(t *testing.T) {
	v := newSpecimen(t)
	for path := range v.files {
		fs := newFaultFSOf(v.files)
		delete(fs.names, path)
		_, err := Open(dir, small(fs))
		if path == v.last {
			// What was last cannot be known: its predecessor is complete.
			if err != nil {
				t.Errorf("without %s: %v", path, err)
			}
			continue
		}
		if !isDamage(err) {
			t.Errorf("without %s: %v", path, err)
		}
	}
}
