package node

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/wire"
)

// The events of several nodes about a task or a queue form one timeline; nodes that do
// not answer are listed.
func TestTimelineOfAllNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, 10*time.Second)
		defer c.close()
		c.onlyNode(2, 0)
		ids := c.submitMany(1, 2)
		time.Sleep(3 * time.Second)
		if _, err := c.nodes[0].node.Queues.HandOff(t.Context(), "build", "n3"); err != nil {
			t.Fatal(err)
		}
		c.waitAll(1, ids, time.Minute)
		tl, err := c.nodes[1].node.Queues.Timeline(t.Context(), wire.TimelineQuery{Task: ids[0]})
		if err != nil || len(tl.Silent) != 0 || tl.More || !slices.Equal(tl.Asked, []string{"n1", "n0", "n2", "n3"}) {
			t.Fatalf("asked %v, silent %v, more %v: %v", tl.Asked, tl.Silent, tl.More, err)
		}
		var timeline []string
		for _, e := range tl.Items {
			if e.Task != ids[0] {
				t.Errorf("an event of another task: %+v", e)
			}
			if e.Kind == "ended" && e.State != "SUCCESS" {
				t.Errorf("it ended as %q", e.State)
			}
			timeline = append(timeline, e.Node+" "+e.Kind)
		}
		at := -1
		for _, want := range []string{"n0 granted", "n2 started", "n0 moved_out", "n3 moved_in", "n3 ended"} {
			i := slices.Index(timeline, want)
			if i <= at {
				t.Errorf("%q does not follow the previous one in %q", want, timeline)
			}
			at = i
		}
		c.nodes[0].crash()
		for _, q := range []wire.TimelineQuery{{Queue: "build"}, {Task: ids[1][:20]}} {
			tl, err = c.nodes[1].node.Queues.Timeline(t.Context(), q)
			if err != nil || !slices.Equal(tl.Silent, []string{"n0"}) || len(tl.Items) == 0 {
				t.Errorf("%+v: silent %v, %d events: %v", q, tl.Silent, len(tl.Items), err)
			}
		}
		for _, bad := range []wire.TimelineQuery{{}, {Task: ids[0], Queue: "build"}, {Task: "01"}} {
			if _, err := c.nodes[1].node.Queues.Timeline(t.Context(), bad); !errors.Is(err, wire.ErrInvalid) {
				t.Errorf("%+v: %v", bad, err)
			}
		}
		if _, err := c.nodes[1].node.Queues.Timeline(t.Context(), wire.TimelineQuery{Queue: "nothing"}); !errors.Is(err, wire.ErrNotFound) {
			t.Errorf("an unknown queue: %v", err)
		}
	})
}
