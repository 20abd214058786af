package queue

import (
	"testing"

	"github.com/balefire/balefire/gossip"
	"github.com/balefire/balefire/proto"
)

// A queue that is handed over without naming a home goes to the best candidate: by its
// own list, then by what the nodes report of themselves.
func TestNextHomeIsBestCandidate(t *testing.T) {
	member := func(id byte, priority uint32, started int64, busy uint32) gossip.Member {
		return gossip.Member{Peer: proto.PeerID{id}, Eligible: true, Record: &proto.NodeRecord{
			Priority: priority, StartedMs: started, Load: &proto.Load{Slots: 4, Busy: busy},
		}}
	}
	name := func(id byte) string { return proto.PeerID{id}.String() }
	for _, tt := range []struct {
		name  string
		order []string
		all   []gossip.Member
		want  byte // 0: nobody
	}{
		{"nobody", []string{name(1)}, nil, 0},
		{"the list counts first", []string{name(7), name(3), name(1)}, []gossip.Member{member(1, 900, 1, 0), member(3, 1, 99, 4)}, 3},
		{"the priority, if nobody on the list is available", []string{name(7)}, []gossip.Member{member(1, 100, 10, 0), member(2, 200, 99, 4)}, 2},
		{"then the uptime", nil, []gossip.Member{member(1, 100, 20, 0), member(2, 100, 10, 4)}, 2},
		{"then the load", nil, []gossip.Member{member(1, 100, 10, 3), member(2, 100, 10, 1)}, 2},
		{"then the id, so that all agree", nil, []gossip.Member{member(2, 100, 10, 1), member(1, 100, 10, 1)}, 1},
	} {
		got, ok := nextHome(tt.order, tt.all)
		if ok != (tt.want != 0) || got != (proto.PeerID{tt.want}) {
			t.Errorf("%s: %v, %v, want %d", tt.name, got, ok, tt.want)
		}
	}
}

// A queue belongs with the first available node of its list, which may be its present
// home.
func TestPreferredHomeIsFirstAvailable(t *testing.T) {
	self := proto.PeerID{5}
	there := func(ids ...byte) (all []gossip.Member) {
		for _, id := range ids {
			all = append(all, gossip.Member{Peer: proto.PeerID{id}, Eligible: true, Record: &proto.NodeRecord{}})
		}
		return all
	}
	list := func(ids ...byte) (all []string) {
		for _, id := range ids {
			all = append(all, proto.PeerID{id}.String())
		}
		return all
	}
	for _, tt := range []struct {
		name    string
		order   []string
		drained bool
		all     []gossip.Member
		want    byte // 0: it stays
	}{
		{"no list", nil, false, there(1, 2), 0},
		{"this node is the first", list(5, 1), false, there(1), 0},
		{"an earlier one is available", list(1, 5, 2), false, there(1, 2), 1},
		{"only a later one is available", list(1, 5, 2), false, there(2), 0},
		{"this node is not on the list", list(1, 2), false, there(2), 2},
		{"nobody on the list is available", list(1, 2), false, there(3), 0},
		{"a draining node gives it to the next on the list", list(5, 1), true, there(1, 2), 1},
		{"or to any other node", list(5), true, there(2), 2},
		{"but keeps it without candidates", list(5), true, nil, 0},
	} {
		got, ok := preferredHome(tt.order, self, tt.drained, tt.all)
		if ok != (tt.want != 0) || got != (proto.PeerID{tt.want}) {
			t.Errorf("%s: %v, %v, want %d", tt.name, got, ok, tt.want)
		}
	}
}
