package node

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/gossip"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/ownership"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/queue"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/wire"
)

// onlyNode lets only one node work on the queue, with limit tasks at a time.
func (c *cluster) onlyNode(place, limit int) {
	c.t.Helper()
	rules := []wire.MemberRule{{Node: c.nodes[place].name, Concurrency: limit}}
	if _, err := c.nodes[0].node.Queues.Set(c.t.Context(), "build", wire.QueueSettings{MemberRules: &rules}); err != nil {
		c.t.Fatal(err)
	}
}

// An operator revokes the leases of an unreachable node before the members declare it
// dead, with a dry run first. The lease of an at_most_once task stays.
func TestRecoverTakesBackLostLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, time.Minute)
		defer c.close()
		c.onlyNode(2, 5)
		home := c.nodes[0].node
		ids := c.submitMany(1, 4)
		once, err := c.nodes[1].node.Submit(t.Context(), wire.Request{Target: "queue:build", Kind: "build", Mode: proto.AtMostOnce.Name()})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		if _, err := home.Queues.Recover(t.Context(), "n2", true); !errors.Is(err, wire.ErrRefused) {
			t.Errorf("for a live node: %v", err)
		}
		c.Partition([]int{0, 1}, []int{2})
		c.await(time.Minute, "n2 to be suspected", func() bool { return c.nodes[0].statusOf(c.nodes[2]) == gossip.Suspect })
		if r, err := home.Queues.Recover(t.Context(), "", false); err != nil || len(r.Taken)+len(r.Kept) != 0 {
			t.Errorf("no node is dead yet, but it revoked %+v: %v", r, err)
		}
		for _, dry := range []bool{true, false} {
			r, err := home.Queues.Recover(t.Context(), "n2", dry)
			if err != nil || r.DryRun != dry || len(r.Taken) != 4 || len(r.Kept) != 1 || r.Kept[0].Task != once.ID {
				t.Fatalf("dry %v: %+v, %v", dry, r, err)
			}
		}
		if !c.audited(c.nodes[0], "mesh.recover", "4 leases of n2") && !c.audited(c.nodes[0], "mesh.recover", "5 leases of n2") {
			t.Error("I19: it is not in the audit")
		}
		c.onlyNode(1, 0)
		c.await(2*time.Second, "the tasks to run elsewhere", func() bool { return c.reruns() == 4 })
		c.waitAll(1, ids, 3*time.Minute)
		for _, ref := range ids {
			if task, err := c.nodes[1].node.Views.Task(t.Context(), ref); err != nil || len(task.History) != 2 {
				t.Errorf("its history is %+v: %v", task.History, err)
			}
		}
		c.Heal()
		c.waitAll(1, []string{once.ID}, 5*time.Minute)
	})
}

// A lease that is renewed without a running handler is returned within two scans, and
// the task runs (S38).
func TestLeaseWithoutAHandlerIsReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, 20*time.Second)
		defer c.close()
		owner := c.nodes[1].node
		c.onlyNode(1, 0)
		spec := inbox.Spec{Kind: "slow", Allow: []string{"role:send"}, OnCrash: inbox.OnCrashRetry, Concurrency: 1, Handler: clusterHandler{c, 1, 20 * time.Second}}
		if err := owner.inbox.Register(spec); err != nil {
			t.Fatal(err)
		}
		owner.gossip.Describe()
		for range 2 { // one runs, the other waits
			if _, err := c.nodes[0].node.Submit(t.Context(), wire.Request{Target: "queue:build", Kind: "slow"}); err != nil {
				t.Fatal(err)
			}
		}
		var id proto.TaskID
		c.await(5*time.Second, "a task to wait for a slot", func() bool {
			found, err := owner.Queues.Driver.Leases(t.Context(), func(v ownership.LeaseView) bool { return !v.Home && v.State == "RECEIVED" }, 2)
			if err != nil || len(found) != 1 || owner.inbox.Status().Used != 1 {
				return false
			}
			id = found[0].Task
			return true
		})
		ids := []string{id.String()}
		owner.inbox.StopLease(id, false, false) // as if it had been lost between slot and handler
		if _, ok := owner.Queues.Driver.Ready(t.Context(), id, ownership.PolicyRetry); !ok {
			t.Fatal("the lease cannot be started")
		}
		lost := time.Now()
		c.await(11*time.Second, "the lease to be returned", func() bool {
			return slices.ContainsFunc(c.nodes[0].node.Queues.Events(0, 4096), func(e wire.OwnershipEvent) bool {
				return e.Task == ids[0] && e.Kind == "released"
			})
		})
		t.Logf("it was returned after %v", time.Since(lost))
		c.waitAll(0, ids, 2*time.Minute)
	})
}

