package audit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/balefire/balefire/clock"
)

// manual is a config whose clock stands still until told otherwise.
func manual() (Config, *clock.Manual) {
	m := clock.NewManual(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	return Config{Clock: m.Clock()}, m
}

func open(t testing.TB, dir string, cfg Config) *Journal {
	t.Helper()
	j, err := Open(dir, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := j.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return j
}

func add(t testing.TB, j *Journal, task string) uint64 {
	t.Helper()
	seq, err := j.Append(t.Context(), Entry{Action: "command.start", Task: task})
	if err != nil {
		t.Fatal(err)
	}
	return seq
}

// tryAdd is add for goroutines other than the test's.
func tryAdd(t testing.TB, j *Journal, task string) uint64 {
	t.Helper()
	seq, err := j.Append(t.Context(), Entry{Action: "command.start", Task: task})
	if err != nil {
		t.Error(err)
	}
	return seq
}

// fill appends n entries, t1 to tn, and closes the journal.
func fill(t testing.TB, dir string, cfg Config, n int) {
	t.Helper()
	j, err := Open(dir, cfg)
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		add(t, j, fmt.Sprintf("t%d", i+1))
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
}

// tasks lists what Scan gives, and its error.
func tasks(dir string) (list []string, err error) {
	err = Scan(dir, func(r Record) error {
		if r.Action == repaired {
			list = append(list, "repaired")
			return nil
		}
		list = append(list, r.Task)
		return nil
	})
	return list, err
}

func wantTasks(t *testing.T, dir string, want ...string) {
	t.Helper()
	if got, err := tasks(dir); err != nil || !slices.Equal(got, want) {
		t.Errorf("scan = %v, %v, want %v", got, err, want)
	}
}

func wantSound(t *testing.T, dir string) Report {
	t.Helper()
	rep, err := Verify(dir)
	if err != nil {
		t.Error(err)
	}
	return rep
}

func TestAppendedLinesComeBackInOrder(t *testing.T) {
	dir := t.TempDir()
	cfg, clk := manual()
	j := open(t, dir, cfg)
	exit := 75
	want := Entry{
		Boot: 7, Actor: "peer-a", Action: "command.end", Task: "t1", Attempt: 2, Epoch: "4.1", ArgvHash: HashArgv([]string{"sh", "a\nb"}),
		Argv: Redact([]string{"sh", "-c", "secret"}, 2), Exit: &exit, Detail: map[string]string{"why": "line\nbreak, \"quotes\", 烽火, \x00"},
	}
	for i := range 3 {
		if seq, err := j.Append(t.Context(), want); err != nil || seq != uint64(i+1) {
			t.Fatalf("append = %d, %v, want %d", seq, err, i+1)
		}
	}
	var got []Record
	if err := Scan(dir, func(r Record) error { got = append(got, r); return nil }); err != nil {
		t.Fatal(err)
	}
	if len(got) != 3 {
		t.Fatalf("%d records, want 3", len(got))
	}
	r := got[2]
	if r.Seq != 3 || r.Hash != j.Head().Hash || !r.Time.Equal(clk.Clock().Now()) || r.Boot != 7 {
		t.Errorf("record = %+v, want number 3, the head's hash, the clock's time, boot 7", r)
	}
	if r.Argv[2] != Redacted || *r.Exit != 75 || r.Detail["why"] != want.Detail["why"] || r.ArgvHash != want.ArgvHash {
		t.Errorf("entry = %+v, want %+v", r.Entry, want)
	}
	wantSound(t, dir)
}

func TestReopenedJournalContinues(t *testing.T) {
	dir := t.TempDir()
	cfg, _ := manual()
	fill(t, dir, cfg, 2)
	j := open(t, dir, cfg)
	if len(j.repairs) > 0 {
		t.Errorf("repairs after a clean stop: %v", j.repairs)
	}
	if seq := add(t, j, "t3"); seq != 3 {
		t.Errorf("seq = %d, want 3", seq)
	}
	wantTasks(t, dir, "t1", "t2", "t3")
	if rep := wantSound(t, dir); rep.Lines != 3 || rep.Last != j.Head() {
		t.Errorf("report = %+v, want 3 lines up to the head", rep)
	}
}

func TestAppendersShareAnFsync(t *testing.T) {
	dir := t.TempDir()
	cfg, _ := manual()
	var syncs atomic.Int64
	entered, release := make(chan struct{}), make(chan struct{})
	cfg.fault = func(op string) error {
		if op == "sync" && syncs.Add(1) == 1 {
			close(entered)
			<-release
		}
		return nil
	}
	j := open(t, dir, cfg)
	const n = 200
	var wg sync.WaitGroup
	seqs := make([]uint64, n+1)
	done := make(chan struct{})
	wg.Go(func() { defer close(done); seqs[0] = tryAdd(t, j, "first") })
	select {
	case <-entered: // the first fsync runs; everybody else queues behind it
	case <-done:
		t.Fatal("the first entry is appended without an fsync")
	}
	for i := range n {
		wg.Go(func() { seqs[i+1] = tryAdd(t, j, "more") })
	}
	for queued := 0; queued < n; {
		j.mu.Lock()
		queued = len(j.queue)
		j.mu.Unlock()
	}
	close(release)
	wg.Wait()
	if got := syncs.Load(); got != 2 {
		t.Errorf("%d fsyncs for %d appends, want 2: one for the first, one for all that waited", got, n+1)
	}
	slices.Sort(seqs)
	for i, seq := range seqs {
		if seq != uint64(i+1) {
			t.Fatalf("numbers are not 1 to %d without gaps: %v", n+1, seqs)
		}
	}
	wantSound(t, dir)
}

func TestConcurrentAppendersAcrossRotations(t *testing.T) {
	dir := t.TempDir()
	cfg, _ := manual()
	cfg.MaxFile = 2000
	j := open(t, dir, cfg)
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Go(func() {
			for i := range 20 {
				tryAdd(t, j, fmt.Sprintf("%d-%d", g, i))
			}
		})
	}
	wg.Wait()
	got, err := tasks(dir)
	slices.Sort(got)
	if err != nil || len(slices.Compact(got)) != 320 {
		t.Errorf("%d different tasks, %v, want 320", len(got), err)
	}
	if rep := wantSound(t, dir); rep.Files < 3 || rep.Lines != 320 {
		t.Errorf("%d files with %d lines, want several with 320", rep.Files, rep.Lines)
	}
}

func TestGivingUpInTheQueueWritesNothing(t *testing.T) {
	dir := t.TempDir()
	cfg, _ := manual()
	entered, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	cfg.fault = func(op string) error {
		if op == "sync" {
			once.Do(func() { close(entered); <-release })
		}
		return nil
	}
	j := open(t, dir, cfg)
	var wg sync.WaitGroup
	done := make(chan struct{})
	wg.Go(func() { defer close(done); tryAdd(t, j, "t1") })
	select {
	case <-entered:
	case <-done:
		t.Fatal("the first entry is appended without an fsync")
	}
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error)
	wg.Go(func() {
		_, err := j.Append(ctx, Entry{Action: "a", Task: "given up"})
		failed <- err
	})
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) || errors.Is(err, ErrUnknown) {
		t.Errorf("err = %v, want canceled with a known outcome", err)
	}
	close(release)
	wg.Wait()
	if seq := add(t, j, "t2"); seq != 2 {
		t.Errorf("seq = %d, want 2", seq)
	}
	wantTasks(t, dir, "t1", "t2")
}

