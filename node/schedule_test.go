package node

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/schedule"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/transport/transporttest"
	"github.com/balefire/balefire/wire"
)

// firings returns the due times of a schedule's tasks in the records of the nodes, with
// the number of tasks for each.
func (c *cluster) firings(name string) map[string]int {
	c.t.Helper()
	times := map[string]int{}
	for _, s := range c.nodes {
		page, err := s.node.Views.Tasks(wire.Query{Role: wire.RoleHome, Limit: 1000})
		if err != nil {
			c.t.Fatal(err)
		}
		for _, task := range page.Items {
			if parts := strings.Split(task.Key, "/"); len(parts) == 5 && parts[2] == name {
				times[parts[4]]++
			}
		}
	}
	return times
}

// wantFirings reports an error unless n due times have exactly one task.
func (c *cluster) wantFirings(name string, n int) {
	c.t.Helper()
	times := c.firings(name)
	for at, count := range times {
		if count != 1 {
			c.t.Errorf("%s: the due time %s has %d tasks", name, at, count)
		}
	}
	if len(times) != n {
		c.t.Errorf("%s: %d due times have a task, want %d: %v", name, len(times), n, times)
	}
}

// addSchedule adds a schedule at n0.
func (c *cluster) addSchedule(name, cron string, change func(*wire.ScheduleSpec)) {
	c.t.Helper()
	s := wire.ScheduleSpec{Queue: "build", Name: name, Cron: cron, ScheduledTask: wire.ScheduledTask{Kind: "build"}}
	if change != nil {
		change(&s)
	}
	if _, err := c.nodes[0].node.Schedules.Add(c.t.Context(), s); err != nil {
		c.t.Fatal(err)
	}
}

// handOffBetween moves the queue from one home to the next and waits for everything that
// follows it.
func (c *cluster) handOffBetween(from, to *simNode) {
	c.t.Helper()
	if _, err := from.node.Queues.HandOff(c.t.Context(), "build", to.name); err != nil {
		c.t.Fatal(err)
	}
	time.Sleep(10 * time.Second)
}

// storedSchedule returns what the store of a node has about the schedule that the tests
// call often.
func (c *cluster) storedSchedule(s *simNode) *proto.Schedule {
	c.t.Helper()
	m := new(proto.Schedule)
	b, err := s.node.storage.Store.Get(store.Meta, []byte("schedule/build/often"))
	if err == nil {
		err = proto.Decode(b, m)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return m
}

// storeSchedule crashes a node and starts it again with m as what it stored last.
func (c *cluster) storeSchedule(s *simNode, m *proto.Schedule) {
	c.t.Helper()
	val, err := proto.Encode(nil, m)
	if err != nil {
		c.t.Fatal(err)
	}
	var b store.Batch
	b.Put(store.Meta, []byte("schedule/build/often"), val)
	if err := s.node.storage.Store.Apply(c.t.Context(), &b); err != nil {
		c.t.Fatal(err)
	}
	s.crash()
	s.start()
}

// alignClock waits for the next due time of */10.
func alignClock() {
	time.Sleep(time.Until(time.Now().Truncate(10 * time.Minute).Add(10 * time.Minute)))
}

// A schedule creates a task at each due time, which runs on a member; pause, resume and
// remove take effect (virtual time).
func TestScheduleCreatesTasks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, 100*time.Millisecond)
		defer c.close()
		alignClock()
		c.addSchedule("often", "*/10 * * * *", nil)
		time.Sleep(20*time.Minute + time.Second)
		c.wantFirings("often", 2)
		if !c.hasObservations(c.nodes[0], "balefire_schedule_lag_seconds", 2) {
			t.Error("the lag of the tasks is not measured")
		}
		all, err := c.nodes[0].node.Schedules.List(t.Context())
		if err != nil || len(all) != 1 || all[0].Fired != 2 || all[0].Zone != "UTC" || all[0].Next == nil || time.Until(*all[0].Next) > 10*time.Minute {
			t.Errorf("listed: %+v: %v", all, err)
		}
		if task, err := c.nodes[0].node.Views.Task(t.Context(), all[0].LastTask); err != nil || task.State != "SUCCESS" {
			t.Errorf("the newest task is %s: %v", task.State, err)
		}
		if v, err := c.nodes[0].node.Schedules.Pause(t.Context(), "build", "often", true); err != nil || v.Next != nil {
			t.Errorf("paused: %+v, %v", v, err)
		}
		time.Sleep(20 * time.Minute)
		c.wantFirings("often", 2)
		if _, err := c.nodes[0].node.Schedules.Pause(t.Context(), "build", "often", false); err != nil {
			t.Error(err)
		}
		time.Sleep(10 * time.Minute)
		c.wantFirings("often", 3)
		if err := c.nodes[0].node.Schedules.Remove(t.Context(), "build", "often"); err != nil {
			t.Error(err)
		}
		time.Sleep(20 * time.Minute)
		c.wantFirings("often", 3)
		if err := c.nodes[0].node.Schedules.Remove(t.Context(), "build", "often"); !errors.Is(err, wire.ErrNotFound) {
			t.Errorf("removed twice: %v", err)
		}
		c.addSchedule("often", "*/10 * * * *", nil)
		time.Sleep(10 * time.Minute)
		c.wantFirings("often", 4)
	})
}

