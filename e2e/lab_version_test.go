//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/balefire/balefire/node"
)

// released is the commit of the first release: what runs somewhere and is not
// updated yet.
const released = "dd3bb8da85777b6b757e6dc0a5902accb63f615c"

// older builds the node as it was released first.
func older(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, step := range [][]string{
		{"git", "archive", "--output", filepath.Join(dir, "old.tar"), released},
		{"tar", "-x", "-f", filepath.Join(dir, "old.tar"), "-C", dir},
		{"go", "build", "-C", dir, "-o", filepath.Join(dir, "old-node"), "./cmd/balefire-node"},
	} {
		cmd := exec.Command(step[0], step[1:]...)
		cmd.Dir = ".." // git archive takes the folder that it is in
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build the released version, which needs the whole history: %v: %v\n%s", step, err, out)
		}
	}
	return filepath.Join(dir, "old-node")
}

// TestVersionsMix holds S56: a node of this version and one of the first release
// pair, whichever invites, and work for each other; an update keeps everything,
// and so does going back, until something is kept that the old one would overlook:
// then it says so and does not start.
func TestVersionsMix(t *testing.T) {
	old := older(t)
	for _, tt := range []struct{ name, founder, joiner string }{{"the old one invites", old, nodeBinary}, {"the new one invites", nodeBinary, old}} {
		t.Run(tt.name, func(t *testing.T) {
			a, b := pairOf(t, config{engine: "nutsdb", binary: tt.founder}, config{engine: "nutsdb", binary: tt.joiner})
			p, q := newPromises(), newPromises()
			work := func(what string) {
				t.Helper()
				if errs := append(p.submit(t.Context(), a, 20, node.Request{Target: "b", Kind: "mark"}), q.submit(t.Context(), b, 20, node.Request{Target: "a", Kind: "mark"})...); errs != nil {
					t.Fatalf("%s: %v", what, errs)
				}
				p.kept(t, a, "SUCCESS")
				q.kept(t, b, "SUCCESS")
			}
			run := func(a, b *machine, binaryA, binaryB string) {
				both(func(m *machine) { m.stop() }, a, b)
				a.binary, b.binary = binaryA, binaryB
				both(func(m *machine) { m.start() }, a, b)
			}
			work("mixed")
			run(a, b, tt.joiner, tt.founder)
			work("the other way round")
			run(a, b, nodeBinary, nodeBinary)
			work("both updated")
			run(a, b, old, old)
			work("both rolled back")
			run(a, b, nodeBinary, nodeBinary)
			if errs := p.submit(t.Context(), a, 1, node.Request{Target: "b", Kind: "mark", Key: "k"}); errs != nil {
				t.Fatal(errs)
			}
			p.kept(t, a, "SUCCESS")
			for _, m := range []*machine{a, b} { // the key is kept at its home and where its task ran
				m.overlooks(old, "its schema is 2, this one reads up to 1; install the newer version again")
			}
			p.once(t, b)
			q.once(t, a)
		})
	}
}

// overlooks starts m by a binary that must refuse its store with these words.
func (m *machine) overlooks(binary, words string) {
	m.t.Helper()
	m.stop()
	m.binary = binary
	m.launch()
	m.until("it refuses the store", func() bool { return !m.alive() })
	m.died()
	if said := m.tail(); !strings.Contains(said, words) {
		m.t.Errorf("%s refuses the store and says %q, want %q", m.name, said, words)
	}
}
