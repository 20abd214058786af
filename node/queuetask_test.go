package node

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/transporttest"
	"github.com/balefire/balefire/wire"
)

// newLabeledCluster starts a cluster whose node i has the labels at i.
func newLabeledCluster(t *testing.T, work time.Duration, labels ...[]string) *cluster {
	return newClusterOf(t, newSimMeshWith(t, len(labels), 1, transporttest.Link{Latency: 10 * time.Millisecond, Mbps: 100, Seed: 1}, func(s *simNode, c *Config) {
		c.Mesh.Labels = labels[s.place]
	}), work)
}

// setQueue changes the rules of the queue.
func (c *cluster) setQueue(s wire.QueueSettings) {
	c.t.Helper()
	if _, err := c.nodes[0].node.Queues.Set(c.t.Context(), "build", s); err != nil {
		c.t.Fatal(err)
	}
}

// submitSlowly submits tasks for the queue at n1, one every 200 ms.
func (c *cluster) submitSlowly(count int, change func(*wire.Request)) (ids []string) {
	c.t.Helper()
	for range count {
		r := wire.Request{Target: "queue:build", Kind: "build"}
		if change != nil {
			change(&r)
		}
		s, err := c.nodes[1].node.Submit(c.t.Context(), r)
		if err != nil {
			c.t.Fatal(err)
		}
		ids = append(ids, s.ID)
		time.Sleep(200 * time.Millisecond)
	}
	return ids
}

// A task that requires a label runs only on nodes with that label and waits while there
// is none; a task that prefers a label runs on other nodes if there is none.
func TestQueueTaskLabels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newLabeledCluster(t, 50*time.Millisecond, nil, []string{"gpu=yes"}, []string{"gpu=yes", "fast"})
		defer c.close()
		c.setQueue(wire.QueueSettings{Strategy: new("round_robin")})
		if by := c.waitAll(1, c.submitSlowly(12, func(r *wire.Request) { r.Require = []string{"gpu=yes"} }), time.Minute); by[0] != 0 || by[1] != 6 || by[2] != 6 {
			t.Errorf("run by %v, want the two with the label, in turn", by)
		}
		if by := c.waitAll(1, c.submitSlowly(6, func(r *wire.Request) { r.Prefer = []string{"gpu=yes", "fast"} }), time.Minute); by[2] != 6 {
			t.Errorf("run by %v, want the node with all preferred labels", by)
		}
		if by := c.waitAll(1, c.submitSlowly(6, func(r *wire.Request) { r.Prefer = []string{"tpu=yes"} }), time.Minute); len(by) != 3 {
			t.Errorf("run by %v, want all: no node has the preferred label", by)
		}
		ids := c.submitSlowly(1, func(r *wire.Request) { r.Require = []string{"tpu=yes"} })
		own, err := c.nodes[0].node.Submit(t.Context(), wire.Request{Target: "queue:build", Kind: "build", Require: []string{"tpu=yes"}})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		for _, id := range []string{ids[0], own.ID} { // submitted by another node, and by the home itself
			if b, err := c.nodes[0].node.Explainer.Why(t.Context(), id); err != nil || b.Cause.Code != wire.NoteKindUnserved || !slices.Equal(b.Cause.Names, []string{"tpu=yes"}) {
				t.Errorf("why: %+v, %v", b, err)
			}
		}
		if b, err := c.nodes[1].node.Explainer.Why(t.Context(), ids[0]); err != nil || b.Cause.Code != wire.NoteGrantsThere || b.Cause.Queue != "build" {
			t.Errorf("why at the origin: %+v, %v", b, err)
		}
		_, err = c.nodes[1].node.Submit(t.Context(), wire.Request{Target: "n0", Kind: "build", Require: []string{"gpu=yes"}})
		if !errors.Is(err, wire.ErrInvalid) {
			t.Errorf("labels for a named node: %v", err)
		}
	})
}

