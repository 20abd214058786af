package nuts

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/store"
)

// A damagedStore is a closed store whose last transaction can be damaged.
type damagedStore struct {
	dir    string
	before map[string]string // what it holds without the last transaction
	after  map[string]string // and with it
	from   int64             // where the last transaction begins in 0.dat
	to     int64             // and ends
	log    []byte            // 0.dat up to to
	acked  []byte            // the mark, when the last transaction was acknowledged
	old    []byte            // the mark just before
}

// newDamagedStore makes a store of five transactions of three entries each.
func newDamagedStore(t testing.TB) *damagedStore {
	t.Helper()
	v := &damagedStore{dir: filepath.Join(t.TempDir(), "victim")}
	d := open(t, v.dir)
	for i := range 5 {
		v.before, v.from = dump(t, d), d.gen.pos.off
		v.old = read(t, filepath.Join(d.gen.dir, markFile))
		ops := []store.Op{
			put(store.Inbox, fmt.Sprintf("key-%d", i), strings.Repeat("v", 20+i)),
			put(store.Dedup, fmt.Sprint(i), ""),
			put(store.Meta, "count", fmt.Sprint(i)),
		}
		if i > 0 {
			ops = append(ops, del(store.Dedup, fmt.Sprint(i-1)))
		}
		commit(t, d, ops...)
	}
	v.after, v.to = dump(t, d), d.gen.pos.off
	v.acked = read(t, filepath.Join(d.gen.dir, markFile))
	v.log = read(t, segmentPath(d.gen.dir, 0))[:v.to]
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	return v
}

func (v *damagedStore) gen() string { return genDir(v.dir, 1) }

// set makes the store hold this log, padded with zeroes, and this mark.
func (v *damagedStore) set(t testing.TB, log, mark []byte) {
	t.Helper()
	full := make([]byte, 256<<10)
	copy(full, log)
	write(t, segmentPath(v.gen(), 0), full)
	if mark == nil {
		os.Remove(filepath.Join(v.gen(), markFile))
		return
	}
	write(t, filepath.Join(v.gen(), markFile), mark)
}

