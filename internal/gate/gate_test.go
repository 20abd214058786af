//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestStepsHaveNamesOfTheirOwn(t *testing.T) {
	for what, steps := range map[string][]step{"the gate": gateSteps, "soak": soakSteps} {
		seen := map[string]bool{}
		for _, s := range steps {
			if s.name == "" || seen[s.name] || len(s.argv) == 0 {
				t.Errorf("%s: step %q stands twice or does nothing", what, s.name)
			}
			seen[s.name] = true
		}
	}
}

// TestEveryProcessTestIsInSoak checks that no test of real processes is left out, besides the
// measurements of make bench-net.
func TestEveryProcessTestIsInSoak(t *testing.T) {
	files, err := filepath.Glob("../../e2e/*_test.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("no tests of real processes: %v", err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for text := range strings.Lines(string(b)) {
			rest, ok := strings.CutPrefix(text, "func Test")
			name, _, _ := strings.Cut(rest, "(")
			if name = "Test" + name; !ok || name == "TestMain" || strings.HasPrefix(name, "TestBench") {
				continue
			}
			if _, err := choose(soakSteps, name); err != nil {
				t.Errorf("%s is no step of soak", name)
			}
		}
	}
}

// TestAStepOfAMissingTestFails checks that a test which is renamed, skipped or filtered
// out fails its step although the command ends well.
func TestAStepOfAMissingTestFails(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.MkdirAll(logs, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, says string
		ok         bool
	}{
		{"passed", "--- PASS: TestIt (0.00s)", true},
		{"passed among others", "--- PASS: TestOther (0.00s)\n--- PASS: TestIt (0.00s)", true},
		{"skipped", "--- SKIP: TestIt (0.00s)", false},
		{"a longer name", "--- PASS: TestItToo (0.00s)", false},
		{"not run", "testing: warning: no tests to run\nPASS", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := step{name: "it", argv: []string{"printf", tt.says}, tests: []string{"TestIt"}}.run(t.Context(), io.Discard)
			if (r.err == nil) != tt.ok {
				t.Errorf("the step says %v", r.err)
			}
		})
	}
	if r := (step{name: "it", argv: []string{"false"}}).run(t.Context(), io.Discard); r.err == nil {
		t.Error("a command that fails passes")
	}
}

func TestLedgerIsReadAsItWasWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "soak.txt")
	l, err := openLedger(path)
	if err != nil {
		t.Fatal(err)
	}
	s := step{name: "kill"}
	_, first := l.add(result{step: s, took: 90 * time.Second, counted: "3 passed; 40 kills | 2 ends"}, "abc", "nothing")
	_, second := l.add(result{step: s, err: errors.New("no")}, "abc", "2 busy loops")
	if err := errors.Join(first, second); err != nil {
		t.Fatal(err)
	}
	again, err := openLedger(path)
	if err != nil || len(again.of("kill")) != 2 || len(again.of("other")) != 0 {
		t.Fatalf("read again: %+v, %v", again, err)
	}
	for i, got := range again.lines {
		if got != l.lines[i] {
			t.Errorf("line %d is %+v, was %+v", i, got, l.lines[i])
		}
	}
	if err := os.WriteFile(path, []byte("what is this\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openLedger(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a broken ledger: %v", err)
	}
}

// TestAStepRunsAgainAfterAChange checks that a step stands until a product file that it
// covers, or a file that it reads, has changed.
func TestAStepRunsAgainAfterAChange(t *testing.T) {
	t.Chdir(t.TempDir())
	commit := repository(t)
	must(t, os.MkdirAll("r", 0o700))
	for name, text := range map[string]string{
		"go.mod":   "module m\n\ngo 1.26\n\nrequire r v0.0.0\n\nreplace r => ./r\n",
		"r/go.mod": "module r\n\ngo 1.26\n", "r/r.go": embedding("r", "r.bin"), "r/r.bin": "1", "r/notes": "1",
		"m.go": "package m\n\nimport _ \"r\"\n",
	} {
		must(t, os.WriteFile(name, []byte(text), 0o600))
	}
	first := commit("unit", "Type=simple")
	tested := commit("m_test.go", "package m\n")
	unit := commit("unit", "Type=notify")
	product := commit("m.go", "package m\n\nimport _ \"r\" // more\n")
	replaced := commit("r/r.go", embedding("r", "r.bin")+"// more\n")
	embedded := commit("r/r.bin", "2")
	noted := commit("r/notes", "2")
	plain, reads := step{covers: []string{"."}}, step{covers: []string{"."}, reads: []string{"unit"}}
	for _, tt := range []struct {
		name     string
		step     step
		from, to string
		want     bool
	}{
		{"nothing", reads, product, product, false},
		{"a test", reads, first, tested, false},
		{"a file that it reads", reads, tested, unit, true},
		{"a file that it does not read", plain, tested, unit, false},
		{"a product file", plain, unit, product, true},
		{"a product file of a replaced module", plain, product, replaced, true},
		{"an embedded file", plain, replaced, embedded, true},
		{"a file beside it", plain, embedded, noted, false},
		{"a file of a folder that it reads", step{covers: []string{"."}, reads: []string{"r"}}, embedded, noted, true},
		{"a commit that is gone", plain, "0123456789ab", product, true},
	} {
		if got, err := changed(tt.step, tt.from, tt.to); got != tt.want || err != nil {
			t.Errorf("%s: changed is %v, %v", tt.name, got, err)
		}
	}
}

