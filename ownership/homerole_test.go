package ownership

import (
	"slices"
	"testing"

	"github.com/balefire/balefire/proto"
)

// A node that may not be a home does not become one, whatever deeds name it; a node that
// was handed such a queue may hand it on, and a known home stays the home.
func TestTheRoleOfAHomeIsChecked(t *testing.T) {
	s := newSim(1)
	admin, home, next, third := peerOf(0), peerOf(1), peerOf(2), peerOf(3)
	claim := func(home proto.PeerID, generation uint64, deeds ...*proto.Signed) *proto.QueueState {
		return &proto.QueueState{Name: "q", Home: slices.Clone(home[:]), Generation: generation, ChangedMs: int64(generation), Deeds: deeds}
	}
	created := signedDeed(t, admin, Deed{Generation: 1, To: home})
	seized := signedDeed(t, admin, Deed{Generation: 2, From: home, To: next, Seized: true})
	toNext := signedDeed(t, home, Deed{Generation: 2, From: home, To: next})
	toThird := signedDeed(t, next, Deed{Generation: 3, From: next, To: third})
	settings := claim(home, 1, created)
	settings.ChangedMs, settings.Paused = 9, true
	tests := []struct {
		name     string
		excluded proto.PeerID
		claims   []*proto.QueueState
		want     proto.PeerID // this node, 4: the queue is unknown
		alarms   int
	}{
		{"created by an admin", home, []*proto.QueueState{claim(home, 1, created)}, peerOf(4), 1},
		{"handed over", next, []*proto.QueueState{claim(home, 1, created), claim(next, 2, created, toNext)}, home, 1},
		{"seized", next, []*proto.QueueState{claim(home, 1, created), claim(next, 2, created, seized)}, home, 1},
		{"handed on by one that may not", next, []*proto.QueueState{claim(home, 1, created), claim(third, 3, created, toNext, toThird)}, third, 0},
		{"first heard of when it was handed on", next, []*proto.QueueState{claim(third, 3, created, toNext, toThird)}, third, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := NewHome(peerOf(4), 1, Config{Deeds: simDeeds{s.nodes[4]}, MayBeHome: func(p proto.PeerID) bool { return p != tt.excluded }})
			alarms := 0
			for _, q := range tt.claims {
				_, out := h.Learn(q, Now{})
				for _, e := range out.Events {
					if e.Kind == EventForged {
						alarms++
					}
				}
			}
			if got, _ := h.HomeOf("q"); got != tt.want || alarms != tt.alarms {
				t.Errorf("its home is %v with %d alarms, want %v with %d", got.Short(), alarms, tt.want.Short(), tt.alarms)
			}
		})
	}
	t.Run("a home that lost the role", func(t *testing.T) {
		may := true
		h := NewHome(peerOf(4), 1, Config{Deeds: simDeeds{s.nodes[4]}, MayBeHome: func(proto.PeerID) bool { return may }})
		h.Learn(claim(home, 1, created), Now{})
		may = false
		if news, _ := h.Learn(settings, Now{}); !news || !h.Queue("q").GetPaused() {
			t.Error("what the known home set is rejected")
		}
	})
	t.Run("this node", func(t *testing.T) {
		may := false
		h := NewHome(next, 1, Config{Deeds: simDeeds{s.nodes[2]}, MayBeHome: func(p proto.PeerID) bool { return may || p != next }})
		h.Learn(claim(home, 1, created), Now{})
		id := proto.TaskID{1}
		m := &proto.Handoff{Queue: claim(next, 2, created, toNext), Lease: &proto.Lease{Task: id[:], Queue: "q", State: proto.Pending, Generation: 2}}
		for _, want := range []bool{false, true} {
			may = want
			out := h.OnHandoff(home, m, Task{ID: id, Queue: "q"}, Now{})
			if got, _ := h.HomeOf("q"); (got == next) != want || (h.tasks[id] != nil) != want || (len(out.Sends) > 0) != want {
				t.Errorf("with the role: %v; its home is %v, %d tasks, sent %v", want, got.Short(), len(h.tasks), out.Sends)
			}
		}
	})
}
