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
// those that are not skipped.
func TestReadyKeepsTheOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r readyQueue
		var model []*taskState
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if len(model) > 0 && rapid.Bool().Draw(t, "remove") {
				at := rapid.IntRange(0, len(model)-1).Draw(t, "at")
				r.remove(model[at])
				model = slices.Delete(model, at, at+1)
			} else {
				ts := &taskState{task: Task{Kind: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "kind"), Options: &proto.TaskOptions{Require: rapid.SampledFrom([][]string{nil, {"gpu"}}).Draw(t, "labels")}}}
				r.push(ts)
				model = append(model, ts)
			}
			passed := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c", "a\x00gpu\x01"}), 0, 3).Draw(t, "passed")
			var want *taskState
			if at := slices.IndexFunc(model, func(ts *taskState) bool { return !slices.Contains(passed, shapeOf(ts)) }); at >= 0 {
				want = model[at]
			}
			if got := r.firstExcept(passed); got != want {
				t.Fatalf("of %d the first is %v, want %v", len(model), got, want)
			}
		}
	})
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
