package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/transporttest"
	"github.com/balefire/balefire/wire"
)

// A cluster is the set of nodes of a simulated mesh that work on one queue, whose home
// is the first.
type cluster struct {
	*simMesh

	mu   sync.Mutex
	runs map[proto.TaskID][]clusterRun
}

// A clusterRun is one start of the handler.
type clusterRun struct {
	place   int
	epoch   proto.Seq
	began   time.Time
	ended   bool
	stopped time.Time // zero: it was not stopped
}

// newCluster starts n nodes that all serve the kind build, and the queue.
func newCluster(t *testing.T, n int, work time.Duration) *cluster {
	return newClusterOf(t, newSimMeshWith(t, n, 1, transporttest.Link{Latency: 10 * time.Millisecond, Mbps: 100, Seed: 1}, smallMesh), work)
}

// newClusterOf lets the nodes of w work on the queue.
func newClusterOf(t *testing.T, w *simMesh, work time.Duration) *cluster {
	n, c := len(w.nodes), &cluster{simMesh: w, runs: map[proto.TaskID][]clusterRun{}}
	for _, s := range c.nodes {
		c.serve(s, work)
	}
	if _, err := c.nodes[0].node.Queues.Set(t.Context(), "build", wire.QueueSettings{Home: "here", Strategy: new("least_loaded")}); err != nil {
		t.Fatal(err)
	}
	for range 60 { // until all nodes know the queue and its home knows all members
		time.Sleep(time.Second)
		known := 0
		for _, s := range c.nodes {
			if _, err := s.node.Queues.Get(t.Context(), "build"); err == nil {
				known++
			}
		}
		q, _ := c.nodes[0].node.Queues.Get(t.Context(), "build")
		able := 0
		for _, m := range q.Members {
			if m.Alive && len(m.Kinds) > 1 {
				able++
			}
		}
		if known == n && able == n {
			return c
		}
	}
	t.Fatal("the queue did not become known")
	return nil
}

// serve lets a node run tasks of the kind build with the given duration.
func (c *cluster) serve(s *simNode, work time.Duration) {
	spec := inbox.Spec{Kind: "build", Allow: []string{"role:send"}, OnCrash: inbox.OnCrashRetry, Handler: clusterHandler{c, s.place, work}}
	if err := s.node.inbox.Register(spec); err != nil {
		c.t.Fatal(err)
	}
	s.node.gossip.Describe()
}

type clusterHandler struct {
	cluster *cluster
	place   int
	work    time.Duration
}

// Run waits for its duration and returns where it ran.
func (h clusterHandler) Run(ctx context.Context, r *handler.Run) *handler.Result {
	h.cluster.mu.Lock()
	at := len(h.cluster.runs[r.ID])
	h.cluster.runs[r.ID] = append(h.cluster.runs[r.ID], clusterRun{place: h.place, epoch: r.Epoch, began: time.Now()})
	h.cluster.mu.Unlock()
	select {
	case <-ctx.Done():
		h.cluster.mu.Lock()
		h.cluster.runs[r.ID][at].stopped = time.Now()
		h.cluster.mu.Unlock()
		return &handler.Result{Outcome: handler.Cancelled, Reason: context.Cause(ctx).Error()}
	case <-time.After(h.work):
	}
	h.cluster.mu.Lock()
	h.cluster.runs[r.ID][at].ended = true
	h.cluster.mu.Unlock()
	return &handler.Result{Outcome: handler.Success, Output: fmt.Appendf(nil, "%s at n%d under %d.%d", r.ID, h.place, r.Epoch.Boot, r.Epoch.Counter)}
}

// submitMany submits tasks for the queue at a node and returns their ids.
func (c *cluster) submitMany(at, count int) []string {
	c.t.Helper()
	rs := make([]wire.Request, count)
	for i := range rs {
		rs[i] = wire.Request{Target: "queue:build", Kind: "build", Body: fmt.Appendf(nil, "task %d", i)}
	}
	got, errs := c.nodes[at].node.SubmitMany(c.t.Context(), rs)
	if err := errors.Join(errs...); err != nil {
		c.t.Fatal(err)
	}
	ids := make([]string, count)
	for i, s := range got {
		ids[i] = s.ID
	}
	return ids
}

