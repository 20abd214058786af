package ownership

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/ownership/dispatch"
	"github.com/balefire/balefire/proto"
)

// advance advances all clocks of f.
func (f *fixture) advance(d time.Duration) {
	f.now = Now{Wall: f.now.Wall + d.Milliseconds(), Mono: f.now.Mono + d, Boot: f.now.Boot + d}
}

// exchange delivers the messages of the owner to h, and its answers back. It returns the
// number of messages.
func (f *fixture) exchange(h *Home, out Output) int {
	f.t.Helper()
	var back []Send
	for _, s := range out.Sends {
		switch m := s.Body.(type) {
		case *proto.Renew:
			back = append(back, h.OnRenew(ownerPeer, m, f.now).Sends...)
		case *proto.Release:
			back = append(back, h.OnRelease(ownerPeer, m, f.now).Sends...)
		case *proto.Start:
			back = append(back, h.OnStart(ownerPeer, m, f.now).Sends...)
		case *proto.StatusReply:
			back = append(back, h.OnStatusReply(ownerPeer, m, f.now).Sends...)
		case *proto.Outcome:
			r, _ := h.OnResult(ownerPeer, ResultOf(s.Task, m), f.now)
			f.owner.OnResultAnswer(homePeer, r, f.now)
		}
	}
	for _, s := range back {
		switch m := s.Body.(type) {
		case *proto.Renewed:
			f.owner.OnRenewed(homePeer, m, f.now)
		case *proto.ReleaseReply:
			f.owner.OnReleaseReply(homePeer, m, f.now)
		case *proto.Permit:
			f.owner.OnPermit(homePeer, m, f.now)
		}
	}
	return len(out.Sends)
}

// A home that lost a task in a rollback of its disk does not permit its start either: the
// slot becomes free when the lease is over, whatever the home answers to renewals.
func TestAHomeThatLostATaskFreesTheSlot(t *testing.T) {
	f := newFixture(t, func(x *Task) { x.Mode = proto.AtMostOnce })
	f.owner.OnGrant(homePeer, f.grant, 0, f.now)
	h := NewHome(homePeer, 200, Config{})
	f.exchange(h, f.owner.Ready(f.task.ID, false, f.now))
	for range 60 {
		f.advance(time.Second)
		f.exchange(h, f.owner.Tick(f.now))
	}
	if got := f.owner.runs[f.task.ID].phase; got != proto.LeaseReleased {
		t.Errorf("after four leases it still holds its slot: it is %v", got)
	}
}

// A home that has lost its record of a lease, and not the task, tells the owner nothing that
// ends the run, whatever reaches it before it grants the task again: the owner adopts that
// grant, starts nothing again, and its result counts (I6, S20).
func TestAHomeThatLostALeaseStopsNoRun(t *testing.T) {
	for name, first := range map[string]func(f *fixture) Output{
		"nothing":    func(*fixture) Output { return Output{} },
		"a renewal":  func(f *fixture) Output { f.advance(f.owner.cfg.Heartbeat); return f.owner.Tick(f.now) },
		"the result": func(f *fixture) Output { return f.succeed() },
		"a status reply": func(f *fixture) Output {
			return f.owner.OnStatus(homePeer, &proto.Status{Claims: []*proto.Claim{f.claim()}}, f.now)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			f.owner.OnGrant(homePeer, f.grant, 0, f.now)
			f.owner.Ready(f.task.ID, false, f.now)
			f.owner.Tick(f.now)
			h := NewHome(homePeer, 200, Config{})
			h.SetQueue(func(*proto.QueueState) {}, f.now, "q")
			h.Restore(f.task, nil, f.now)
			h.Begin(f.now)
			if f.exchange(h, first(f)) == 0 && name != "nothing" {
				t.Fatal("the owner sends nothing")
			}
			r := f.owner.runs[f.task.ID]
			if r.phase == proto.LeaseClosed || r.mem.stopped || r.orphan {
				t.Fatalf("the owner drops what it has: it is %v, stopped %v, without a home %v", r.phase, r.mem.stopped, r.orphan)
			}
			granted := h.SetNode(Node{Member: dispatch.Member{Peer: ownerPeer, Alive: true, Kinds: []string{"k"}, Slots: 9}}, f.now)
			if len(granted.Sends) != 1 {
				t.Fatalf("it is not granted again: %+v", granted.Sends)
			}
			again := f.owner.OnGrant(homePeer, granted.Sends[0].Body.(*proto.Grant), 0, f.now)
			if len(again.Waits) > 0 {
				t.Error("I6: it is to be started again")
			}
			f.exchange(h, again)
			if r.phase == proto.LeaseStarted {
				f.exchange(h, f.succeed())
			}
			if e := h.ended.find(f.task.ID); e == nil || e.state != proto.Success {
				t.Error("its result does not count")
			}
		})
	}
}

