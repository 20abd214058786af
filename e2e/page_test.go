//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// fenceRE finds the code of a page: the name of a file before it, if it is one, its
// language and its text.
var fenceRE = regexp.MustCompile("(?ms)(?:^<!-- file: ([a-z0-9_.-]+) -->\n)?^```([a-z]+)\n(.*?)^```$")

// A typed line is a command of a page and what the page says that it prints.
type typed struct{ command, want string }

// typePage writes the files of a page into a fresh folder, types what stands behind $ in
// its console blocks into one shell, line by line, and compares what is printed there
// with what the page shows. An ellipsis in the page stands for anything.
func typePage(t *testing.T, page string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	dir := shortDir(t)
	var lines []typed
	for _, m := range fenceRE.FindAllStringSubmatch(string(text), -1) {
		switch file, language, code := m[1], m[2], m[3]; {
		case file != "":
			if err := os.WriteFile(filepath.Join(dir, file), []byte(code), 0o600); err != nil {
				t.Fatal(err)
			}
		case language == "console":
			for line := range strings.Lines(code) {
				if command, ok := strings.CutPrefix(line, "$ "); ok {
					lines = append(lines, typed{command: command})
				} else if len(lines) > 0 {
					lines[len(lines)-1].want += line
				}
			}
		}
	}
	if len(lines) == 0 {
		t.Fatalf("%s has nothing to type", page)
	}
	for i, got := range typeLines(t, dir, lines) {
		var pattern strings.Builder
		for n, part := range strings.Split(lines[i].want, "…") {
			if n > 0 {
				pattern.WriteString(".*")
			}
			pattern.WriteString(regexp.QuoteMeta(part))
		}
		if !regexp.MustCompile("^" + pattern.String() + "$").MatchString(got) {
			t.Errorf("%s\n$ %sprints\n%sthe page shows\n%s", page, lines[i].command, got, lines[i].want)
		}
	}
}

// typeLines types all lines into one shell in dir and returns what each has printed.
func typeLines(t *testing.T, dir string, lines []typed) (out []string) {
	t.Helper()
	const mark = "== line %d of the page is done ==\n"
	var script strings.Builder
	script.WriteString("trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT\n")
	for i, l := range lines {
		script.WriteString(l.command)
		fmt.Fprintf(&script, "printf '%s'\n", fmt.Sprintf(strings.ReplaceAll(mark, "\n", `\n`), i))
	}
	path := filepath.Join(dir, ".typed")
	if err := os.WriteFile(path, []byte(script.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	bash := exec.CommandContext(t.Context(), "bash", path)
	bash.Dir, bash.WaitDelay = dir, 10*time.Second
	bash.Env = append(os.Environ(), "PATH="+filepath.Dir(nodeBinary)+":"+os.Getenv("PATH"), "BALEFIRE_STORE_SEGMENT=4MiB")
	all, err := bash.CombinedOutput()
	if err != nil {
		t.Errorf("the shell ended with %v", err)
	}
	rest := string(all)
	for i := range lines {
		got, after, ok := strings.Cut(rest, fmt.Sprintf(mark, i))
		if !ok {
			t.Fatalf("$ %sdid not end; it printed\n%s", lines[i].command, rest)
		}
		out, rest = append(out, got), after
	}
	return out
}

// What the page about handlers says is so: its programs run, and print what it shows.
func TestHandlersPage(t *testing.T) { typePage(t, "../docs/handlers.md") }
