package ownership

import (
	"testing"
	"time"

	"github.com/balefire/balefire/ownership/dispatch"
	"github.com/balefire/balefire/proto"
)

// A node whose run of a task failed does not get it again while another can take it, so
// that one with a broken handler does not use up the attempts; alone it gets it again.
func TestATaskThatFailedGoesToAnother(t *testing.T) {
	for _, others := range []int{0, 1} {
		b := newBench(t, nil)
		for range others {
			b.home.SetNode(Node{Member: dispatch.Member{Peer: otherPeer, Alive: true, Kinds: []string{"k"}, Slots: 9}}, b.now)
		}
		b.home.OnGranted(ownerPeer, &proto.Granted{Taken: []*proto.Taken{{Claim: b.claim()}}}, b.now)
		b.home.OnStart(ownerPeer, &proto.Start{Claims: []*proto.Claim{b.claim()}}, b.now)
		b.home.OnRelease(ownerPeer, &proto.Release{Released: []*proto.Released{{Claim: b.claim(), Cause: proto.CauseFailed, Reason: "broken"}}}, b.now)
		ts := b.cell()
		if ts.attempts != 1 {
			t.Fatalf("%d attempts, want the failed one", ts.attempts)
		}
		for range 10 {
			if b.now.Wall, b.now.Mono, b.now.Boot = b.now.Wall+1000, b.now.Mono+time.Second, b.now.Boot+time.Second; ts.leased() {
				break
			}
			b.home.Tick(b.now)
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
