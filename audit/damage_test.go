package audit

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// A tree is the content of a journal's directory.
type tree map[string][]byte

func readTree(t testing.TB, dir string) tree {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := make(tree)
	for _, e := range list {
		if out[e.Name()], err = os.ReadFile(filepath.Join(dir, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func (tr tree) write(t testing.TB, dir string) {
	t.Helper()
	for name, b := range tr {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func (tr tree) names() []string {
	var out []string
	for name := range tr {
		if _, ok := firstOf(name); ok {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// threeFiles returns a journal of six lines in three files, and its last head.
func threeFiles(t testing.TB) (tree, Head) {
	t.Helper()
	dir := t.TempDir()
	cfg, _ := manual()
	cfg.MaxFile = 600
	j, err := Open(dir, cfg)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 6 {
		add(t, j, fmt.Sprintf("t%d", i+1))
	}
	head := j.Head()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	tr := readTree(t, dir)
	if len(tr.names()) != 3 {
		t.Fatalf("files = %v, want 3", tr.names())
	}
	return tr, head
}

// I19, S48: a flipped bit in any byte of the record is found. One bit of each byte is
// flipped, another one from byte to byte.
func TestAFlipInEachByteIsFound(t *testing.T) {
	tr, _ := threeFiles(t)
	dir := t.TempDir()
	for name, b := range tr {
		tr.write(t, dir)
		for i := range b {
			flipped := bytes.Clone(b)
			flipped[i] ^= 1 << (i % 8)
			if err := os.WriteFile(filepath.Join(dir, name), flipped, 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := Verify(dir); !errors.Is(err, ErrBroken) {
				t.Fatalf("%s: byte %d changed from %q to %q: Verify = %v", name, i, b[i], flipped[i], err)
			}
		}
	}
}

// I19: lines that were taken, moved, added or doubled, and files likewise.
func TestEveryChangeOfLinesIsFound(t *testing.T) {
	tr, head := threeFiles(t)
	names := tr.names()
	lines := func(name string) [][]byte { return bytes.SplitAfter(bytes.TrimSuffix(tr[name], nil), []byte("\n")) }
	type change struct {
		what string
		file string
		with []byte // nil: the file is removed
	}
	var changes []change
	for _, name := range names {
		ls := lines(name)
		ls = ls[:len(ls)-1] // behind the last newline is nothing
		for i := range ls {
			changes = append(changes,
				change{fmt.Sprintf("line %d deleted", i+1), name, bytes.Join(slices.Delete(slices.Clone(ls), i, i+1), nil)},
				change{fmt.Sprintf("line %d doubled", i+1), name, bytes.Join(slices.Insert(slices.Clone(ls), i, ls[i]), nil)},
				change{fmt.Sprintf("empty line before %d", i+1), name, bytes.Join(slices.Insert(slices.Clone(ls), i, []byte("\n")), nil)},
				change{fmt.Sprintf("cut before line %d", i+1), name, append([]byte{}, bytes.Join(ls[:i], nil)...)})
			if i+1 < len(ls) {
				swapped := slices.Clone(ls)
				swapped[i], swapped[i+1] = swapped[i+1], swapped[i]
				changes = append(changes, change{fmt.Sprintf("lines %d and %d swapped", i+1, i+2), name, bytes.Join(swapped, nil)})
			}
		}
		changes = append(changes, change{"file removed", name, nil}, change{"file emptied", name, []byte{}})
	}
	changes = append(changes,
		change{"HEAD removed", headName, nil},
		change{"file put in another's place", names[1], tr[names[2]]},
		change{"file added", fileName(99), tr[names[2]]})
	for _, c := range changes {
		t.Run(strings.ReplaceAll(c.what, " ", "-")+"/"+c.file, func(t *testing.T) {
			dir := t.TempDir()
			tr.write(t, dir)
			path := filepath.Join(dir, c.file)
			if c.with == nil {
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			} else if err := os.WriteFile(path, c.with, 0o600); err != nil {
				t.Fatal(err)
			}
			rep, err := Verify(dir)
			if !errors.Is(err, ErrBroken) || len(rep.Breaches) == 0 {
				t.Fatalf("Verify = %v, want ErrBroken", err)
			}
			mustGoOn(t, dir, head)
		})
	}
}

// mustGoOn opens a damaged journal twice and adds to it. No number may be given
// twice, and the damage must stay known: to Verify, or in the record itself.
func mustGoOn(t *testing.T, dir string, head Head) {
	t.Helper()
	cfg, _ := manual()
	for range 2 {
		j, err := Open(dir, cfg)
		if err != nil {
			t.Fatal(err)
		}
		seq := add(t, j, "later")
		if seq <= head.Seq {
			t.Errorf("number %d was given twice", seq)
		}
		head = j.Head()
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	}
	list, _ := tasks(dir)
	if _, err := Verify(dir, head); !errors.Is(err, ErrBroken) && !slices.Contains(list, "repaired") {
		t.Errorf("after the repair nothing tells of it: Verify = %v", err)
	}
	if got := len(slices.DeleteFunc(list, func(s string) bool { return s != "later" })); got != 2 {
		t.Errorf("%d of the 2 later lines can be read", got)
	}
}

// I19: a rewritten chain is sound by itself: only a head kept elsewhere tells.
func TestKnownHeadFindsARewrittenRecord(t *testing.T) {
	_, head := threeFiles(t)
	dir := t.TempDir()
	cfg, _ := manual()
	fill(t, dir, cfg, 6) // other file sizes, so another chain
	j, err := Open(dir, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := j.Append(t.Context(), Entry{Action: "forged"}); err != nil {
		t.Fatal(err)
	}
	own := j.Head()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Verify(dir, own); err != nil {
		t.Errorf("the record's own head is not in it: %v", err)
	}
	forged := Head{Seq: 3, Hash: head.Hash}
	if _, err := Verify(dir, own, forged); !errors.Is(err, ErrBroken) {
		t.Errorf("err = %v, want ErrBroken: line 3 is another one", err)
	}
	if _, err := Verify(dir, Head{Seq: 8, Hash: head.Hash}); !errors.Is(err, ErrBroken) {
		t.Errorf("err = %v, want ErrBroken: line 8 is known elsewhere and is not here", err)
	}
	if _, err := Verify(t.TempDir(), head); !errors.Is(err, ErrBroken) {
		t.Errorf("err = %v, want ErrBroken: everything was removed", err)
	}
}

// I19: a record that begins behind each known head, as one does of which old files were removed,
// may be another one, and is not called sound.
func TestKnownHeadsThatAreTooOldProveNothing(t *testing.T) {
	tr, head := threeFiles(t)
	dir := t.TempDir()
	tr.write(t, dir)
	var at [3]Head // before each file
	for i, name := range tr.names() {
		first, err := readHeader(dir, name)
		if err != nil {
			t.Fatal(err)
		}
		if at[i] = first.before(); i < 2 {
			err = os.Remove(filepath.Join(dir, name))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	old, h := at[1], heads{Base: at[2], Last: head}
	b, err := h.encode()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, headName), b, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name  string
		known []Head
		want  error
	}{
		{"none", nil, nil},
		{"older than what is kept", []Head{old}, ErrUnproven},
		{"the one before the first line that is kept", []Head{h.Base}, nil},
		{"one that is older and the newest one", []Head{old, head}, nil},
		{"one that is older and a wrong one", []Head{old, {Seq: head.Seq, Hash: old.Hash}}, ErrBroken},
	} {
		if rep, err := Verify(dir, tt.known...); !errors.Is(err, tt.want) || rep.Sound != (err == nil) {
			t.Errorf("%s: err = %v, sound %v, want %v", tt.name, err, rep.Sound, tt.want)
		}
	}
}

// I8, S01, S48: a crash at any byte of a write loses nothing that was
// acknowledged, and the record is whole again after it, also after the next start.
func TestTornWriteIsCutOffAndReported(t *testing.T) {
	cfg, _ := manual()
	dir := t.TempDir()
	fill(t, dir, cfg, 3)
	before := readTree(t, dir)
	fill2(t, dir, cfg, "torn")
	after := readTree(t, dir)
	name := before.names()[0]
	whole, durable := after[name], len(before[name])
	for cut := durable + 1; cut <= len(whole); cut++ {
		for _, tail := range [][]byte{whole[durable:cut], bytes.Repeat([]byte{0}, cut-durable)} {
			dir := t.TempDir()
			before.write(t, dir) // HEAD as it was before the write
			torn := append(bytes.Clone(whole[:durable]), tail...)
			if err := os.WriteFile(filepath.Join(dir, name), torn, 0o600); err != nil {
				t.Fatal(err)
			}
			checkTorn(t, dir, cfg, cut == len(whole) && tail[0] != 0)
			if t.Failed() {
				t.Fatalf("cut at %d of %d, tail %.20q", cut, len(whole), tail)
			}
		}
	}
}

func fill2(t testing.TB, dir string, cfg Config, task string) {
	t.Helper()
	j, err := Open(dir, cfg)
	if err != nil {
		t.Fatal(err)
	}
	add(t, j, task)
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
}

// checkTorn opens the journal in dir, whose fourth line is unfinished unless complete.
func checkTorn(t *testing.T, dir string, cfg Config, complete bool) {
	t.Helper()
	rep, err := Verify(dir)
	if err != nil || (rep.Torn == 0) != complete {
		t.Errorf("Verify before Open = %d torn bytes, %v, want an unfinished write to be no breach", rep.Torn, err)
	}
	fill2(t, dir, cfg, "t4")
	fill2(t, dir, cfg, "t5")
	want := []string{"t1", "t2", "t3", "repaired", "t4", "t5"}
	if complete {
		want[3] = "torn" // the write had happened, only nobody was told
	}
	wantTasks(t, dir, want...)
	wantSound(t, dir)
	if kept, err := filepath.Glob(filepath.Join(dir, "*.torn-*")); err != nil || (len(kept) == 0) != complete {
		t.Errorf("kept = %v, %v, want what was cut off", kept, err)
	}
}

// S48: a bit flip in the newest file leaves all other lines where they are.
func TestDamageIsKeptAndTheRecordContinues(t *testing.T) {
	tr, head := threeFiles(t)
	name := tr.names()[2]
	for i := range tr[name] {
		if i%7 != 0 {
			continue
		}
		dir := t.TempDir()
		tr.write(t, dir)
		b := bytes.Clone(tr[name])
		b[i] ^= 0x10
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
		cfg, _ := manual()
		j := open(t, dir, cfg)
		if len(j.repairs) != 1 {
			t.Fatalf("repairs = %q, want one", j.repairs)
		}
		if seq := add(t, j, "next"); seq != head.Seq+2 {
			t.Fatalf("byte %d: seq = %d, want %d, behind the line that tells of the damage", i, seq, head.Seq+2)
		}
		list, _ := tasks(dir)
		if len(list) < 7 { // at most one of the six is lost
			t.Fatalf("byte %d: only %v can be read", i, list)
		}
		if _, err := Verify(dir); !errors.Is(err, ErrBroken) {
			t.Fatalf("byte %d: Verify = %v, want the damage to stay visible", i, err)
		}
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !bytes.Equal(got, b) {
			t.Fatalf("the damaged file was touched: %v", err)
		}
	}
}

func TestLostHeadIsRebuilt(t *testing.T) {
	for what, content := range map[string][]byte{"missing": nil, "empty": {}, "garbage": bytes.Repeat([]byte("x"), headSize)} {
		t.Run(what, func(t *testing.T) {
			tr, head := threeFiles(t)
			dir := t.TempDir()
			delete(tr, headName)
			if content != nil {
				tr[headName] = content
			}
			tr.write(t, dir)
			cfg, _ := manual()
			j := open(t, dir, cfg)
			if j.Head() != head || len(j.repairs) != 1 {
				t.Errorf("head = %v, repairs %q, want %v and one", j.Head(), j.repairs, head)
			}
			add(t, j, "t7")
			wantTasks(t, dir, "t1", "t2", "t3", "t4", "t5", "t6", "repaired", "t7")
			wantSound(t, dir)
		})
	}
}

func TestVerifyWhileAppending(t *testing.T) {
	dir := t.TempDir()
	cfg, _ := manual()
	cfg.MaxFile = 5000
	j := open(t, dir, cfg)
	add(t, j, "t1")
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 300 {
			if tryAdd(t, j, "more") == 0 {
				return
			}
		}
	}()
	defer func() { <-done }()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		if _, err := Verify(dir); err != nil {
			t.Fatal(err)
		}
	}
}

// A file that is removed by age while Verify has read HEAD, but not yet the files, is not
// missing.
func TestVerifyWhileAFileIsRemoved(t *testing.T) {
	dir := t.TempDir()
	cfg, clk := manual()
	cfg.MaxFile, cfg.Keep = 300, time.Hour
	j := open(t, dir, cfg)
	add(t, j, "t1")
	add(t, j, "t2")
	before, err := readHeads(dir)
	if err != nil {
		t.Fatal(err)
	}
	for range 4 {
		clk.Advance(cfg.Keep)
		add(t, j, "later")
	}
	if now, err := readHeads(dir); err != nil || now.Base == before.Base {
		t.Fatalf("no file was removed: HEAD is %v, %v", now, err)
	}
	if rep, err := verifyFiles(dir, nil, before, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%+v, %v; want a file that does not exist, and so another try", rep, err)
	}
	wantSound(t, dir)
}

// Nothing but what was written is taken for it.
func FuzzScanLines(f *testing.F) {
	tr, _ := threeFiles(f)
	name := tr.names()[0]
	whole, err := scanLines(bytes.NewReader(tr[name]), name, Head{}, func(Head) {})
	if err != nil || len(whole.bad) > 0 {
		f.Fatal(err, whole.bad)
	}
	f.Add(tr[name])
	f.Add(tr[name][:len(tr[name])-9])
	f.Add(bytes.Repeat([]byte{0}, MaxLine*3))
	f.Fuzz(func(t *testing.T, b []byte) {
		w, err := scanLines(bytes.NewReader(b), name, Head{}, func(Head) {})
		if err != nil {
			t.Fatal(err)
		}
		if w.size != int64(len(b)) || w.cut > w.size {
			t.Errorf("size %d, sound up to %d, of %d bytes", w.size, w.cut, len(b))
		}
		if len(w.bad) == 0 && w.end == whole.end && !bytes.Equal(b, tr[name]) {
			t.Errorf("%q was taken for the file that was written", b)
		}
	})
}

// Whatever stands in the newest file, the journal opens and goes on.
func FuzzOpen(f *testing.F) {
	tr, head := threeFiles(f)
	name := tr.names()[0]
	f.Add(tr[name])
	f.Add(tr[name][:len(tr[name])-9])
	f.Add([]byte("{\"journal\":1\n\n"))
	f.Add(bytes.Repeat([]byte{0}, 100))
	f.Fuzz(func(t *testing.T, b []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
		if rep, err := Verify(dir, head); err == nil {
			t.Fatalf("Verify took %q for a whole journal: %+v", b, rep)
		}
		cfg, _ := manual()
		j, err := Open(dir, cfg)
		if err != nil {
			t.Fatalf("open: %v", err)
		}
		seq, err := j.Append(t.Context(), Entry{Action: "after", Task: "x"})
		if err := errors.Join(err, j.Close()); err != nil {
			t.Fatal(err)
		}
		found := false
		_ = Scan(dir, func(r Record) error {
			found = found || (r.Seq == seq && r.Task == "x")
			return nil
		})
		if !found {
			t.Fatalf("line %d cannot be read back", seq)
		}
	})
}

func FuzzDecodeHeads(f *testing.F) {
	b, err := heads{Base: Head{Seq: 3}, Last: Head{Seq: 9, Hash: Hash{1}}}.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := decodeHeads(b)
		if err != nil {
			return
		}
		if again, err := h.encode(); err != nil || !bytes.Equal(again, b) {
			t.Errorf("%q decodes to what encodes to %q, %v", b, again, err)
		}
	})
}
