package ownership

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/balefire/balefire/ownership/dispatch"
	"github.com/balefire/balefire/proto"
)

// TestLowIsOneOfAHundredGrants checks S14 for shared queues: under a flood of more urgent
// tasks one of any hundred grants is of class low, and the rescue is counted.
func TestLowIsOneOfAHundredGrants(t *testing.T) {
	now := Now{Wall: 1_700_000_000_000, Mono: time.Hour, Boot: time.Hour}
	h := NewHome(homePeer, 100, Config{})
	h.Begin(now)
	h.SetQueue(func(s *proto.QueueState) { s.Paused = true }, now, "q")
	h.SetNode(Node{Member: dispatch.Member{Peer: ownerPeer, Alive: true, Kinds: []string{"k"}, Slots: 1}}, now)
	classes, last := map[proto.TaskID]proto.Class{}, uint64(0)
	add := func(c proto.Class) Output {
		last++
		var id proto.TaskID
		binary.BigEndian.PutUint64(id[:], last)
		classes[id] = c
		return h.Add(Task{ID: id, Queue: "q", Kind: "k", Class: c, NotAfter: now.Wall + time.Hour.Milliseconds()}, now)
	}
	for range 20 {
		for c := proto.Critical; c <= proto.Low; c++ {
			add(c)
		}
	}
	grantIn := func(out Output) *proto.Grant {
		t.Helper()
		for _, s := range out.Sends {
			if g, ok := s.Body.(*proto.Grant); ok {
				return g
			}
		}
		t.Fatal("nothing is granted")
		return nil
	}
	g := grantIn(h.SetQueue(func(s *proto.QueueState) { s.Paused = false }, now, "q"))
	passed, lows := 0, 0
	for range 1500 {
		class := classes[proto.TaskID(g.Claim.Task)]
		if class == proto.Low {
			passed, lows = 0, lows+1
		} else if passed++; passed > 99 {
			t.Fatalf("%d grants in a row while low tasks wait", passed)
		}
		add(class)
		claim := &proto.Claim{Task: g.Claim.Task, EpochBoot: g.Claim.EpochBoot, EpochCounter: g.Claim.EpochCounter, Token: g.Claim.Token, Generation: g.Claim.Generation, BootId: bootA[:]}
		_, out := h.OnResult(ownerPeer, Result{Claim: claim, State: proto.Success, Digest: []byte("x")}, now)
		g = grantIn(out)
	}
	if h.rescued == 0 || lows < 15 {
		t.Errorf("%d low tasks of 1500, %d of them rescued", lows, h.rescued)
	}
}
