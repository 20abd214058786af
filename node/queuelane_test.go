package node

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/wire"
)

// A task whose kind no node serves delays the tasks of its own origin with the same
// ordering key, and no others, in a queue with shared lanes too (I10).
func TestQueueLanesArePerOrigin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, time.Second)
		defer c.close()
		submit := func(at int, kind string) string {
			s, err := c.nodes[at].node.Submit(t.Context(), wire.Request{Target: "queue:build", Kind: kind, Order: "customer-7"})
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Second)
			return s.ID
		}
		submit(2, "nosuchkind")
		behind := submit(2, "build")
		c.waitAll(1, []string{submit(1, "build")}, time.Minute)
		if task, err := c.nodes[2].node.Views.Task(t.Context(), behind); err != nil || task.State == "SUCCESS" {
			t.Errorf("the next task of the same origin is %s: %v", task.State, err)
		}
		if _, err := c.nodes[0].node.Queues.Set(t.Context(), "agent:build", wire.QueueSettings{Home: "here"}); !errors.Is(err, wire.ErrInvalid) {
			t.Errorf("a queue named like a mailbox: %v", err)
		}
		if _, err := c.nodes[0].node.Queues.Set(t.Context(), "build", wire.QueueSettings{Lanes: new("mine")}); !errors.Is(err, wire.ErrInvalid) {
			t.Errorf("lanes with an invalid value: %v", err)
		}
		c.setQueue(wire.QueueSettings{Lanes: new(wire.LanesShared)})
		if q, err := c.nodes[0].node.Queues.Get(t.Context(), "build"); err != nil || q.Lanes != wire.LanesShared {
			t.Errorf("the queue has lanes %q: %v", q.Lanes, err)
		}
		c.waitAll(1, []string{submit(1, "build")}, time.Minute) // in spite of that head
		if task, err := c.nodes[2].node.Views.Task(t.Context(), behind); err != nil || task.State == "SUCCESS" {
			t.Errorf("with shared lanes the next task of the same origin is %s: %v", task.State, err)
		}
	})
}