// TestAStepThatStandsIsStated checks that soak writes one line for a step that it does not
// run, with the commit on which it passed, however often it is called.
func TestAStepThatStandsIsStated(t *testing.T) {
	t.Chdir(t.TempDir())
	commit := repository(t)
	must(t, errors.Join(os.MkdirAll(logs, 0o755), os.WriteFile("go.mod", []byte("module m\n"), 0o600), os.WriteFile(".gitignore", []byte("dist\n"), 0o600)))
	first := commit("m.go", "package m\n")
	later := commit("notes", "1")
	last := commit("m.go", "package m // more\n")
	const path = "dist/soak.txt"
	steps := []step{{name: "it", argv: []string{"true"}, covers: []string{"."}}}
	for _, at := range []string{first, first, later, later, last} {
		done, err := openLedger(path)
		must(t, err)
		must(t, decideDue(t.Context(), steps, done, at))
	}
	done, err := openLedger(path)
	must(t, err)
	want := []struct{ commit, verdict, says string }{{first, "pass", ""}, {later, "stands", "passed on " + first}, {last, "pass", ""}}
	if len(done.lines) != len(want) {
		t.Fatalf("%d lines, want %d: %v", len(done.lines), len(want), done.lines)
	}
	for i, l := range done.lines {
		if l.step != "it" || l.commit != want[i].commit || l.verdict != want[i].verdict || !strings.Contains(l.counted, want[i].says) {
			t.Errorf("line %d is %q", i, l)
		}
	}
	if runs := done.of("it"); len(runs) != 2 {
		t.Errorf("%d runs of the step, want 2", len(runs))
	}
}

// TestAFailedRunIsNotForgotten checks that repeat and whole fail when they are called again
// after a failed run, until the commit is another one.
func TestAFailedRunIsNotForgotten(t *testing.T) {
	for name, call := range map[string]func(s step, l *ledger, commit string) error{
		"repeat": func(s step, l *ledger, commit string) error { return rounds(t.Context(), []step{s}, 1, l, commit) },
		"whole":  func(s step, l *ledger, commit string) error { return inARow(t.Context(), s, 1, l, commit) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			must(t, os.MkdirAll(logs, 0o755))
			it := func(argv, commit string) (runs int, failed error) {
				l, err := openLedger("gate.txt")
				must(t, err)
				failed = call(step{name: "it", argv: []string{argv}}, l, commit)
				return len(l.lines), failed
			}
			for i, tt := range []struct {
				argv, commit string
				runs         int
				ok           bool
			}{{"false", "abc", 1, false}, {"true", "abc", 1, false}, {"true", "def", 2, true}} {
				if runs, err := it(tt.argv, tt.commit); runs != tt.runs || (err == nil) != tt.ok {
					t.Errorf("call %d: %d runs, %v", i, runs, err)
				}
			}
		})
	}
}

// TestRunsInSuccession checks which runs count among those of repeat.
func TestRunsInSuccession(t *testing.T) {
	run := func(commit, verdict string) line { return line{commit: commit, verdict: verdict} }
	runs := []line{run("a", "pass"), run("a", "FAIL"), run("a", "pass"), run("b", "pass"), run("c", "FAIL"), run("c", "pass")}
	for commit, want := range map[string]int{"c": 4, "d": 1} {
		if got := inSuccession(runs, commit); len(got) != want {
			t.Errorf("on %s %d runs count, want %d", commit, len(got), want)
		}
	}
}

