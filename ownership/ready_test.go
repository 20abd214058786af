package ownership

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/balefire/balefire/ownership/dispatch"
	"github.com/balefire/balefire/proto"
)

// Whatever comes and goes, the first task that may be granted is the one that came first of
// those of the next origin, among the tasks that are not skipped. An origin whose task was
// granted, or that had none, is behind the others.
func TestReadyKeepsTheOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r readyQueue
		var model []*taskState
		var turns []proto.PeerID
		remove := func(ts *taskState) {
			r.remove(ts)
			model = slices.DeleteFunc(model, func(x *taskState) bool { return x == ts })
			if !slices.ContainsFunc(model, func(x *taskState) bool { return x.task.Origin == ts.task.Origin }) {
				turns = slices.DeleteFunc(turns, func(p proto.PeerID) bool { return p == ts.task.Origin })
			}
		}
		first := func(passed map[string]bool) *taskState {
			for _, origin := range turns {
				at := slices.IndexFunc(model, func(ts *taskState) bool {
					return ts.task.Origin == origin && !passed[shapeOf(ts)]
				})
				if at >= 0 {
					return model[at]
				}
			}
			return nil
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			step := rapid.SampledFrom([]string{"push", "push", "remove", "grant"}).Draw(t, "step")
			switch {
			case step == "push" || len(model) == 0:
				ts := &taskState{task: Task{
					Kind: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "kind"), Origin: peerOf(rapid.IntRange(0, 3).Draw(t, "origin")),
					Options: &proto.TaskOptions{Require: rapid.SampledFrom([][]string{nil, {"gpu"}}).Draw(t, "labels")},
				}}
				r.push(ts)
				model = append(model, ts)
				if !slices.Contains(turns, ts.task.Origin) {
					turns = append(turns, ts.task.Origin)
				}
			case step == "remove":
				remove(model[rapid.IntRange(0, len(model)-1).Draw(t, "at")])
			default:
				ts := first(nil)
				r.took(ts)
				turns = append(slices.DeleteFunc(turns, func(p proto.PeerID) bool { return p == ts.task.Origin }), ts.task.Origin)
				remove(ts)
			}
			passed := rapid.MapOfN(rapid.SampledFrom([]string{"a", "b", "c", `"a"["gpu"][]`}), rapid.Just(true), 0, 3).Draw(t, "passed")
			if got, want := r.firstExcept(passed), first(passed); got != want {
				t.Fatalf("of %d the first is %v, want %v", len(model), got, want)
			}
			if got := r.turns.Len(); got != len(turns) {
				t.Fatalf("%d origins wait, want %d", got, len(turns))
			}
		}
	})
}

// A sender with a long backlog in a queue does not keep the tasks of others waiting.
func TestOriginsTakeTurnsInAQueue(t *testing.T) {
	f := newFixture(t, nil)
	f.home.SetNode(Node{Member: dispatch.Member{Peer: ownerPeer, Alive: true, Kinds: []string{"k"}, Slots: 1}}, f.now)
	add := func(n int, origin proto.PeerID) {
		f.home.Add(Task{ID: testTaskID(n), Queue: "q", Kind: "k", Origin: origin, NotAfter: f.task.NotAfter}, f.now)
	}
	for i := range 50 {
		add(100+i, otherPeer)
	}
	add(200, homePeer)
	add(201, homePeer)
	var granted []proto.TaskID
	claim := f.claim()
	for range 5 {
		out := f.home.OnRelease(ownerPeer, &proto.Release{Released: []*proto.Released{{Claim: claim, Cause: proto.CauseParked}}}, f.now)
		for _, s := range out.Sends {
			if g, ok := s.Body.(*proto.Grant); ok {
				claim = g.Claim
				claim.BootId = bootA[:]
				granted = append(granted, proto.TaskID(claim.Task))
			}
		}
	}
	if want := []proto.TaskID{testTaskID(100), testTaskID(200), testTaskID(101), testTaskID(201), testTaskID(102)}; !slices.Equal(granted, want) {
		t.Errorf("granted %v, want %v: the origins take turns", granted, want)
	}
}