// The member rules of a queue select the nodes that work on it, their share, order and
// concurrency.
func TestQueueMemberRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 50*time.Millisecond)
		defer c.close()
		if q, err := c.nodes[0].node.Queues.Set(t.Context(), "plain", wire.QueueSettings{Home: "here"}); err != nil || q.Strategy != "least_loaded" {
			t.Errorf("a queue without an explicit strategy has %q, %v", q.Strategy, err)
		}
		weights := []wire.MemberRule{{Node: "n1", Weight: 3}, {Node: "n2"}}
		c.setQueue(wire.QueueSettings{Strategy: new("round_robin"), MemberRules: &weights})
		if by := c.waitAll(1, c.submitSlowly(24, nil), time.Minute); by[0] != 0 || by[1] != 18 || by[2] != 6 {
			t.Errorf("run by %v, want three of four by n1 and none by n0", by)
		}
		order := []wire.MemberRule{{Node: "n2", Concurrency: 1}, {Node: "n0"}}
		c.setQueue(wire.QueueSettings{Strategy: new("ordered"), MemberRules: &order})
		if by := c.waitAll(1, c.submitSlowly(6, nil), time.Minute); by[2] != 6 {
			t.Errorf("run by %v, want the first of the rules", by)
		}
		if by := c.waitAll(1, c.submitMany(1, 2), time.Minute); by[2] != 1 || by[0] != 1 {
			t.Errorf("run by %v, want one by the first, which is limited to one, and one by the next", by)
		}
		ranks := []wire.MemberRule{{Node: "n0"}, {Node: "n1", Priority: 200}, {Node: "n2", Priority: 300, Draining: true}}
		c.setQueue(wire.QueueSettings{Strategy: new("priority"), MemberRules: &ranks})
		if by := c.waitAll(1, c.submitSlowly(6, nil), time.Minute); by[1] != 6 {
			t.Errorf("run by %v, want the highest priority that is not draining", by)
		}
		all := []wire.MemberRule{}
		c.setQueue(wire.QueueSettings{Strategy: new("round_robin"), MemberRules: &all})
		if by := c.waitAll(1, c.submitSlowly(6, nil), time.Minute); len(by) != 3 {
			t.Errorf("run by %v, want all without rules", by)
		}
		for _, bad := range [][]wire.MemberRule{{{Node: "nobody"}}, {{Node: "n1"}, {Node: "n1"}}, {{Node: "n1", Weight: -1}}} {
			if _, err := c.nodes[0].node.Queues.Set(t.Context(), "build", wire.QueueSettings{MemberRules: &bad}); err == nil {
				t.Errorf("the rules %+v were accepted", bad)
			}
		}
	})
}

// A limit of a kind applies to the whole queue and to each node, and waiting tasks start
// at once when it is raised.
func TestQueueKindLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 10*time.Second)
		defer c.close()
		c.setQueue(wire.QueueSettings{Kinds: &[]wire.KindLimit{{Kind: "build", Concurrency: 2, NodeConcurrency: 1}}})
		ids := c.submitMany(1, 12)
		time.Sleep(5 * time.Second)
		at := func() (all, most int) {
			q, err := c.nodes[0].node.Queues.Get(t.Context(), "build")
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range q.Members {
				most = max(most, m.Owned)
			}
			return q.Owned, most
		}
		if all, most := at(); all != 2 || most != 1 {
			t.Errorf("%d are owned, %d by one node, want 2 and 1", all, most)
		}
		c.setQueue(wire.QueueSettings{Kinds: &[]wire.KindLimit{{Kind: "build", NodeConcurrency: 2}}})
		time.Sleep(time.Second)
		if all, most := at(); all != 6 || most != 2 {
			t.Errorf("after the limit was raised %d are owned, %d by one node, want 6 and 2", all, most)
		}
		c.setQueue(wire.QueueSettings{Kinds: &[]wire.KindLimit{}, Concurrency: new(7)})
		time.Sleep(time.Second)
		if all, _ := at(); all != 7 {
			t.Errorf("with a limit of 7 for the queue %d are owned", all)
		}
		c.waitAll(1, ids, 5*time.Minute)
	})
}