func TestFailedFsyncStopsTheJournal(t *testing.T) {
	dir := t.TempDir()
	cfg, _ := manual()
	bad := errors.New("input/output error")
	var broken atomic.Bool
	cfg.fault = func(op string) error {
		if op == "sync" && broken.Load() {
			return bad
		}
		return nil
	}
	j := open(t, dir, cfg)
	add(t, j, "t1")
	broken.Store(true)
	for range 2 {
		_, err := j.Append(t.Context(), Entry{Action: "a"})
		if !errors.Is(err, ErrFailed) || !errors.Is(err, bad) {
			t.Errorf("err = %v, want ErrFailed because of %v", err, bad)
		}
		broken.Store(false) // an fsync that works again proves nothing about the lost one
	}
	if !errors.Is(j.Err(), bad) {
		t.Errorf("Err = %v, want %v", j.Err(), bad)
	}
}

// The end of the newest file is written again when it is opened: after a sync that failed it may be in
// memory alone, and no later sync would bring it to the disk.
func TestEndIsWrittenAgain(t *testing.T) {
	dir := t.TempDir()
	cfg, _ := manual()
	j := open(t, dir, cfg)
	add(t, j, "t1")
	path := j.file.Name()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	long := time.Now().Add(-time.Hour)
	if err := os.Chtimes(path, long, long); err != nil {
		t.Fatal(err)
	}
	open(t, dir, cfg)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if !info.ModTime().After(long.Add(time.Minute)) {
		t.Errorf("written last at %v", info.ModTime())
	}
	wantSound(t, dir)
	wantTasks(t, dir, "t1")
}

