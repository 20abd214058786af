package node

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/transport/transporttest"
	"github.com/balefire/balefire/wire"
)

// newLapseCluster starts three nodes that share a sleepClock. All serve a kind that
// takes four minutes; the second is the home of a queue.
func newLapseCluster(t *testing.T) (*cluster, *sleepClock) {
	cal := new(sleepClock)
	w := newSimMeshWith(t, 3, 1, transporttest.Link{Latency: 20 * time.Millisecond, Mbps: 50}, func(s *simNode, cfg *Config) {
		cfg.Clock = clock.WithSuspend(clock.Runtime(), func() time.Duration { return time.Duration(cal.slept.Load()) })
		quietMesh(s, cfg)
	})
	c := newClusterOf(t, w, 4*time.Minute)
	for _, s := range c.nodes {
		s.beforeRun = func(n *Node) { s.node = n; c.serve(s, 4*time.Minute) }
	}
	if _, err := c.nodes[1].node.Queues.Set(t.Context(), "late", wire.QueueSettings{Home: "here"}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Minute)
	return c, cal
}

// submitBatch submits one task of each kind of target from the second node: to another
// node, to itself, and to a queue whose home it is.
func (c *cluster) submitBatch(t *testing.T) (ids []string) {
	t.Helper()
	for _, to := range []string{c.nodes[2].name, c.nodes[1].name, "queue:late", "queue:late"} {
		s, err := c.nodes[1].node.Submit(t.Context(), wire.Request{Target: to, Kind: "build"})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, s.ID)
	}
	return ids
}

// waitSuccess waits until all tasks of the second node have succeeded.
func (c *cluster) waitSuccess(t *testing.T, ids []string, within time.Duration) {
	t.Helper()
	for began := time.Now(); ; time.Sleep(10 * time.Second) {
		open := 0
		for _, id := range ids {
			if task, err := c.nodes[1].node.Views.Task(t.Context(), id); err != nil || task.State != "SUCCESS" {
				open++
			}
		}
		if open == 0 {
			return
		}
		if time.Since(began) > within {
			break
		}
	}
	for _, id := range ids {
		task, err := c.nodes[1].node.Views.Task(t.Context(), id)
		why, _ := c.nodes[1].node.Explainer.Why(t.Context(), id)
		if task.State != "SUCCESS" {
			t.Errorf("%s to %s: %s %s, %v, %+v", id, task.Target, task.State, task.Reason, err, why)
		}
	}
}

// Certificates expire while the only node that can renew them is away: tasks that are
// sent and tasks that run then wait, and succeed when it is back (I11, I20).
func TestNoTaskIsLostWhenCertificatesExpire(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, cal := newLapseCluster(t)
		defer c.close()
		ids := c.submitBatch(t) // this opens the links and their streams
		c.waitSuccess(t, ids, 10*time.Minute)
		c.nodes[0].halt()
		end := c.nodes[2].node.book.Self().Member.NotAfter
		if e := c.nodes[1].node.book.Self().Member.NotAfter; e.Before(end) {
			end = e
		}
		cal.sleep(end.Sub(c.nodes[1].node.cfg.Clock.Now()) - 3*time.Minute)
		time.Sleep(time.Minute)
		ids = c.submitBatch(t)
		time.Sleep(4 * time.Minute)
		if now := c.nodes[1].node.cfg.Clock.Now(); now.Before(c.nodes[2].node.book.Self().Member.NotAfter) {
			t.Fatal("the certificates have not ended")
		}
		ids = append(ids, c.submitBatch(t)...)
		time.Sleep(10 * time.Minute)
		c.nodes[0].start()
		c.waitSuccess(t, ids, 30*time.Minute)
	})
}

// A mesh that was off when all its certificates expired renews them when it is on
// again, and tasks sent in its first moments succeed.
func TestMeshRestartsAfterCertificatesExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, cal := newLapseCluster(t)
		defer c.close()
		for _, s := range c.nodes {
			s.halt()
		}
		cal.sleep(367 * day)
		for _, s := range c.nodes {
			s.start()
		}
		time.Sleep(5 * time.Second)
		ids := c.submitBatch(t)
		c.waitSuccess(t, ids, 20*time.Minute)
	})
}

// A founder that was off until its certificate and the grace were over starts, and renews it
// with the root key after a day in which no member contradicted its clock (I14).
func TestFounderRenewsAfterTheGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cal := new(sleepClock)
		w := newSimMeshWith(t, 1, 1, transporttest.Link{Latency: 20 * time.Millisecond, Mbps: 50}, func(s *simNode, cfg *Config) {
			cfg.Clock = clock.WithSuspend(clock.Runtime(), func() time.Duration { return time.Duration(cal.slept.Load()) })
			quietMesh(s, cfg)
		})
		defer w.close()
		founder := w.nodes[0]
		time.Sleep(time.Minute)
		founder.halt()
		cal.sleep(800 * day)
		founder.start()
		over := func() bool {
			return founder.node.cfg.Clock.Now().After(founder.node.book.Self().Member.NotAfter)
		}
		time.Sleep(clock.BelieveAnyway - time.Minute)
		if s := founder.node.guard.State(); !s.Doubted || !s.Outside || !over() {
			t.Errorf("within a day: %+v, its certificate is over: %v", s, over())
		}
		time.Sleep(5 * time.Minute)
		if s := founder.node.guard.State(); s.Doubted || over() {
			t.Errorf("after a day: %+v, its certificate is over: %v", s, over())
		}
		founder.halt()
		founder.start()
		time.Sleep(time.Minute)
		if s := founder.node.guard.State(); s.Doubted || over() {
			t.Errorf("after a restart: %+v, its certificate is over: %v", s, over())
		}
	})
}