func read(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func write(t testing.TB, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// damages are the ways in which the end of a log comes out wrong, each from
// byte at on of what is log[:to].
var damages = []struct {
	name   string
	damage func(log []byte, at int) []byte
}{
	{"A zeroed from there", func(log []byte, at int) []byte { clear(log[at:]); return log }},
	{"B cut there", func(log []byte, at int) []byte { return log[:at] }},
	{"C one bit flipped", func(log []byte, at int) []byte { log[at] ^= 1 << (at % 8); return log }},
	{"D garbage from there", func(log []byte, at int) []byte {
		for i := at; i < len(log); i++ {
			log[i] = byte(i*131 + 7)
		}
		return append(log, bytes.Repeat([]byte{0xAB}, 300)...)
	}},
	{"E a hole there", func(log []byte, at int) []byte { clear(log[at:min(at+24, len(log))]); return log }},
}

// The torn tail matrix, S48: whatever a crash leaves of the transaction under
// way, the store opens, has all that was acknowledged and the rest whole or not
// at all, and still has it after the next transaction and the next open.
func TestTornTail(t *testing.T) {
	v := newDamagedStore(t)
	step := 7
	if testing.Short() {
		step = 31
	}
	for _, tt := range damages {
		t.Run(tt.name, func(t *testing.T) {
			whole := 0
			for at := int(v.from); at < int(v.to); at += step {
				v.set(t, tt.damage(slices.Clone(v.log), at), v.old)
				whole += v.reopenTwice(t, at)
			}
			if whole > 0 {
				t.Errorf("%d damaged transactions passed for whole", whole)
			}
		})
	}
	t.Run("F garbage behind it", func(t *testing.T) {
		for _, n := range []int{1, 5, 12, 13, 58, 4096} {
			v.set(t, append(slices.Clone(v.log), bytes.Repeat([]byte{0x5A}, n)...), v.old)
			if v.reopenTwice(t, n) != 1 {
				t.Errorf("with %d bytes of garbage behind it the whole transaction is gone", n)
			}
		}
	})
	t.Run("undamaged", func(t *testing.T) {
		v.set(t, v.log, v.old)
		if v.reopenTwice(t, 0) != 1 {
			t.Error("a whole transaction is gone")
		}
	})
}

// What was not acknowledged is written again by the guard: after a sync that failed it may be in memory
// alone, and no later sync would bring it to the disk.
func TestUnacknowledgedEndIsWrittenAgain(t *testing.T) {
	v := newDamagedStore(t)
	long := time.Now().Add(-time.Hour)
	for i, mark := range [][]byte{v.old, v.acked, nil} {
		v.set(t, v.log, mark)
		path := segmentPath(v.gen(), 0)
		if err := os.Chtimes(path, long, long); err != nil {
			t.Fatal(err)
		}
		n, _, err := readCurrent(v.dir)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := guard(v.dir, n, quiet().withDefaults()); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if written := info.ModTime().After(long.Add(time.Minute)); i == 0 && !written {
			t.Error("it was not written again")
		}
		if !bytes.Equal(read(t, path)[:v.to], v.log) {
			t.Error("the log has changed")
		}
	}
}

// reopenTwice opens the store, compares it, writes to it, opens it again and
// compares it once more. It returns 1 when the last transaction was there.
func (v *damagedStore) reopenTwice(t testing.TB, at int) (whole int) {
	t.Helper()
	want := v.before
	for try := range 2 {
		d, err := Open(v.dir, quiet())
		if err != nil {
			t.Fatalf("damage at byte %d, open %d: %v", at, try, err)
		}
		got := dump(t, d)
		if try == 0 && got["Meta/count"] == v.after["Meta/count"] {
			want, whole = v.after, 1
		}
		same(t, got, want)
		commit(t, d, put(store.Flows, "new", fmt.Sprint(at)), put(store.Flows, "too", ""))
		want = dump(t, d)
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return whole
}

// I1, S48: damage to what was acknowledged is never passed over in silence, and
// salvage brings over the rest.
func TestDamageToAcknowledgedData(t *testing.T) {
	v := newDamagedStore(t)
	for _, tt := range damages {
		t.Run(tt.name, func(t *testing.T) {
			for at := 0; at < int(v.to); at += 13 {
				log := tt.damage(slices.Clone(v.log), at)
				v.set(t, log, v.acked)
				if _, err := Open(v.dir, quiet()); !errors.Is(err, store.ErrCorrupt) {
					t.Fatalf("damage at byte %d of %d: err = %v, want ErrCorrupt", at, v.to, err)
				}
				if _, err := Check(v.dir); !errors.Is(err, store.ErrCorrupt) {
					t.Fatalf("damage at byte %d of %d: Check = %v, want ErrCorrupt", at, v.to, err)
				}
				if got := read(t, segmentPath(v.gen(), 0)); !bytes.Equal(got[:len(log)], log) {
					t.Fatalf("damage at byte %d: a refused open changed the log", at)
				}
			}
		})
	}
}

// Without a mark, as after a power cut, damage in the middle is still found:
// only what one transaction may have left at the end is cut.
func TestDamageInTheMiddleWithoutMark(t *testing.T) {
	v := newDamagedStore(t)
	for _, tt := range damages {
		if tt.name[0] != 'C' && tt.name[0] != 'E' {
			continue // the others take the rest of the log with them
		}
		t.Run(tt.name, func(t *testing.T) {
			for at := 0; at < int(v.from)-100; at += 11 {
				v.set(t, tt.damage(slices.Clone(v.log), at), nil)
				_, err := Open(v.dir, quiet())
				damage, ok := errors.AsType[*DamageError](err)
				if !ok {
					t.Fatalf("damage at byte %d: err = %v, want a DamageError", at, err)
				}
				if damage.File != "0.dat" || damage.From > int64(at) || damage.After < 2 || !strings.Contains(err.Error(), "store salvage") {
					t.Fatalf("damage at byte %d: %v", at, err)
				}
			}
		})
	}
}

func TestSalvage(t *testing.T) {
	v := newDamagedStore(t)
	for at := 0; at < int(v.to); at += 9 {
		log := slices.Clone(v.log)
		log[at] ^= 0x10
		v.set(t, log, v.acked)
		dst := filepath.Join(t.TempDir(), fmt.Sprint("salvaged-", at))
		r, err := Salvage(v.dir, dst)
		if err != nil {
			t.Fatalf("damage at byte %d: %v", at, err)
		}
		// One entry is hit: the others are all there, whatever its transaction.
		if r.Entries != 18 || r.Imported != 18 || len(r.Lost) != 1 || r.Transactions != 5 || r.Partial < 1 || r.Partial > 2 {
			t.Fatalf("damage at byte %d: %+v", at, r)
		}
		if lost := r.Lost[0]; lost.File != "0.dat" || int64(at) < lost.From || int64(at) >= lost.To {
			t.Fatalf("damage at byte %d: lost %+v", at, lost)
		}
		if r, err := Check(dst); err != nil || !r.Clean() {
			t.Fatalf("the salvaged store: %+v, %v", r, err)
		}
		d := open(t, dst)
		wrong := 0
		for k, val := range dump(t, d) {
			if v.after[k] != val && !strings.HasPrefix(k, "Dedup/") && k != "Meta/count" {
				t.Errorf("damage at byte %d: %s = %q was never there", at, k, val)
			}
		}
		for k, val := range v.after {
			if got, ok, err := d.Get(bucketOf(k), []byte(k[strings.Index(k, "/")+1:])); err != nil || !ok || string(got) != val {
				wrong++
			}
		}
		if wrong > 1 {
			t.Errorf("damage at byte %d: %d records lost", at, wrong)
		}
		d.Close()
		if _, err := Salvage(v.dir, dst); !errors.Is(err, os.ErrExist) {
			t.Fatalf("salvage over an existing store: %v", err)
		}
	}
}

// A sender chooses the bytes of a value: entries that it imitates in one count neither for
// damage, when its write is torn, nor for records, when it is damaged.
func TestImitatedEntriesAreNotRead(t *testing.T) {
	imitated := string(newDamagedStore(t).log)
	dir := t.TempDir()
	d := open(t, dir)
	commit(t, d, put(store.Meta, "k", "v"))
	want, mark := dump(t, d), filepath.Join(d.gen.dir, markFile)
	before := read(t, mark)
	commit(t, d, put(store.Inbox, "task", imitated))
	end, path := d.gen.pos.off, segmentPath(d.gen.dir, 0)
	commit(t, d, put(store.Meta, "later", ""))
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	log := read(t, path)
	t.Run("damaged", func(t *testing.T) {
		bad := slices.Clone(log)
		bad[end-20] ^= 1
		write(t, path, bad)
		if _, err := Open(dir, quiet()); !errors.Is(err, store.ErrCorrupt) {
			t.Fatalf("err = %v, want ErrCorrupt", err)
		}
		dst := filepath.Join(t.TempDir(), "new")
		if r, err := Salvage(dir, dst); err != nil || len(r.Lost) != 1 {
			t.Errorf("%+v, %v", r, err)
		}
		got := dump(t, open(t, dst))
		delete(got, "Meta/later")
		same(t, got, want)
	})
	t.Run("torn", func(t *testing.T) {
		torn := slices.Clone(log)
		clear(torn[end-20:])
		write(t, path, torn)
		write(t, mark, before)
		same(t, dump(t, open(t, dir)), want)
	})
}

func bucketOf(name string) store.Bucket {
	for _, b := range store.Buckets() {
		if strings.HasPrefix(name, b.String()+"/") {
			return b
		}
	}
	return 0
}

// S48: damage in every other file of a store is refused or harmless, never a
// store that is empty or older than it was.
func TestDamagedFiles(t *testing.T) {
	zero := func(b []byte) []byte { return make([]byte, len(b)) }
	flip := func(b []byte) []byte { b[len(b)/2] ^= 4; return b }
	half := func(b []byte) []byte { return b[:len(b)/2] }
	none := func([]byte) []byte { return nil }
	for _, tt := range []struct {
		name, file string
		damage     func([]byte) []byte // nil: the file is removed
		opens      bool
	}{
		{"bucket.Meta missing", "gen-000001/bucket.Meta", nil, false},
		{"bucket.Meta empty", "gen-000001/bucket.Meta", none, false},
		{"bucket.Meta cut", "gen-000001/bucket.Meta", half, false},
		{"bucket.Meta zeroed", "gen-000001/bucket.Meta", zero, false},
		{"bucket.Meta flipped", "gen-000001/bucket.Meta", flip, false},
		{"CURRENT missing", "CURRENT", nil, false},
		{"CURRENT empty", "CURRENT", none, false},
		{"CURRENT cut", "CURRENT", half, false},
		{"CURRENT flipped", "CURRENT", flip, false},
		{"log missing", "gen-000001/0.dat", nil, false},
		{"log empty", "gen-000001/0.dat", none, false},
		{"log zeroed", "gen-000001/0.dat", zero, false},
		{"mark missing", "gen-000001/.acked", nil, true},
		{"mark zeroed", "gen-000001/.acked", zero, true},
		{"mark flipped", "gen-000001/.acked", flip, true},
		{"mark cut", "gen-000001/.acked", half, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := newDamagedStore(t)
			path := filepath.Join(v.dir, filepath.FromSlash(tt.file))
			if tt.damage == nil {
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			} else {
				write(t, path, tt.damage(read(t, path)))
			}
			d, err := Open(v.dir, quiet())
			if tt.opens {
				if err != nil {
					t.Fatal(err)
				}
				same(t, dump(t, d), v.after)
				d.Close()
				return
			}
			if !errors.Is(err, store.ErrCorrupt) {
				t.Fatalf("err = %v, want ErrCorrupt", err)
			}
			if tt.file == "gen-000001/0.dat" {
				return // nothing is left to salvage
			}
			dst := filepath.Join(t.TempDir(), "new")
			if r, err := Salvage(v.dir, dst); err != nil || r.Transactions != 5 || len(r.Lost) > 0 {
				t.Fatalf("salvage: %+v, %v", r, err)
			}
			same(t, dump(t, open(t, dst)), v.after)
		})
	}
}

// A log of several segments: a segment that is missing, cut or emptied at its
// end is found without any mark, because a segment is left only when it is full.
func TestDamagedSegments(t *testing.T) {
	build := func(t *testing.T) (dir string, want map[string]string) {
		dir = filepath.Join(t.TempDir(), "store")
		d := open(t, dir)
		for i := range 90 {
			commit(t, d, put(store.Inbox, fmt.Sprint(i), strings.Repeat("x", 10_000)))
		}
		if d.gen.pos.segment != 3 {
			t.Fatalf("the log ends at %v, want 4 segments", d.gen.pos)
		}
		want = dump(t, d)
		d.Close()
		return dir, want
	}
	for _, tt := range []struct {
		name   string
		lost   []Range // what Salvage could tell
		damage func(gen string) error
	}{
		{"first missing", []Range{{File: "0.dat"}}, func(gen string) error { return os.Remove(segmentPath(gen, 0)) }},
		{"middle missing", []Range{{File: "1.dat"}}, func(gen string) error { return os.Remove(segmentPath(gen, 1)) }},
		{"middle empty", nil, func(gen string) error { return os.Truncate(segmentPath(gen, 1), 0) }},
		{"middle cut at a transaction", nil, func(gen string) error {
			return cutAfter(segmentPath(gen, 1), 10)
		}},
		{"first cut at a transaction", nil, func(gen string) error {
			return cutAfter(segmentPath(gen, 0), 25)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir, want := build(t)
			gen := genDir(dir, 1)
			if err := errors.Join(tt.damage(gen), os.Remove(filepath.Join(gen, markFile))); err != nil {
				t.Fatal(err)
			}
			if _, err := Open(dir, quiet()); !errors.Is(err, store.ErrCorrupt) {
				t.Fatalf("err = %v, want ErrCorrupt", err)
			}
			dst := filepath.Join(t.TempDir(), "new")
			r, err := Salvage(dir, dst)
			if err != nil {
				t.Fatal(err)
			}
			got := dump(t, open(t, dst))
			if r.Imported != len(got) || len(got) < 60 || len(got) >= 90 {
				t.Errorf("salvage brought over %d records: %+v", len(got), r)
			}
			if !slices.Equal(r.Lost, tt.lost) {
				t.Errorf("lost %v, want %v", r.Lost, tt.lost)
			}
			for k, val := range got {
				if want[k] != val {
					t.Errorf("%s is wrong", k)
				}
			}
		})
	}
	t.Run("an empty segment at the end is no damage", func(t *testing.T) {
		dir, want := build(t)
		write(t, segmentPath(genDir(dir, 1), 4), make([]byte, 256<<10))
		for range 2 {
			d := open(t, dir)
			same(t, dump(t, d), want)
			commit(t, d, put(store.Meta, "small", ""))
			want["Meta/small"] = ""
			d.Close()
		}
	})
}

// cutAfter cuts a segment behind its n-th entry.
func cutAfter(path string, n int) error {
	end, count := int64(0), 0
	_, err := scanDamaged(path, 0, func(off int64, e entry, _ []byte) error {
		if count++; count == n {
			end = off + e.size()
		}
		return nil
	})
	return errors.Join(err, os.Truncate(path, end))
}

// An orphan is what a program without the guard leaves: entries that were never
// committed before others that were. They are voided, and the transaction that
// follows, which NutsDB alone would swallow, is there.
func TestOrphanIsVoided(t *testing.T) {
	v := newDamagedStore(t)
	second := v.entries(t)[2:4] // without its last entry, which commits it
	var orphan []byte
	for _, p := range second {
		orphan = append(orphan, v.log[p.off:p.off+p.size()]...)
	}
	log := slices.Concat(v.log[:v.from], orphan, v.log[v.from:])
	v.set(t, log, nil)
	if r, err := Check(v.dir); err != nil || r.Orphans != 1 || r.Clean() {
		t.Fatalf("Check = %+v, %v", r, err)
	}
	for range 2 {
		d := open(t, v.dir)
		same(t, dump(t, d), v.after)
		d.Close()
	}
	if r, err := Check(v.dir); err != nil || !r.Clean() {
		t.Fatalf("Check = %+v, %v", r, err)
	}
}

// entries returns the entries of the log that are not the last of their
// transaction.
func (v *damagedStore) entries(t testing.TB) (all []locatedEntry) {
	t.Helper()
	v.set(t, v.log, v.acked)
	_, err := scanDamaged(segmentPath(v.gen(), 0), 0, func(off int64, e entry, _ []byte) error {
		if !e.committed {
			all = append(all, locatedEntry{e, position{0, off}})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// What is cut off is kept, up to a limit.
func TestQuarantine(t *testing.T) {
	v := newDamagedStore(t)
	dir := filepath.Join(v.dir, quarantineDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for i := range 30 {
		write(t, filepath.Join(dir, fmt.Sprintf("gen-000000-%d-0.bin", i)), nil)
	}
	torn := v.log[:v.to-1]
	v.set(t, torn, v.old)
	open(t, v.dir)
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != maxQuarantine {
		t.Errorf("%d files in quarantine, %v; want %d", len(files), err, maxQuarantine)
	}
	kept := read(t, filepath.Join(dir, fmt.Sprintf("gen-000001-0-%d.bin", v.from)))
	if !bytes.Equal(kept, torn[v.from:]) {
		t.Errorf("%d bytes kept, want the %d that were cut off", len(kept), len(torn)-int(v.from))
	}
}