// A new file that is there, but cannot be opened, as without a free descriptor, is not left:
// what fits into the old one is still written there.
func TestFileThatCannotBeOpenedIsNotLeft(t *testing.T) {
	for _, reopened := range []bool{false, true} {
		dir := t.TempDir()
		cfg, _ := manual()
		cfg.MaxFile = 1000
		var broken atomic.Bool
		cfg.fault = func(op string) error {
			if op == "begin" && broken.Load() {
				return syscall.EMFILE
			}
			return nil
		}
		j := open(t, dir, cfg)
		add(t, j, "t1")
		large := Entry{Action: "a", Task: "large", Detail: map[string]string{"text": strings.Repeat("x", 900)}}
		broken.Store(true)
		if _, err := j.Append(t.Context(), large); !errors.Is(err, syscall.EMFILE) {
			t.Fatalf("err = %v, want EMFILE", err)
		}
		broken.Store(false)
		if !reopened {
			add(t, j, "t2")
		}
		wantSound(t, dir)
		if reopened {
			if err := j.Close(); err != nil {
				t.Fatal(err)
			}
			if j = open(t, dir, cfg); len(j.repairs) > 0 {
				t.Errorf("repairs after a clean stop: %q", j.repairs)
			}
			add(t, j, "t2")
		}
		if _, err := j.Append(t.Context(), large); err != nil {
			t.Fatal(err)
		}
		wantTasks(t, dir, "t1", "t2", "large")
		wantSound(t, dir)
	}
}

// S47: a full disk refuses, and what was refused is not there later.
func TestFullDiskIsSurvived(t *testing.T) {
	dir := t.TempDir()
	cfg, _ := manual()
	cfg.MaxFile = 700
	full := errors.New("no space left on device")
	accepted := 0
	for _, op := range []string{"write", "rotate"} {
		var broken atomic.Bool
		cfg.fault = func(o string) error {
			if o == op && broken.Load() {
				return full
			}
			return nil
		}
		j := open(t, dir, cfg)
		add(t, j, "before")
		broken.Store(true)
		refused := 0
		for range 8 {
			switch _, err := j.Append(t.Context(), Entry{Action: "a", Task: "accepted"}); {
			case err == nil:
				accepted++
			case errors.Is(err, full):
				refused++
			default:
				t.Errorf("%s: %v", op, err)
			}
		}
		broken.Store(false)
		if refused == 0 || j.Err() != nil {
			t.Errorf("%s: %d refused, Err = %v; want some refused and a journal that lives", op, refused, j.Err())
		}
		add(t, j, "after")
		if err := j.Close(); err != nil {
			t.Error(err)
		}
		wantSound(t, dir)
		list, err := tasks(dir)
		found := 0
		for _, task := range list {
			if task == "accepted" {
				found++
			}
		}
		if err != nil || found != accepted {
			t.Errorf("%s: %d entries are there, %d were accepted: %v", op, found, accepted, err)
		}
	}
}

func TestAppendAfterClose(t *testing.T) {
	cfg, _ := manual()
	j := open(t, t.TempDir(), cfg)
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := j.Append(t.Context(), Entry{Action: "a"}); !errors.Is(err, ErrClosed) {
		t.Errorf("err = %v, want ErrClosed", err)
	}
}

