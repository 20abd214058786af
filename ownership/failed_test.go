package ownership

import (
	"testing"
	"time"

	"github.com/balefire/balefire/ownership/dispatch"
	"github.com/balefire/balefire/proto"
)

// A node whose run of a task failed does not get the task again while another node can take
// it, so that a broken handler does not use up the attempts; if it is alone it gets the
// task again.
func TestAFailedTaskGoesToAnotherNode(t *testing.T) {
	for _, others := range []int{0, 1} {
		f := newFixture(t, nil)
		for range others {
			f.home.SetNode(Node{Member: dispatch.Member{Peer: otherPeer, Alive: true, Kinds: []string{"k"}, Slots: 9}}, f.now)
		}
		f.home.OnGranted(ownerPeer, &proto.Granted{Taken: []*proto.Taken{{Claim: f.claim()}}}, f.now)
		f.home.OnStart(ownerPeer, &proto.Start{Claims: []*proto.Claim{f.claim()}}, f.now)
		f.home.OnRelease(ownerPeer, &proto.Release{Released: []*proto.Released{{Claim: f.claim(), Cause: proto.CauseFailed, Reason: "broken"}}}, f.now)
		ts := f.state()
		if ts.attempts != 1 {
			t.Fatalf("%d attempts, want the failed one", ts.attempts)
		}
		for range 10 {
			if f.now.Wall, f.now.Mono, f.now.Boot = f.now.Wall+1000, f.now.Mono+time.Second, f.now.Boot+time.Second; ts.leased() {
				break
			}
			f.home.Tick(f.now)
		}
		want := ownerPeer
		if others > 0 {
			want = otherPeer
		}
		if !ts.leased() || ts.owner != want {
			t.Errorf("with %d others: leased %v by %s, want %s", others, ts.leased(), ts.owner.Short(), want.Short())
		}
	}
}
