package ownership

import (
	"testing"
	"time"

	"github.com/balefire/balefire/ownership/dispatch"
	"github.com/balefire/balefire/proto"
)

// A task whose lease ran out may still run at the node that had it, also after a later owner
// gave it back without a start. It expires only when no run of that node is left (I3), and
// a restart of its home changes nothing of that.
func TestTaskThatMayStillRunDoesNotExpire(t *testing.T) {
	for _, cause := range []proto.ReleaseCause{proto.Unstarted, proto.CauseExpired} {
		t.Run(cause.Name(), func(t *testing.T) {
			f := newFixture(t, nil)
			pass := func(d time.Duration) {
				for step := 5 * time.Second; d > 0; d -= step {
					f.now.Wall, f.now.Mono, f.now.Boot = f.now.Wall+step.Milliseconds(), f.now.Mono+step, f.now.Boot+step
					f.home.Tick(f.now)
				}
			}
			f.home.OnGranted(ownerPeer, &proto.Granted{Taken: []*proto.Taken{{Claim: f.claim()}}}, f.now)
			f.home.SetNode(Node{Member: dispatch.Member{Peer: otherPeer, Alive: true, Kinds: []string{"k"}, Slots: 9}}, f.now)
			f.home.SetNode(Node{Member: dispatch.Member{Peer: ownerPeer}}, f.now)
			pass(20 * time.Second)
			ts := f.state()
			if ts.owner != otherPeer || !ts.leased() {
				t.Fatalf("leased %v by %s, want the other node", ts.leased(), ts.owner.Short())
			}
			f.home.SetNode(Node{Member: dispatch.Member{Peer: otherPeer}}, f.now)
			if cause == proto.CauseExpired {
				pass(10 * time.Second)
				f.now.Wall = f.task.NotAfter // as its clock says
			}
			claim := ts.claim().message()
			claim.BootId = bootB[:]
			f.home.OnRelease(otherPeer, &proto.Release{Released: []*proto.Released{{Claim: claim, Cause: cause}}}, f.now)
			if ts = f.state(); ts == nil || !ts.free() {
				t.Fatalf("after the other node gave it back: %v, want a task that waits", ts)
			}
			again := taskStateOf(ts.task, ts.record())
			f.now.Wall = f.task.NotAfter
			pass(time.Minute)
			if f.state() == nil {
				t.Error("it expired while its first owner may run it")
			}
			pass(f.home.cfg.RunLimit + f.home.cfg.Skew)
			if f.state() != nil {
				t.Error("it did not expire, and no run of it can be left")
			}
			if !again.lost {
				t.Error("its record does not say that its first owner may run it")
			}
		})
	}
}
