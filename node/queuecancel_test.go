package node

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// A wish to cancel goes to the node that the task was sent to, also when its queue
// has moved since: from there it follows the task, and nothing of it runs any more.
func TestQueueCancelsWhatMoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrew(t, 3, 10*time.Minute)
		defer c.close()
		if _, err := c.nodes[0].node.SetQueue(t.Context(), "build", QueueSettings{Concurrency: new(1)}); err != nil {
			t.Fatal(err)
		}
		ids := c.give(1, 3)
		time.Sleep(3 * time.Second)
		if _, err := c.nodes[0].node.HandOffQueue(t.Context(), "build", "n2"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)               // the last of it has moved, and the old home has let go
		for _, ref := range slices.Backward(ids) { // those that wait first: the end of one lets the next go
			if _, err := c.nodes[1].node.Cancel(t.Context(), ref, false, ""); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			if task, err := c.nodes[1].node.Wait(ctx, ref); err != nil || task.State != "CANCELLED" {
				t.Errorf("%s is %s (%s): %v", ref, task.State, task.Reason, err)
			}
			cancel()
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.runs) != 1 {
			t.Errorf("%d of 3 tasks were started, want the first alone: all were cancelled", len(c.runs))
		}
	})
}
