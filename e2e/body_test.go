//go:build e2e

package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/balefire/balefire/wire"
)

// TestLargeBodyCrossesRestarts checks S12, with half its size and three kills, and the
// memory limit: a body of 1 GiB arrives complete although either side is killed during the
// transfer, which resumes where it was interrupted, and no node holds the whole body in
// memory.
func TestLargeBodyCrossesRestarts(t *testing.T) {
	const size = 1 << 30
	a, b := pair(t, config{engine: "nutsdb"})
	id, want := a.submitLarge(size, wire.Request{Target: "b", Kind: "sum"})
	peak := map[string]int64{}
	at := int64(0)
	for i, side := range []*machine{b, a, b} {
		var here int64
		b.until("more of the body is there", func() bool {
			here = arrived(b.dir)
			return here > at+64<<20 || here == 0 && at > 0 // it is complete
		})
		note(peak, a, b)
		if here == 0 {
			t.Logf("the body was complete before kill %d", i+1)
			break
		}
		side.kill()
		side.start()
		if at = arrived(b.dir); at < here-64<<20 {
			t.Errorf("after kill %d, %d bytes are left of %d: the transfer restarted from the beginning", i+1, at, here)
		}
	}
	done, err := a.Wait(t.Context(), id)
	note(peak, a, b)
	if err != nil || done.State != "SUCCESS" {
		t.Fatalf("%v, %s %s", err, done.State, done.Reason)
	}
	r, _, err := a.Result(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if got, err := io.ReadAll(r); err != nil || string(got) != want {
		t.Errorf("the owner read %s, %v, want %s", got, err, want)
	}
	checkMemory(t, peak)
}

// submitLarge submits a task with an incompressible body of the given size and returns its
// id and SHA-256.
func (m *machine) submitLarge(size int64, r wire.Request) (id, sum string) {
	m.t.Helper()
	file, sum := largeFile(m.t, size)
	in, err := os.Open(file)
	if err != nil {
		m.t.Fatal(err)
	}
	defer in.Close()
	r.Stream = in
	task, err := m.Submit(m.t.Context(), r)
	if err != nil {
		m.t.Fatal(err)
	}
	return task.ID, sum
}

// checkMemory fails the test if a node had a large body in memory as a whole.
func checkMemory(t *testing.T, peak map[string]int64) {
	t.Helper()
	for who, rss := range peak {
		if rss > 400<<20 {
			t.Errorf("%s took %d MiB of memory", who, rss>>20)
		}
	}
}

// largeFile creates an incompressible file and returns its SHA-256.
func largeFile(t *testing.T, size int64) (path, sum string) {
	t.Helper()
	path = filepath.Join(shortDir(t), "large")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	digest := sha256.New()
	if _, err := io.CopyN(io.MultiWriter(f, digest), rand.NewChaCha8([32]byte{1}), size); err != nil {
		t.Fatal(err)
	}
	return path, hex.EncodeToString(digest.Sum(nil))
}

// arrived returns how much of a body has arrived in a node's folder, 0 if there is none.
func arrived(dir string) int64 {
	parts, _ := filepath.Glob(filepath.Join(dir, "blob", "*.part"))
	for _, p := range parts {
		if fi, err := os.Stat(p); err == nil && strings.HasPrefix(filepath.Base(p), "o-") {
			return fi.Size()
		}
	}
	return 0
}

// note records the largest resident set of each node.
func note(peak map[string]int64, ms ...*machine) {
	for _, m := range ms {
		if !m.alive() {
			continue
		}
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", m.cmd.Process.Pid))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			var kb int64
			if _, err := fmt.Sscanf(line, "VmHWM: %d kB", &kb); err == nil {
				peak[m.name] = max(peak[m.name], kb<<10)
			}
		}
	}
}
