package node

import (
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/ownership"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/queue"
	"github.com/balefire/balefire/transport/transporttest"
	"github.com/balefire/balefire/wire"
)

// Waiting tasks move to the next home of their queue and run there, whatever happened to
// their origin's certificate since they were accepted (I14, I20).
func TestHandoffIgnoresTheOriginsCertificate(t *testing.T) {
	t.Parallel()
	var wrong atomic.Int64 // error of the origin's clock
	right := func(*testing.T, *cluster) { wrong.Store(0) }
	renewed := func(t *testing.T, c *cluster) {
		time.Sleep(10 * time.Minute) // the new certificate begins after the tasks were signed
		c.renewCertificate(t, c.nodes[1])
	}
	ended := func(t *testing.T, c *cluster) {
		time.Sleep(10 * time.Minute)
		origin, peer := c.nodes[1], c.nodes[1].peer()
		cert := c.issueCertificate(t, origin, 5*time.Minute)
		origin.halt() // a running node would get a new one
		storeCertificate(t, origin, cert)
		time.Sleep(10 * time.Minute)
		for _, s := range []*simNode{c.nodes[0], c.nodes[2]} {
			if p, ok := s.node.book.Get(peer); !ok || time.Until(p.Member.NotAfter) > 0 {
				t.Fatalf("%s knows a certificate of the origin that ends at %s", s.name, p.Member.NotAfter)
			}
		}
	}
	tests := []struct {
		name     string
		wrong    time.Duration // of the origin's clock
		then     func(*testing.T, *cluster)
		declined bool // no member runs its tasks until it has a new certificate
	}{
		{"renewed", 0, renewed, false},
		{"its clock was an hour behind", -time.Hour, right, false},
		{"ended while the origin was off", 0, ended, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				wrong.Store(0)
				c := newClusterOf(t, newSimMeshWith(t, 3, 1, transporttest.Link{Latency: 10 * time.Millisecond, Mbps: 100, Seed: 1}, func(s *simNode, cfg *Config) {
					quietMesh(s, cfg)
					if s.place == 1 {
						cfg.Clock = clock.WithOffset(cfg.Clock, func() time.Duration { return time.Duration(wrong.Load()) })
					}
				}), time.Second)
				defer c.close()
				for wrong.Load() != int64(tt.wrong) { // slowly: a jump of the clock is not believed
					wrong.Add(-int64(4 * time.Minute))
					time.Sleep(5 * time.Second)
				}
				c.setQueue(wire.QueueSettings{Paused: new(true)})
				ids := c.submitMany(1, 5)
				c.waitAccepted(0, ids)
				if task, err := c.nodes[1].node.Views.Task(t.Context(), ids[0]); err != nil || time.Since(task.Created) < -tt.wrong {
					t.Fatalf("the tasks were made at %s, want %s: %v", task.Created, time.Now().Add(tt.wrong), err)
				}
				tt.then(t, c)
				c.handOffAndWait(0, 2, ids)
				if page, err := c.nodes[0].node.Views.Tasks(wire.Query{Role: wire.RoleOwner}); err != nil || len(page.Items) != 0 {
					t.Errorf("tasks that moved on are listed at the old home: %+v, %v", page.Items, err)
				}
				if got, ok := c.nodes[0].metrics()["balefire_tasks{owner,DEAD_LETTER}"]; ok {
					t.Errorf("%v tasks that moved on are counted as dead", got)
				}
				if _, err := c.nodes[2].node.Queues.Set(t.Context(), "build", wire.QueueSettings{Paused: new(false)}); err != nil {
					t.Fatal(err)
				}
				c.nodes[1].start() // if it does not run
				c.waitAll(1, ids, 5*time.Minute)
				task, err := c.nodes[1].node.Views.Task(t.Context(), ids[0])
				ran := slices.DeleteFunc(slices.Clone(task.History), func(a wire.Attempt) bool { return tt.declined && a.Error == "declined: BUSY" })
				if err != nil || len(ran) != 1 || ran[0].Error != "" || ran[0].Finished.Before(ran[0].Started) {
					t.Errorf("the attempts are %+v: %v", task.History, err)
				}
			})
		})
	}
}

