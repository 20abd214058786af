package ownership

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/ownership/dispatch"
	"github.com/balefire/balefire/proto"
)

// A feed is a home with one owner of two slots, whose tasks end as fast as the test says.
type feed struct {
	*testing.T
	home   *Home
	now    Now
	grants []*proto.Grant // not ended, in the order in which they came
}

const feedSlots = 2

func newFeed(t *testing.T, tasks int) *feed {
	f := &feed{T: t, now: Now{Wall: 1_700_000_000_000, Mono: time.Hour, Boot: time.Hour}}
	f.home = NewHome(homePeer, 100, Config{})
	f.home.Begin(f.now)
	for i := range tasks {
		f.home.Add(Task{ID: testTaskID(i), Queue: "q", Kind: "k", NotAfter: f.now.Wall + time.Hour.Milliseconds()}, f.now)
	}
	f.take(f.home.SetNode(Node{Member: dispatch.Member{Peer: ownerPeer, Alive: true, Kinds: []string{"k"}, Slots: feedSlots}}, f.now))
	return f
}

// take accepts the grants of an output.
func (f *feed) take(out Output) {
	for _, s := range out.Sends {
		if g, ok := s.Body.(*proto.Grant); ok {
			f.grants = append(f.grants, g)
			g.Claim.BootId = bootA[:]
			f.home.OnGranted(ownerPeer, &proto.Granted{Taken: []*proto.Taken{{Claim: g.Claim}}}, f.now)
		}
	}
}

func (f *feed) pass(d time.Duration) {
	f.now = Now{Wall: f.now.Wall + d.Milliseconds(), Mono: f.now.Mono + d, Boot: f.now.Boot + d}
}

// end ends the first n grants, one each time.
func (f *feed) end(n int, each time.Duration) {
	for range n {
		f.pass(each)
		g := f.grants[0]
		f.grants = f.grants[1:]
		_, out := f.home.OnResult(ownerPeer, Result{Claim: g.Claim, State: proto.Success, Digest: []byte("x")}, f.now)
		f.take(out)
	}
}

// giveBack returns the newest grant unstarted.
func (f *feed) giveBack() *taskState {
	n := len(f.grants) - 1
	g := f.grants[n]
	f.grants = f.grants[:n]
	f.take(f.home.OnRelease(ownerPeer, &proto.Release{Released: []*proto.Released{{Claim: g.Claim, Cause: proto.Unstarted, Reason: "it waited for a slot"}}}, f.now))
	return f.home.tasks[proto.TaskID(g.Claim.Task)]
}

// TestAHomeGrantsAhead checks that an owner gets as many tasks beyond its slots as it ended in
// a tenth of a second, and none any more once it has returned one, which costs the task
// nothing.
func TestAHomeGrantsAhead(t *testing.T) {
	f := newFeed(t, 1000)
	if f.end(20, time.Second); len(f.grants) != feedSlots {
		t.Fatalf("it owns %d of tasks that last a second", len(f.grants))
	}
	f.end(500, 5*time.Millisecond)
	if n := len(f.grants); n < feedSlots+18 || n > feedSlots+20 {
		t.Fatalf("it owns %d, and ends 200 a second", n)
	}
	for len(f.grants) > feedSlots {
		ts := f.giveBack()
		if ts.attempts+ts.abandons > 0 || ts.state != proto.Pending {
			t.Fatalf("the returned task is %v after %d attempts and %d abandons", ts.state, ts.attempts, ts.abandons)
		}
	}
	f.pass(time.Minute)
	f.take(f.home.Tick(f.now))
	if len(f.grants) != feedSlots {
		t.Errorf("it owns %d after it has returned the others", len(f.grants))
	}
	f.end(20, time.Second)
	if len(f.grants) != feedSlots {
		t.Errorf("it owns %d of tasks that last a second now", len(f.grants))
	}
}

// TestADeadOwnerOfTasksGrantedAhead checks what its death costs the tasks that it was granted
// ahead: one abandon each and no attempt, like one that ran, since the home cannot tell.
func TestADeadOwnerOfTasksGrantedAhead(t *testing.T) {
	f := newFeed(t, 1000)
	f.end(500, 5*time.Millisecond)
	lost := f.grants
	f.home.SetNode(Node{Member: dispatch.Member{Peer: ownerPeer}}, f.now)
	f.home.Dead(ownerPeer, f.now)
	f.home.SetNode(Node{Member: dispatch.Member{Peer: otherPeer, Alive: true, Kinds: []string{"k"}, Slots: 1000}}, f.now)
	for _, g := range lost {
		if ts := f.home.tasks[proto.TaskID(g.Claim.Task)]; ts.attempts != 0 || ts.abandons != 1 || ts.owner != otherPeer {
			t.Fatalf("%d attempts, %d abandons, owner %v", ts.attempts, ts.abandons, ts.owner)
		}
	}
}

// TestNoPermitNoAbandon lets the owners of a task of mode at_most_once die again and again before
// it may start: that costs the task nothing.
func TestNoPermitNoAbandon(t *testing.T) {
	f := newFeed(t, 0)
	id := testTaskID(1)
	f.take(f.home.Add(Task{ID: id, Queue: "q", Kind: "k", Mode: proto.AtMostOnce, NotAfter: f.now.Wall + time.Hour.Milliseconds()}, f.now))
	for range 20 {
		ts := f.home.tasks[id]
		if len(f.grants) == 0 || ts == nil || ts.attempts+ts.abandons > 0 {
			t.Fatalf("%d grants of %+v", len(f.grants), ts)
		}
		f.grants = nil
		f.pass(time.Second)
		f.take(f.home.Dead(ownerPeer, f.now))
		f.pass(20 * time.Second)
		f.take(f.home.Tick(f.now))
	}
}

// TestOwnLeasesAreNotCountedTwice reports slots as busy that run leases of the home, which have
// ended when the report arrives: the home grants all of them again.
func TestOwnLeasesAreNotCountedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 2, 10*time.Millisecond)
		defer w.close()
		home := w.nodes[0].driver
		home.SetNode(Node{Member: dispatch.Member{Peer: testPeer(0), Slots: 4}}) // it serves nothing itself
		report := func(busy int) (counted int) {
			home.SetNode(Node{Member: dispatch.Member{Peer: testPeer(1), Alive: true, Kinds: []string{"build"}, Slots: 4, Busy: busy}})
			counted, err := call(t.Context(), home, func() int { return home.home.members.byPeer[testPeer(1)].known.Busy })
			if err != nil {
				t.Fatal(err)
			}
			return counted
		}
		for i := range 3 {
			w.nodes[0].add(i, nil)
		}
		w.settled(3, time.Minute)
		if n := report(4); n != 1 {
			t.Errorf("%d slots are busy with other tasks, want 1: 3 of 4 ran leases of this home", n)
		}
		time.Sleep(11 * time.Second)
		if n := report(4); n != 4 {
			t.Errorf("%d slots are busy with other tasks, want all, since nothing was granted for long", n)
		}
	})
}
