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

// TestEveryProcessTestIsInSoak checks that no test of real processes is left out.
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
			if name = "Test" + name; !ok || name == "TestMain" {
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

// TestAllDueStepsAreDecided checks that steps which run beside each other are counted each.
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
