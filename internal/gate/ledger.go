//go:build linux

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
)

// A line is one run of a step, as written to dist/soak.txt and dist/gate.txt.
type line struct {
	step       string
	commit     string
	seconds    int
	background string // background load: nothing, or busy loops
	load       string // load average of the machine at the end
	counted    string
	verdict    string // pass or FAIL
}

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

// add appends a line and returns it.
func (l *ledger) add(r result, commit, background string) (line, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	added := line{r.step.name, commit, int(r.took.Seconds()), background, load(), strings.ReplaceAll(r.counted, " | ", " / "), r.verdict()}
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
		if got.step == name {
			all = append(all, got)
		}
	}
	return all
}

// head returns the commit that is checked out. Steps are only counted for a tree without
// changes.
func head() (string, error) {
	out, err := git("status", "--porcelain")
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

// covered returns the folders of the module whose product files a step tests.
func covered(s step) ([]string, error) {
	args := append([]string{"list", "-deps", "-f", "{{with .Module}}{{if .Main}}{{$.Dir}}{{end}}{{end}}"}, s.covers...)
	out, err := exec.Command("go", args...).Output()
	if err != nil {
		return nil, fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
	}
	return strings.Fields(string(out)), nil
}

// changed reports whether a product file that the step covers differs between two commits;
// an unknown commit counts as different.
func changed(s step, from, to string) (bool, error) {
	if from == to {
		return false, nil
	}
	if _, err := git("rev-parse", "--quiet", "--verify", from+"^{commit}"); err != nil {
		return true, nil //nolint:nilerr // the history was rewritten: the run counts for nothing
	}
	dirs, err := covered(s)
	if err != nil {
		return false, err
	}
	args := []string{"diff", "--name-only", from, to, "--", "go.mod", "go.sum"}
	for _, d := range dirs {
		args = append(args, ":(glob)"+strings.TrimPrefix(d, root()+"/")+"/*.go")
	}
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

// root returns the folder of the module, in which the gate runs.
func root() string {
	dir, err := os.Getwd()
	if err != nil {
		return "."
	}
	return dir
}