// A schedule that is moving to a home that died is removed at its old home, and the new
// home creates no tasks from it when it is back.
func TestMovingScheduleIsRemoved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 100*time.Millisecond)
		defer c.close()
		old, next := c.nodes[0], c.nodes[2]
		c.addSchedule("often", "*/10 * * * *", nil)
		if _, err := old.node.Queues.HandOff(t.Context(), "build", "n2"); err != nil {
			t.Fatal(err)
		}
		next.crash()
		time.Sleep(5 * time.Second)
		all, err := old.node.Schedules.List(t.Context())
		if err != nil || len(all) != 1 || all[0].Going != "n2" {
			t.Fatalf("stored: %+v: %v", all, err)
		}
		if err := old.node.Schedules.Remove(t.Context(), "build", "often"); err != nil {
			t.Fatal(err)
		}
		old.crash() // it remembers the pending removal
		old.start()
		next.start()
		c.serve(next, 100*time.Millisecond)
		time.Sleep(30 * time.Minute)
		for _, s := range []*simNode{old, next} {
			if all, err := s.node.Schedules.List(t.Context()); err != nil || len(all) != 0 {
				t.Errorf("%s keeps %+v: %v", s.name, all, err)
			}
		}
		if n := len(c.firings("often")); n != 0 {
			t.Errorf("%d tasks were created from it", n)
		}
	})
}

// A home that has accepted a schedule, which its old home removed before it learned
// that, removes it on request of that old home, and of no other node.
func TestScheduleIsRemovedAfterAHandoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 100*time.Millisecond)
		defer c.close()
		c.addSchedule("often", "@daily", nil)
		if _, err := c.nodes[0].node.Queues.HandOff(t.Context(), "build", "n2"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		home := c.nodes[2].node
		born := c.storedSchedule(c.nodes[2]).BornMs
		left := func(from int, generation uint64) int {
			t.Helper()
			b, err := proto.Encode(nil, &proto.Schedule{Queue: "build", Name: "often", Gone: true, Generation: generation, BornMs: born})
			if err == nil {
				err = home.Schedules.Receive(c.nodes[from].node.keys.Peer(), &proto.Message{Type: proto.TypeSchedule, Payload: b})
			}
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Second)
			all, err := home.Schedules.List(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return len(all)
		}
		if n := left(1, 2); n != 1 {
			t.Error("a node that never had it removes it")
		}
		if n := left(0, 3); n != 1 {
			t.Error("its old home removes a different schedule")
		}
		third := c.nodes[1]
		if _, err := home.Queues.HandOff(t.Context(), "build", "n1"); err != nil {
			t.Fatal(err)
		}
		third.crash()
		time.Sleep(3 * time.Second)
		if all, err := home.Schedules.List(t.Context()); err != nil || len(all) != 1 || all[0].Going != "n1" {
			t.Fatalf("stored: %+v: %v", all, err) // it is moving on
		}
		if n := left(0, 2); n != 0 {
			t.Error("its old home does not remove it")
		}
		third.start()
		time.Sleep(time.Minute)
		if all, err := third.node.Schedules.List(t.Context()); err != nil || len(all) != 0 {
			t.Errorf("the next home has accepted %+v: %v", all, err)
		}
	})
}