// embedding returns the source of a package with an embedded file.
func embedding(pkg, file string) string {
	return "package " + pkg + "\n\nimport _ \"embed\"\n\n//go:embed " + file + "\nvar text string\n"
}

// repository makes the working directory a repository of git. It returns a function that
// writes a file, commits everything, and returns the id of the commit.
func repository(t *testing.T) (commit func(name, text string) string) {
	t.Helper()
	_, err := git("init", "-q")
	must(t, err)
	return func(name, text string) string {
		t.Helper()
		must(t, os.WriteFile(name, []byte(text), 0o600))
		_, added := git("add", ".")
		_, committed := git("-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "-q", "-m", "change")
		id, err := git("rev-parse", "HEAD")
		must(t, errors.Join(added, committed, err))
		return id
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestAllDueStepsAreDecided checks that steps that run in parallel are counted each.
func TestAllDueStepsAreDecided(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.MkdirAll(logs, 0o755); err != nil {
		t.Fatal(err)
	}
	var steps []step
	for i, command := range []string{"true", "false", "true", "false", "true"} {
		steps = append(steps, step{name: fmt.Sprint("step ", i), argv: []string{command}})
	}
	l, err := openLedger("soak.txt")
	if err != nil {
		t.Fatal(err)
	}
	failed, err := decideAll(t.Context(), steps, wide, l, "abc")
	if err != nil || failed != 2 || len(l.lines) != len(steps) {
		t.Errorf("%d failed, %d lines, %v; want 2 and %d", failed, len(l.lines), err, len(steps))
	}
}

func TestVerdicts(t *testing.T) {
	runs := func(verdicts ...string) (all []line) {
		for _, v := range verdicts {
			all = append(all, line{verdict: v})
		}
		return all
	}
	for _, tt := range []struct {
		name        string
		timing      bool
		runs        []line
		decided, ok bool
	}{
		{"nothing ran", false, nil, false, false},
		{"passed", false, runs("pass"), true, true},
		{"the last run counts", false, runs("pass", "FAIL"), true, false},
		{"one of a timing step", true, runs("pass"), false, false},
		{"two of a timing step", true, runs("pass", "pass"), true, true},
		{"they differ", true, runs("FAIL", "pass"), false, false},
		{"the median passes", true, runs("FAIL", "pass", "pass"), true, true},
		{"the median fails", true, runs("FAIL", "pass", "FAIL"), true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if decided, ok := verdict(step{timing: tt.timing}, tt.runs); decided != tt.decided || ok != tt.ok {
				t.Errorf("decided %v, ok %v", decided, ok)
			}
		})
	}
}

// A step that is cancelled can end what it started before it is killed: the whole gate has
// steps of its own.
func TestCancelledStepsCanEndTheirOwn(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := filepath.Join(t.TempDir(), "ended")
	s := step{name: "a step", argv: sh("trap 'touch " + ended + "; exit 1' TERM; echo started; sleep 60 & wait")}
	if _, err := execute(ctx, s, writerFunc(cancel)); err == nil {
		t.Error("no error")
	}
	if _, err := os.Stat(ended); err != nil {
		t.Error(err)
	}
}

// A writerFunc is called at each write.
type writerFunc func()

func (f writerFunc) Write(b []byte) (int, error) { f(); return len(b), nil }

// TestCounted checks the summary of a step's output: the tests that passed, or else the
// packages, and what the tests counted.
func TestCounted(t *testing.T) {
	for _, tt := range []struct{ output, want string }{
		{"--- PASS: TestA (1.00s)\n    --- PASS: TestA/x (1.00s)\nPASS\nok  \tpkg\t1.0s\n", "1 passed"},
		{"ok  \ta\t1.0s\nok  \tb\t1.0s\n", "2 passed"},
		{"    a_test.go:1: counted: 3 cuts\n    a_test.go:1: counted: 4 cuts\n--- PASS: TestA (1.00s)\n", "1 passed; 3 cuts; 4 cuts"},
		{"a: counted: 1 task\na: counted: 2 cuts\na: counted: 1 task\nok  \ta\t1.0s\n", "1 passed; 2 times: 1 task; 2 cuts"},
	} {
		if got := counted(tt.output); got != tt.want {
			t.Errorf("%q is counted as %q, want %q", tt.output, got, tt.want)
		}
	}
}