// waitAll waits until all tasks have succeeded at the node that submitted them, each
// with the result of one of its runs (I3, I4), and returns how many runs each node
// completed.
func (c *cluster) waitAll(at int, ids []string, within time.Duration) map[int]int {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), within)
	defer cancel()
	by := map[int]int{}
	for _, ref := range ids {
		task, err := c.nodes[at].node.Views.Wait(ctx, ref)
		if err != nil || task.State != "SUCCESS" {
			b, _ := c.nodes[at].node.Explainer.Why(c.t.Context(), ref)
			c.t.Fatalf("%s is %s (%s): %v; n%d explains: %+v", ref, task.State, task.Reason, err, at, b)
		}
		body, _, err := c.nodes[at].node.Views.Result(ctx, ref)
		if err != nil {
			c.t.Fatal(err)
		}
		var text strings.Builder
		buf := make([]byte, 256)
		n, _ := body.Read(buf)
		text.Write(buf[:n])
		body.Close()
		by[c.placeOfRun(ref, text.String())]++
	}
	return by
}

// placeOfRun returns the node of the run that produced a result.
func (c *cluster) placeOfRun(ref, result string) int {
	c.t.Helper()
	id, err := proto.ParseTaskID(ref)
	if err != nil {
		c.t.Fatal(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.runs[id] {
		if result == fmt.Sprintf("%s at n%d under %d.%d", id, r.place, r.epoch.Boot, r.epoch.Counter) && r.ended {
			return r.place
		}
	}
	c.t.Errorf("I9: %s has the result %q, which none of its runs %+v produced", ref, result, c.runs[id])
	return -1
}

// reruns counts starts beyond the first of each task.
func (c *cluster) reruns() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, all := range c.runs {
		n += len(all) - 1
	}
	return n
}

// Tasks of a queue run on whichever member is free, each once, and their results reach
// the submitter (I3, I6).
func TestQueueRunsOnAllMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 200*time.Millisecond)
		defer c.close()
		ids := c.submitMany(1, 200)
		by := c.waitAll(1, ids, time.Minute)
		if len(by) != 3 {
			t.Errorf("run by %v, want all three nodes", by)
		}
		if n := c.reruns(); n != 0 {
			t.Errorf("I6: %d tasks were started again", n)
		}
		if q, _ := c.nodes[0].node.Queues.Get(t.Context(), "build"); q.Waiting+q.Owned != 0 {
			t.Errorf("the queue still has %d waiting and %d owned", q.Waiting, q.Owned)
		}
		task, err := c.nodes[1].node.Views.Task(t.Context(), ids[0])
		if err != nil || task.Target != "queue:build" || len(task.History) != 1 {
			t.Errorf("task %+v: %v", task, err)
		}
	})
}

// The runs of a killed owner restart elsewhere within lease and scan interval; its late
// messages after its return do not count (I4, S19).
func TestQueueTakesOverFromAKilledOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 5*time.Second)
		defer c.close()
		ids := c.submitMany(1, 60) // fewer than the slots of all nodes
		time.Sleep(2 * time.Second)
		c.nodes[2].crash()
		killed := time.Now()
		c.waitAll(1, ids, time.Minute)
		taken := 0
		for id, runs := range c.runs {
			if len(runs) < 2 || runs[0].place != 2 {
				continue
			}
			taken++
			if d := runs[1].began.Sub(killed); d > 15*time.Second+5*time.Second+time.Second {
				t.Errorf("%s restarted %v after the kill", id, d)
			}
		}
		if taken == 0 {
			t.Error("the killed owner had no task")
		}
		c.nodes[2].start()
		c.serve(c.nodes[2], time.Second)
		c.waitAll(1, c.submitMany(1, 10), time.Minute)
	})
}

// A partitioned owner continues, the task is granted to another one, and only one result
// counts (I3, I4). After the heal nothing remains.
func TestQueueHealsAPartition(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 40*time.Second)
		defer c.close()
		ids := c.submitMany(1, 40)
		time.Sleep(5 * time.Second)
		c.Partition([]int{0, 1}, []int{2})
		time.Sleep(time.Minute)
		c.Heal()
		c.waitAll(1, ids, 10*time.Minute)
		time.Sleep(5 * time.Minute)
		for _, s := range c.nodes {
			ls, err := s.node.Queues.Leases(t.Context(), wire.LeaseFilter{})
			if err != nil || len(ls) != 0 {
				t.Errorf("%s still has the leases %+v: %v", s.name, ls, err)
			}
		}
	})
}

