package ownership

import (
	"maps"
	"testing"
	"time"

	"github.com/balefire/balefire/ownership/dispatch"
	"github.com/balefire/balefire/proto"
)

// laneFixture returns a home with tasks of two origins and one ordering key: the first of a
// has a kind that no member serves, or is not due.
func laneFixture(t *testing.T, shared bool, head func(*Task)) (h *Home, granted map[byte]bool, now Now) {
	t.Helper()
	h, granted = NewHome(homePeer, 100, Config{}), map[byte]bool{}
	now = Now{Wall: 1_700_000_000_000, Mono: time.Hour, Boot: time.Hour}
	h.SetQueue(func(s *proto.QueueState) { s.SharedLanes = shared }, now, "q")
	outs := []Output{h.SetNode(Node{Member: dispatch.Member{Peer: ownerPeer, Alive: true, Kinds: []string{"k"}, Slots: 9}}, now)}
	for i, origin := range []proto.PeerID{peerOf(1), peerOf(1), peerOf(2), peerOf(2)} {
		x := Task{ID: proto.TaskID{byte(i + 1)}, Origin: origin, Queue: "q", Kind: "k", Key: "customer-7", NotAfter: now.Wall + time.Hour.Milliseconds()}
		if i == 0 {
			head(&x)
		}
		outs = append(outs, h.Add(x, now))
	}
	for _, o := range outs {
		note(granted, o)
	}
	return h, granted, now
}

func note(granted map[byte]bool, o Output) {
	for _, s := range o.Sends {
		if g, ok := s.Body.(*proto.Grant); ok {
			granted[g.Claim.Task[0]] = true
		}
	}
}

// An ordering key belongs to its origin: a head that is not due, or whose kind no member
// serves, blocks only the tasks of that origin, and the tasks of each origin run one after
// the other, even if the queue shares its lanes (I10).
func TestALaneBelongsToItsOrigin(t *testing.T) {
	for name, head := range map[string]func(*Task){
		"a kind that no member serves": func(x *Task) { x.Kind = "nosuchkind" },
		"not due":                      func(x *Task) { x.NotBefore = 1_700_000_000_000 + time.Minute.Milliseconds() },
	} {
		if _, granted, _ := laneFixture(t, false, head); len(granted) != 1 || !granted[3] {
			t.Errorf("%s: granted are %v, want the first of the other origin", name, granted)
		}
		if _, granted, _ := laneFixture(t, true, head); len(granted) != 1 || !granted[3] {
			t.Errorf("%s, lanes shared: granted are %v, want the first of the other origin", name, granted)
		}
	}
	if _, granted, _ := laneFixture(t, true, func(*Task) {}); len(granted) != 1 || !granted[1] {
		t.Errorf("lanes shared, a head that can start: granted are %v, want that alone", granted)
	}
}

// A shared lane runs one task at a time, even if it passed a head that could not start.
// That head is next once it can start, and the tasks of one origin keep their order (I10).
func TestASharedLaneRunsOneTask(t *testing.T) {
	for name, tt := range map[string]struct {
		head func(*Task)
		can  func(h *Home, now *Now) Output
	}{
		"a kind that no member serves": {func(x *Task) { x.Kind = "late" }, func(h *Home, now *Now) Output {
			return h.SetNode(Node{Member: dispatch.Member{Peer: ownerPeer, Alive: true, Kinds: []string{"k", "late"}, Slots: 9}}, *now)
		}},
		"not due": {func(x *Task) { x.NotBefore = 1_700_000_000_000 + 3000 }, func(h *Home, now *Now) Output { return Output{} }},
	} {
		t.Run(name, func(t *testing.T) {
			h, granted, now := laneFixture(t, true, tt.head)
			pass := func(d time.Duration) {
				now.Wall, now.Mono, now.Boot = now.Wall+d.Milliseconds(), now.Mono+d, now.Boot+d
				note(granted, h.Tick(now))
			}
			end := func(i byte) {
				t.Helper()
				ts := h.tasks[proto.TaskID{i}]
				if ts == nil || !granted[i] {
					t.Fatalf("task %d is not at work: granted are %v", i, granted)
				}
				claim := ts.claim().message()
				claim.BootId = bootA[:]
				note(granted, h.OnGranted(ownerPeer, &proto.Granted{Taken: []*proto.Taken{{Claim: claim}}}, now))
				_, o := h.OnResult(ownerPeer, Result{Claim: claim, State: proto.Success, Digest: []byte{1}}, now)
				note(granted, o)
			}
			note(granted, tt.can(h, &now))
			for range 5 {
				pass(time.Second)
			}
			if len(granted) != 1 || !granted[3] {
				t.Fatalf("granted are %v, want the one that passed alone", granted)
			}
			for i, id := range []byte{3, 1, 2, 4} {
				end(id)
				pass(time.Second)
				if len(granted) != min(i+2, 4) {
					t.Fatalf("after task %d granted are %v", id, granted)
				}
			}
		})
	}
}

