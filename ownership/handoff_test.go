package ownership

import (
	"slices"
	"testing"
	"time"

	"github.com/balefire/balefire/ownership/dispatch"
	"github.com/balefire/balefire/proto"
)

// A lane that becomes blocked at the old home while the new one is told of the queue is
// blocked there too: an earlier answer does not cover it (I10).
func TestALaneBlockedDuringAHandoff(t *testing.T) {
	old := NewHome(homePeer, 100, Config{HandoffWindow: 1})
	to := NewHome(otherPeer, 50, Config{})
	now := Now{Wall: 1_700_000_000_000, Mono: time.Hour, Boot: time.Hour}
	old.SetQueue(func(*proto.QueueState) {}, now, "q")
	tasks := map[proto.TaskID]Task{}
	var head *proto.Grant
	for i := range byte(3) { // the first fills the window, the others are one lane
		x := Task{ID: proto.TaskID{7, i}, Queue: "q", Kind: "k", Sent: homePeer, NotAfter: now.Wall + time.Hour.Milliseconds()}
		if i > 0 {
			x.Key, x.Block = "lane", true
		}
		tasks[x.ID] = x
		for _, s := range old.Add(x, now).Sends {
			head, _ = s.Body.(*proto.Grant)
		}
		if i == 0 {
			old.SetNode(Node{Member: dispatch.Member{Peer: ownerPeer, Alive: true, Kinds: []string{"k"}, Slots: 2}}, now)
		}
	}
	if head == nil || head.Claim.Task[1] != 1 {
		t.Fatalf("the head of the lane was not granted: %v", head)
	}
	claim := head.Claim
	claim.BootId = bootA[:]
	old.OnGranted(ownerPeer, &proto.Granted{Taken: []*proto.Taken{{Claim: claim}}}, now)

	out, err := old.HandOff("q", otherPeer, now)
	if err != nil {
		t.Fatal(err)
	}
	died := &proto.Released{Claim: claim, Cause: proto.CauseParked, Reason: "its node died"}
	old.OnRelease(ownerPeer, &proto.Release{Released: []*proto.Released{died}}, now)
	if len(old.queue("q").blocks()) != 1 {
		t.Fatal("the lane is not blocked: nothing is tested")
	}
	for range 5 {
		for _, s := range out.Sends {
			m, ok := s.Body.(*proto.Handoff)
			if !ok {
				continue
			}
			var task Task
			if m.Lease != nil {
				task = tasks[proto.TaskID(m.Lease.Task)]
			}
			for _, s := range to.OnHandoff(homePeer, m, task, now).Sends {
				if a, ok := s.Body.(*proto.HandedOff); ok {
					old.OnHandedOff(otherPeer, a, now)
				}
			}
		}
		now.Wall, now.Mono, now.Boot = now.Wall+6000, now.Mono+6*time.Second, now.Boot+6*time.Second
		out = old.Tick(now)
	}
	if to.tasks[proto.TaskID{7, 2}] == nil || len(to.queue("q").blocks()) != 1 {
		t.Errorf("the next of the lane is there: %v; blocked lanes: %v", to.tasks[proto.TaskID{7, 2}] != nil, to.queue("q").blocks())
	}
	if q := old.queue("q"); len(q.blocks()) != 0 || !q.title.announced {
		t.Errorf("the old home keeps %v; announced: %v", q.blocks(), q.title.announced)
	}
}

// A new home that answers nothing delays no task that goes to another.
func TestASilentNewHomeDelaysOnlyItsTasks(t *testing.T) {
	h := NewHome(homePeer, 100, Config{HandoffWindow: 1})
	now := Now{Wall: 1_700_000_000_000, Mono: time.Hour, Boot: time.Hour}
	sent := map[proto.PeerID]int{}
	homes := map[string]proto.PeerID{"qa": peerOf(5), "qb": otherPeer}
	for _, name := range []string{"qa", "qb"} {
		h.SetQueue(func(*proto.QueueState) {}, now, name)
		for i := range byte(2) {
			h.Add(Task{ID: proto.TaskID{name[1], i}, Queue: name, Kind: "k", Sent: homePeer, NotAfter: now.Wall + time.Hour.Milliseconds()}, now)
		}
	}
	for _, name := range []string{"qa", "qb"} {
		out, err := h.HandOff(name, homes[name], now)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range out.Sends {
			if m, ok := s.Body.(*proto.Handoff); ok && m.Lease != nil {
				sent[s.To]++
			}
		}
	}
	for name, home := range homes {
		if sent[home] != 1 {
			t.Errorf("%d tasks of %s were sent to its new home at once, want 1", sent[home], name)
		}
	}
}

// A task that its new home has confirmed, and that is still stored here because the node
// died in between, is reported again at the next start.
func TestATaskThatMovedIsReportedAfterARestart(t *testing.T) {
	now := Now{Wall: 1_700_000_000_000, Mono: time.Hour, Boot: time.Hour}
	confirmed := Task{ID: proto.TaskID{7, 1}, Queue: "q", Kind: "k", NotAfter: now.Wall + time.Hour.Milliseconds()}
	inTransit := confirmed
	inTransit.ID[1] = 2
	h, disk := NewHome(homePeer, 100, Config{}), map[string][]byte{}
	keep(disk, h.SetQueue(func(*proto.QueueState) {}, now, "q"))
	h.Add(confirmed, now)
	h.Add(inTransit, now)
	out, err := h.HandOff("q", otherPeer, now)
	if err != nil {
		t.Fatal(err)
	}
	keep(disk, out)
	taken := &proto.Moved{Task: confirmed.ID[:], Generation: h.transit.byID[confirmed.ID].gen}
	keep(disk, h.OnHandedOff(otherPeer, &proto.HandedOff{Moved: []*proto.Moved{taken}}, now))

	h = NewHome(homePeer, 101, Config{})
	for key, val := range disk {
		if val == nil {
			continue
		}
		if _, err := h.Load(key, val); err != nil {
			t.Fatal(err)
		}
	}
	h.Restore(confirmed, nil, now)
	h.Restore(inTransit, nil, now)
	if got := h.Begin(now).HandedOff; !slices.Equal(got, []proto.TaskID{confirmed.ID}) {
		t.Errorf("%v are reported, want %s", got, confirmed.ID)
	}
}

// PendingHandoffs returns how many tasks are in transit to another home, or still have to
// go.
func (h *Home) PendingHandoffs() int {
	n := h.transit.open.Len()
	for ts := range each[*taskState](h.live) {
		if !ts.mem.queue.title.isHome(h.self) {
			n++
		}
	}
	return n
}