func TestEntriesThatAreRefused(t *testing.T) {
	dir := t.TempDir()
	cfg, _ := manual()
	j := open(t, dir, cfg)
	if _, err := j.Append(t.Context(), Entry{Action: "a", Detail: map[string]string{"k": strings.Repeat("x", MaxLine)}}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("err = %v, want ErrTooLarge", err)
	}
	if _, err := j.Append(t.Context(), Entry{}); err == nil {
		t.Error("an entry without an action was taken")
	}
	largest := MaxLine - lineOverhead - len(`{"time":"2026-01-01T00:00:00Z","action":"a","task":""}`)
	if _, err := j.Append(t.Context(), Entry{Action: "a", Task: strings.Repeat("x", largest)}); err != nil {
		t.Errorf("the largest entry was refused: %v", err)
	}
	if got, err := tasks(dir); err != nil || len(got) != 1 {
		t.Errorf("%d records, %v, want the largest one alone", len(got), err)
	}
	wantSound(t, dir)
}

func TestOldFilesAreRemovedByAge(t *testing.T) {
	dir := t.TempDir()
	cfg, clk := manual()
	cfg.MaxFile, cfg.Keep = 500, 10*24*time.Hour
	j := open(t, dir, cfg)
	for i := range 60 {
		add(t, j, fmt.Sprintf("t%d", i+1))
		clk.Advance(24 * time.Hour)
	}
	rep := wantSound(t, dir)
	if rep.Before.Seq == 0 || rep.Last.Seq != 60 {
		t.Fatalf("report = %+v, want old lines gone and 60 the last", rep)
	}
	var oldest time.Time
	got := 0
	if err := Scan(dir, func(r Record) error {
		if got++; oldest.IsZero() {
			oldest = r.Time
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if age := clk.Clock().Now().Sub(oldest); age < cfg.Keep || age > 2*cfg.Keep {
		t.Errorf("oldest line is %v old, want about %v", age, cfg.Keep)
	}
	if got < 10 {
		t.Errorf("%d lines are left, want those of 10 days", got)
	}
	// One more file that goes is not excused by age.
	names, err := files(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, names[0])); err != nil {
		t.Fatal(err)
	}
	if _, err := Verify(dir); !errors.Is(err, ErrBroken) {
		t.Errorf("err = %v, want ErrBroken: the oldest file is missing", err)
	}
}

// I14: a wall clock that jumps ahead does not empty the record.
func TestClockJumpRemovesFewFiles(t *testing.T) {
	dir := t.TempDir()
	cfg, clk := manual()
	cfg.MaxFile = 500
	j := open(t, dir, cfg)
	for i := range 40 {
		add(t, j, fmt.Sprintf("t%d", i+1))
	}
	before := wantSound(t, dir).Files
	clk.Advance(50 * 365 * 24 * time.Hour)
	add(t, j, "from the future")
	clk.SetWall(time.Date(2026, 1, 1, 1, 0, 0, 0, time.UTC))
	for range 10 {
		add(t, j, "back again")
	}
	if rep := wantSound(t, dir); rep.Files < before-maxDrops {
		t.Errorf("%d files of %d are left, want at most %d gone", rep.Files, before, maxDrops)
	}
}

// I14: while the wall clock is doubted no file is removed, however old it seems.
func TestDoubtedClockRemovesNoFile(t *testing.T) {
	dir := t.TempDir()
	cfg, clk := manual()
	cfg.MaxFile = 500
	j := open(t, dir, cfg)
	for i := range 40 {
		add(t, j, fmt.Sprintf("t%d", i+1))
	}
	before := wantSound(t, dir).Files
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	day := clk.Clock().Now()
	clk.Advance(50 * 365 * 24 * time.Hour)
	guard := clock.NewGuard(clk.Clock())
	guard.Bound(day, day, day.AddDate(1, 0, 0))
	cfg.Clock = guard.Clock()
	j = open(t, dir, cfg)
	for range 10 {
		add(t, j, "from the future")
	}
	if rep := wantSound(t, dir); !cfg.Clock.Doubted() || rep.Files < before {
		t.Errorf("doubted %v: %d files of %d are left", cfg.Clock.Doubted(), rep.Files, before)
	}
	clk.Advance(clock.BelieveAnyway)
	for range 10 {
		add(t, j, "it was right")
	}
	if rep := wantSound(t, dir); cfg.Clock.Doubted() || rep.Before.Seq == 0 {
		t.Errorf("doubted %v: no file was removed", cfg.Clock.Doubted())
	}
}

// S52: the files of seven days of entries never take more than the entries of the time for
// which they are kept, a day here, and two files: the current one, and one that also has
// newer entries than its oldest.
func TestSevenDaysTakeBoundedSpace(t *testing.T) {
	dir := t.TempDir()
	cfg, clk := manual()
	cfg.MaxFile, cfg.Keep = 4<<10, 24*time.Hour
	j := open(t, dir, cfg)
	const perDay = 96
	var oneDay int64
	for i := range 7 * perDay {
		add(t, j, fmt.Sprintf("task %3d", i))
		clk.Advance(cfg.Keep / perDay)
		size := folderSize(t, dir)
		if i < perDay {
			oneDay = size
		}
		if limit := oneDay + 2*cfg.MaxFile; size > limit {
			t.Fatalf("%d bytes after %d entries, with %d in a day: the limit is %d", size, i+1, oneDay, limit)
		}
	}
	if rep := wantSound(t, dir); rep.Last.Seq != 7*perDay || rep.Before.Seq < 5*perDay-10 || rep.Before.Seq > 6*perDay {
		t.Errorf("%+v, want the entries of the last day or two", rep)
	}
}

// folderSize returns how many bytes the files of a folder have.
func folderSize(t *testing.T, dir string) (size int64) {
	t.Helper()
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		size += info.Size()
	}
	return size
}

func TestQuietJournalStillRotates(t *testing.T) {
	dir := t.TempDir()
	cfg, clk := manual()
	j := open(t, dir, cfg)
	for range 10 {
		add(t, j, "rare")
		clk.Advance(60 * 24 * time.Hour)
	}
	if rep := wantSound(t, dir); rep.Before.Seq == 0 || rep.Files < 2 {
		t.Errorf("report = %+v, want a rare line each two months to leave in time too", rep)
	}
}

func TestHashArgvSeparatesArguments(t *testing.T) {
	if HashArgv([]string{"a", "bc"}) == HashArgv([]string{"ab", "c"}) {
		t.Error("two different command lines have one hash")
	}
}

func BenchmarkAppend(b *testing.B) {
	j := open(b, b.TempDir(), Config{})
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := j.Append(b.Context(), Entry{Action: "command.start", Task: "0198"}); err != nil {
				b.Error(err)
			}
		}
	})
}