// succeed ends the run of the task with success.
func (f *fixture) succeed() Output {
	_, out := f.owner.Finish(f.task.ID, proto.Success, []byte("d"), f.now)
	return out
}

// A lease that its home does not know is not renewed by the answer that says so.
func TestAHomeThatLostATaskRenewsNothing(t *testing.T) {
	f := newFixture(t, nil)
	f.owner.OnGrant(homePeer, f.grant, 0, f.now)
	f.owner.Ready(f.task.ID, false, f.now)
	until := f.owner.runs[f.task.ID].mem.leaseUntil
	h := NewHome(homePeer, 200, Config{})
	f.advance(3 * time.Second)
	f.exchange(h, f.owner.Tick(f.now))
	if got := f.owner.runs[f.task.ID].mem.leaseUntil; got != until {
		t.Errorf("it continues for %v more", got-until)
	}
}

// The owner reports once that its result does not count, whatever the home has made of the
// task.
func TestALostResultIsReported(t *testing.T) {
	for _, state := range []proto.TaskState{proto.Pending, proto.Success} {
		f := newFixture(t, nil)
		f.owner.OnGrant(homePeer, f.grant, 0, f.now)
		f.owner.Ready(f.task.ID, false, f.now)
		f.owner.Finish(f.task.ID, proto.Success, []byte("d"), f.now)
		k, _ := claimFrom(f.owner.runs[f.task.ID].claim.message())
		stale := k.ruling(proto.CodeStale)
		stale.State = state
		reported := 0
		for range 3 {
			for _, e := range f.owner.OnResultAnswer(homePeer, stale, f.now).Events {
				if e.Kind == EventResultLost && e.Task == f.task.ID {
					reported++
				}
			}
		}
		if reported != 1 {
			t.Errorf("a task that is %v: reported %d times", state, reported)
		}
	}
}

// The result for a home that has lost the task is kept, and sent at times, while the task
// may come back; then it is forgotten here too.
func TestAResultThatNoHomeKnowsIsForgotten(t *testing.T) {
	for name, end := range map[string]func(f *fixture) Output{
		"a result": func(f *fixture) Output {
			_, out := f.owner.Finish(f.task.ID, proto.Success, []byte("d"), f.now)
			return out
		},
		"a released lease": func(f *fixture) Output {
			return f.owner.Fail(f.task.ID, &proto.Released{Cause: proto.CauseFailed, Reason: "exit 75"}, f.now)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			f.owner.OnGrant(homePeer, f.grant, 0, f.now)
			f.owner.Ready(f.task.ID, false, f.now)
			h := NewHome(homePeer, 200, Config{})
			f.exchange(h, end(f))
			messages := 0
			for begin := f.now.Boot; f.now.Boot-begin < 2*time.Hour; f.advance(time.Second) { // until an hour after its time
				messages += f.exchange(h, f.owner.Tick(f.now))
			}
			if r := f.owner.runs[f.task.ID]; r == nil || r.phase == proto.LeaseClosed {
				t.Fatal("it was dropped while the task may come back")
			}
			if messages == 0 {
				t.Error("it is never sent")
			}
			f.advance(48 * time.Hour)
			for begin := f.now.Boot; f.now.Boot-begin < 2*time.Hour; f.advance(time.Second) {
				f.exchange(h, f.owner.Tick(f.now))
			}
			if r := f.owner.runs[f.task.ID]; r != nil {
				t.Errorf("two days after its time it is still kept and sent, as %v", r.phase)
			}
		})
	}
}

// The results for a home that was revoked are kept until a day after their tasks have expired,
// in case its queue is seized, and not longer: nobody else takes them.
func TestResultsForARevokedHomeAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 2, 3*time.Second)
		defer w.close()
		for i := range 6 {
			w.nodes[0].add(i, nil)
		}
		time.Sleep(time.Second)
		w.nodes[0].crash()
		w.members()
		time.Sleep(time.Minute)
		owner := w.nodes[1].driver
		kept := func() int {
			all, err := owner.Leases(t.Context(), func(v LeaseView) bool { return !v.Home }, 100)
			if err != nil {
				t.Fatal(err)
			}
			return len(all)
		}
		results := kept()
		for hours := range 48 {
			owner.HomeRevoked(testPeer(0))
			if n := kept(); hours < 24 && (n == 0 || n != results) {
				t.Fatalf("%d of %d results are kept after %d hours", n, results, hours)
			}
			time.Sleep(time.Hour)
		}
		if n := kept(); n != 0 {
			t.Errorf("%d results of tasks whose time passed a day ago are kept for a revoked home", n)
		}
	})
}
