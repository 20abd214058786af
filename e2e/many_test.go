//go:build e2e

package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/balefire/balefire/wire"
)

// TestManyFailures checks S17 and I11: of 100 000 tasks that fail permanently, the store
// keeps as many dead letters as its limit allows, the older ones are in the archive, none is
// missing, and status warns. When the cause is fixed, the dead letters in the store are
// repeated, a hundred at a time, and their idempotency keys do not suppress the
// repetition. The short form fails 3000.
func TestManyFailures(t *testing.T) {
	total, limit := either(3000, 100_000), 500
	repaired := filepath.Join(shortDir(t), "repaired")
	cb := config{engine: "nutsdb", kinds: fmt.Sprintf("  - {kind: weak, exec: [/bin/sh, -c, 'test -e %s || exit 65'], allow: ['role:send']}\n", repaired)}
	a, b := pairOf(t, config{engine: "nutsdb", limits: fmt.Sprintf("  dead_count: %d\n", limit)}, cb)
	began := time.Now()
	p := newAcknowledged()
	for n := 0; n < total; n += 500 {
		rs := make([]wire.Request, 500)
		for i := range rs {
			rs[i] = wire.Request{Target: "b", Kind: "weak", Key: fmt.Sprintf("k-%d", n+i)}
		}
		done, errs := a.SubmitMany(t.Context(), rs)
		for i, err := range errs {
			if err != nil || done[i].Known {
				t.Fatalf("submit: %+v, %v", done[i], err)
			}
			p.add(done[i].ID)
		}
		a.waitIdle()
	}
	failed := time.Since(began)
	a.until("the dead letters are within their limit", func() bool {
		st, err := a.Status(t.Context())
		return err == nil && st.Dead <= limit
	})
	st, err := a.Status(t.Context())
	if err != nil || st.Dead != limit || !slices.ContainsFunc(st.Warnings, func(n wire.Note) bool { return n.Code == wire.NoteDeadLetters && n.Count == limit }) {
		t.Errorf("status: %d dead letters, warnings %+v, %v", st.Dead, st.Warnings, err)
	}
	dead, archived := a.dead(), a.archived()
	for _, id := range p.all() {
		if !dead[id] && !archived[id] {
			t.Errorf("%s is neither a dead letter in the store nor in the archive", id)
		}
	}
	if len(dead)+len(archived) != total {
		t.Errorf("%d dead letters in the store and %d in the archive of %d tasks", len(dead), len(archived), total)
	}
	if err := os.WriteFile(repaired, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	began = time.Now()
	again := a.redriven(dead, 100)
	again.checkAllEnd(t, a, "SUCCESS")
	t.Logf("counted: %d tasks failed in %s, %d were archived; %d were repeated in %s", total, failed.Round(time.Millisecond), len(archived), again.count(), time.Since(began).Round(time.Millisecond))
	if !b.alive() {
		t.Error("the owner has exited")
	}
}

// dead returns the ids of the dead letters of tasks whose home is m.
func (m *machine) dead() map[string]bool {
	m.t.Helper()
	ids := map[string]bool{}
	for q := (wire.Query{Role: wire.RoleHome, Limit: 1000}); ; {
		page, err := m.DeadLetters(m.t.Context(), q)
		if err != nil {
			m.t.Fatal(err)
		}
		for _, task := range page.Items {
			ids[task.ID] = true
		}
		if q.Cursor = page.Next; q.Cursor == "" {
			return ids
		}
	}
}

// archived returns the ids in the archive files of dead letters, which are rotated by size.
func (m *machine) archived() map[string]bool {
	m.t.Helper()
	files, err := filepath.Glob(filepath.Join(m.dir, "dead-letters.jsonl*"))
	if err != nil || len(files) == 0 {
		m.t.Fatalf("no archive below %s: %v", m.dir, err)
	}
	ids := map[string]bool{}
	for _, path := range files {
		f, err := os.Open(path)
		if err != nil {
			m.t.Fatal(err)
		}
		defer f.Close()
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			var line struct{ Task string }
			if err := json.Unmarshal(lines.Bytes(), &line); err != nil || line.Task == "" {
				m.t.Fatalf("%s: a malformed line %q: %v", path, lines.Bytes(), err)
			}
			ids[line.Task] = true
		}
		if err := lines.Err(); err != nil {
			m.t.Fatal(err)
		}
	}
	return ids
}

// redriven repeats dead letters, in requests of limited size, and returns the new tasks.
func (m *machine) redriven(dead map[string]bool, step int) *acknowledged {
	m.t.Helper()
	again, ids := newAcknowledged(), make([]string, 0, step)
	repeat := func() {
		done, err := m.RetryDead(m.t.Context(), wire.Redrive{IDs: ids})
		if err != nil || done.Failed > 0 || len(done.Items) != len(ids) {
			m.t.Fatalf("repeat %d dead letters: %d failed of %d, %v", len(ids), done.Failed, len(done.Items), err)
		}
		for _, i := range done.Items {
			if i.Task.Known {
				m.t.Errorf("S17: the repetition of %s was suppressed by its idempotency key", i.ID)
			}
			again.add(i.Task.ID)
		}
		ids = ids[:0]
	}
	for id := range dead {
		if ids = append(ids, id); len(ids) == step {
			repeat()
		}
	}
	if len(ids) > 0 {
		repeat()
	}
	return again
}