// A schedule that was removed at its first home is also removed at the third home, which
// has it from the second: the second home informs the third and confirms to the first
// afterwards.
func TestScheduleIsRemovedAfterTwoHandoffs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, 100*time.Millisecond)
		defer c.close()
		c.addSchedule("often", "@daily", nil)
		first, second, third := c.nodes[0], c.nodes[2], c.nodes[1]
		kept := func(s *simNode) int {
			t.Helper()
			all, err := s.node.Schedules.List(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return len(all)
		}
		c.handOffBetween(first, second)
		c.handOffBetween(second, third)
		if kept(second) != 0 || kept(third) != 1 {
			t.Fatalf("%d and %d are stored: it should have moved on", kept(second), kept(third))
		}
		// As if it had been removed at the first home before that learned that the
		// second has it.
		next := second.peer()
		born := c.storedSchedule(third).BornMs
		c.storeSchedule(first, &proto.Schedule{Queue: "build", Name: "often", Gone: true, Generation: 2, Going: next[:], BornMs: born, ChangedMs: time.Now().UnixMilli()})
		third.crash()
		time.Sleep(time.Minute)
		reported := func() bool { return len(c.storedSchedule(first).Going) == 0 }
		if reported() {
			t.Error("the first home got a confirmation although the third does not know yet")
		}
		third.start()
		time.Sleep(time.Minute)
		if kept(third) != 0 || !reported() {
			t.Errorf("the third home stores %d, the first got a confirmation: %v", kept(third), reported())
		}
	})
}

// A schedule that was removed while it was moving does not return to its old home with
// the queue.
func TestRemovedScheduleDoesNotComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 100*time.Millisecond)
		defer c.close()
		c.addSchedule("often", "@daily", nil)
		first, second := c.nodes[0], c.nodes[2]
		self, other := first.peer(), second.peer()
		back := c.storedSchedule(first)
		if _, err := first.node.Queues.HandOff(t.Context(), "build", second.name); err != nil {
			t.Fatal(err)
		}
		second.crash()
		time.Sleep(5 * time.Second)
		if err := first.node.Schedules.Remove(t.Context(), "build", "often"); err != nil {
			t.Fatal(err)
		}
		back.Generation, back.Delegates = 3, [][]byte{self[:]}
		b, err := proto.Encode(nil, back)
		if err == nil {
			err = first.node.Schedules.Receive(other, &proto.Message{Type: proto.TypeSchedule, Payload: b})
		}
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		if all, err := first.node.Schedules.List(t.Context()); err != nil || len(all) != 0 {
			t.Errorf("it is back: %+v, %v", all, err)
		}
	})
}

// A schedule that was added again at another home is not confused with the removed one
// of the same name at this home, to which it moves.
func TestReaddedScheduleIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 100*time.Millisecond)
		defer c.close()
		first, second := c.nodes[0], c.nodes[2]
		c.addSchedule("often", "@daily", nil)
		c.handOffBetween(first, second)
		if err := second.node.Schedules.Remove(t.Context(), "build", "often"); err != nil {
			t.Fatal(err)
		}
		c.handOffBetween(second, c.nodes[1])
		spec := wire.ScheduleSpec{Queue: "build", Name: "often", Cron: "@hourly", ScheduledTask: wire.ScheduledTask{Kind: "build"}}
		if _, err := c.nodes[1].node.Schedules.Add(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
		for _, way := range [][2]*simNode{{c.nodes[1], second}, {second, first}} {
			c.handOffBetween(way[0], way[1])
			if all, err := way[1].node.Schedules.List(t.Context()); err != nil || len(all) != 1 || all[0].Cron != "@hourly" {
				t.Fatalf("%s keeps %+v: %v", way[1].name, all, err)
			}
		}
	})
}

// A schedule that returned to a home and left it again is removed on request of its
// first home; the answer to an offer does not count as the answer to the removal.
func TestScheduleIsRemovedAfterASecondMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 100*time.Millisecond)
		defer c.close()
		first, second, third := c.nodes[0], c.nodes[2], c.nodes[1]
		c.addSchedule("often", "@daily", nil)
		for _, way := range [][2]*simNode{{first, second}, {second, third}, {third, second}, {second, third}} {
			c.handOffBetween(way[0], way[1])
		}
		next, removed := second.peer(), c.storedSchedule(first)
		if !removed.Gone {
			t.Fatalf("the first home keeps %v", removed)
		}
		removed.Generation, removed.Going, removed.Went = 2, next[:], nil
		c.storeSchedule(first, removed)
		answer, err := proto.Encode(nil, &proto.Scheduled{Queue: "build", Name: "often", Generation: 2})
		if err == nil {
			err = first.node.Schedules.Receive(next, &proto.Message{Type: proto.TypeScheduled, Payload: answer})
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := first.node.Schedules.List(t.Context()); err != nil { // the answer was processed before
			t.Fatal(err)
		}
		if len(c.storedSchedule(first).Going) == 0 {
			t.Error("the answer to the offer counted as one to the removal")
		}
		time.Sleep(time.Minute)
		for _, s := range c.nodes {
			all, err := s.node.Schedules.List(t.Context())
			if err != nil || len(all) != 0 {
				t.Errorf("%s keeps %+v: %v", s.name, all, err)
			}
			if len(c.storedSchedule(s).Going) > 0 {
				t.Errorf("%s still sends the removal", s.name)
			}
		}
	})
}

