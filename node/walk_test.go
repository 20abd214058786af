package node

import (
	"cmp"
	"os"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/wire"
)

// Tasks of a queue walk from their origin over its home to an owner, one after the other,
// in ten minutes of virtual time, however many there are: internal/sizes compares what two
// runs cover.
func TestWalkOfAQueueTask(t *testing.T) {
	tasks, err := strconv.Atoi(cmp.Or(os.Getenv("BALEFIRE_WALK"), "1"))
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 10*time.Millisecond)
		defer c.close()
		end := time.Now().Add(10 * time.Minute)
		origin := c.nodes[1].node
		for range tasks {
			s, err := origin.Submit(t.Context(), wire.Request{Target: "queue:build", Kind: "build"})
			if err != nil {
				t.Fatal(err)
			}
			if task, err := origin.Views.Wait(t.Context(), s.ID); err != nil || task.State != "SUCCESS" {
				t.Fatalf("it is %s: %v", task.State, err)
			}
		}
		if time.Now().After(end) {
			t.Error("the tasks took longer than the time that is the same for all runs")
		}
		time.Sleep(time.Until(end))
	})
}
