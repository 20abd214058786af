package node

import (
	"testing"
	"testing/synctest"
	"time"
)

// An admin seizes the queue of a lost home that it has forgotten, by the id that the queue
// shows: once it has learned of it again from a member that still knows it, and also if
// nobody does.
func TestQueueOfAForgottenHomeIsSeized(t *testing.T) {
	for name, forgetful := range map[string][]int{"another member knows it": {2}, "all have forgotten it": {1, 2}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, 3, time.Second)
				defer c.close()
				home, admin := c.nodes[0].peer(), c.nodes[2].node
				c.nodes[0].crash()
				time.Sleep(time.Minute)
				for _, at := range forgetful {
					if err := c.nodes[at].node.Pairing.Forget(t.Context(), "n0"); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(10 * time.Minute)
				q, err := admin.Queues.Get(t.Context(), "build")
				if err != nil || q.HomeID != home.String() {
					t.Fatalf("the home of the queue is %s (%s): %v", q.Home, q.HomeID, err)
				}
				if _, err := admin.Queues.Seize(t.Context(), "build", q.HomeID); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				c.waitAll(1, c.submitMany(1, 3), time.Minute)
			})
		})
	}
}