// An invalid schedule is refused, and so is one away from the home of its queue.
func TestInvalidScheduleIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, time.Second)
		defer c.close()
		good := wire.ScheduleSpec{Queue: "build", Name: "n", Cron: "@daily", ScheduledTask: wire.ScheduledTask{Kind: "build"}}
		for name, change := range map[string]func(*wire.ScheduleSpec){
			"cron":   func(s *wire.ScheduleSpec) { s.Cron = "soon" },
			"zone":   func(s *wire.ScheduleSpec) { s.Zone = "Mars/Base" },
			"name":   func(s *wire.ScheduleSpec) { s.Name = "A B" },
			"kind":   func(s *wire.ScheduleSpec) { s.Kind = "" },
			"missed": func(s *wire.ScheduleSpec) { s.Missed = "later" },
			"cap":    func(s *wire.ScheduleSpec) { s.MissedCap = 1001 },
			"ttl":    func(s *wire.ScheduleSpec) { s.TTL = wire.Duration(-time.Hour) },
			"size":   func(s *wire.ScheduleSpec) { s.Body = make([]byte, 32<<10) },
			"label":  func(s *wire.ScheduleSpec) { s.Require = []string{""} },
		} {
			s := good
			change(&s)
			if _, err := c.nodes[0].node.Schedules.Add(t.Context(), s); !errors.Is(err, wire.ErrInvalid) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, err := c.nodes[1].node.Schedules.Add(t.Context(), good); !errors.Is(err, wire.ErrRefused) || !strings.Contains(err.Error(), "n0") {
			t.Errorf("away from the home: %v", err)
		}
		c.addSchedule("n", "@daily", nil)
		if _, err := c.nodes[0].node.Schedules.Add(t.Context(), good); !errors.Is(err, wire.ErrRefused) {
			t.Errorf("a second one with that name: %v", err)
		}
	})
}

// Due times missed while the home was down are skipped, made up for once, or made up for
// up to the cap; no task is created twice across the restart.
func TestMissedRunsWhileTheHomeIsDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, 100*time.Millisecond)
		defer c.close()
		alignClock()
		c.addSchedule("skip", "*/10 * * * *", nil)
		c.addSchedule("once", "*/10 * * * *", func(s *wire.ScheduleSpec) { s.Missed = "run-once" })
		c.addSchedule("all", "*/10 * * * *", func(s *wire.ScheduleSpec) { s.Missed, s.MissedCap = "run-all", 4 })
		time.Sleep(10*time.Minute + time.Second)
		c.nodes[0].crash()
		time.Sleep(time.Hour + 5*time.Minute) // six due times pass
		c.nodes[0].start()
		c.serve(c.nodes[0], 100*time.Millisecond)
		time.Sleep(time.Minute)
		c.wantFirings("skip", 1)
		c.wantFirings("once", 2)
		c.wantFirings("all", 5)
		all, err := c.nodes[0].node.Schedules.List(t.Context())
		if err != nil || all[0].Skipped != 2 || all[1].Skipped != 5 || all[2].Skipped != 6 {
			t.Errorf("skipped: %+v: %v", all, err)
		}
		time.Sleep(10 * time.Minute)
		c.wantFirings("skip", 2)
	})
}

// A home that dies between storing that a due time is firing and storing that it has
// fired creates no second task (S33).
func TestCrashWhileAScheduleFires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, 100*time.Millisecond)
		defer c.close()
		alignClock()
		c.addSchedule("often", "*/10 * * * *", nil)
		time.Sleep(10*time.Minute + time.Second)
		m := c.storedSchedule(c.nodes[0]) // as if the newest task had not been recorded
		m.FiringMs, m.MarkMs, m.Fired = m.MarkMs, m.MarkMs-1, 0
		c.storeSchedule(c.nodes[0], m)
		c.nodes[0].crash()
		time.Sleep(time.Minute)
		c.nodes[0].start()
		c.serve(c.nodes[0], 100*time.Millisecond)
		time.Sleep(time.Minute)
		c.wantFirings("often", 1)
		all, err := c.nodes[0].node.Schedules.List(t.Context())
		if err != nil || all[0].Fired != 1 {
			t.Errorf("%+v: %v", all, err)
		}
	})
}