// A waiting task gets another class, which survives a restart of the home and a handoff,
// and another queue.
func TestQueueChangesWaitingTasks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, time.Second)
		defer c.close()
		c.setQueue(wire.QueueSettings{Paused: new(true)})
		ids := c.submitMany(1, 8)
		time.Sleep(time.Second)
		last := ids[7]
		if _, err := c.nodes[1].node.Queues.SetClass(t.Context(), last, "critical"); !errors.Is(err, wire.ErrRefused) || !strings.Contains(err.Error(), "n0") {
			t.Errorf("away from the home: %v", err)
		}
		if _, err := c.nodes[0].node.Queues.SetClass(t.Context(), last, "urgent"); !errors.Is(err, wire.ErrInvalid) {
			t.Errorf("an invalid class: %v", err)
		}
		if task, err := c.nodes[0].node.Queues.SetClass(t.Context(), last, "critical"); err != nil || task.Class != "critical" {
			t.Errorf("the task has class %s: %v", task.Class, err)
		}
		other := wire.QueueSettings{Home: "here"}
		if _, err := c.nodes[0].node.Queues.Set(t.Context(), "night", other); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		s, err := c.nodes[1].node.Redriver.Move(t.Context(), ids[0], "night")
		if err != nil {
			t.Fatal(err)
		}
		c.waitAll(1, []string{s.ID}, time.Minute)
		old, err := c.nodes[1].node.Views.Task(t.Context(), ids[0])
		if err != nil || old.State != "CANCELLED" || old.RedrivenAs != s.ID {
			t.Errorf("the task in its old queue: %+v, %v", old, err)
		}
		if task, err := c.nodes[1].node.Views.Task(t.Context(), s.ID); err != nil || task.Target != "queue:night" {
			t.Errorf("the task in its new queue: %+v, %v", task, err)
		}
		if again, err := c.nodes[1].node.Redriver.Move(t.Context(), ids[0], "night"); err != nil || again.ID != s.ID || !again.Known {
			t.Errorf("a repeated call: %+v, %v, want the same successor", again, err)
		}
		if _, err := c.nodes[1].node.Redriver.Move(t.Context(), ids[0], "build"); !errors.Is(err, wire.ErrRefused) {
			t.Errorf("a task that moved to another queue: %v", err)
		}
		c.nodes[0].crash()
		c.nodes[0].start()
		c.serve(c.nodes[0], time.Second)
		time.Sleep(20 * time.Second)
		if _, err := c.nodes[0].node.Queues.HandOff(t.Context(), "build", "n2"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if task, err := c.nodes[2].node.Views.Task(t.Context(), last); err != nil || task.Class != "critical" {
			t.Errorf("at its new home the task has class %s: %v", task.Class, err)
		}
		one := wire.QueueSettings{Concurrency: new(1), Paused: new(false)}
		if _, err := c.nodes[2].node.Queues.Set(t.Context(), "build", one); err != nil {
			t.Fatal(err)
		}
		time.Sleep(1500 * time.Millisecond)
		if task, err := c.nodes[1].node.Views.Task(t.Context(), last); err != nil || task.State != "SUCCESS" {
			t.Errorf("the critical one is %s after the first second: %v", task.State, err)
		}
		c.waitAll(1, ids[1:], time.Minute)
	})
}

// A redriven task goes to its queue again, not to the node that was its home.
func TestRedriveReturnsToItsQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, time.Second)
		defer c.close()
		c.serveFailing(c.nodes[0])
		c.serveFailing(c.nodes[1])
		s, err := c.nodes[1].node.Submit(t.Context(), wire.Request{Target: "queue:build", Kind: "fails"})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if task, err := c.nodes[1].node.Views.Wait(ctx, s.ID); err != nil || task.State != "FAILED" {
			t.Fatalf("the task is %s: %v", task.State, err)
		}
		again, err := c.nodes[1].node.Redriver.Retry(t.Context(), s.ID)
		if err != nil {
			t.Fatal(err)
		}
		if task, err := c.nodes[1].node.Views.Wait(ctx, again.ID); err != nil || task.Target != "queue:build" {
			t.Errorf("the redrive has the target %s: %v", task.Target, err)
		}
	})
}

// serveFailing lets a node fail tasks of the kind fails permanently.
func (c *cluster) serveFailing(s *simNode) {
	spec := inbox.Spec{Kind: "fails", Allow: []string{"role:send"}, OnCrash: inbox.OnCrashRetry, Handler: failHandler{}}
	if err := s.node.inbox.Register(spec); err != nil {
		c.t.Fatal(err)
	}
	s.node.gossip.Describe()
	time.Sleep(3 * time.Second)
}

type failHandler struct{}

func (failHandler) Run(context.Context, *handler.Run) *handler.Result {
	return &handler.Result{Outcome: handler.Fail, Reason: "never"}
}

// A lane whose head became a dead letter is blocked until it is unblocked, even after
// the queue moved to another home and back (I10).
func TestQueueLaneIsUnblocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, time.Second)
		defer c.close()
		c.serveFailing(c.nodes[0])
		c.serveFailing(c.nodes[1])
		inLane := func(kind string) string {
			s, err := c.nodes[1].node.Submit(t.Context(), wire.Request{Target: "queue:build", Kind: kind, Order: "repo", OnDead: "block"})
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Second)
			return s.ID
		}
		died, next := inLane("fails"), inLane("build")
		q, err := c.nodes[0].node.Queues.Get(t.Context(), "build")
		if err != nil || len(q.Blocked) != 1 || q.Blocked[0] != (wire.BlockedLane{Key: "repo", Origin: "n1", Died: died, Waiting: 1}) {
			t.Fatalf("blocked are %+v: %v", q.Blocked, err)
		}
		if b, err := c.nodes[0].node.Explainer.Why(t.Context(), next); err != nil || b.Cause.Code != wire.NoteLaneBlocked || b.Cause.Queue != "build" || b.Cause.Key != "repo" {
			t.Errorf("why: %+v, %v", b, err)
		}
		if _, err := c.nodes[1].node.Queues.UnblockLane(t.Context(), "build", "repo"); !errors.Is(err, wire.ErrRefused) {
			t.Errorf("away from the home: %v", err)
		}
		if _, err := c.nodes[0].node.Queues.HandOff(t.Context(), "build", "n1"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if _, err := c.nodes[1].node.Queues.UnblockLane(t.Context(), "build", "repo"); err != nil {
			t.Error(err)
		}
		if _, err := c.nodes[1].node.Queues.UnblockLane(t.Context(), "build", "repo"); !errors.Is(err, wire.ErrNotFound) {
			t.Errorf("unblocked twice: %v", err)
		}
		c.waitAll(1, []string{next}, time.Minute)
		if _, err := c.nodes[1].node.Queues.HandOff(t.Context(), "build", "n0"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		c.waitAll(1, []string{inLane("build")}, time.Minute)
	})
}

