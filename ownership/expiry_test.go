package ownership

import (
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/ownership/dispatch"
	"github.com/balefire/balefire/proto"
)

// pass lets time pass in steps of a scan, and returns how tasks ended in it.
func (f *fixture) pass(d time.Duration) (ends []End) {
	for step := 5 * time.Second; d > 0; d -= step {
		f.now.Wall, f.now.Mono, f.now.Boot = f.now.Wall+step.Milliseconds(), f.now.Mono+step, f.now.Boot+step
		ends = append(ends, f.home.Tick(f.now).Ends...)
	}
	return ends
}

// lostFixture returns a fixture with a task whose owner was lost before its home heard from it.
// Another node, which has the task now, is lost too; claim is its claim.
func lostFixture(t *testing.T, change func(*Task)) (f *fixture, claim *proto.Claim) {
	t.Helper()
	f = newFixture(t, change)
	f.home.SetNode(Node{Member: dispatch.Member{Peer: otherPeer, Alive: true, Kinds: []string{"k"}, Slots: 9}}, f.now)
	f.home.SetNode(Node{Member: dispatch.Member{Peer: ownerPeer}}, f.now)
	f.pass(20 * time.Second)
	ts := f.state()
	if ts.owner != otherPeer || !ts.leased() {
		t.Fatalf("leased %v by %s, want the other node", ts.leased(), ts.owner.Short())
	}
	f.home.SetNode(Node{Member: dispatch.Member{Peer: otherPeer}}, f.now)
	claim = ts.claim().message()
	claim.BootId = bootB[:]
	return f, claim
}

// release has the other node give its task back.
func (f *fixture) release(r *proto.Released) Output {
	f.t.Helper()
	out := f.home.OnRelease(otherPeer, &proto.Release{Released: []*proto.Released{r}}, f.now)
	if ts := f.state(); ts == nil || !ts.free() {
		f.t.Fatalf("after the other node gave it back: %v, want a task that waits", ts)
	}
	return out
}

// A task whose lease ran out may still run at the node that had it, also after a later owner
// gave it back without a start. It expires only when no run of at most ten minutes can be left
// at that node (I3), and a restart of its home changes nothing of that.
func TestTaskThatMayStillRunDoesNotExpire(t *testing.T) {
	for _, cause := range []proto.ReleaseCause{proto.Unstarted, proto.CauseExpired} {
		t.Run(cause.Name(), func(t *testing.T) {
			f, claim := lostFixture(t, nil)
			if cause == proto.CauseExpired {
				f.pass(10 * time.Second)
				f.now.Wall = f.task.NotAfter // as its clock says
			}
			f.release(&proto.Released{Claim: claim, Cause: cause})
			again := taskStateOf(f.task, f.state().record())
			f.now.Wall = f.task.NotAfter
			if f.pass(time.Minute); f.state() == nil {
				t.Error("it expired while its first owner may run it")
			}
			if f.pass(9*time.Minute + f.home.cfg.Skew); f.state() == nil {
				t.Error("it expired although a run of ten minutes may be left")
			}
			if f.pass(10 * time.Second); f.state() != nil {
				t.Error("it did not expire, and no run of it can be left")
			}
			if !again.lost {
				t.Error("its record does not say that its first owner may run it")
			}
		})
	}
}

// The end of a task that may still run at a lost owner says so, and what was the matter last (I11).
func TestEndOfATaskThatMayStillRun(t *testing.T) {
	f, claim := lostFixture(t, nil)
	f.release(&proto.Released{Claim: claim, Cause: proto.Unstarted, Reason: "no handler"})
	f.now.Wall = f.task.NotAfter
	ends := f.pass(time.Minute + f.home.cfg.RunLimit + f.home.cfg.Skew)
	if len(ends) != 1 || ends[0].State != proto.Expired || ends[0].Cause != proto.TaskOwnerLost || !strings.Contains(ends[0].Reason, "no handler") {
		t.Errorf("expired: %+v, want both reasons", ends)
	}
	f, claim = lostFixture(t, nil)
	f.release(&proto.Released{Claim: claim, Cause: proto.Unstarted})
	if _, out := f.home.Cancel(f.task.ID, false, f.now); len(out.Ends) != 1 || out.Ends[0].State != proto.Cancelled || out.Ends[0].Cause != proto.TaskCancelledLost {
		t.Errorf("cancelled: %+v", out.Ends)
	}
}

// The owner of an at_most_once task starts it only with a permit of its newest lease: without
// one no lost owner runs it, and it expires on time.
func TestTaskWithoutPermitExpires(t *testing.T) {
	f, claim := lostFixture(t, func(x *Task) { x.Mode = proto.AtMostOnce })
	f.release(&proto.Released{Claim: claim, Cause: proto.Unstarted})
	f.now.Wall = f.task.NotAfter
	if ends := f.pass(time.Minute); len(ends) != 1 || ends[0].State != proto.Expired {
		t.Errorf("ended %+v, want it expired", ends)
	}
}

// A task that may still run at a lost owner holds its lane, also a shared one (I10).
func TestTaskThatMayStillRunHoldsItsLane(t *testing.T) {
	for _, shared := range []bool{false, true} {
		f, claim := lostFixture(t, func(x *Task) { x.Key, x.Origin = "customer-7", homePeer })
		f.home.SetQueue(func(s *proto.QueueState) { s.SharedLanes = shared }, f.now, "q")
		origin := homePeer
		if shared {
			origin = otherPeer
		}
		next := Task{ID: proto.TaskID{8}, Queue: "q", Kind: "k", Key: "customer-7", Origin: origin, NotAfter: f.task.NotAfter + time.Hour.Milliseconds()}
		f.home.Add(next, f.now)
		f.release(&proto.Released{Claim: claim, Cause: proto.Unstarted})
		f.now.Wall = f.task.NotAfter
		f.pass(10 * time.Second)
		f.home.SetNode(Node{Member: dispatch.Member{Peer: otherPeer, Alive: true, Kinds: []string{"k"}, Slots: 9}}, f.now)
		f.pass(10 * time.Second)
		if f.state() == nil || f.home.tasks[next.ID].epoch != (proto.Seq{}) {
			t.Errorf("shared %v: the next task of its lane was granted", shared)
		}
	}
}