// A schedule moves with its queue, at any moment and back, also across a partition: each
// due time has one task in the whole mesh (S33).
func TestScheduleMovesWithItsQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 100*time.Millisecond)
		defer c.close()
		alignClock()
		c.addSchedule("often", "* * * * *", nil)
		c.addSchedule("still", "* * * * *", nil)
		if _, err := c.nodes[0].node.Schedules.Pause(t.Context(), "build", "still", true); err != nil {
			t.Fatal(err)
		}
		move := func(from int, to string) {
			if _, err := c.nodes[from].node.Queues.HandOff(t.Context(), "build", to); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(5*time.Minute - 500*time.Millisecond)
		move(0, "n1") // half a second before a due time
		time.Sleep(time.Second)
		c.Partition([]int{0, 2}, []int{1})
		time.Sleep(30 * time.Second)
		c.Heal()
		time.Sleep(4*time.Minute + 30*time.Second)
		move(1, "n0") // half a second after a due time
		time.Sleep(4*time.Minute + 50*time.Second)
		c.wantFirings("often", 14)
		for place, n := range []int{2, 0, 0} {
			if all, err := c.nodes[place].node.Schedules.List(t.Context()); err != nil || len(all) != n {
				t.Errorf("n%d keeps %+v: %v", place, all, err)
			}
		}
		all, err := c.nodes[0].node.Schedules.List(t.Context())
		if err != nil || all[0].Fired != 14 || !all[1].Paused {
			t.Errorf("at its first home again: %+v, %v", all, err)
		}
		c.wantFirings("still", 0)
	})
}

// A handler must also allow the nodes that handed a schedule over: a home signs what
// another one requested.
func TestScheduleDelegatesMustBeAllowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 100*time.Millisecond)
		defer c.close()
		c.servePrivate(c.nodes[2], "peer:n1")
		alignClock()
		c.addSchedule("often", "*/10 * * * *", func(s *wire.ScheduleSpec) { s.Kind = "private" })
		if _, err := c.nodes[0].node.Queues.HandOff(t.Context(), "build", "n1"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10*time.Minute + time.Second)
		c.wantFirings("often", 1)
		all, err := c.nodes[1].node.Schedules.List(t.Context())
		if err != nil || len(all) != 1 {
			t.Fatalf("%+v: %v", all, err)
		}
		if task, err := c.nodes[1].node.Views.Task(t.Context(), all[0].LastTask); err != nil || proto.TaskState(proto.TaskState_value["TASK_STATE_"+task.State]).Terminal() {
			t.Errorf("n0 got n1 to request what n0 may not: %s, %v", task.State, err)
		}
		s, err := c.nodes[1].node.Submit(t.Context(), wire.Request{Target: "queue:build", Kind: "private"})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if task, err := c.nodes[1].node.Views.Wait(ctx, s.ID); err != nil || task.State != "FAILED" {
			t.Errorf("a request of n1 itself: %s, %v", task.State, err)
		}
	})
}

// servePrivate lets a node fail tasks of the kind private permanently, and only allows
// the origins of the rule.
func (c *cluster) servePrivate(s *simNode, rule string) {
	spec := inbox.Spec{Kind: "private", Allow: []string{rule}, OnCrash: inbox.OnCrashRetry, Handler: failHandler{}}
	if err := s.node.inbox.Register(spec); err != nil {
		c.t.Fatal(err)
	}
	s.node.gossip.Describe()
	time.Sleep(3 * time.Second)
}

// newAheadCluster adds a schedule that fires every ten minutes, the latest time a second
// ago, at a home whose clock is ahead of the others' by the stored value.
func newAheadCluster(t *testing.T, nodes int) (c *cluster, ahead *atomic.Int64) {
	ahead = new(atomic.Int64)
	link := transporttest.Link{Latency: 10 * time.Millisecond, Mbps: 100, Seed: 1}
	c = newClusterOf(t, newSimMeshWith(t, nodes, 1, link, func(s *simNode, cfg *Config) {
		if s.place == 0 {
			cfg.Clock = clock.WithOffset(clock.Runtime(), func() time.Duration { return time.Duration(ahead.Load()) })
		}
	}), 100*time.Millisecond)
	alignClock()
	c.addSchedule("often", "*/10 * * * *", nil)
	time.Sleep(10*time.Minute + time.Second)
	return c, ahead
}