// A handler that reports progress keeps running while it continues to do so; when it
// stops reporting it is stopped, and another node runs its task (S21).
func TestQueueHandlerReportsProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, 30*time.Minute)
		defer c.close()
		ref := c.submitMany(1, 1)[0]
		time.Sleep(2 * time.Second)
		id, err := proto.ParseTaskID(ref)
		if err != nil {
			t.Fatal(err)
		}
		runs := func() []clusterRun {
			c.mu.Lock()
			defer c.mu.Unlock()
			return append([]clusterRun(nil), c.runs[id]...)
		}
		first := runs()
		if len(first) != 1 {
			t.Fatalf("started %d times", len(first))
		}
		owner, other := c.nodes[first[0].place].node, c.nodes[1-first[0].place].node
		if err := other.Queues.Progress(t.Context(), ref); !errors.Is(err, wire.ErrNotFound) {
			t.Errorf("on a node that does not run it: %v", err)
		}
		for range 2 {
			if err := owner.Queues.Progress(t.Context(), ref); err != nil {
				t.Fatal(err)
			}
			time.Sleep(4 * time.Minute)
		}
		if n := len(runs()); n != 1 {
			t.Errorf("started %d times while it made progress", n)
		}
		time.Sleep(90 * time.Second) // before the handler's timeout
		all := runs()
		if len(all) != 2 {
			t.Fatalf("started %d times, want a second start after it stopped reporting", len(all))
		}
		if all[1].place == all[0].place || all[0].stopped.IsZero() || all[1].began.Before(all[0].stopped) {
			t.Errorf("the runs are %+v: want the first stopped, and then one at the other node", all)
		}
		if err := owner.Queues.Progress(t.Context(), "build"); !errors.Is(err, wire.ErrInvalid) {
			t.Errorf("an invalid id: %v", err)
		}
	})
}

// retryHandler is a handler that always fails and counts.
type retryHandler struct{ runs *atomic.Int32 }

func (h retryHandler) Run(context.Context, *handler.Run) *handler.Result {
	h.runs.Add(1)
	return &handler.Result{Outcome: handler.Retry, Reason: "no luck"}
}

// A task of a queue gets as many attempts as it requests, but no more than the handler
// of its owner allows.
func TestHandlerBoundsAttemptsOfAQueuedTask(t *testing.T) {
	for name, tt := range map[string]struct {
		gives, most int // of the handler
		asks        uint32
		want        int32
	}{
		"one, many requested":         {1, 0, 9, 1},
		"one, none requested":         {1, 0, 0, 1},
		"two, five on request":        {2, 5, 9, 5},
		"two, none requested":         {2, 5, 0, 2},
		"many, fewer requested":       {9, 0, 2, 2},
		"many, its home allows three": {9, 0, 0, 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, 2, time.Second)
				defer c.close()
				f := retryHandler{new(atomic.Int32)}
				for _, s := range c.nodes {
					if err := s.node.inbox.Register(inbox.Spec{Kind: "strict", Allow: []string{"role:send"}, OnCrash: inbox.OnCrashRetry, MaxAttempts: tt.gives, MaxRetries: tt.most, Handler: f}); err != nil {
						t.Fatal(err)
					}
					s.node.gossip.Describe()
				}
				got, err := c.nodes[1].node.Submit(t.Context(), wire.Request{Target: "queue:build", Kind: "strict", Retries: tt.asks})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				task, err := c.nodes[1].node.Views.Wait(ctx, got.ID)
				if err != nil || task.State != "DEAD_LETTER" || f.runs.Load() != tt.want {
					t.Errorf("%s (%s) after %d runs, want %d: %v", task.State, task.Reason, f.runs.Load(), tt.want, err)
				}
			})
		})
	}
}