// A restarted home still has its queue and its tasks; owners deliver what they did in
// the meantime (I1, S20).
func TestQueueSurvivesTheRestartOfItsHome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 5*time.Second)
		defer c.close()
		ids := c.submitMany(1, 100)
		time.Sleep(2 * time.Second)
		c.nodes[0].crash()
		time.Sleep(20 * time.Second)
		c.nodes[0].start()
		c.serve(c.nodes[0], 5*time.Second)
		c.waitAll(1, ids, 10*time.Minute)
		for id, r := range c.runs {
			if len(r) > 2 || len(r) == 2 && (r[0].place != 0 || r[0].ended) {
				t.Errorf("%s was started again, %+v: only runs of the home itself were lost", id, r)
			}
		}
	})
}

// A node that stops returns its tasks, which uses up no attempt, and they run elsewhere
// within a second (S32). A drained node gets no tasks.
func TestQueueMovesAtACleanStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 8*time.Second)
		defer c.close()
		if _, err := c.nodes[1].node.Queues.Drain(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		ids := c.submitMany(1, 12)
		time.Sleep(2 * time.Second)
		stopped := time.Now()
		c.nodes[2].halt()
		t.Logf("the stop took %v", time.Since(stopped))
		by := c.waitAll(1, ids, time.Minute)
		if by[1] != 0 || by[2] != 0 {
			t.Errorf("run by %v, want only the home: the others were drained and stopped", by)
		}
		if d := time.Since(stopped); d > 8*time.Second+time.Second {
			t.Errorf("the last task ended %v after the stop", d)
		}
		for _, ref := range ids {
			if task, err := c.nodes[1].node.Views.Task(t.Context(), ref); err != nil || task.Reason != "" {
				t.Errorf("%s: %s, %v", ref, task.Reason, err)
			}
		}
	})
}

// Tasks of a queue are cancelled while they wait and while they run.
func TestQueueCancels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, time.Minute)
		defer c.close()
		if _, err := c.nodes[0].node.Queues.Set(t.Context(), "build", wire.QueueSettings{Concurrency: new(1)}); err != nil {
			t.Fatal(err)
		}
		ids := c.submitMany(1, 2)
		time.Sleep(3 * time.Second)
		for _, ref := range ids {
			if b, err := c.nodes[0].node.Explainer.Why(t.Context(), ref); err != nil || b.Cause.Code == "" {
				t.Errorf("why %s: %+v, %v", ref, b, err)
			}
		}
		for i := range ids {
			ref := ids[len(ids)-1-i]
			if _, err := c.nodes[1].node.Cancel(t.Context(), ref, false, ""); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			if task, err := c.nodes[1].node.Views.Wait(ctx, ref); err != nil || task.State != "CANCELLED" {
				t.Errorf("%s is %s (%s): %v", ref, task.State, task.Reason, err)
			}
			cancel()
		}
	})
}

// A queue moves with its tasks: running ones continue, waiting ones are granted by the
// new home, and the results reach the submitter from there.
func TestQueueMovesToAnotherHome(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 3*time.Second)
		defer c.close()
		ids := c.submitMany(1, 300)
		time.Sleep(2 * time.Second)
		if _, err := c.nodes[0].node.Queues.HandOff(t.Context(), "build", "n2"); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, c.submitMany(1, 10)...) // this node does not know yet that the queue moves
		moved := time.Now()
		for {
			if q, _ := c.nodes[0].node.Queues.Get(t.Context(), "build"); q.Going+q.Waiting+q.Owned == 0 && time.Since(moved) > 10*time.Second {
				break
			}
			if time.Since(moved) > time.Minute {
				t.Fatal("the tasks did not move")
			}
			time.Sleep(100 * time.Millisecond)
		}
		c.waitAll(1, ids, 5*time.Minute)
		if n := c.reruns(); n != 0 {
			t.Errorf("I6: %d tasks were started again", n)
		}
		q, err := c.nodes[1].node.Queues.Get(t.Context(), "build")
		if err != nil || q.Home != "n2" || q.Generation != 2 {
			t.Errorf("the queue is %+v: %v", q, err)
		}
		c.waitAll(1, c.submitMany(1, 10), time.Minute)
		if q, err = c.nodes[2].node.Queues.HandOff(t.Context(), "build", ""); err != nil || q.Here || q.Generation != 3 {
			t.Errorf("after a handoff to the best candidate it is %+v: %v", q, err)
		}
		c.waitAll(1, c.submitMany(1, 10), time.Minute)
	})
}

