package node

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/ownership"
	"github.com/balefire/balefire/proto"
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
		returned := slices.ContainsFunc(home.Queues.Events(0, 4096), func(e wire.OwnershipEvent) bool {
			return e.Kind == "released" && e.Cause == wire.LeaseCause(proto.Unstarted.Name())
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

// TestFastQueuesShareANode lets two queues whose tasks end fast have one owner: each is granted
// many ahead, and the owner declines none of them.
func TestFastQueuesShareANode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slots := func(s *simNode, cfg *Config) { smallMesh(s, cfg); cfg.Limits.Slots = 16 }
		link := transporttest.Link{Latency: 10 * time.Millisecond, Mbps: 100, Seed: 1}
		c := newClusterOf(t, newSimMeshWith(t, 2, 1, link, slots), 5*time.Millisecond)
		defer c.close()
		home, names := c.nodes[0].node, []string{"build", "other"}
		home.inbox.Unregister("build")
		home.gossip.Describe()
		if _, err := home.Queues.Set(t.Context(), names[1], wire.QueueSettings{Home: "here"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		rs := make([]wire.Request, 2000)
		for i := range rs {
			rs[i] = wire.Request{Target: "queue:" + names[i%2], Kind: "build", Body: fmt.Append(nil, i)}
		}
		got, errs := home.SubmitMany(t.Context(), rs)
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		most, came := map[string]int{}, false
		c.await(10*time.Minute, "all tasks to end", func() bool {
			waiting := 0
			for _, name := range names {
				q, err := home.Queues.Get(t.Context(), name)
				if err != nil {
					t.Fatal(err)
				}
				most[name], waiting = max(most[name], q.Owned), waiting+q.Waiting+q.Owned
			}
			for _, e := range home.Queues.Events(0, 4096) {
				if e.Kind == "declined" {
					t.Fatalf("%s: a grant is declined: %s %s", e.Queue, e.Code, e.Detail)
				}
			}
			came = came || waiting > 0 // they go through the outbox first
			return came && waiting == 0
		})
		if most["build"] < 50 || most["other"] < 50 {
			t.Errorf("at most %v tasks were granted at a time: nothing is tested", most)
		}
		c.waitAll(0, []string{got[0].ID, got[1999].ID}, time.Minute)
	})
}

// TestNoTaskWaitsBehindAnotherQueue lets a node be busy for an hour with a task of one queue, and
// grants it tasks of another queue: they end on the other node meanwhile.
func TestNoTaskWaitsBehindAnotherQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one := func(s *simNode, cfg *Config) { smallMesh(s, cfg); cfg.Limits.Slots = 1 }
		link := transporttest.Link{Latency: 10 * time.Millisecond, Mbps: 100, Seed: 1}
		c := newClusterOf(t, newSimMeshWith(t, 2, 1, link, one), time.Hour)
		defer c.close()
		home := c.nodes[0].node
		for _, s := range c.nodes {
			spec := inbox.Spec{Kind: "quick", Allow: []string{"role:send"}, OnCrash: inbox.OnCrashRetry, Handler: clusterHandler{c, s.place, time.Millisecond}}
			if err := s.node.inbox.Register(spec); err != nil {
				t.Fatal(err)
			}
			s.node.gossip.Describe()
		}
		if _, err := home.Queues.Set(t.Context(), "other", wire.QueueSettings{Home: "here"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		long := c.submitMany(0, 1)
		time.Sleep(20 * time.Second)
		var quick []string
		for range 4 {
			s, err := home.Submit(t.Context(), wire.Request{Target: "queue:other", Kind: "quick"})
			if err != nil {
				t.Fatal(err)
			}
			quick = append(quick, s.ID)
		}
		c.waitAll(0, quick, 5*time.Minute)
		if task, err := home.Views.Task(t.Context(), long[0]); err != nil || task.State == "SUCCESS" {
			t.Errorf("the long task is %s: nothing is tested: %v", task.State, err)
		}
	})
}

// TestHomesShareANode lets one home keep all slots of a node busy with tasks that end fast: the
// node is granted those of another home too.
func TestHomesShareANode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		two := func(s *simNode, cfg *Config) { smallMesh(s, cfg); cfg.Limits.Slots = 2 }
		link := transporttest.Link{Latency: 10 * time.Millisecond, Mbps: 100, Seed: 1}
		c := newClusterOf(t, newSimMeshWith(t, 3, 1, link, two), 5*time.Millisecond)
		defer c.close()
		first, second := c.nodes[0].node, c.nodes[1].node
		for _, n := range []*Node{first, second} {
			n.inbox.Unregister("build")
			n.gossip.Describe()
		}
		if _, err := second.Queues.Set(t.Context(), "other", wire.QueueSettings{Home: "here"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		c.submitMany(0, 4000)
		time.Sleep(3 * time.Second)
		var ids []string
		for range 10 {
			s, err := second.Submit(t.Context(), wire.Request{Target: "queue:other", Kind: "build"})
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, s.ID)
		}
		c.waitAll(1, ids, 10*time.Minute)
		if q, err := first.Queues.Get(t.Context(), "build"); err != nil || q.Waiting == 0 {
			t.Errorf("the tasks of the second home ended after those of the first: %v", err)
		}
	})
}
