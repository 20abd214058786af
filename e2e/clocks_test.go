//go:build e2e

package e2e

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/balefire/balefire/wire"
)

const days = 24 * time.Hour

// TestClocksApart checks I14 with real processes: tasks and their results go both ways,
// directly and through a queue, however wrong the clock of one node is from its first start
// on, and both nodes report it. A clock twenty years ahead is refused, and both name it; once
// it is right, what waited is done within ten seconds.
func TestClocksApart(t *testing.T) {
	for _, off := range []time.Duration{10 * time.Minute, -10 * days, -20 * 365 * days} {
		t.Run(off.String(), func(t *testing.T) {
			t.Parallel()
			a, b := clockPair(t, off)
			if _, err := a.SetQueue(t.Context(), "q", wire.QueueSettings{Home: "here"}); err != nil {
				t.Fatal(err)
			}
			b.until("it knows the queue", func() bool { _, err := b.Queue(context.Background(), "q"); return err == nil })
			sent := []*machine{}
			ids := []string{}
			for _, m := range []*machine{a, b} {
				for _, to := range []string{"a", "b", "queue:q", "queue:q"} {
					sent, ids = append(sent, m), append(ids, m.mark(to))
				}
			}
			for i, id := range ids {
				sent[i].succeeds(id, 30*time.Second)
			}
			for _, m := range []*machine{a, b} {
				m.until("it reports the clocks", func() bool {
					s, err := m.Status(t.Context())
					return err == nil && slices.ContainsFunc(s.Warnings, func(n wire.Note) bool { return n.Code == wire.NotePeerClock })
				})
			}
		})
	}
	t.Run("twenty years ahead", func(t *testing.T) {
		t.Parallel()
		a, b := clockPair(t, 20*365*days)
		for m, other := range map[*machine]string{a: "b", b: "a"} {
			m.until("it names the clocks", func() bool {
				why, err := m.Why(t.Context(), other)
				return err == nil && why.Cause.Code == wire.NoteClocksDiffer
			})
		}
		there, back := a.mark("b"), b.mark("a")
		for _, m := range []*machine{a, b} {
			m.must("status")
		}
		b.clockWrong(0)
		a.succeeds(there, 10*time.Second)
		b.succeeds(back, 10*time.Second)
	})
}

// clockPair returns two running machines. The clock of the second one is wrong.
func clockPair(t *testing.T, off time.Duration) (a, b *machine) {
	t.Helper()
	a, b = newMachine(t, "a", true, config{engine: "nutsdb"}), newMachine(t, "b", false, config{engine: "nutsdb"})
	a.start()
	b.join(a)
	b.env = []string{"BALEFIRE_CLOCK_FILE=" + b.clockFile()}
	b.clockWrong(off)
	b.start()
	return a, b
}

// mark sends a task.
func (m *machine) mark(to string) string {
	m.t.Helper()
	s, err := m.Submit(m.t.Context(), wire.Request{Target: to, Kind: "mark"})
	if err != nil {
		m.t.Fatal(err)
	}
	return s.ID
}

// succeeds waits until a task has succeeded, and fails the test if that takes longer than
// limit.
func (m *machine) succeeds(id string, limit time.Duration) {
	m.t.Helper()
	began := time.Now()
	m.until("the task succeeds", func() bool {
		task, err := m.Task(m.t.Context(), id)
		return err == nil && task.State == "SUCCESS"
	})
	if took := time.Since(began); took > limit {
		m.t.Errorf("it took %s", took)
	}
}