// A revoked origin delays no other task: its tasks move to the next home of their queue
// like all others, and those behind them run.
func TestHandoffOfARevokedOrigin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, time.Second)
		defer c.close()
		c.setQueue(wire.QueueSettings{Paused: new(true)})
		ids := c.submitMany(1, 5)
		own := c.submitMany(0, 5)
		c.waitAccepted(0, ids)
		if err := c.nodes[0].node.Pairing.Revoke(t.Context(), "n1", "lost"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		c.handOffAndWait(0, 2, append(ids, own...))
		if _, err := c.nodes[2].node.Queues.Set(t.Context(), "build", wire.QueueSettings{Paused: new(false)}); err != nil {
			t.Fatal(err)
		}
		c.waitAll(0, own, 5*time.Minute)
	})
}

// The queue states of a revoked home are dropped everywhere, also at a node that was
// offline and at one that restarts, but for the deeds at a node that was the home before; an
// admin seizes the queue, and all learn that.
func TestRevokedHomeIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, time.Second)
		defer c.close()
		c.setQueue(wire.QueueSettings{Labels: new([]string{"l"})})
		time.Sleep(10 * time.Second)
		c.handOffAndWait(0, 2, nil)
		time.Sleep(time.Minute) // all have learned of it
		if err := c.nodes[0].node.Pairing.Revoke(t.Context(), "n2", "lost"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		c.nodes[1].halt()
		c.nodes[1].start()
		time.Sleep(10 * time.Second)
		for i, s := range c.nodes[:2] {
			q := s.node.Queues.Driver.QueueStates()["build"]
			if formerHome := i == 0; formerHome != (len(q.GetDeeds()) > 0) || len(q.GetLabels()) != 0 || q.GetGeneration() != 2 || len(q.GetRoot()) == 0 || !formerHome && proto.Size(q) > len(q.GetName())+97 {
				t.Errorf("%s keeps %v", s.name, q)
			}
		}
		if _, err := c.nodes[0].node.Queues.Seize(t.Context(), "build", "n2"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		c.waitAll(1, c.submitMany(1, 3), time.Minute)
	})
}

// A node that ran tasks of a home that was revoked since keeps their results as for a home that
// has lost them, for a limited time; why says that the home was revoked.
func TestResultsForARevokedHome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 10*time.Second)
		defer c.close()
		node := c.resultsForARevokedHome()
		for _, v := range unknownResults(t, node) {
			if why, err := node.Explainer.Why(t.Context(), v.Task.String()); err != nil || why.Cause.Code != wire.NoteQueueHomeLost || why.Cause.State != "REVOKED" {
				t.Errorf("why: %+v, %v", why.Cause, err)
			}
		}
	})
}

// They are kept for a limited time also where an operator removed the home from the address book
// since; the alarm still says that it was revoked.
func TestResultsForARevokedHomeThatIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 10*time.Second)
		defer c.close()
		node := c.resultsForARevokedHome()
		if err := node.Pairing.Forget(t.Context(), "n2"); err != nil {
			t.Fatal(err)
		}
		for _, v := range unknownResults(t, node) {
			if state, _, gone := node.Queues.HomeGone(v.Peer); !gone || state != "REVOKED" {
				t.Errorf("its home is %q, %v", state, gone)
			}
		}
	})
}

// resultsForARevokedHome revokes the home of a queue of which node 0 owns tasks, and returns node 0.
func (c *cluster) resultsForARevokedHome() *Node {
	c.t.Helper()
	time.Sleep(10 * time.Second)
	c.handOffAndWait(0, 2, nil)
	time.Sleep(time.Minute) // all have learned of it
	c.waitAccepted(2, c.submitMany(1, 6))
	time.Sleep(5 * time.Second)
	c.nodes[2].crash()
	time.Sleep(20 * time.Second)
	node := c.nodes[0].node
	if err := node.Pairing.Revoke(c.t.Context(), "n2", "lost"); err != nil {
		c.t.Fatal(err)
	}
	return node
}

// unknownResults returns the results that node keeps for other homes a minute later. It fails if there
// are none, or if one is kept without a limit.
func unknownResults(t *testing.T, node *Node) []ownership.LeaseView {
	t.Helper()
	time.Sleep(time.Minute)
	held, err := node.Queues.Driver.Leases(t.Context(), func(v ownership.LeaseView) bool { return !v.Home }, 100)
	if err != nil || len(held) == 0 {
		t.Fatalf("%d results wait: %v", len(held), err)
	}
	for _, v := range held {
		if !v.Unknown {
			t.Errorf("the result of %s is kept without a limit, as %s", v.Task, v.State)
		}
	}
	return held
}

