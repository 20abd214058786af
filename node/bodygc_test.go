package node

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/wire"
)

// blobs lists the files of a node's bodies.
func (l *testNode) blobs(t *testing.T) []string {
	t.Helper()
	list, err := os.ReadDir(filepath.Join(l.cfg.Dir, datadir.Blob))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// Bodies are removed when they are no longer needed, not at the next start (I13): that
// of a task with its end, that of a result when its home has it.
func TestUnneededBodiesAreRemoved(t *testing.T) {
	t.Parallel()
	a, b := pair(t, nil)
	if err := b.Handlers.Add(t.Context(), allow("echo", wire.TypeEcho)); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{20_000, 400_000} {
		body := make([]byte, size)
		rand.Read(body)
		a.waitEnd(t, a.submit(t, wire.Request{Target: "b", Kind: "echo", Body: body}), "SUCCESS")
	}
	left := func() []string { return append(a.blobs(t), b.blobs(t)...) }
	eventually(t, func() bool { return len(left()) == 2 }, func() string { return strings.Join(left(), " ") })
	if got := a.blobs(t); len(got) != 2 {
		t.Errorf("the results are %v, want 2", got)
	}
}
