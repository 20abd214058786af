//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// fenceRE matches a code block of a page: the preceding file name, if there is one, its
// language and its text.
var fenceRE = regexp.MustCompile("(?ms)(?:^<!-- file: ([a-z0-9_.-]+) -->\n)?^```([a-z]+)\n(.*?)^```$")

// promptRE matches a command, and the name of its node.
var promptRE = regexp.MustCompile(`^([a-z0-9]*)\$ (.*\n)`)

// A typedCommand is a command of a page and its output on the page.
type typedCommand struct{ command, want string }

// variable matches text that differs between runs: ids, keys, times.
var variable = []struct {
	is   *regexp.Regexp
	name string
}{
	{regexp.MustCompile(`BALE1[A-Z0-9]+`), "TICKET"},
	{regexp.MustCompile(`12D3KooW\w+(…\w+)?`), "PEER"},
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}(-[0-9a-f]{4}-[0-9a-f]{12})?`), "ID"},
	{regexp.MustCompile(`\b[0-9a-f]{16,32}\b`), "RANDOM"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?Z?`), "TIME"},
	{regexp.MustCompile(`\d\d:\d\d:\d\d(\.\d+)?`), "TIME"},
	{regexp.MustCompile(`\b\d{10}\.\d+`), "EPOCH"},
	{regexp.MustCompile(`\b(\d+(\.\d+)?(ns|µs|ms|s|m|h))+\b`), "DURATION"},
	{regexp.MustCompile(` +`), " "},
	{regexp.MustCompile(` \n`), "\n"},
}

// normalize replaces variable text by fixed text.
func normalize(text string) string {
	for _, v := range variable {
		text = v.is.ReplaceAllString(text, v.name)
	}
	return text
}

// printed reports whether got matches the output on a page. An ellipsis matches any text in
// a line, and alone on a line any lines.
func printed(want string) *regexp.Regexp {
	var pattern strings.Builder
	pattern.WriteString("^")
	for line := range strings.Lines(normalize(want)) {
		if line == "…\n" {
			pattern.WriteString(`(?:.*\n)*?`)
			continue
		}
		pattern.WriteString(strings.ReplaceAll(regexp.QuoteMeta(line), "…", ".*"))
	}
	return regexp.MustCompile(pattern.String() + "$")
}

// runPage writes the files of a page into a new folder with a copy of docs/examples, types
// the commands after $ in its console blocks into one shell, line by line, and compares
// their output with the page. Commands after alpha$ are typed for the node in the
// folder alpha. The shell has a network namespace of its own, so that ports
// are free, and the processes that it has started end with it.
func runPage(t *testing.T, page string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	dir := shortDir(t)
	copyExamples(t, dir)
	var lines []typedCommand
	for _, m := range fenceRE.FindAllStringSubmatch(string(text), -1) {
		switch file, language, code := m[1], m[2], m[3]; {
		case file != "":
			if err := os.WriteFile(filepath.Join(dir, file), []byte(code), 0o600); err != nil {
				t.Fatal(err)
			}
		case language == "console":
			for line := range strings.Lines(code) {
				if m := promptRE.FindStringSubmatch(line); m != nil {
					if m[1] != "" {
						m[2] = "export BALEFIRE_DIR=$PWD/" + m[1] + "\n" + m[2]
					}
					lines = append(lines, typedCommand{command: m[2]})
				} else if len(lines) > 0 {
					lines[len(lines)-1].want += line
				}
			}
		}
	}
	if len(lines) == 0 {
		t.Fatalf("%s has no commands", page)
	}
	for i, got := range runLines(t, dir, lines) {
		if !printed(lines[i].want).MatchString(normalize(got)) {
			t.Errorf("%s\n$ %sprints\n%sthe page shows\n%s", page, lines[i].command, got, lines[i].want)
		}
	}
}

// runLines runs all lines in one shell in dir and returns the output of each.
func runLines(t *testing.T, dir string, lines []typedCommand) (out []string) {
	t.Helper()
	const mark = "== line %d of the page is done ==\n"
	var script strings.Builder
	script.WriteString("ip link set lo up\n")
	for i, l := range lines {
		script.WriteString(l.command)
		fmt.Fprintf(&script, "printf '%s'\n", fmt.Sprintf(strings.ReplaceAll(mark, "\n", `\n`), i))
	}
	path := filepath.Join(dir, ".typed")
	if err := os.WriteFile(path, []byte(script.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	bash := exec.CommandContext(ctx, "unshare", "--net", "--pid", "--mount-proc", "--fork", "--kill-child", "bash", path)
	bash.Dir, bash.WaitDelay = dir, 10*time.Second
	bash.Env = append(os.Environ(), "PATH="+filepath.Dir(nodeBinary)+":"+os.Getenv("PATH"), "BALEFIRE_STORE_SEGMENT=4MiB")
	all, err := bash.CombinedOutput()
	if err != nil {
		t.Errorf("the shell returned %v", err)
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

// The page about handlers is correct: its programs run, and print the output shown.
func TestHandlersPage(t *testing.T) { runPage(t, "../docs/handlers.md") }

// The page about a first task is correct.
func TestFirstTaskPage(t *testing.T) { runPage(t, "../docs/first-task.md") }

// The page about mail is correct.
func TestMailPage(t *testing.T) { runPage(t, "../docs/mail.md") }

// The page about shared queues is correct: owners and homes that die and come back.
func TestOwnershipPage(t *testing.T) { runPage(t, "../docs/ownership.md") }
