package node

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/wire"
)

// waitHome waits until all nodes agree that a node is the home of the queue.
func (c *cluster) waitHome(place int, within time.Duration) {
	c.t.Helper()
	c.await(within, "the queue at "+c.nodes[place].name, func() bool {
		return !slices.ContainsFunc(c.nodes, func(s *simNode) bool {
			if s.get() == nil {
				return false
			}
			q, err := s.node.Queues.Get(c.t.Context(), "build")
			return err != nil || q.Home != c.nodes[place].name
		})
	})
}

// A draining node hands over its queues with all their tasks and is granted nothing; a
// queue that names it as its home returns when it takes work again.
func TestDrainedNodeHandsOverItsQueues(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 2*time.Second)
		defer c.close()
		home := c.nodes[0].node
		if _, err := home.Queues.Set(t.Context(), "build", wire.QueueSettings{Homes: &[]string{"n0", "n2"}}); err != nil {
			t.Fatal(err)
		}
		ids := c.submitMany(1, 200)
		time.Sleep(time.Second)
		d, err := home.Queues.Drain(t.Context(), true)
		if err != nil || !d.On || len(d.Kept) > 0 || d.Going == 0 {
			t.Fatalf("drained: %+v, %v: want its tasks on their way", d, err)
		}
		c.waitHome(2, 10*time.Second)
		c.await(30*time.Second, "the drained node to be empty", func() bool {
			d, err := home.Queues.Drain(t.Context(), true)
			return err == nil && d.Running+d.Going == 0
		})
		by := c.waitAll(1, append(ids, c.submitMany(1, 50)...), 2*time.Minute)
		if n := c.reruns(); n != 0 {
			t.Errorf("I6: %d tasks were started again", n)
		}
		if by[1] == 0 || by[2] == 0 {
			t.Errorf("run by %v, want the others", by)
		}
		if _, err := home.Queues.Drain(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		c.waitHome(0, time.Minute)
		if by := c.waitAll(1, c.submitMany(1, 200), 2*time.Minute); by[0] == 0 {
			t.Errorf("run by %v, want the node that takes work again among them", by)
		}
	})
}

// A queue that names its home is handed to that node as soon as it is available.
func TestQueueMovesToItsListedHome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, time.Second)
		defer c.close()
		c.nodes[2].crash()
		time.Sleep(time.Minute)
		q, err := c.nodes[0].node.Queues.Set(t.Context(), "build", wire.QueueSettings{Homes: &[]string{"n2", "n0"}})
		if err != nil || !slices.Equal(q.Homes, []string{"n2", "n0"}) {
			t.Fatalf("homes %v: %v", q.Homes, err)
		}
		time.Sleep(time.Minute)
		c.waitHome(0, time.Second)
		c.nodes[2].start()
		c.serve(c.nodes[2], time.Second)
		c.waitHome(2, 2*time.Minute) // it must be alive for a while before it is trusted
		c.waitAll(1, c.submitMany(1, 20), time.Minute)
		for _, bad := range []wire.QueueSettings{{Homes: &[]string{"nobody"}}, {Homes: &[]string{"n1", "n1"}}, {MemberRules: &[]wire.MemberRule{{Node: "n1", Weight: -1}}}} {
			if _, err := c.nodes[2].node.Queues.Set(t.Context(), "build", bad); err == nil {
				t.Errorf("%+v was taken", bad)
			}
		}
	})
}