// A home that received a queue from a member that was revoked since gets a confirmation
// of an admin: nodes that learn of the queue later accept it.
func TestHomeAfterARevokedOneIsConfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, time.Second)
		defer c.close()
		for at := range 2 {
			time.Sleep(10 * time.Second)
			c.handOffAndWait(at, at+1, nil)
		}
		time.Sleep(10 * time.Second)
		if q, err := c.nodes[0].node.Queues.Get(t.Context(), "build"); err != nil || q.Home != "n2" || q.Generation != 3 {
			t.Fatalf("%+v, %v", q, err)
		}
		if err := c.nodes[0].node.Pairing.Revoke(t.Context(), "n1", "lost"); err != nil {
			t.Fatal(err)
		}
		c.await(3*time.Minute, "the first member to know the confirmation of an admin", func() bool {
			for _, s := range c.nodes[0].node.Queues.Driver.QueueStates()["build"].GetDeeds() {
				if d, err := (queue.Deeds{Queues: c.nodes[0].node.Queues}).Verify(s); err == nil && d.Admin && d.Generation == 3 {
					return true
				}
			}
			return false
		})
	})
}

// A deed signed by an admin is valid at a node if it arrived before the revocation of
// the admin, and remains readable after it; a deed that first arrives later is invalid.
func TestDeedsBeforeAndAfterARevocation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, time.Second)
		defer c.close()
		admin, node := c.nodes[2].node, c.nodes[1].node
		sign := func(name string) *proto.Signed {
			s, err := queue.Deeds{Queues: admin.Queues}.Sign(ownership.Deed{Queue: name, Generation: 1, To: node.keys.Peer(), Admin: true})
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		early, late := sign("early"), sign("late")
		if _, err := (queue.Deeds{Queues: node.Queues}).Verify(early); err != nil {
			t.Errorf("before the revocation: %v", err)
		}
		if err := node.Queues.Driver.CreateQueue(t.Context(), "early", early, func(*proto.QueueState) {}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if err := c.nodes[0].node.Pairing.Revoke(t.Context(), "n2", "lost"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if _, err := (queue.Deeds{Queues: node.Queues}).Verify(late); err == nil || !strings.Contains(err.Error(), "revoked") {
			t.Errorf("after the revocation: %v", err)
		}
		if _, err := (queue.Deeds{Queues: node.Queues}).ReadVerified(early); err != nil {
			t.Errorf("a deed seen before the revocation: %v", err)
		}
		if err := node.Queues.Driver.CreateQueue(t.Context(), "late", late, func(*proto.QueueState) {}); err == nil {
			t.Error("the deed of a revoked admin creates a queue")
		}
		revoked := admin.keys.Peer()
		handoff, err := admin.keys.SignDeed(node.mesh, identity.Deed{Queue: "early", Generation: 2, Root: [32]byte{1}, From: revoked, To: node.keys.Peer()})
		if err != nil {
			t.Fatal(err)
		}
		if err := node.book.Forget(t.Context(), revoked); err != nil {
			t.Fatal(err)
		}
		for _, s := range []*proto.Signed{late, handoff} {
			if _, err := (queue.Deeds{Queues: node.Queues}).Verify(s); err == nil || !strings.Contains(err.Error(), "revoked") {
				t.Errorf("a deed whose revoked signer this node has forgotten: %v", err)
			}
		}
		c.nodes[1].halt()
		c.nodes[1].start()
		c.serve(c.nodes[1], time.Second)
		time.Sleep(10 * time.Second)
		for _, s := range c.nodes[:2] {
			if q, err := s.node.Queues.Get(t.Context(), "early"); err != nil || q.Home != "n1" {
				t.Errorf("%s has %s as the home: %v", s.name, q.Home, err)
			}
		}
	})
}

