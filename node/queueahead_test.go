package node

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/ownership"
	"github.com/balefire/balefire/transport/transporttest"
	"github.com/balefire/balefire/wire"
)

// TestTasksGrantedAheadGoBack lets a node whose tasks ended fast, and which was therefore granted
// more than it has slots for, become slow: what waits there runs on the others, and no task is
// started twice.
func TestTasksGrantedAheadGoBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slots = 2
		few := func(s *simNode, cfg *Config) { smallMesh(s, cfg); cfg.Limits.Slots = slots }
		link := transporttest.Link{Latency: 10 * time.Millisecond, Mbps: 100, Seed: 1}
		c := newClusterOf(t, newSimMeshWith(t, 3, 1, link, few), 5*time.Millisecond)
		defer c.close()
		home, slow := c.nodes[0].node, c.nodes[1]
		owned := func() int {
			all, err := home.Queues.Driver.Leases(t.Context(), func(v ownership.LeaseView) bool { return v.Home && v.Peer == slow.node.keys.Peer() }, 1000)
			if err != nil {
				t.Fatal(err)
			}
			return len(all)
		}
		ids := c.submitMany(0, 1000)
		c.await(10*time.Second, "more leases than slots", func() bool { return owned() > 5*slots })
		c.serve(slow, time.Minute)
		c.await(10*time.Second, "all tasks to end but those that run", func() bool {
			q, err := home.Queues.Get(t.Context(), "build")
			return err == nil && q.Waiting == 0 && q.Owned <= slots
		})
		returned := slices.ContainsFunc(home.Queues.Events(t.Context(), 0, 4096), func(e wire.OwnershipEvent) bool {
			return e.Kind == "released" && strings.Contains(e.Cause, "waited for a slot")
		})
		if !returned {
			t.Error("no task was returned")
		}
		c.waitAll(0, ids, 2*time.Minute)
		if n := c.reruns(); n > 0 {
			t.Errorf("%d tasks were started twice", n)
		}
	})
}
