//go:build e2e

package e2e

import (
	"testing"

	"github.com/balefire/balefire/wire"
)

// TestStopSpendsNoAttempt checks S32: SIGTERM ends a handler that does not finish within the
// grace period, and its task runs again after the restart without a used attempt.
func TestStopSpendsNoAttempt(t *testing.T) {
	kinds := "  - {kind: long, exec: [/bin/sleep, '600'], allow: ['role:send'], on_crash: park, max_attempts: 1}\n"
	a, b := pairOf(t, config{engine: "nutsdb"}, config{engine: "nutsdb", kinds: kinds})
	s, err := a.Submit(t.Context(), wire.Request{Target: "b", Kind: "long"})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		b.until("it runs", func() bool {
			task, err := b.Task(t.Context(), s.ID)
			return err == nil && task.State == "RUNNING"
		})
		b.stop()
		b.start()
	}
	b.until("it runs again", func() bool {
		task, err := b.Task(t.Context(), s.ID)
		return err == nil && task.State == "RUNNING"
	})
	if task, err := b.Task(t.Context(), s.ID); err != nil || task.Attempts > 1 || task.Abandons > 0 {
		t.Errorf("after three stops: %d attempts, %d abandons, %v", task.Attempts, task.Abandons, err)
	}
}

// TestNoHandlerTakesNothing checks S30: a node without the handler neither accepts a task
// nor refuses it permanently; the task waits at its home, uses no attempts, and is sent when
// there is a handler.
func TestNoHandlerTakesNothing(t *testing.T) {
	a, b := pair(t, config{engine: "nutsdb"})
	p := newAcknowledged()
	p.submit(t.Context(), a, 3, wire.Request{Target: "b", Kind: "later"})
	id := p.all()[0]
	a.until("why names the missing handler", func() bool {
		why, err := a.Why(t.Context(), id)
		return err == nil && why.Cause.Refusal == "NO_HANDLER"
	})
	if _, err := b.Task(t.Context(), id); err == nil {
		t.Error("a node without the handler has accepted the task")
	}
	if task, err := a.Task(t.Context(), id); err != nil || task.State != "PENDING" || task.Attempts != 0 {
		t.Errorf("the task is %s after %d attempts, %v", task.State, task.Attempts, err)
	}
	if err := b.AddHandler(t.Context(), wire.HandlerSpec{Kind: "later", Type: wire.TypeDiscard, Allow: []string{"peer:a"}}); err != nil {
		t.Fatal(err)
	}
	p.checkAllEnd(t, a, "SUCCESS")
}