// A home accepts handed-over tasks within its limits, like new tasks. A refused task
// stays at the old home, which reports that in why, in the events and in the gauge of
// moving tasks; it moves when there is room (I11, I13).
func TestHandoffWithinTheLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := new(logBuffer)
		c := newClusterOf(t, newSimMeshWith(t, 3, 1, transporttest.Link{Latency: 10 * time.Millisecond, Mbps: 100, Seed: 1}, func(s *simNode, cfg *Config) {
			switch s.place {
			case 0:
				cfg.Logger = slog.New(slog.NewTextHandler(log, nil))
			case 2:
				cfg.Limits.MaxInbox = 1
			}
		}), time.Second)
		defer c.close()
		c.setQueue(wire.QueueSettings{Paused: new(true)})
		ids := c.submitMany(1, 2)
		c.waitAccepted(0, ids)
		if _, err := c.nodes[0].node.Queues.HandOff(t.Context(), "build", "n2"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		reported := 0
		for _, id := range ids {
			if b, err := c.nodes[0].node.Explainer.Why(t.Context(), id); err == nil && b.Cause.Code == wire.NoteMoveRefused && b.Cause.Peer == "n2" && b.Cause.Refusal == "FULL" {
				reported++
			}
		}
		if reported != 1 {
			t.Errorf("why reports %d refused tasks, want one", reported)
		}
		if got := c.nodes[0].metrics()["balefire_queue_tasks{build,going}"]; got != 1 {
			t.Errorf("%v tasks are going, want 1", got)
		}
		if got := c.nodes[0].metrics()["balefire_ownership_events_total{handoff_refused}"]; got != 1 {
			t.Errorf("%v events of refused handoffs, want one for its task", got)
		}
		p := c.nodes[0].node.Events.Read(t.Context(), 0, 1000, 0)
		told := slices.ContainsFunc(p.Items, func(e wire.NodeEvent) bool { return e.Kind == "ownership.handoff_refused" })
		if n := strings.Count(log.String(), "refuses its tasks"); n != 1 || !told {
			t.Errorf("%d lines of the log, an event: %v", n, told)
		}
		if _, err := c.nodes[2].node.Queues.Set(t.Context(), "build", wire.QueueSettings{Paused: new(false)}); err != nil {
			t.Fatal(err)
		}
		c.waitAll(1, ids, 5*time.Minute)
	})
}

// waitAccepted waits until a home has accepted tasks.
func (c *cluster) waitAccepted(home int, ids []string) {
	c.t.Helper()
	c.await(time.Minute, "acceptance at the home", func() bool {
		for _, id := range ids {
			if _, err := c.nodes[home].node.Views.Task(c.t.Context(), id); err != nil {
				return false
			}
		}
		return true
	})
}

// handOffAndWait moves the queue to another home, if it is not there yet, and waits
// until that home has all tasks.
func (c *cluster) handOffAndWait(from, to int, ids []string) {
	c.t.Helper()
	if q, err := c.nodes[from].node.Queues.Get(c.t.Context(), "build"); err != nil || q.Here {
		if _, err := c.nodes[from].node.Queues.HandOff(c.t.Context(), "build", c.nodes[to].name); err != nil {
			c.t.Fatal(err)
		}
	}
	c.await(time.Minute, "all tasks at the new home", func() bool {
		q, err := c.nodes[to].node.Queues.Get(c.t.Context(), "build")
		old, _ := c.nodes[from].node.Queues.Get(c.t.Context(), "build")
		return err == nil && q.Waiting+q.Owned == len(ids) && old.Going+old.Waiting == 0
	})
}

// renewCertificate gives a node a new certificate, as an admin does before the old one
// expires, with other roles if any are named.
func (sm *simMesh) renewCertificate(t *testing.T, s *simNode, roles ...string) {
	t.Helper()
	sm.issueCertificate(t, s, 365*day, roles...)
}

// issueCertificate issues a certificate of a node that lasts for life, and teaches it to all
// others.
func (sm *simMesh) issueCertificate(t *testing.T, s *simNode, life time.Duration, roles ...string) *proto.Signed {
	t.Helper()
	root, err := identity.LoadRoot(sm.nodes[0].dir + "/" + datadir.Identity)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	m := s.node.book.Self().Member
	if len(roles) > 0 {
		m.Roles = roles
	}
	cert, err := root.IssueMember(identity.Member{Peer: m.Peer, Name: m.Name, Roles: m.Roles, NotBefore: now.Add(-5 * time.Minute), NotAfter: now.Add(life)}, now)
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range sm.nodes {
		if at == s {
			continue
		}
		if err := at.node.book.Learn(t.Context(), &proto.KnownPeer{Certificate: cert, KeyRecord: s.node.keys.KeyRecord()}); err != nil {
			t.Fatal(err)
		}
	}
	return cert
}
