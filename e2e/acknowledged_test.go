//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// Promises are the tasks that a home has acknowledged.
type acknowledged struct {
	mu  sync.Mutex
	ids map[string]bool
}

func newAcknowledged() *acknowledged { return &acknowledged{ids: map[string]bool{}} }

func (p *acknowledged) add(ids ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range ids {
		p.ids[id] = true
	}
}

func (p *acknowledged) all() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Keys(p.ids))
}

// count returns how many there are.
func (p *acknowledged) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.ids)
}

// submit submits n tasks and records those that were acknowledged. An error does not
// break a promise: the node may just have been killed.
func (p *acknowledged) submit(ctx context.Context, m *machine, n int, r wire.Request) (errs []error) {
	rs := make([]wire.Request, n)
	for i := range rs {
		rs[i] = r
	}
	done, failed := m.SubmitMany(ctx, rs)
	for i, err := range failed {
		if err == nil {
			p.add(done[i].ID)
		} else {
			errs = append(errs, err)
		}
	}
	return errs
}

// checkAllEnd waits until every acknowledged task has ended at its home in state want,
// without intervention (I1, I20). It gives up when none has ended for testTimeout: a large
// batch may take longer.
func (p *acknowledged) checkAllEnd(t *testing.T, home *machine, want string) {
	t.Helper()
	open := p.all()
	for len(open) > 0 {
		before := len(open)
		home.until(fmt.Sprintf("one of %d acknowledged tasks has ended", before), func() bool {
			open = slices.DeleteFunc(open, func(id string) bool { return home.hasEnded(t, id, want) })
			if len(open) > 0 {
				pause(50 * time.Millisecond)
			}
			return len(open) < before
		})
	}
	t.Logf("counted: %d acknowledged, each ended %s", len(p.all()), want)
}

// hasEnded reports whether an acknowledged task has ended, which it may in state want only.
func (m *machine) hasEnded(t *testing.T, id, want string) bool {
	t.Helper()
	got, err := m.Task(context.Background(), id)
	if err != nil {
		t.Fatalf("I1: %s was acknowledged: %v", id, err)
	}
	if got.Ended == nil {
		return false
	}
	if got.State != want {
		t.Errorf("%s ended %s (%s), want %s", id, got.State, got.Reason, want)
	}
	return true
}

// live are the states of a task that has not ended.
var live = []string{
	proto.Pending.Name(), proto.Sent.Name(), proto.Accepted.Name(),
	proto.Running.Name(), proto.Retrying.Name(),
}

// waitIdle waits until this home has no unfinished task: a task whose submit was
// interrupted, and which may or may not have been written, ends too (I11).
func (m *machine) waitIdle() {
	m.t.Helper()
	m.until("all tasks have ended", m.isIdle)
}

// isIdle reports whether every task of this home has ended.
func (m *machine) isIdle() bool {
	page, err := m.Tasks(context.Background(), wire.Query{Role: wire.RoleHome, States: live, Limit: 1})
	return err == nil && len(page.Items) == 0
}

// allTasks returns the ids of all tasks that match.
func (m *machine) allTasks(q wire.Query) (ids []string) {
	m.t.Helper()
	for q.Limit = 1000; ; {
		page, err := m.Tasks(context.Background(), q)
		if err != nil {
			m.t.Fatal(err)
		}
		for _, task := range page.Items {
			ids = append(ids, task.ID)
		}
		if page.Next == "" {
			return ids
		}
		q.Cursor = page.Next
	}
}

// pause lets real time pass for other processes.
func pause(d time.Duration) { <-time.After(d) }

// A mark is one line written by a handler.
type mark struct{ what, task, attempt, life string }

// readMarks returns the marks of the handlers of a machine.
func (m *machine) readMarks() (all []mark) {
	b, err := os.ReadFile(m.marks)
	if err != nil && !os.IsNotExist(err) {
		m.t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 4 {
			all = append(all, mark{f[0], f[1], f[2], f[3]})
		} else {
			m.t.Errorf("%s: a malformed mark %q", m.name, line)
		}
	}
	return all
}

// checkMarks checks the handlers' marks for I1 and I6: every acknowledged task ran,
// and a second time only in another life of the owner, which had died during the
// run. It returns how many tasks ran again.
func (p *acknowledged) checkMarks(t *testing.T, owner *machine) (again int) {
	t.Helper()
	type start struct{ what, task, life string }
	seen, ended := map[start]bool{}, map[string]bool{}
	for _, m := range owner.readMarks() {
		s := start{m.what, m.task, m.life}
		if seen[s] {
			t.Errorf("I6: %s %s twice in life %s of %s", m.what, m.task, m.life, owner.name)
		}
		seen[s] = true
		if m.what == "E" {
			if ended[m.task] {
				again++
			}
			ended[m.task] = true
		}
	}
	for _, id := range p.all() {
		if !ended[id] {
			t.Errorf("%s ended SUCCESS but its handler never finished", id)
		}
	}
	t.Logf("%d tasks acknowledged, %d finished by a handler, %d of them run again after their node died", p.count(), len(ended), again)
	return again
}
