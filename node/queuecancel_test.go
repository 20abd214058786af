package node

import (
	"context"
	"errors"
	"slices"
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

// A cancel request goes to the node that the task was sent to, even if its queue has
// moved since: from there it follows the task, which then no longer runs.
func TestQueueCancelFollowsMovedTasks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 10*time.Minute)
		defer c.close()
		if _, err := c.nodes[0].node.Queues.Set(t.Context(), "build", wire.QueueSettings{Concurrency: new(1)}); err != nil {
			t.Fatal(err)
		}
		ids := c.submitMany(1, 3)
		time.Sleep(3 * time.Second)
		if _, err := c.nodes[0].node.Queues.HandOff(t.Context(), "build", "n2"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second) // all tasks have moved, and the old home has removed them
		if _, err := c.nodes[1].node.Submit(t.Context(), wire.Request{Target: "n0", Kind: "build"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Second)               // this task settled all earlier ones at the old home
		for _, ref := range slices.Backward(ids) { // waiting ones first: the end of one starts the next
			if _, err := c.nodes[1].node.Cancel(t.Context(), ref, false, ""); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			if task, err := c.nodes[1].node.Views.Wait(ctx, ref); err != nil || task.State != "CANCELLED" {
				t.Errorf("%s is %s (%s): %v", ref, task.State, task.Reason, err)
			}
			cancel()
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		started := 0
		for _, ref := range ids {
			if id, err := proto.ParseTaskID(ref); err != nil || len(c.runs[id]) > 0 {
				started++
			}
		}
		if started != 1 {
			t.Errorf("%d of 3 tasks were started, want only the first: all were cancelled", started)
		}
	})
}

// A cancel that was at the home before its task counts, also if the home dies as soon as it
// has the task (S34).
func TestQueueCancelBeforeItsTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dying atomic.Bool
		c := newClusterOf(t, newSimMeshWith(t, 2, 1, transporttest.Link{Latency: 10 * time.Millisecond, Mbps: 100, Seed: 1}, func(s *simNode, cfg *Config) {
			smallMesh(s, cfg)
			if s.place == 0 {
				cfg.Fail = func(point string) error {
					if point == inbox.PointAccepted && dying.Load() {
						return errors.New("the node dies")
					}
					return nil
				}
			}
		}), time.Second)
		defer c.close()
		home, origin := c.nodes[0], c.nodes[1]
		home.crash()
		ref := c.submitMany(1, 1)[0]
		id, err := proto.ParseTaskID(ref)
		if err != nil {
			t.Fatal(err)
		}
		dying.Store(true)
		home.beforeRun = func(n *Node) {
			if v := n.inbox.Cancel(t.Context(), origin.node.keys.Peer(), id, false); !v.Accepted() {
				t.Errorf("the cancel is answered %s: %s", v.Code.Name(), v.Detail)
			}
		}
		home.start()
		for began := time.Now(); ; time.Sleep(time.Second) {
			if _, err := home.node.inbox.Get(id); err == nil {
				break
			}
			if time.Since(began) > time.Minute {
				t.Fatal("the task does not come to its home")
			}
		}
		home.crash()
		dying.Store(false)
		home.beforeRun = nil
		home.start()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		if task, err := origin.node.Views.Wait(ctx, ref); err != nil || task.State != "CANCELLED" {
			t.Errorf("it is %s (%s): %v", task.State, task.Reason, err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if n := len(c.runs[id]); n != 0 {
			t.Errorf("it was started %d times", n)
		}
	})
}

// A killable runs until it is killed: a plain cancel does not end it.
type killable struct{ started chan struct{} }

func (h killable) Run(_ context.Context, r *handler.Run) *handler.Result {
	close(h.started)
	<-r.Kill
	return &handler.Result{Outcome: handler.Cancelled}
}

// A hard cancel kills the run of a queued task on another node, also after a plain one (S34).
func TestQueueCancelHard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, time.Second)
		defer c.close()
		h := killable{make(chan struct{})}
		if err := c.nodes[1].node.inbox.Register(inbox.Spec{Kind: "build", Allow: []string{"role:send"}, Handler: h}); err != nil {
			t.Fatal(err)
		}
		c.onlyNode(1, 0)
		time.Sleep(3 * time.Second)
		ref := c.submitMany(0, 1)[0]
		<-h.started
		for _, hard := range []bool{false, true} {
			if _, err := c.nodes[0].node.Cancel(t.Context(), ref, hard, ""); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Second)
			want := "CANCELLED"
			if !hard {
				want = "RUNNING"
			}
			if task, err := c.nodes[0].node.Views.Task(t.Context(), ref); err != nil || task.State != want {
				t.Errorf("hard %v: it is %s (%s), want %s: %v", hard, task.State, task.Reason, want, err)
			}
		}
	})
}

// Tasks that moved away with their queue and return with it are accepted again and run.
func TestQueueTasksComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 10*time.Second)
		defer c.close()
		if _, err := c.nodes[0].node.Queues.Set(t.Context(), "build", wire.QueueSettings{Concurrency: new(1)}); err != nil {
			t.Fatal(err)
		}
		ids := c.submitMany(1, 6)
		for from, to := range []string{"n2", "n1", "n0"} {
			time.Sleep(5 * time.Second)
			if _, err := c.nodes[[]int{0, 2, 1}[from]].node.Queues.HandOff(t.Context(), "build", to); err != nil {
				t.Fatal(err)
			}
		}
		c.waitAll(1, ids, 10*time.Minute)
	})
}

// A result that comes after the home of the queue has ended its task, or has granted it to
// another node, does not count, and its node has an event (I3, I4). The home lists it, unless
// a renewal comes before it and the answer to that tells its node that the task has ended.
func TestLateQueueResultIsListed(t *testing.T) {
	for name, cancel := range map[string]bool{"after the end": true, "after another grant": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, 3, 5*time.Minute)
				defer c.close()
				home, owner := c.nodes[0], c.nodes[1]
				c.onlyNode(1, 5)
				time.Sleep(3 * time.Second)
				ref := c.submitMany(0, 1)[0]
				time.Sleep(10 * time.Second)
				c.Unplug(1)
				time.Sleep(4 * time.Minute)
				want := "RUNNING"
				if cancel {
					want = "CANCELLED"
					if _, err := home.node.Cancel(t.Context(), ref, false, ""); err != nil {
						t.Fatal(err)
					}
				} else {
					c.onlyNode(2, 5)
				}
				time.Sleep(2 * time.Minute) // the first run has ended, the second one has not
				home.waitState(ref, want, time.Second)
				listed := func() bool {
					return slices.ContainsFunc(home.node.Queues.Conflicts(), func(x wire.LeaseConflict) bool {
						return x.Task == ref && x.Peer == owner.name && x.State == "SUCCESS" && x.Digest != ""
					})
				}
				if listed() {
					t.Fatal("the result is listed before it comes")
				}
				c.Plug(1)
				time.Sleep(2 * time.Minute)
				home.waitState(ref, want, time.Second)
				owner.wantResultEvent("ownership.result_lost", ref, "ended_by_home")
				if cancel {
					return
				}
				if !listed() || len(home.resultEvents(wire.EventResultRejected, ref)) == 0 {
					t.Errorf("the home does not list the result, or has no event: %+v", home.node.Queues.Conflicts())
				}
				if c.waitAll(0, []string{ref}, 10*time.Minute)[2] != 1 {
					t.Error("the result is not that of the newest grant")
				}
			})
		})
	}
}