// What a command did and a script in the configuration can be longer than a line: their
// beginning is recorded, instead of nothing.
func TestLongTextsAreCut(t *testing.T) {
	dir := t.TempDir()
	cfg, _ := manual()
	j := open(t, dir, cfg)
	long := strings.Repeat("<烽", MaxLine/4) // JSON needs six bytes for the first rune
	r := Recorder{Journal: j, Boot: func() uint64 { return 7 }}
	act, end, err := r.StartCommand(t.Context(), "mesh.prune", "/v1/"+long)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Record(act, "mesh.prune", long); err != nil {
		t.Fatal(err)
	}
	if err := end("ok"); err != nil {
		t.Errorf("end: %v", err)
	}
	argv := append([]string{"sh", "-c", long}, slices.Repeat([]string{long}, 10_000)...)
	if _, err := j.Append(t.Context(), Entry{Action: "command.start", Argv: Redact(argv, 10_003)}); err != nil {
		t.Errorf("a script: %v", err)
	}
	var got []Record
	if err := Scan(dir, func(r Record) error { got = append(got, r); return nil }); err != nil || len(got) != 3 {
		t.Fatalf("%d records: %v", len(got), err)
	}
	cut := fmt.Sprintf("… (%d bytes)", len(long))
	if did := got[1].Detail["did"]; got[1].Detail["result"] != "ok" || !strings.HasPrefix(did, "<烽<烽") || !utf8.ValidString(got[2].Argv[2]) || !strings.HasSuffix(did, cut) {
		t.Errorf("what was done: %d bytes, %.60q; result %q", len(did), did, got[1].Detail["result"])
	}
	if a := got[2].Argv; len(a) != 4 || a[1] != "-c" || !strings.HasSuffix(a[2], cut) || a[3] != "… (10000 more words)" {
		t.Errorf("argv is %.60q", a)
	}
}
