package node

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/proto"
)

// A single task from its origin to the home of the queue, to its owner and back costs at
// most 30 messages and a bounded number of fsyncs on three nodes; many tasks together
// cost less per task.
func TestQueueMessageAndSyncCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 0)
		defer c.close()
		owner := c.nodes[2].node.keys.Peer() // neither origin nor home
		if err := c.nodes[0].node.Queues.Driver.CreateQueue(t.Context(), "build", nil, func(s *proto.QueueState) {
			s.Members = []*proto.QueueMember{{Peer: owner[:]}}
		}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		c.waitAll(1, c.submitMany(1, 1), time.Minute)
		time.Sleep(time.Minute)

		const period = 2 * time.Minute
		idle := c.costOf(func() { time.Sleep(period) })
		const tasks = 30
		alone := c.costOf(func() {
			for range tasks {
				c.waitAll(1, c.submitMany(1, 1), time.Minute)
				time.Sleep(period/tasks - 200*time.Millisecond)
			}
		})
		messages, syncs := float64(alone.messages-idle.messages)/tasks, float64(alone.commits-idle.commits)/tasks
		t.Logf("alone: %.1f messages and %.1f fsyncs per task; in %v idle: %d and %d", messages, syncs, period, idle.messages, idle.commits)
		if messages > 30 || syncs > 13.5 { // eight that are waited for, the rest are written later
			t.Errorf("a single task costs %.1f messages and %.1f fsyncs, want at most 30 and 13", messages, syncs)
		}

		const many = 400
		together := c.costOf(func() { c.waitAll(1, c.submitMany(1, many), time.Minute) })
		t.Logf("%d together: %.2f messages and %.2f fsyncs per task", many, float64(together.messages)/many, float64(together.commits)/many)
		if together.commits >= int64(syncs*many) || together.messages >= int64(messages*many) {
			t.Errorf("%d tasks together cost %+v, want less than as many alone", many, together)
		}
	})
}

// A cost counts the messages and commits of all nodes of a cluster.
type cost struct{ messages, commits int64 }

// costOf returns the cost of f.
func (c *cluster) costOf(f func()) cost {
	before := c.totalCost()
	f()
	after := c.totalCost()
	return cost{after.messages - before.messages, after.commits - before.commits}
}

// totalCost counts ownership messages, and frames of task streams with their answers.
func (c *cluster) totalCost() (sum cost) {
	for _, s := range c.nodes {
		sum.commits += s.node.Views.StoreStats().Commits
		families, err := s.node.Registry().Gather()
		if err != nil {
			c.t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				switch f.GetName() {
				case "balefire_ownership_messages_total":
					sum.messages += int64(m.GetCounter().GetValue())
				case "balefire_transport_frames_received_total":
					sum.messages += 2 * int64(m.GetCounter().GetValue())
				}
			}
		}
	}
	return sum
}
