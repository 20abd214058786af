package node

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/wire"
)

// The origin of a queue task learns from the home where the task runs, with the owner's
// signature, and again when it runs elsewhere.
func TestOriginIsToldWhereAQueuedTaskRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, 30*time.Second)
		defer c.close()
		c.onlyNode(2, 0)
		for _, at := range []int{0, 1} { // the home itself and another node
			ref := c.submitMany(at, 1)[0]
			runsOn := func(name string) func() bool {
				return func() bool {
					task, err := c.nodes[at].node.Views.Task(t.Context(), ref)
					return err == nil && task.State == "RUNNING" && slices.ContainsFunc(task.Events, func(e wire.Event) bool { return e.State == "RUNNING" && e.Node == name })
				}
			}
			c.await(30*time.Second, "the origin to know where it runs", runsOn("n2"))
			c.nodes[2].crash()
			c.onlyNode(3, 0)
			c.await(time.Minute, "the origin to know where it runs now", runsOn("n3"))
			rs, err := c.nodes[at].node.Views.Receipts(t.Context(), ref)
			if err != nil {
				t.Fatal(err)
			}
			var by []string
			for _, r := range rs {
				if r.Fact == "started" && r.Verified {
					by = append(by, r.Node)
				}
			}
			if !slices.Equal(by, []string{"n2", "n3"}) {
				t.Errorf("according to the receipts it was started by %v", by)
			}
			if b, err := c.nodes[1].node.Explainer.Why(t.Context(), ref); at == 1 && (err != nil || b.Cause.Code != wire.NoteStartedThere && b.Cause.Code != wire.NoteLeased || b.Cause.Peer != "n3" || b.Cause.Task != b.Subject) {
				t.Errorf("why: %+v, %v", b, err)
			}
			c.waitAll(at, []string{ref}, 2*time.Minute)
			c.nodes[2].start()
			c.serve(c.nodes[2], 30*time.Second)
			c.await(2*time.Minute, "n2 to be eligible again", func() bool { return len(c.nodes[0].node.Queues.Candidates()) == 3 })
			c.onlyNode(2, 0)
		}
	})
}
