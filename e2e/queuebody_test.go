//go:build e2e

package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/balefire/balefire/wire"
)

// TestLargeBodyThroughAQueue checks S12 for shared queues: a body is sent to an owner and
// comes back as its result, although either side is killed in both directions; the transfer
// resumes where it was interrupted while the lease lasts, and no node holds the whole body
// in memory.
func TestLargeBodyThroughAQueue(t *testing.T) {
	const size = 256 << 20
	a, b := pairOf(t, config{engine: "nutsdb"}, config{engine: "nutsdb", kinds: "  - {kind: give, type: echo, max_output: 1073741824, allow: ['role:send'], on_crash: retry}\n"})
	if _, err := a.SetQueue(t.Context(), "build", wire.QueueSettings{Home: "here"}); err != nil {
		t.Fatal(err)
	}
	id, want := a.submitLarge(size, wire.Request{Target: "queue:build", Kind: "give"})
	peak := map[string]int64{}
	for _, kill := range []struct {
		what     string
		at, dies *machine
	}{{"the body", b, a}, {"the body", b, b}, {"the result", a, a}, {"the result", a, b}} {
		kill.at.until("a part of "+kill.what+" has arrived", func() bool {
			note(peak, a, b)
			return inTransit(kill.at.dir) > 8<<20
		})
		kill.dies.kill()
		kill.dies.start()
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
	sum := sha256.New()
	if n, err := io.Copy(sum, r); err != nil || hex.EncodeToString(sum.Sum(nil)) != want {
		t.Errorf("I9: the result has %d bytes and differs from the body: %v", n, err)
	}
	t.Logf("largest resident sets: a %d MiB, b %d MiB", peak["a"]>>20, peak["b"]>>20)
	checkMemory(t, peak)
	b.until("the owner has removed the body", func() bool {
		files, err := os.ReadDir(filepath.Join(b.dir, "blob"))
		return err == nil && len(files) == 0
	})
}

// inTransit returns how much of a body has arrived in a node's folder so far.
func inTransit(dir string) (most int64) {
	parts, _ := filepath.Glob(filepath.Join(dir, "blob", "o-*.part"))
	for _, p := range parts {
		if fi, err := os.Stat(p); err == nil {
			most = max(most, fi.Size())
		}
	}
	return most
}
