package ledger

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"testing"

	"github.com/balefire/balefire/store"
)

const rebuilt = "node/rebuilt"

// rebuilds rebuilds the ledger in dir and opens the result twice, with a write in between.
// It returns the entries of its log, how many batches are lost and the index of its
// checkpoint.
func rebuilds(t *testing.T, fs *faultFS) (l *Ledger, entries [][]byte, lost int, checkpoint uint64) {
	t.Helper()
	if _, err := rebuild(fs, dir, rebuilt); err != nil {
		t.Fatal(err)
	}
	if r, err := inspect(fs, rebuilt, func(Batch) error { return nil }); err != nil || len(r.Damage) > 0 || r.Torn {
		t.Fatalf("%+v, %v", r, err)
	}
	for range 2 {
		if l != nil {
			add(t, l, []byte("more"))
			mustClose(t, l)
		}
		l = mustOpen(t, rebuilt, small(fs))
		entries, lost = nil, 0
		next := uint64(1)
		err := l.Replay(1, func(b Batch) error {
			for _, data := range b.Entries() {
				entries = append(entries, bytes.Clone(data))
			}
			if b.Kind == KindLost {
				lost += int(b.Index - next + 1)
			}
			next = b.Index + 1
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return l, entries[:len(entries)-1], lost, l.Stats().Checkpoint
}

// Whatever byte is damaged: the rebuilt ledger opens, it has every entry that Salvage
// reads, at the same place, and it tells what is missing (BALEFIRE_LONG=1; otherwise one
// of 5 bytes).
func TestRebuildKeepsAllButTheDamage(t *testing.T) {
	v, step := newSpecimen(t), 5
	if long {
		step = 1
	}
	for _, path := range v.segments() {
		for off := 0; off < len(v.files[path]); off += step {
			b := bytes.Clone(v.files[path])
			b[off] ^= 0x5a
			fs := v.with(path, b)
			want, _ := salvaged(t, fs, dir)
			l, got, lost, _ := rebuilds(t, fs)
			sameEntries(t, got, want)
			behind := 0 // lost at the end, of which nothing tells
			for i, p := range v.places {
				data, err := l.Read(p, nil)
				switch kept := slices.ContainsFunc(want, func(e []byte) bool { return bytes.Equal(e, v.entries[i]) }); {
				case kept && (err != nil || !bytes.Equal(data, v.entries[i])):
					t.Fatalf("byte %d of %s: entry %d: %x, %v", off, path, i, data, err)
				case kept:
					behind = 0
				case err == nil || !errors.Is(err, store.ErrNotFound) && !errors.Is(err, store.ErrCorrupt):
					t.Fatalf("byte %d of %s: lost entry %d: %x, %v", off, path, i, data, err)
				default:
					behind++
				}
			}
			if missing := len(v.entries) - len(want); lost != missing-behind {
				t.Fatalf("byte %d of %s: %d batches are lost, it tells of %d", off, path, missing-behind, lost)
			}
			mustClose(t, l)
		}
	}
}

// A ledger with checkpoints and released segments is rebuilt with its checkpoints; one
// whose log ends before its checkpoint, has lost a file or all of them, too.
func TestRebuildWithCheckpoints(t *testing.T) {
	fs := newFaultFS()
	cfg := small(fs)
	l := mustOpen(t, dir, cfg)
	_, places := fill(t, l, 0, 5)
	checkpointTwice(t, l)
	l.Release(func(segment uint64, _ int64) bool { return segment == places[0].Segment })
	checkpoint := l.Stats().Checkpoint
	_, after := fill(t, l, 100, 4)
	mustClose(t, l)
	d, err := readFolder(fs, dir)
	if err != nil || len(d.segments) != 4 || len(d.checkpoints) != 2 {
		t.Fatalf("%+v, %v", d, err)
	}
	files := fs.content()
	remove := func(paths ...string) *faultFS {
		some := maps.Clone(files)
		for _, path := range paths {
			delete(some, path)
		}
		return newFaultFSOf(some)
	}
	paths := make([]string, len(d.segments))
	for i, first := range d.segments {
		paths[i] = segmentPath(dir, first)
	}
	tests := []struct {
		name  string
		fs    *faultFS
		after bool // what came after the checkpoint is there
		at    uint64
	}{
		{"nothing is missing", remove(), true, checkpoint},
		{"LEDGER", remove(filepath.Join(dir, identityName)), true, checkpoint},
		{"the newest checkpoint", remove(checkpointPath(dir, checkpoint)), true, d.checkpoints[0]},
		{"an old segment", remove(paths[0]), true, checkpoint},
		{"all segments since the checkpoint", remove(paths[1:]...), false, checkpoint},
		{"all segments", remove(paths...), false, checkpoint},
		{"all segments and checkpoints", remove(append(paths, checkpointPath(dir, d.checkpoints[0]), checkpointPath(dir, checkpoint))...), false, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l, got, _, at := rebuilds(t, tt.fs)
			if at != tt.at {
				t.Errorf("checkpoint at %d, want %d", at, tt.at)
			}
			if index, err := l.LoadCheckpoint(func(io.Reader) error { return nil }); err != nil || index != tt.at {
				t.Errorf("loads the checkpoint at %d, %v", index, err)
			}
			if tt.after {
				for _, p := range after {
					if _, err := l.Read(p, nil); err != nil {
						t.Error(err)
					}
				}
			} else if len(got) > 20 {
				t.Errorf("%d entries", len(got))
			}
		})
	}
}

// A gap larger than a batch may be is filled, too, and a rebuilt ledger that is rebuilt
// stays as it is.
func TestRebuildOfALongGap(t *testing.T) {
	fs := newFaultFS()
	cfg := Config{Segment: 8 << 20, Logger: quiet(), fs: fs}
	l := mustOpen(t, dir, cfg)
	var places []Place
	for n := range 7 {
		places = append(places, add(t, l, bytes.Repeat([]byte{byte(n)}, 900_000)))
	}
	mustClose(t, l)
	files := fs.content()
	clear(files[segmentPath(dir, 1)][places[1].Offset-entryHead-batchHead : places[4].Offset-entryHead-batchHead])
	for round := range 2 {
		fs = newFaultFSOf(files)
		l, got, lost, _ := rebuilds(t, fs)
		if len(got) != 3+round || lost != 4 { // nothing but what is lost says what the fifth continues
			t.Errorf("%d entries, %d lost", len(got), lost)
		}
		for _, i := range []int{0, 5, 6} {
			if b, err := l.Read(places[i], nil); err != nil || b[0] != byte(i) {
				t.Errorf("entry %d: %x, %v", i, b[:min(len(b), 1)], err)
			}
		}
		mustClose(t, l)
		files = map[string][]byte{}
		for name, b := range fs.content() {
			if filepath.Dir(name) == rebuilt {
				files[filepath.Join(dir, filepath.Base(name))] = b
			}
		}
	}
}
