package node

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/wire"
)

// The home of a queue reports how an ended task ended, and which node has its record.
func TestHomeReportsHowATaskEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 100*time.Millisecond)
		defer c.close()
		ids := c.submitMany(1, 1)
		c.waitAll(1, ids, time.Minute)
		time.Sleep(time.Minute)
		for i, want := range []string{"ended here as SUCCESS, last run by n", "", "was never here"} {
			_, err := c.nodes[i].node.Views.Task(t.Context(), ids[0])
			if want == "" {
				if err != nil {
					t.Errorf("at its origin: %v", err)
				}
			} else if !errors.Is(err, wire.ErrNotFound) || !strings.Contains(err.Error(), want) {
				t.Errorf("node %d: %v, want %q", i, err, want)
			}
		}
	})
}

// The result of a task reaches its origin even if the queue has moved since the end and
// the origin never heard of the home that ended it (I20).
func TestQueueResultOfAPastHome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, 20*time.Second)
		defer c.close()
		if _, err := c.nodes[1].node.Queues.Drain(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		ids := c.submitMany(1, 3)
		time.Sleep(5 * time.Second)
		c.handOff(0, 2)
		c.Partition([]int{0, 2, 3}, []int{1})
		time.Sleep(time.Minute) // all end
		c.handOff(2, 3)
		c.Heal()
		c.waitAll(1, ids, 10*time.Minute)
		if n := c.reruns(); n != 0 {
			t.Errorf("I6: %d tasks were started again", n)
		}
	})
}

// handOff moves the queue from one node to another.
func (c *cluster) handOff(from, to int) {
	c.t.Helper()
	if _, err := c.nodes[from].node.Queues.HandOff(c.t.Context(), "build", c.nodes[to].name); err != nil {
		c.t.Fatal(err)
	}
	time.Sleep(5 * time.Second)
}
