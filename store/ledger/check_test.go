package ledger

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// onDisk writes the files of a specimen to a folder.
func (v *specimen) onDisk(t *testing.T) string {
	t.Helper()
	path := t.TempDir()
	for name, b := range v.files {
		if err := os.WriteFile(filepath.Join(path, filepath.Base(name)), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// salvaged returns the entries that Salvage reads.
func salvaged(t *testing.T, fs fileSystem, path string) (all [][]byte, r Report) {
	t.Helper()
	r, err := inspect(fs, path, func(b Batch) error {
		for _, data := range b.Entries() {
			all = append(all, bytes.Clone(data))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all, r
}

// Check finds nothing in a good ledger and changes nothing; Salvage reads all of it.
func TestCheckOfAGoodLedger(t *testing.T) {
	v := newSpecimen(t)
	path := v.onDisk(t)
	r, err := Check(path)
	if err != nil || len(r.Damage) > 0 || r.Torn || r.Segments != 3 || r.Bytes != 3*2048 ||
		r.First != 1 || r.Last != uint64(len(v.entries)) || r.Batches != len(v.entries) || r.Entries != len(v.entries) || r.Made.IsZero() {
		t.Errorf("%+v, %v", r, err)
	}
	for name, want := range v.files {
		if got, err := os.ReadFile(filepath.Join(path, filepath.Base(name))); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s changed: %v", name, err)
		}
	}
	var got [][]byte
	r, err = inspect(osFS{}, path, func(b Batch) error {
		for _, data := range b.Entries() {
			got = append(got, bytes.Clone(data))
		}
		return nil
	})
	if err != nil || len(r.Damage) > 0 {
		t.Errorf("%+v, %v", r, err)
	}
	sameEntries(t, got, v.entries)
	if _, err := Check(filepath.Join(path, "nothing")); err == nil {
		t.Error("a missing folder is no error")
	}
}

// Whatever byte is damaged: what Open refuses Check finds, and what is read is all
// batches but the damaged one, and the last one where only the damaged one before it
// says what it continues.
func TestSalvageReadsAllButTheDamage(t *testing.T) {
	v := newSpecimen(t)
	for _, path := range v.segments() {
		for off := range v.files[path] {
			b := bytes.Clone(v.files[path])
			b[off] ^= 0x5a
			fs := v.with(path, b)
			got, r := salvaged(t, fs, dir)
			_, err := Open(dir, small(v.with(path, b)))
			if isDamage(err) != (len(r.Damage) > 0) {
				t.Fatalf("byte %d of %s: Open says %v, Check %v", off, path, err, r.Damage)
			}
			missing := 0
			for _, want := range v.entries {
				if len(got) > 0 && bytes.Equal(got[0], want) {
					got = got[1:]
				} else {
					missing++
				}
			}
			if len(got) > 0 {
				t.Fatalf("byte %d of %s: %d entries that are none", off, path, len(got))
			}
			// A damaged header leaves the CRC that the first batch continues in the
			// segment before, or nowhere: then that batch is lost, too.
			if most := 1; missing > most && !(path == v.segments()[0] && off < segmentHead) {
				t.Fatalf("byte %d of %s: %d entries are missing", off, path, missing)
			}
		}
	}
}

// Without LEDGER the id is taken from a segment, and with damage to the checkpoint
// the rest is checked.
func TestSalvageWithoutSmallFiles(t *testing.T) {
	v := newSpecimen(t)
	fs := newFaultFSOf(v.files)
	delete(fs.names, filepath.Join(dir, identityName))
	fs.names[checkpointPath(dir, 4)] = &inode{data: []byte("none")}
	got, r := salvaged(t, fs, dir)
	sameEntries(t, got, v.entries)
	var files []string
	for _, d := range r.Damage {
		files = append(files, filepath.Base(d.File))
	}
	if want := []string{identityName, filepath.Base(checkpointPath(dir, 4))}; !slices.Equal(files, want) {
		t.Errorf("damage in %v, want %v", files, want)
	}
}

// Segments that were released are no damage, and others that are missing are.
func TestCheckKnowsReleasedSegments(t *testing.T) {
	fs := newFaultFS()
	l := mustOpen(t, dir, small(fs))
	_, places := fill(t, l, 0, 5)
	checkpointTwice(t, l)
	kept := places[0].Segment
	l.Release(func(segment uint64, _ int64) bool { return segment == kept })
	fill(t, l, 0, 4)
	mustClose(t, l)
	if _, r := salvaged(t, fs, dir); len(r.Damage) > 0 || r.First != 1 || len(r.Checkpoints) != 2 {
		t.Errorf("%+v", r)
	}
	d, err := readFolder(fs, dir)
	if err != nil {
		t.Fatal(err)
	}
	files := fs.content()
	delete(files, segmentPath(dir, d.segments[len(d.segments)-2]))
	if _, r := salvaged(t, newFaultFSOf(files), dir); len(r.Damage) == 0 {
		t.Error("a missing segment is not found")
	}
}
