package ownership

import (
	"fmt"
	"slices"
	"testing"

	"github.com/balefire/balefire/proto"
)

// handedOver returns a node that is the home of q since another handed it over, the message
// with the task that moved, and what describes that task.
func handedOver(t *testing.T) (to *Home, moved *proto.Handoff, f *fixture) {
	t.Helper()
	f = newFixture(t, func(x *Task) { x.Key = "k" })
	out, err := f.home.HandOff("q", otherPeer, f.now)
	if err != nil {
		t.Fatal(err)
	}
	to = NewHome(otherPeer, 50, Config{})
	for _, s := range out.Sends {
		if m, ok := s.Body.(*proto.Handoff); ok && m.Lease == nil {
			to.OnHandoff(homePeer, m, Task{}, f.now)
		} else if ok {
			moved = m
		}
	}
	if got, _ := to.HomeOf("q"); got != otherPeer || moved == nil {
		t.Fatal("nothing was handed over")
	}
	return to, moved, f
}

// confirmed counts what the answers in out confirm.
func confirmed(out Output) (queues, tasks, lanes int) {
	for _, s := range out.Sends {
		if m, ok := s.Body.(*proto.HandedOff); ok {
			for _, a := range m.Moved {
				switch {
				case a.Blocked:
					lanes++
				case len(a.Task) > 0:
					tasks++
				default:
					queues++
				}
			}
		}
	}
	return queues, tasks, lanes
}

func blocked(h *Home) (keys []string) {
	for _, l := range h.queues["q"].allBlocked() {
		keys = append(keys, l.key.key)
	}
	return keys
}

// A former home blocks lanes only at the home of the queue, or with a task of the lane.
func TestWhereAFormerHomeBlocksLanes(t *testing.T) {
	to, moved, f := handedOver(t)
	lane := func(key string) []*proto.LaneBlock { return []*proto.LaneBlock{{Queue: "q", Key: key}} }

	moved.Blocks = lane("other")
	if _, tasks, lanes := confirmed(to.OnHandoff(homePeer, moved, f.task, f.now)); tasks+lanes != 0 || len(blocked(to)) != 0 {
		t.Errorf("with a task of another lane: %d tasks and %d lanes are confirmed, blocked are %v", tasks, lanes, blocked(to))
	}
	stranger := ownerPeer
	moved.Blocks = []*proto.LaneBlock{{Queue: "q", Key: "k", Origin: stranger[:]}}
	if _, tasks, _ := confirmed(to.OnHandoff(homePeer, moved, f.task, f.now)); tasks != 0 || len(blocked(to)) != 0 {
		t.Errorf("with a task of another origin: %d tasks are confirmed, blocked are %v", tasks, blocked(to))
	}
	moved.Blocks = lane("k")
	if _, tasks, _ := confirmed(to.OnHandoff(homePeer, moved, f.task, f.now)); tasks != 1 || !slices.Equal(blocked(to), []string{"k"}) {
		t.Errorf("with its task: %d tasks are confirmed, blocked are %v", tasks, blocked(to))
	}
	to.Unblock("q", "k", f.now)
	if _, tasks, _ := confirmed(to.OnHandoff(homePeer, moved, f.task, f.now)); tasks != 1 || len(blocked(to)) != 0 {
		t.Errorf("a copy of the message after the lane was unblocked: %d tasks are confirmed, blocked are %v", tasks, blocked(to))
	}
	announced := &proto.Handoff{Queue: f.home.Queue("q"), Blocks: lane("a")}
	if _, _, lanes := confirmed(to.OnHandoff(homePeer, announced, Task{}, f.now)); lanes != 1 || !slices.Equal(blocked(to), []string{"a"}) {
		t.Errorf("at the home: %d lanes are confirmed, blocked are %v", lanes, blocked(to))
	}
	if _, err := to.HandOff("q", ownerPeer, f.now); err != nil {
		t.Fatal(err)
	}
	announced.Blocks = lane("b")
	if _, _, lanes := confirmed(to.OnHandoff(homePeer, announced, Task{}, f.now)); lanes != 0 || slices.Contains(blocked(to), "b") {
		t.Errorf("at a former home: %d lanes are confirmed, blocked are %v", lanes, blocked(to))
	}
}

