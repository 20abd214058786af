package node

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// A queue accepts tasks only from the members that its allow list names: the tasks of
// others are dead letters (DENIED) at once at their sender and never run (I17).
func TestQueueAllowList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, time.Second)
		defer c.close()
		c.setQueue(wire.QueueSettings{Allow: new([]string{"peer:n1"})})
		denied, admitted := c.submitMany(2, 2), c.submitMany(1, 2)
		c.waitAll(1, admitted, time.Minute)
		for _, task := range c.waitDenied(2, denied, time.Minute) {
			if task.Code != "DENIED" {
				t.Errorf("%s has the code %q, want DENIED", task.ID, task.Code)
			}
		}
		c.setQueue(wire.QueueSettings{Allow: new([]string{})})
		c.waitAll(2, c.submitMany(2, 1), time.Minute)
		c.wantNoRuns(denied)
	})
}

// The allow list applies also to the tasks that a queue hands over to its next home: those
// of a member that was taken off the list while they waited are dead letters there, with the
// code DENIED at their sender, and those of the others run, also if the queue accepts no new
// tasks (I17).
func TestHandoffFollowsTheAllowList(t *testing.T) {
	for _, draining := range []bool{false, true} {
		t.Run(fmt.Sprint("draining ", draining), func(t *testing.T) { handoffFollowsTheAllowList(t, draining) })
	}
}

func handoffFollowsTheAllowList(t *testing.T, draining bool) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, time.Second)
		defer c.close()
		c.setQueue(wire.QueueSettings{Paused: new(true), Allow: new([]string{"peer:n1", "peer:n3"})})
		removed, admitted := c.submitMany(1, 3), c.submitMany(3, 3)
		c.waitAccepted(0, append(removed, admitted...))
		c.setQueue(wire.QueueSettings{Allow: new([]string{"peer:n3"}), Draining: &draining})
		c.handOffAndWait(0, 2, admitted)
		for _, task := range c.waitDenied(1, removed, time.Minute) {
			if task.Code != "DENIED" || task.Cause != proto.TaskRefused.Name() {
				t.Errorf("%s has the code %q and the cause %q, want DENIED", task.ID, task.Code, task.Cause)
			}
		}
		if got := c.nodes[0].metrics()["balefire_ownership_events_total{handoff_refused}"]; got != 0 {
			t.Errorf("%v tasks were refused and stay at the old home", got)
		}
		if _, err := c.nodes[2].node.Queues.Set(t.Context(), "build", wire.QueueSettings{Paused: new(false)}); err != nil {
			t.Fatal(err)
		}
		c.waitAll(3, admitted, 5*time.Minute)
		c.wantNoRuns(removed)
	})
}

// waitDenied waits until tasks are dead letters at the node that submitted them, because of
// the allow list of the queue, and returns them.
func (c *cluster) waitDenied(at int, ids []string, within time.Duration) (all []wire.Task) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), within)
	defer cancel()
	for _, ref := range ids {
		task, err := c.nodes[at].node.Views.Wait(ctx, ref)
		if err != nil || task.State != "DEAD_LETTER" || task.Code != "DENIED" {
			c.t.Errorf("%s is %s (%s %s): %v", ref, task.State, task.Code, task.Reason, err)
		}
		all = append(all, task)
	}
	return all
}

// wantNoRuns checks that no handler has started a task.
func (c *cluster) wantNoRuns(ids []string) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, ref := range ids {
		id, err := proto.ParseTaskID(ref)
		if err != nil {
			c.t.Fatal(err)
		}
		if n := len(c.runs[id]); n != 0 {
			c.t.Errorf("%s ran %d times", ref, n)
		}
	}
}