// An operator makes another node the home of a queue whose home is lost. New tasks run
// at once; when the old home returns it hands over what it still has, and nothing is
// committed twice (I3).
func TestQueueIsSeized(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 2*time.Second)
		defer c.close()
		if _, err := c.nodes[0].node.Queues.Set(t.Context(), "build", wire.QueueSettings{Concurrency: new(1)}); err != nil {
			t.Fatal(err)
		}
		old := c.submitMany(1, 20)
		time.Sleep(5 * time.Second)
		c.nodes[0].crash()
		time.Sleep(time.Minute)
		sent := c.submitMany(2, 1) // to n0, which does not receive it
		if _, err := c.nodes[1].node.Queues.Seize(t.Context(), "build", "n0"); !errors.Is(err, wire.ErrDenied) {
			t.Errorf("a node that is not an admin seizes a queue: %v", err)
		}
		if _, err := c.nodes[2].node.Queues.Seize(t.Context(), "build", "n0"); err != nil {
			t.Fatal(err)
		}
		if _, err := c.nodes[2].node.Queues.Set(t.Context(), "build", wire.QueueSettings{Concurrency: new(0)}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		c.waitAll(1, c.submitMany(1, 10), time.Minute)
		if b, err := c.nodes[2].node.Explainer.Why(t.Context(), sent[0]); err != nil || b.Cause.Code != wire.NoteOldHomeKeepsIt || b.Cause.Peer != "n0" {
			t.Errorf("why for a task sent to the old home: %+v, %v", b, err)
		}
		c.nodes[0].start()
		c.serve(c.nodes[0], 2*time.Second)
		c.waitAll(1, old, 10*time.Minute)
		c.waitAll(2, sent, 10*time.Minute)
	})
}

// A queue that two admins created in a partition has one home once they meet, the one of
// the deed with the lower root; the other hands its tasks over, and both show the
// conflict.
func TestQueueMadeTwiceMerges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, time.Second)
		defer c.close()
		c.Partition([]int{0, 1}, []int{2})
		c.await(5*time.Minute, "the partition", func() bool { return !c.nodes[2].node.net.Connected(c.nodes[0].node.keys.Peer()) })
		both := wire.QueueSettings{Home: "here"}
		for _, at := range []int{0, 2} {
			if _, err := c.nodes[at].node.Queues.Set(t.Context(), "test", both); err != nil {
				t.Fatal(err)
			}
		}
		var ids [3][]string
		for _, at := range []int{0, 2} {
			for range 30 {
				s, err := c.nodes[at].node.Submit(t.Context(), wire.Request{Target: "queue:test", Kind: "build"})
				if err != nil {
					t.Fatal(err)
				}
				ids[at] = append(ids[at], s.ID)
			}
		}
		time.Sleep(2 * time.Second)
		c.Heal()
		for _, at := range []int{0, 2} {
			c.waitAll(at, ids[at], 10*time.Minute)
		}
		id := c.nodes[2].node.keys.Peer()
		low, other := identity.DeedRoot("test", c.nodes[0].node.mesh.Root), identity.DeedRoot("test", id[:])
		want := "n0"
		if string(other[:]) < string(low[:]) {
			want = "n2"
		}
		for _, s := range c.nodes {
			c.await(10*time.Minute, s.name+" to know the one home", func() bool {
				q, err := s.node.Queues.Get(t.Context(), "test")
				return err == nil && q.Home == want
			})
		}
		rows := func(at int) (n int) {
			for _, x := range c.nodes[at].node.Queues.Conflicts() {
				if x.Queue == "test" && x.Task == "" {
					n++
				}
			}
			return n
		}
		for _, at := range []int{0, 2} {
			c.await(10*time.Minute, fmt.Sprintf("n%d to show the conflict", at), func() bool { return rows(at) > 0 })
		}
		time.Sleep(10 * time.Minute)
		for _, at := range []int{0, 2} {
			if n := rows(at); n != 1 {
				t.Errorf("%d rows of the conflict at n%d, want one", n, at)
			}
		}
	})
}
