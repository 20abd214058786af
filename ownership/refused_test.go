package ownership

import (
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
)

// An owner whose result is rejected for good, because it lacks the role or the result is
// unreadable, loses the lease at once and is told so: the task goes to another node (I20).
// For a node without a lease nothing changes.
func TestARefusedResultEndsItsLease(t *testing.T) {
	for mode, want := range map[proto.Mode]proto.TaskState{
		proto.AtLeastOnce: proto.Retrying,
		proto.AtMostOnce:  proto.DeadLetter,
	} {
		f := newFixture(t, func(x *Task) { x.Mode = mode })
		f.exchange(f.home, f.owner.OnGrant(homePeer, f.grant, 0, f.now))
		f.exchange(f.home, f.owner.Ready(f.task.ID, false, f.now))
		f.home.OnRenew(ownerPeer, &proto.Renew{Claims: []*proto.Claim{f.owner.runs[f.task.ID].claim.message()}}, f.now)
		f.owner.Finish(f.task.ID, proto.Success, []byte("x"), f.now)
		ts := f.state()
		if out := f.home.RefuseResult(otherPeer, f.task.ID, "it lies", f.now); len(out.Sends)+len(out.Writes) != 0 || ts.released {
			t.Fatal("who has no lease ends it")
		}
		out := f.home.RefuseResult(ownerPeer, f.task.ID, "DENIED", f.now)
		if ts.state != want || !ts.released {
			t.Errorf("mode %v: the task is %v, want %v", mode, ts.state, want)
		}
		told := false
		for _, s := range out.Sends {
			if m, ok := s.Body.(*proto.Committed); ok && s.To == ownerPeer {
				told = true
				f.owner.OnResultAnswer(homePeer, m.Rulings[0], f.now)
			}
		}
		if r := f.owner.runs[f.task.ID]; !told || !r.orphan {
			t.Errorf("mode %v: the owner is told: %v; the result is an orphan: %v", mode, told, r.orphan)
		}
	}
}

// A task that the queue does not accept from its origin ends when another home hands it
// over, and is not granted: a handoff does not bypass the allow list.
func TestADeniedTaskEndsWhenHandedOver(t *testing.T) {
	f := newFixture(t, nil)
	out, err := f.home.HandOff("q", otherPeer, f.now)
	if err != nil {
		t.Fatal(err)
	}
	to, task := NewHome(otherPeer, 50, Config{}), f.task
	task.Denied = "the queue's allow list does not name the origin"
	ended := 0
	for _, s := range out.Sends {
		m, ok := s.Body.(*proto.Handoff)
		if !ok {
			continue
		}
		o := to.OnHandoff(homePeer, m, task, f.now)
		for _, e := range o.Ends {
			if e.Task == task.ID && e.State == proto.DeadLetter {
				ended++
			}
		}
		for _, s := range o.Sends {
			if a, ok := s.Body.(*proto.HandedOff); ok {
				f.home.OnHandedOff(otherPeer, a, f.now)
			}
		}
	}
	if ended != 1 || len(to.tasks) != 0 {
		t.Errorf("it ended %d times, %d tasks are there", ended, len(to.tasks))
	}
	f.now.Mono += time.Minute
	if f.home.PendingHandoffs() != 0 {
		t.Error("the old home keeps it")
	}
}
