//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// largeBody is a body that is stored in a file of its own, and so is its copy, a result.
var largeBody = func() []byte {
	b := make([]byte, proto.MaxInlineBody+50_000)
	rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}()

// submitCopies submits n tasks that return their large bodies, and records those that were
// acknowledged.
func (p *acknowledged) submitCopies(ctx context.Context, m *machine, n int) {
	for range n {
		if s, err := m.Submit(ctx, wire.Request{Target: "b", Kind: "copy", Stream: bytes.NewReader(largeBody)}); err == nil {
			p.add(s.ID)
		}
	}
}

// checkCopies checks that the result of every acknowledged task is its body.
func (p *acknowledged) checkCopies(t *testing.T, home *machine) {
	t.Helper()
	for _, id := range p.all() {
		r, _, err := home.Result(t.Context(), id)
		if err != nil {
			t.Errorf("I9: %s: %v", id, err)
			continue
		}
		if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, largeBody) {
			t.Errorf("I9: the result of %s has %d bytes and differs from its body: %v", id, len(got), err)
		}
		r.Close()
	}
}

// bodyFiles returns the files of a node's bodies.
func (m *machine) bodyFiles() (names []string) {
	m.t.Helper()
	list, err := os.ReadDir(filepath.Join(m.dir, "blob"))
	if err != nil {
		m.t.Fatal(err)
	}
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// addStray adds a body to which no record refers to the folder of a dead node. swept checks that
// the sweep of its next start has removed it.
func (m *machine) addStray() (swept func()) {
	m.t.Helper()
	stray := filepath.Join(m.dir, "blob", "o-"+strings.Repeat("5", 64))
	if err := os.WriteFile(stray, largeBody, 0o600); err != nil {
		m.t.Fatal(err)
	}
	return func() {
		m.t.Helper()
		if _, err := os.Stat(stray); !errors.Is(err, fs.ErrNotExist) {
			m.t.Errorf("%s has not swept its bodies: %v", m.name, err)
		}
	}
}

// checkBodies checks that of all bodies only the results are left, which the home has, once all
// tasks have ended and both nodes have started again.
func checkBodies(t *testing.T, home, owner *machine) {
	t.Helper()
	results := len(home.allTasks(wire.Query{Role: wire.RoleHome, Kind: "copy"}))
	var at, left []string
	home.until("only the bodies of results are left", func() bool {
		at, left = home.bodyFiles(), owner.bodyFiles()
		return len(at) == results && len(left) == 0
	})
	t.Logf("counted: %d bodies, those of the results", len(at))
}
