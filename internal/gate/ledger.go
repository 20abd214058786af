//go:build linux

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// A line is one run of a step, as written to dist/soak.txt and dist/gate.txt, or states that
// an earlier run stands for a commit.
type line struct {
	step       string
	commit     string
	seconds    int
	background string // background load: nothing, or busy loops
	load       string // load average of the machine at the end
	counted    string
	verdict    string // pass, FAIL or stands
}

const stands = "stands"

const columns = 7

func (l line) String() string {
	return strings.Join([]string{l.step, l.commit, strconv.Itoa(l.seconds) + " s", l.background, "load " + l.load, l.counted, l.verdict}, " | ")
}

func parse(text string) (line, error) {
	f := strings.Split(text, " | ")
	if len(f) != columns {
		return line{}, fmt.Errorf("%d columns, want %d: %q", len(f), columns, text)
	}
	seconds, err := strconv.Atoi(strings.TrimSuffix(f[2], " s"))
	if err != nil {
		return line{}, fmt.Errorf("seconds: %w", err)
	}
	return line{f[0], f[1], seconds, f[3], strings.TrimPrefix(f[4], "load "), f[5], f[6]}, nil
}

// A ledger is a file of lines, one for each run. Its methods may be called concurrently.
type ledger struct {
	path string

	mu    sync.Mutex
	lines []line
}

func openLedger(path string) (*ledger, error) {
	l := &ledger{path: path}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		got, err := parse(s.Text())
		if err != nil {
			return nil, fmt.Errorf("read %s: %w; remove the file to begin again", path, err)
		}
		l.lines = append(l.lines, got)
	}
	return l, nil
}

// add appends the line of a run and returns it.
func (l *ledger) add(r result, commit, background string) (line, error) {
	return l.append(line{r.step.name, commit, int(r.took.Seconds()), background, load(), strings.ReplaceAll(r.counted, " | ", " / "), r.verdict()})
}

// stand returns the line which states that an earlier run stands for a commit. It appends it
// unless the ledger has a line of the step for this commit.
func (l *ledger) stand(earlier line, commit string) (line, error) {
	said := line{earlier.step, commit, 0, "not run", load(), "no file that it covers has changed since it passed on " + earlier.commit, stands}
	l.mu.Lock()
	known := slices.ContainsFunc(l.lines, func(x line) bool { return x.step == said.step && x.commit == commit })
	l.mu.Unlock()
	if known {
		return said, nil
	}
	return l.append(said)
}

func (l *ledger) append(added line) (line, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f, err := os.OpenFile(l.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return line{}, err
	}
	if _, err := fmt.Fprintln(f, added); err != nil {
		f.Close()
		return line{}, err
	}
	l.lines = append(l.lines, added)
	return added, f.Close()
}

// of returns the runs of a step.
func (l *ledger) of(name string) (all []line) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, got := range l.lines {
		if got.step == name && got.verdict != stands {
			all = append(all, got)
		}
	}
	return all
}

// judge returns an error if a run of these steps on the commit has failed.
func (l *ledger) judge(steps []step, commit string) error {
	failed := 0
	for _, s := range steps {
		for _, r := range runsOn(l.of(s.name), commit) {
			if r.verdict != "pass" {
				failed++
			}
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d runs on %s failed: see %s", failed, commit, l.path)
	}
	return nil
}

// head returns the commit that is checked out. Steps are only counted for a tree without
// changes other than the ledgers, which are in the repository: runs stand in later clones.
func head() (string, error) {
	out, err := git("status", "--porcelain", "--", ".", ":(exclude)dist")
	if err != nil {
		return "", err
	}
	if out != "" {
		return "", fmt.Errorf("the tree has uncommitted changes: a run would be counted for the wrong commit\n%s", out)
	}
	return git("rev-parse", "--short=12", "HEAD")
}

func git(args ...string) (string, error) {
	out, err := exec.Command("git", args...).Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}

// covered returns patterns of git for the product files that a step tests: the Go files and
// the embedded ones of the packages that it covers and of their imports, as far as they are
// in this repository.
func covered(s step) (patterns []string, err error) {
	root, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	const files = "{{with .Module}}{{if or .Main .Replace}}{{$.Dir}}/*.go{{range $.EmbedFiles}}\n{{$.Dir}}/{{.}}{{end}}{{end}}{{end}}"
	args := append([]string{"list", "-deps", "-f", files}, s.covers...)
	out, err := exec.Command("go", args...).Output()
	if err != nil {
		return nil, fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
	}
	for _, file := range strings.Fields(string(out)) {
		if path, ok := strings.CutPrefix(file, root+"/"); ok {
			patterns = append(patterns, ":(glob)"+path)
		}
	}
	return patterns, nil
}

// changed reports whether a file that the step covers or reads differs between two commits;
// an unknown commit counts as different.
func changed(s step, from, to string) (bool, error) {
	if from == to {
		return false, nil
	}
	if _, err := git("rev-parse", "--quiet", "--verify", from+"^{commit}"); err != nil {
		return true, nil //nolint:nilerr // the history was rewritten: the run counts for nothing
	}
	product, err := covered(s)
	if err != nil {
		return false, err
	}
	args := slices.Concat([]string{"diff", "--name-only", from, to, "--", "go.mod", "go.sum"}, s.reads, product)
	out, err := git(args...)
	if err != nil {
		return false, err
	}
	for name := range strings.Lines(out) {
		if !strings.HasSuffix(strings.TrimSpace(name), "_test.go") {
			return true, nil
		}
	}
	return false, nil
}
