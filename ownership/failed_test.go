package ownership

import (
	"fmt"
	"slices"
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

// An event at the home of a task has its kind, its class and the number of its newest attempt,
// also when that has failed and the task is a dead letter, with the reason.
func TestEventsTellTheAttempt(t *testing.T) {
	f := newFixture(t, func(x *Task) { x.Class, x.Options = proto.High, &proto.TaskOptions{MaxAttempts: 2} })
	var got []string
	note := func(out Output) {
		for _, e := range out.Events {
			got = append(got, fmt.Sprint(e.Kind, " ", e.TaskKind, " ", e.Class.Name(), " ", e.Attempt, " ", e.State.Name(), " ", string(e.Cause), " ", e.Detail))
		}
	}
	fail := func() {
		k := f.state().claim()
		k.boot = bootA
		note(f.home.OnGranted(ownerPeer, &proto.Granted{Taken: []*proto.Taken{{Claim: k.message()}}}, f.now))
		note(f.home.OnRelease(ownerPeer, &proto.Release{Released: []*proto.Released{{Claim: k.message(), Cause: proto.CauseFailed, Reason: "broken"}}}, f.now))
	}
	fail()
	for i := 0; i < 100 && !f.state().leased(); i++ {
		f.now.Wall, f.now.Mono, f.now.Boot = f.now.Wall+1000, f.now.Mono+time.Second, f.now.Boot+time.Second
		note(f.home.Tick(f.now))
	}
	fail()
	want := []string{
		"taken k high 1 UNSPECIFIED  ", "released k high 1 UNSPECIFIED FAILED broken", "granted k high 2 UNSPECIFIED  ",
		"taken k high 2 UNSPECIFIED  ", "released k high 2 UNSPECIFIED FAILED broken", "ended k high 2 DEAD_LETTER attempts_used broken",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the events are\n%q, want\n%q", got, want)
	}
}