// Tasks that no node can take keep no other waiting, however many they are: neither those of
// other classes and origins nor those of their own (I20). When a node can take one, it is granted.
func TestTasksThatNobodyCanTakeAreSkipped(t *testing.T) {
	const stuck = 300
	f := newFixture(t, nil)
	node := dispatch.Member{Peer: ownerPeer, Alive: true, Kinds: []string{"k"}, Slots: 1}
	f.home.SetNode(Node{Member: node}, f.now)
	add := func(n int, origin proto.PeerID, class proto.Class, labels ...string) proto.TaskID {
		x := Task{ID: testTaskID(n), Queue: "q", Kind: "k", Origin: origin, Class: class, NotAfter: f.task.NotAfter, Options: &proto.TaskOptions{Require: labels}}
		f.home.Add(x, f.now)
		return x.ID
	}
	pinned := make([]proto.TaskID, stuck)
	for i := range stuck {
		pinned[i] = add(1000+i, otherPeer, proto.Low, fmt.Sprint("host=", i))
	}
	var want []proto.TaskID
	for i := range 200 {
		want = append(want, add(100+i, homePeer, proto.Critical))
	}
	plain := add(400, otherPeer, proto.Low)
	want = append(want, plain)
	var granted []proto.TaskID
	claim := f.claim()
	take := func(out Output) {
		for _, s := range out.Sends {
			if g, ok := s.Body.(*proto.Grant); ok {
				claim = g.Claim
				claim.BootId = bootA[:]
				granted = append(granted, proto.TaskID(claim.Task))
			}
		}
	}
	for range len(want) {
		take(f.home.OnRelease(ownerPeer, &proto.Release{Released: []*proto.Released{{Claim: claim, Cause: proto.CauseParked}}}, f.now))
		for range stuck / maxLooks {
			take(f.home.OnRenew(ownerPeer, &proto.Renew{}, f.now))
		}
	}
	if at := slices.Index(granted, plain); at > 100 {
		t.Errorf("the task of the same origin and class was grant %d", at)
	}
	slices.SortFunc(granted, func(a, b proto.TaskID) int { return slices.Index(want, a) - slices.Index(want, b) })
	if !slices.Equal(granted, want) {
		t.Fatalf("granted %v, want all %d that the node can take", granted, len(want))
	}
	node.Labels = []string{"host=7"}
	f.home.SetNode(Node{Member: node}, f.now)
	granted = nil
	take(f.home.OnRelease(ownerPeer, &proto.Release{Released: []*proto.Released{{Claim: claim, Cause: proto.CauseParked}}}, f.now))
	for range 1 + stuck/maxLooks {
		take(f.home.OnRenew(ownerPeer, &proto.Renew{}, f.now))
	}
	if !slices.Equal(granted, pinned[7:8]) {
		t.Errorf("granted %v, want the one that waited for this node, %v", granted, pinned[7])
	}
}

