package ownership

import (
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
)

// An owner whose result its home refuses for good, for it has not the role or says what
// cannot be read, loses the lease at once and is told so: the task goes to another node
// (I20). Who has no lease changes nothing by that.
func TestARefusedResultEndsItsLease(t *testing.T) {
	for mode, want := range map[proto.Mode]proto.TaskState{
		proto.AtLeastOnce: proto.Retrying,
		proto.AtMostOnce:  proto.DeadLetter,
	} {
		b := newBench(t, func(x *Task) { x.Mode = mode })
		b.exchange(b.home, b.owner.OnGrant(homePeer, b.grant, 0, b.now))
		b.exchange(b.home, b.owner.Ready(b.task.ID, b.now))
		b.home.OnRenew(ownerPeer, &proto.Renew{Claims: []*proto.Claim{b.owner.runs[b.task.ID].message()}}, b.now)
		b.owner.Finish(b.task.ID, proto.Success, []byte("x"), b.now)
		ts := b.cell()
		if out := b.home.RefuseResult(otherPeer, b.task.ID, "it lies", b.now); len(out.Sends)+len(out.Writes) != 0 || ts.released {
			t.Fatal("who has no lease ends it")
		}
		out := b.home.RefuseResult(ownerPeer, b.task.ID, "DENIED", b.now)
		if ts.state != want || !ts.released {
			t.Errorf("mode %v: the task is %v, want %v", mode, ts.state, want)
		}
		told := false
		for _, s := range out.Sends {
			if m, ok := s.Body.(*proto.Committed); ok && s.To == ownerPeer {
				told = true
				b.owner.OnResultAnswer(homePeer, m.Rulings[0], b.now)
			}
		}
		if r := b.owner.runs[b.task.ID]; !told || !r.orphan {
			t.Errorf("mode %v: the owner is told: %v, and knows that its result does not count: %v", mode, told, r.orphan)
		}
	}
}

// A task that the queue does not take from its origin ends when it comes by another home,
// and is not granted: handing it over goes round no allow list.
func TestADeniedTaskEndsAsItIsHandedOver(t *testing.T) {
	b := newBench(t, nil)
	out, err := b.home.HandOff("q", otherPeer, b.now)
	if err != nil {
		t.Fatal(err)
	}
	to, task := NewHome(otherPeer, 50, Config{}), b.task
	task.Denied = "the queue's allow list does not name the origin"
	ended := 0
	for _, s := range out.Sends {
		m, ok := s.Body.(*proto.Handoff)
		if !ok {
			continue
		}
		o := to.OnHandoff(homePeer, m, task, b.now)
		for _, e := range o.Ends {
			if e.Task == task.ID && e.State == proto.DeadLetter {
				ended++
			}
		}
		for _, s := range o.Sends {
			if a, ok := s.Body.(*proto.HandedOff); ok {
				b.home.OnHandedOff(otherPeer, a, b.now)
			}
		}
	}
	if ended != 1 || len(to.cells) != 0 {
		t.Errorf("it ended %d times, %d tasks are there", ended, len(to.cells))
	}
	b.now.Mono += time.Minute
	if b.home.PendingHandoffs() != 0 {
		t.Error("the old home keeps it")
	}
}