// Former homes block a bounded number of lanes; each can be unblocked, and those of the
// home's own tasks count.
func TestBlockedLanesOfFormerHomesAreBounded(t *testing.T) {
	to, moved, f := handedOver(t)
	state, taken := f.home.Queue("q"), 0
	for i := range maxBlockedLanes + 10 {
		m := &proto.Handoff{Queue: state, Blocks: []*proto.LaneBlock{{Queue: "q", Key: fmt.Sprintf("key-%05d", i)}}}
		_, _, lanes := confirmed(to.OnHandoff(homePeer, m, Task{}, f.now))
		taken += lanes
	}
	if n := len(blocked(to)); taken != maxBlockedLanes || n != maxBlockedLanes {
		t.Fatalf("%d lanes are blocked and %d confirmed, want %d", n, taken, maxBlockedLanes)
	}
	moved.Blocks = []*proto.LaneBlock{{Queue: "q", Key: "k"}}
	out := to.OnHandoff(homePeer, moved, f.task, f.now)
	if _, tasks, _ := confirmed(out); tasks != 0 || to.tasks[f.task.ID] != nil {
		t.Error("a task whose lane is blocked was taken without its block")
	}
	if a, ok := out.Sends[0].Body.(*proto.HandedOff); !ok || len(a.Refused) != 1 || a.Refused[0].Code != proto.CodeBusy {
		t.Errorf("its old home is told %v", out.Sends)
	}
	again := NewHome(otherPeer, 51, Config{})
	key := fmt.Sprintf("key-%05d", maxBlockedLanes-1)
	for _, l := range to.queues["q"].allBlocked() {
		b, err := proto.Encode(nil, blockOf("q", l))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := again.Load(blockKey("q", l.key), b); err != nil {
			t.Fatal(err)
		}
	}
	for name, h := range map[string]*Home{"at once": to, "started again": again} {
		if n := h.queues["q"].blockedLanes; n != maxBlockedLanes {
			t.Errorf("%s: %d blocked lanes are counted", name, n)
		}
		if unblocked, _ := h.Unblock("q", key, f.now); !unblocked || h.queues["q"].blockedLanes != maxBlockedLanes-1 {
			t.Errorf("%s: the last of the lanes cannot be unblocked", name)
		}
	}
	if _, tasks, _ := confirmed(to.OnHandoff(homePeer, moved, f.task, f.now)); tasks != 1 || !slices.Contains(blocked(to), "k") {
		t.Error("there is space again, and the task was not taken")
	}
}

// What an answer about a queue costs does not grow with its number of blocked lanes: they
// are not all listed for each line.
func TestAnswersAboutManyBlockedLanesAreCheap(t *testing.T) {
	to, _, f := handedOver(t)
	q := to.queues["q"]
	for i := range maxBlockedLanes {
		q.block(q.lane(laneKey{key: fmt.Sprint("key-", i)}), proto.TaskID{})
	}
	if _, err := to.HandOff("q", ownerPeer, f.now); err != nil {
		t.Fatal(err)
	}
	m := new(proto.HandedOff)
	for i := range proto.MaxGroup {
		m.Moved = append(m.Moved, &proto.Moved{Queue: "q", Generation: q.title.state.Generation, Key: fmt.Sprint("none-", i), Blocked: true})
	}
	if n := testing.AllocsPerRun(1, func() { to.OnHandedOff(ownerPeer, m, f.now) }); n > 4*proto.MaxGroup || q.title.announced {
		t.Errorf("%d lines take %.0f allocations; announced %v", proto.MaxGroup, n, q.title.announced)
	}
}
