package node

import (
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/transporttest"
	"github.com/balefire/balefire/wire"
)

// serveKind lets a node run tasks of a kind that no other node serves.
func (c *cluster) serveKind(s *simNode, kind string, work time.Duration) {
	c.t.Helper()
	spec := inbox.Spec{Kind: kind, Allow: []string{"role:send"}, OnCrash: inbox.OnCrashRetry, Handler: clusterHandler{c, s.place, work}}
	if err := s.node.inbox.Register(spec); err != nil {
		c.t.Fatal(err)
	}
	s.node.gossip.Describe()
}

// forgotten reports whether a task was sent again because its target had forgotten it.
func (s *simNode) forgotten(id string) bool {
	s.mesh.t.Helper()
	task, err := s.node.Views.Task(s.mesh.t.Context(), id)
	if err != nil {
		s.mesh.t.Fatal(err)
	}
	return slices.ContainsFunc(task.Events, func(e wire.Event) bool { return e.Cause == proto.TaskForgotten.Name() })
}

// The home of a queue that was restored from a snapshot is asked about the tasks that it had
// accepted since. One that may run twice is sent again: it runs if it waited there, and if an
// owner has it, it ends as its run does. For any other a person decides (I6, I20).
func TestTaskOfAQueueWhoseHomeIsRestored(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newClusterOf(t, newSimMeshWith(t, 3, 1, transporttest.Link{Latency: 10 * time.Millisecond, Mbps: 100, Seed: 1}, func(s *simNode, cfg *Config) {
			smallMesh(s, cfg)
			if s.place == 0 {
				cfg.Simulated.Engine, cfg.Store.Engine = nil, datadir.EnginePebble // on the disk
			}
		}), time.Second)
		defer c.close()
		home, origin, owner := c.nodes[0], c.nodes[1], c.nodes[2]
		c.serveKind(owner, "long", 5*time.Minute)
		snap := filepath.Join(t.TempDir(), "snap")
		if err := home.node.Snapshot(t.Context(), snap, ""); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		waiting := origin.mustSubmit(wire.Request{Target: "queue:build", Kind: "later"})
		large := origin.mustSubmit(wire.Request{Target: "queue:build", Kind: "later", Body: make([]byte, 400_000)})
		running := origin.mustSubmit(wire.Request{Target: "queue:build", Kind: "long"})
		once := origin.mustSubmit(wire.Request{Target: "queue:build", Kind: "long", Mode: proto.AtMostOnce.Name()})
		for id, state := range map[string]string{waiting: "ACCEPTED", large: "ACCEPTED", running: "RUNNING", once: "RUNNING"} {
			origin.waitState(id, state, time.Minute)
		}
		home.crash()
		if _, err := RestoreStore(home.config(), snap, ""); err != nil {
			t.Fatal(err)
		}
		home.start()
		c.serveKind(owner, "later", time.Second)
		origin.waitState(once, "INDETERMINATE", 5*time.Minute)
		again := []string{waiting, large, running}
		c.waitAll(1, again, 45*time.Minute) // so it did not wait for the hourly lookup
		for _, id := range again {
			if !origin.forgotten(id) {
				t.Errorf("%s was not sent again", id)
			}
		}
		if n := c.reruns(); n != 0 {
			t.Errorf("%d tasks ran twice: %+v", n, c.runs)
		}
	})
}

// A home that has handed its tasks over still knows them when it is asked.
func TestTaskThatMovedIsNotForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newClusterOf(t, newSimMeshWith(t, 3, 1, transporttest.Link{Latency: 10 * time.Millisecond, Mbps: 100, Seed: 1}, quietMesh), time.Second)
		defer c.close()
		c.setQueue(wire.QueueSettings{Paused: new(true)})
		ids := c.submitMany(1, 5)
		c.waitAccepted(0, ids)
		c.handOffAndWait(0, 2, ids)
		c.nodes[0].crash()
		c.nodes[0].start()
		time.Sleep(5 * time.Minute)
		for _, id := range ids {
			if c.nodes[1].forgotten(id) {
				t.Errorf("%s was sent again", id)
			}
		}
		if _, err := c.nodes[2].node.Queues.Set(t.Context(), "build", wire.QueueSettings{Paused: new(false)}); err != nil {
			t.Fatal(err)
		}
		c.waitAll(1, ids, 5*time.Minute)
		if n := c.reruns(); n != 0 {
			t.Errorf("%d tasks ran twice", n)
		}
	})
}