// The rules of a queue for single nodes decide who works on it, and how much.
func TestQueueHasRulesPerNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, time.Second)
		defer c.close()
		rules := []wire.MemberRule{{Node: "n1", Priority: 9, Concurrency: 2}, {Node: "n2", Priority: 3}}
		q, err := c.nodes[0].node.Queues.Set(t.Context(), "build", wire.QueueSettings{Strategy: new("priority"), MemberRules: &rules})
		if err != nil || !slices.Equal(q.MemberRules, rules) || len(q.Members) != 2 {
			t.Fatalf("rules %+v, members %+v: %v", q.MemberRules, q.Members, err)
		}
		by := c.waitAll(1, c.submitMany(1, 10), time.Minute)
		if by[0] != 0 || by[1] < 2 || by[2] == 0 {
			t.Errorf("run by %v, want two at a time by n1, the rest by n2, none by the home", by)
		}
		if _, err := c.nodes[0].node.Queues.Set(t.Context(), "build", wire.QueueSettings{MemberRules: &[]wire.MemberRule{}, Strategy: new("round_robin")}); err != nil {
			t.Fatal(err)
		}
		if by := c.waitAll(1, c.submitMany(1, 30), time.Minute); len(by) != 3 {
			t.Errorf("run by %v, want all", by)
		}
	})
}

// A node that is to stop with a handoff stops when its queues have new homes, and not
// while there is no candidate.
func TestStopHandsQueuesOverFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, 2*time.Second)
		defer c.close()
		home := c.nodes[0]
		if err := home.node.Stop(t.Context(), true); !errors.Is(err, wire.ErrRefused) {
			t.Errorf("without a Stop callback: %v", err)
		}
		asked := make(chan struct{})
		home.change = func(cfg *Config) { cfg.Stop = func() { close(asked) } }
		home.halt()
		home.start()
		c.serve(home, 2*time.Second)
		c.nodes[1].crash()
		time.Sleep(time.Minute)
		if err := home.node.Stop(t.Context(), true); !errors.Is(err, wire.ErrRefused) || home.node.Queues.Drained() {
			t.Errorf("alone it returns %v, drained %v", err, home.node.Queues.Drained())
		}
		c.nodes[1].start()
		c.serve(c.nodes[1], 2*time.Second)
		c.await(2*time.Minute, "the other to be trusted again", func() bool { return len(home.node.Queues.Candidates()) == 1 })
		c.addSchedule("nightly", "0 2 * * *", nil)
		ids := c.submitMany(1, 100)
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		if err := home.node.Stop(ctx, true); err != nil {
			t.Fatal(err)
		}
		<-asked
		home.halt()
		if all, err := c.nodes[1].node.Schedules.List(t.Context()); err != nil || len(all) != 1 {
			t.Errorf("the new home has the schedules %+v, %v", all, err)
		}
		c.waitAll(1, append(ids, c.submitMany(1, 10)...), 2*time.Minute)
		if n := c.reruns(); n > 32 {
			t.Errorf("%d tasks were started again: only those that ran where it stopped may be", n)
		}
	})
}

// A clean stop in the middle of a run that lasts longer than the grace period spends
// neither an attempt nor an abandon, and the task is granted again at once (S32).
func TestCleanStopSpendsNoAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, time.Minute)
		defer c.close()
		rules := []wire.MemberRule{{Node: "n2"}}
		if _, err := c.nodes[0].node.Queues.Set(t.Context(), "build", wire.QueueSettings{MemberRules: &rules}); err != nil {
			t.Fatal(err)
		}
		ids := c.submitMany(1, 5)
		time.Sleep(2 * time.Second)
		c.nodes[2].halt()
		stopped := time.Now()
		rules[0].Node = "n0"
		if _, err := c.nodes[0].node.Queues.Set(t.Context(), "build", wire.QueueSettings{MemberRules: &rules}); err != nil {
			t.Fatal(err)
		}
		c.await(time.Second, "the tasks to run elsewhere", func() bool { return c.reruns() == len(ids) })
		t.Logf("all run again %v after the stop", time.Since(stopped))
		for _, ref := range ids {
			if task, err := c.nodes[0].node.Views.Task(t.Context(), ref); err != nil || task.Attempts != 0 || task.Abandons != 0 {
				t.Errorf("%s: %d attempts, %d abandons, %v", ref, task.Attempts, task.Abandons, err)
			}
		}
		c.waitAll(1, ids, 2*time.Minute)
	})
}