// A home that has lost its record of a lease while the task runs elsewhere detects that
// at its start: the task ends once and is not started again (S20).
func TestLostLeaseRecordIsRepaired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, 20*time.Second)
		defer c.close()
		c.onlyNode(1, 0)
		ids := c.submitMany(1, 5)
		time.Sleep(3 * time.Second)
		home := c.nodes[0]
		home.crash()
		home.engine = home.engine.Reopen()
		s, err := store.Open(home.engine, store.Config{Clock: clock.Runtime(), SweepEvery: -1, CompactEvery: -1})
		if err != nil {
			t.Fatal(err)
		}
		var b store.Batch
		for _, ref := range ids {
			id, _ := proto.ParseTaskID(ref)
			b.Delete(store.Leases, append([]byte{'t'}, id[:]...))
		}
		if err := errors.Join(s.Apply(t.Context(), &b), s.Close()); err != nil {
			t.Fatal(err)
		}
		home.start()
		c.serve(home, time.Second)
		c.waitAll(1, ids, 5*time.Minute)
		if n := c.reruns(); n != 0 {
			t.Errorf("I6: %d tasks were started again", n)
		}
	})
}

// A node that is isolated accepts no grants (I16).
func TestIsolatedNodeTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, time.Second)
		defer c.close()
		home, alone := c.nodes[0], c.nodes[2].node
		id, err := proto.ParseTaskID(c.submitSlowly(1, func(r *wire.Request) { r.Require = []string{"nobody=has"} })[0])
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		env, err := (queue.Custody{Queues: home.node.Queues}).Envelope(id, alone.keys.Peer())
		if err != nil {
			t.Fatal(err)
		}
		h, err := proto.ParseHeader(env.GetHeader())
		if err != nil {
			t.Fatal(err)
		}
		check := func() proto.Code {
			return queue.Runner{Queues: alone.Queues}.Check(home.peer(), &proto.Grant{Claim: &proto.Claim{Task: id[:]}, Queue: "build", Envelope: env, LeftMs: h.NotAfter - h.Created})
		}
		c.Partition([]int{0, 1}, []int{2})
		c.await(2*time.Minute, "the partition to be detected", alone.gossip.SelfPaused)
		if code := check(); code != proto.CodeBusy {
			t.Errorf("a grant is answered with %s", code.Name())
		}
		c.Heal()
		c.await(2*time.Minute, "the heal to be detected", func() bool { return !alone.gossip.SelfPaused() })
		if code := check(); code == proto.CodeBusy || code == proto.CodeBadForm {
			t.Errorf("after the heal a grant is answered with %s", code.Name())
		}
	})
}

// The clock of a home jumps by minutes and back while tasks run: no lease is revoked,
// and the jump is reported for a while (S29). A clock with a larger jump is doubted and
// not used.
func TestClockJumpIsReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, by := newJumpingMesh(t, 2, 0)
		c := newClusterOf(t, w, time.Minute)
		defer c.close()
		warned := func() bool {
			return noted(c.nodes[0].node.Views.Status(t.Context()).Warnings, wire.NoteClockJumped)
		}
		ids := c.submitMany(1, 6)
		time.Sleep(10 * time.Second)
		before := warned()
		for _, off := range []time.Duration{time.Hour, 4 * time.Minute, 0} {
			by.Store(int64(off))
			time.Sleep(10 * time.Second)
		}
		after := warned()
		c.waitAll(1, ids, 5*time.Minute)
		if n := c.reruns(); n != 0 {
			t.Errorf("%d tasks were started again", n)
		}
		time.Sleep(time.Hour + time.Minute)
		if before || !after || warned() {
			t.Errorf("warning before %v, then %v, an hour later %v", before, after, warned())
		}
	})
}