// A dead head that was told to block holds up the tasks of its origin, and those of all
// origins if the queue shares its lanes, until an operator unblocks the lane; one that was not
// holds up none (I10).
func TestADeadHeadBlocksItsLane(t *testing.T) {
	for _, tt := range []struct {
		shared, block bool
		want          map[byte]bool // granted, with the head, before the lane is unblocked
	}{
		{false, true, map[byte]bool{1: true, 3: true}},
		{true, true, map[byte]bool{1: true}},
		{false, false, map[byte]bool{1: true, 2: true, 3: true}},
		{true, false, map[byte]bool{1: true, 2: true}},
	} {
		h, granted, now := laneFixture(t, tt.shared, func(x *Task) { x.Block = tt.block })
		claim := h.tasks[proto.TaskID{1}].claim().message()
		claim.BootId = bootA[:]
		ruling, out := h.OnResult(ownerPeer, Result{Claim: claim, State: proto.Failed}, now)
		if note(granted, out); ruling.Code != proto.CodeOK || len(out.Ends) != 1 {
			t.Fatalf("the head: %v, %d ends", ruling, len(out.Ends))
		}
		for range 10 {
			now.Wall, now.Mono, now.Boot = now.Wall+1000, now.Mono+time.Second, now.Boot+time.Second
			note(granted, h.Tick(now))
		}
		if !maps.Equal(granted, tt.want) {
			t.Errorf("shared %v, block %v: granted are %v, want %v", tt.shared, tt.block, granted, tt.want)
		}
		unblocked, out := h.Unblock("q", "customer-7", now)
		if note(granted, out); unblocked != tt.block || !granted[2] {
			t.Errorf("shared %v, block %v: unblocked %v, granted are %v", tt.shared, tt.block, unblocked, granted)
		}
	}
}

// The lanes of a queue with tasks are regrouped when its setting changes: nothing starts
// out of order, and blocked lanes stay blocked.
func TestLanesAreRegrouped(t *testing.T) {
	h, granted, now := laneFixture(t, true, func(x *Task) { x.Kind = "nosuchkind" })
	note(granted, h.SetQueue(func(s *proto.QueueState) { s.SharedLanes = false }, now, "q"))
	if len(granted) != 1 || !granted[3] {
		t.Fatalf("granted are %v, want the first of the other origin", granted)
	}
	note(granted, h.SetQueue(func(s *proto.QueueState) { s.SharedLanes = true }, now, "q"))
	if len(granted) != 1 || len(h.queue("q").lanes) != 1 {
		t.Errorf("granted are %v in %d lanes", granted, len(h.queue("q").lanes))
	}
	q := h.queue("q")
	l := q.lanes[laneKey{key: "customer-7"}]
	q.block(l, proto.TaskID{9})
	note(granted, h.SetQueue(func(s *proto.QueueState) { s.SharedLanes = false }, now, "q"))
	if blocks := q.blocks(); len(blocks) != 2 {
		t.Errorf("%d lanes are blocked, want those of both origins", len(blocks))
	}
	unblocked, o := h.Unblock("q", "customer-7", now)
	if note(granted, o); !unblocked || len(q.blocks()) != 0 || granted[2] || granted[4] {
		t.Errorf("unblocked: %v, %d are blocked, granted are %v", unblocked, len(q.blocks()), granted)
	}
}