// A clock that is wrong for a moment changes nothing. A clock that is set forward
// permanently makes the skipped due times missed ones once it is trusted, a clock that
// is set back repeats none, and both are reported.
func TestScheduleUnderClockJumps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, ahead := newAheadCluster(t, 1)
		defer c.close()
		c.wantFirings("often", 1) // at 0:10, it is 0:10:01
		ahead.Store(int64(25 * time.Minute))
		time.Sleep(30 * time.Second)
		ahead.Store(0)
		time.Sleep(time.Minute)
		c.wantFirings("often", 1)
		ahead.Store(int64(25 * time.Minute))
		time.Sleep(12 * time.Minute) // the task of 0:20 is created; it is 0:23:31, by the clock 0:48:31
		c.wantFirings("often", 2)
		ahead.Store(0)
		time.Sleep(12 * time.Minute) // the task of 0:50 is created; it is 0:35:31
		c.wantFirings("often", 3)
		time.Sleep(24 * time.Minute) // to 0:59:31
		c.wantFirings("often", 3)
		time.Sleep(time.Minute)
		c.wantFirings("often", 4)
		reported := 0
		for _, e := range c.nodes[0].node.Events.Read(t.Context(), 0, 1000, 0).Items {
			if e.Kind == "schedule.clock_jump" {
				reported++
			}
		}
		if reported != 2 {
			t.Errorf("%d jumps were reported, want 2", reported)
		}
	})
}

// A clock that was briefly weeks ahead does not stop a schedule until then.
func TestScheduleAfterAClockFarAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, ahead := newAheadCluster(t, 1)
		defer c.close()
		c.wantFirings("often", 1)
		ahead.Store(int64(2 * schedule.Horizon))
		time.Sleep(30 * time.Second)
		ahead.Store(0)
		time.Sleep(30 * time.Minute)
		c.wantFirings("often", 4)
	})
}

// A schedule message that is not from an old home changes nothing.
func TestForgedScheduleIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, time.Second)
		defer c.close()
		n, from := c.nodes[0].node, c.nodes[1].node.keys.Peer()
		good := func() *proto.Schedule {
			return &proto.Schedule{Queue: "build", Name: "n", Cron: "@daily", Zone: "UTC", Generation: 2, Task: &proto.Content{Kind: "build"}}
		}
		send := func(m proto.Body, typ proto.MessageType) error {
			b, err := proto.Encode(nil, m)
			if err != nil {
				t.Fatal(err)
			}
			err = n.Schedules.Receive(from, &proto.Message{Type: typ, Payload: b})
			time.Sleep(2 * time.Second)
			return err
		}
		for name, change := range map[string]func(*proto.Schedule){
			"cron": func(m *proto.Schedule) { m.Cron = "x" }, "kind": func(m *proto.Schedule) { m.Task = nil }, "gone": func(m *proto.Schedule) { m.Gone, m.Name = true, "" },
			"firing": func(m *proto.Schedule) { m.FiringMs = 1 }, "generation": func(m *proto.Schedule) { m.Generation = 1 }, "name": func(m *proto.Schedule) { m.Name = "../x" },
		} {
			m := good()
			change(m)
			if err := send(m, proto.TypeSchedule); err == nil {
				t.Errorf("%s: it was accepted", name)
			}
		}
		unknown := good()
		unknown.Queue = "nowhere"
		for _, err := range []error{send(unknown, proto.TypeSchedule), send(&proto.Scheduled{Queue: "build", Name: "n", Generation: 9}, proto.TypeScheduled)} {
			if err != nil {
				t.Error(err)
			}
		}
		if all, err := n.Schedules.List(t.Context()); err != nil || len(all) != 0 {
			t.Errorf("stored: %+v: %v", all, err)
		}
		if err := send(good(), proto.TypeSchedule); err != nil {
			t.Error(err)
		}
		if all, err := n.Schedules.List(t.Context()); err != nil || len(all) != 0 {
			t.Errorf("a node that was never the home of the queue handed over %+v: %v", all, err)
		}
		c.addSchedule("n", "@daily", func(s *wire.ScheduleSpec) { s.Kind = "mine" })
		if err := send(good(), proto.TypeSchedule); err != nil {
			t.Error(err)
		}
		if all, err := n.Schedules.List(t.Context()); err != nil || len(all) != 1 || all[0].Kind != "mine" {
			t.Errorf("stored: %+v: %v", all, err)
		}
	})
}
