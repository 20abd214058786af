//go:build e2e

package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The first mail of the README is sent while its receiver is off, read and acknowledged, and its
// request is answered.
func TestReadmeFirstMail(t *testing.T) {
	text, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## First mail\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var lines []string
	for _, m := range fenceRE.FindAllStringSubmatch(section, -1) {
		lines = append(lines, strings.Split(strings.TrimSpace(m[3]), "\n")...)
	}
	if len(lines) != 5 {
		t.Fatalf("the section has %d commands: %q", len(lines), lines)
	}
	c := config{engine: engines[0]}
	harbor, laptop := newMachine(t, "harbor", true, c), newMachine(t, "laptop", false, c)
	harbor.start()
	laptop.join(harbor)
	laptop.start()
	handle, id := regexp.MustCompile(`\d+\.\d{10}\.\d+`), regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)
	harbor.types(lines[0])
	harbor.stop()
	laptop.types(lines[1])
	harbor.start()
	given := harbor.types(lines[2])
	if !strings.Contains(given, "the report is ready") {
		t.Fatalf("$ %s prints\n%s", lines[2], given)
	}
	harbor.types(handle.ReplaceAllString(lines[3], handle.FindString(given)))
	answer := make(chan string, 1)
	go func() { answer <- laptop.types(strings.Replace(lines[4], "30s", "10m", 1)) }() // as long as it takes
	asked := harbor.types("balefire-node mail read desk --wait 10m -o wide")
	harbor.types("balefire-node mail reply " + id.FindString(asked) + " 'seven apples'")
	if got := <-answer; !strings.Contains(got, "seven apples") {
		t.Errorf("$ %s prints\n%s", lines[4], got)
	}
	if b := harbor.box("desk"); b.Ended.Done != 1 {
		t.Errorf("%+v", b)
	}
}

// types runs a command line in a shell on the machine and returns what it prints.
func (m *machine) types(line string) string {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), testTimeout)
	defer cancel()
	bash := exec.CommandContext(ctx, "bash", "-c", line)
	bash.Env = append(os.Environ(), "BALEFIRE_DIR="+m.dir, "PATH="+filepath.Dir(nodeBinary)+":"+os.Getenv("PATH"))
	out, err := bash.CombinedOutput()
	if err != nil {
		m.t.Errorf("%s$ %s: %v\n%s", m.name, line, err, out)
	}
	return string(out)
}