// A task that a node can take as soon as another has ended does not wait for others to be looked at
// that nobody can take, and these are forgotten with the last task.
func TestTaskBehindALimitIsGrantedAtOnce(t *testing.T) {
	f := newFixture(t, func(x *Task) { x.Class = proto.Critical })
	f.home.SetQueue(func(s *proto.QueueState) { s.Kinds = []*proto.KindLimit{{Kind: "k", Concurrency: 1}} }, f.now, "q")
	f.home.SetNode(Node{Member: dispatch.Member{Peer: ownerPeer, Alive: true, Kinds: []string{"k", "j"}, Slots: 9}}, f.now)
	const stuck = 640
	for i := range stuck {
		f.home.Add(Task{ID: testTaskID(1000 + i), Queue: "q", Kind: "j", Class: proto.Low, NotAfter: f.task.NotAfter, Options: &proto.TaskOptions{Require: []string{fmt.Sprint("host=", i)}}}, f.now)
	}
	next := testTaskID(1)
	f.home.Add(Task{ID: next, Queue: "q", Kind: "k", Class: proto.Critical, NotAfter: f.task.NotAfter}, f.now)
	for range stuck / maxLooks {
		f.home.OnRenew(ownerPeer, &proto.Renew{}, f.now)
	}
	claim := f.claim()
	f.home.OnRelease(ownerPeer, &proto.Release{Released: []*proto.Released{{Claim: claim, Cause: proto.CauseParked}}}, f.now)
	ts := f.home.tasks[next]
	if !ts.leased() {
		t.Error("the next task of the kind was not granted when the one before it had ended")
	}
	q := ts.mem.queue
	f.now.Wall = f.task.NotAfter
	f.pass(time.Minute + f.home.cfg.RunLimit + f.home.cfg.Skew)
	if !q.idle() || len(q.stuck.shapes)+len(q.stuck.busy) > 0 {
		t.Errorf("the queue is idle: %v, and %d shapes are remembered", q.idle(), len(q.stuck.shapes))
	}
}

// Labels with any characters are told apart: a task that no node can take hides no other.
func TestShapesAreToldApart(t *testing.T) {
	shape := func(kind string, require, prefer []string) string {
		return shapeOf(&taskState{task: Task{Kind: kind, Options: &proto.TaskOptions{Require: require, Prefer: prefer}}})
	}
	seen := map[string]int{}
	for i, s := range []string{
		shape("k", []string{"gpu", "linux"}, nil), shape("k", []string{"gpu\x00linux"}, nil), shape("k", []string{`gpu" "linux`}, nil),
		shape("k", []string{"gpu"}, []string{"linux"}), shape("k", []string{"gpu\x01linux"}, nil), shape("k", nil, []string{"gpu", "linux"}), shape("k", nil, nil),
	} {
		if at, ok := seen[s]; ok {
			t.Errorf("shapes %d and %d are both %q", at, i, s)
		}
		seen[s] = i
	}
}

// A ready task that is looked at again keeps its place: otherwise one that is looked at more
// often than others are granted would never be first.
func TestReadyTaskKeepsItsPlace(t *testing.T) {
	f := newFixture(t, nil)
	f.home.SetNode(Node{Member: dispatch.Member{Peer: ownerPeer, Alive: true, Kinds: []string{"k"}, Slots: 1}}, f.now)
	for i := range 2 {
		f.home.Add(Task{ID: testTaskID(i), Queue: "q", Kind: "k", NotAfter: f.task.NotAfter}, f.now)
	}
	ts := f.home.tasks[testTaskID(0)]
	f.home.reschedule(ts)
	if got := ts.mem.queue.ready[ts.mem.class].firstExcept(nil); got != ts {
		t.Errorf("the first is %v, want %v", got.task.ID, ts.task.ID)
	}
}

// BenchmarkInputBehindABacklog measures one input at a home whose members are all busy: the
// length of the backlog must not matter.
func BenchmarkInputBehindABacklog(b *testing.B) {
	for _, waiting := range []int{10, 10_000} {
		b.Run(fmt.Sprint(waiting, " waiting"), func(b *testing.B) {
			h := NewHome(homePeer, 1, Config{})
			now := Now{Wall: 1_700_000_000_000, Mono: time.Hour, Boot: time.Hour}
			h.Begin(now)
			h.SetNode(Node{Member: dispatch.Member{Peer: ownerPeer, Alive: true, Kinds: []string{"k"}, Slots: 1}}, now)
			for i := range waiting + 1 {
				h.Add(Task{ID: testTaskID(i), Queue: "q", Kind: "k", NotAfter: now.Wall + 1e9}, now)
			}
			for b.Loop() {
				h.OnRenew(ownerPeer, &proto.Renew{}, now)
			}
		})
	}
}
