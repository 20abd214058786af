package ownership

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/proto"
)

// titleBy returns the state of a name that an admin created with a home.
func titleBy(name string, admin, home proto.PeerID) *proto.QueueState {
	s := createdBy(name, admin, home)
	s.Kind, _ = proto.TitleKindOf(name)
	return s
}

// A mailbox or topic has a home by deeds, as a queue has: a member cannot claim it.
func TestTitlesNeedDeeds(t *testing.T) {
	s := newSim(1)
	admin, home, liar := peerOf(0), peerOf(5), peerOf(6)
	deed := func(by proto.PeerID, d Deed) *proto.Signed { return signDeedAs("topic:orders", by, d) }
	for name, tt := range map[string]struct {
		change func(*proto.QueueState)
		want   bool
	}{
		"by an admin":              {func(*proto.QueueState) {}, true},
		"without a deed":           {func(s *proto.QueueState) { s.Deeds = nil }, false},
		"by itself":                {func(s *proto.QueueState) { s.Deeds = []*proto.Signed{deed(liar, Deed{Generation: 1, To: liar})} }, false},
		"by the deed of another":   {func(s *proto.QueueState) { s.Deeds = []*proto.Signed{deed(admin, Deed{Generation: 1, To: home})} }, false},
		"by the deed of a queue":   {func(s *proto.QueueState) { s.Deeds = createdBy("orders", admin, liar).Deeds }, false},
		"by the deed of a mailbox": {func(s *proto.QueueState) { s.Deeds = createdBy("agent:orders", admin, liar).Deeds }, false},
		"as a queue":               {func(s *proto.QueueState) { s.Kind = proto.TitleQueue }, false},
		"as a mailbox":             {func(s *proto.QueueState) { s.Kind = proto.TitleMailbox }, false},
		"as an unknown kind":       {func(s *proto.QueueState) { s.Kind = 77 }, false},
		"of a group":               {func(s *proto.QueueState) { s.Group = make([]byte, 16) }, true},
		"with a group of 15 bytes": {func(s *proto.QueueState) { s.Group = make([]byte, 15) }, false},
		"a queue as a topic": {func(s *proto.QueueState) {
			*s = proto.QueueState{Name: "orders", Kind: proto.TitleTopic, Generation: 1, Home: liar[:], Deeds: createdBy("orders", admin, liar).Deeds}
		}, false},
		"with a name that is not valid": {func(s *proto.QueueState) {
			*s = proto.QueueState{Name: "topic:A b", Kind: proto.TitleTopic, Generation: 1, Home: liar[:], Deeds: createdBy("topic:A b", admin, liar).Deeds}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := NewHome(peerOf(4), 1, Config{Deeds: simDeeds{s.nodes[4]}})
			m := titleBy("topic:orders", admin, liar)
			tt.change(m)
			if news, _ := h.Learn(m, Now{}); news != tt.want || (len(h.titles.byName) > 0) != tt.want {
				t.Errorf("it is accepted: %v, want %v; %d names are known", news, tt.want, len(h.titles.byName))
			}
			misfit := strings.HasPrefix(name, "as ") || strings.HasPrefix(name, "a queue") || strings.HasPrefix(name, "with ")
			if err := validate(&proto.QueueStates{Queues: []*proto.QueueState{m}}); errors.Is(err, proto.ErrMalformed) != misfit {
				t.Errorf("the message that announces it: %v", err)
			}
		})
	}
}

// Names of different kinds are different names, each with its own home, under the limits
// that queues have too.
func TestTitlesOfDifferentKinds(t *testing.T) {
	s := newSim(1)
	h := NewHome(peerOf(0), 1, Config{Deeds: simDeeds{s.nodes[0]}})
	for i, name := range []string{"orders", "agent:orders", "topic:orders"} {
		signed, _, err := h.SignCreation(name, peerOf(5+i%2), Now{})
		if err != nil {
			t.Fatal(err)
		}
		if home, _ := h.HomeOf(name); home != peerOf(5+i%2) {
			t.Errorf("the home of %s is %d", name, home[0]-1)
		}
		member := NewHome(peerOf(5+i%2), 1, Config{Deeds: simDeeds{s.nodes[5+i%2]}})
		for _, other := range []string{"orders", "agent:orders", "topic:orders"} {
			if _, err := member.CreateQueue(other, func(*proto.QueueState) {}, signed, Now{}); (err == nil) != (other == name) {
				t.Errorf("%s by the deed of %s: %v", other, name, err)
			}
		}
	}
	const names = 5
	h.titles.cfg.MaxNames = names
	for i := range names {
		name := "agent:" + string(rune('a'+i%26)) + string(rune('a'+i/26))
		if _, _, err := h.SignCreation(name, peerOf(6), Now{}); (err == nil) != (i < names-1) {
			t.Fatalf("name %d of one member, which has a mailbox already: %v", i+1, err)
		}
	}
}

// Two admins that create a mailbox in a partition: afterwards all take the same node for its
// home, that of the deed with the lower root, also after a restart. The other home yields.
func TestATitleCreatedTwiceHasOneHome(t *testing.T) {
	s := newSim(1)
	const name = "agent:ceo"
	homes, disks := []*Home{}, make([]map[string][]byte, 3)
	keep := func(i int, out Output) {
		for _, w := range out.Writes {
			disks[i][w.Key] = w.Val
		}
	}
	for i := range 3 {
		homes, disks[i] = append(homes, NewHome(peerOf(i), 1, Config{Deeds: simDeeds{s.nodes[i]}})), map[string][]byte{}
	}
	for i := range 2 {
		out, err := homes[i].CreateQueue(name, func(*proto.QueueState) {}, nil, Now{})
		if err != nil {
			t.Fatal(err)
		}
		keep(i, out)
	}
	low, high := 0, 1
	if a, b := rootBy(name, peerOf(0)), rootBy(name, peerOf(1)); slices.Compare(a[:], b[:]) > 0 {
		low, high = 1, 0
	}
	yields, conflicts := make([]int, 3), make([]int, 3)
	states := []*proto.QueueState{homes[0].Queue(name), homes[1].Queue(name)}
	for range 2 {
		for i, h := range homes {
			for _, m := range []*proto.QueueState{states[high], states[low]} {
				_, out := h.Learn(m, Now{})
				keep(i, out)
				for _, e := range out.Events {
					switch e.Kind {
					case EventYielded:
						yields[i]++
					case EventConflict:
						conflicts[i]++
					}
				}
				if len(out.Sends) > 0 {
					t.Errorf("node %d sends %v", i, out.Sends)
				}
			}
		}
	}
	if want := []int{1, 1, 1}; !slices.Equal(conflicts, want) {
		t.Errorf("the nodes report %v conflicts", conflicts)
	}
	want := []int{0, 0, 0}
	if want[high] = 1; !slices.Equal(yields, want) {
		t.Errorf("the nodes yield %v times, want %v", yields, want)
	}
	for i, h := range homes {
		again := NewHome(peerOf(i), 2, Config{Deeds: simDeeds{s.nodes[i]}})
		for k, v := range disks[i] {
			if _, err := again.Load(k, v); err != nil {
				t.Fatal(err)
			}
		}
		for _, h := range []*Home{h, again} {
			if got, generation := h.HomeOf(name); got != peerOf(low) || generation != 1 || h.Queue(name).Kind != proto.TitleMailbox {
				t.Errorf("node %d takes %d for the home, in generation %d", i, got[0]-1, generation)
			}
			if out := h.Tick(Now{Mono: time.Minute}); slices.ContainsFunc(out.Sends, func(m Send) bool { return m.Type == proto.TypeHandoff }) {
				t.Errorf("node %d hands it over", i)
			}
		}
	}
}

// Deeds of a mailbox or topic give no right over tasks, and it is not handed over.
func TestATitleIsNotAQueue(t *testing.T) {
	s := newSim(1)
	const name = "topic:orders"
	home := peerOf(5)
	h := NewHome(peerOf(4), 1, Config{Deeds: simDeeds{s.nodes[4]}})
	h.Learn(titleBy(name, peerOf(0), home), Now{})
	task := Task{ID: proto.TaskID{1}, Origin: home, Queue: name, Kind: "k", NotAfter: 1 << 50}
	lease := &proto.Lease{Task: task.ID[:], Queue: name, State: proto.Pending, Generation: 2, NotAfterMs: task.NotAfter}
	out := h.OnHandoff(home, &proto.Handoff{Lease: lease, Blocks: []*proto.LaneBlock{{Queue: name, Key: "k"}}}, task, Now{})
	if len(h.tasks) != 0 || len(out.Writes) != 0 || len(out.Sends) != 0 || h.queues[name] != nil {
		t.Errorf("its home hands over a task: %+v", out)
	}
}

// The home of a name hands it over, with a deed that it signs: the new home, and everybody,
// takes that from it alone, and again and again until the new home has confirmed it, also after
// a restart.
func TestATitleIsHandedOver(t *testing.T) {
	s := newSim(1)
	const name = "topic:orders"
	home, next := peerOf(5), peerOf(6)
	disk := map[string][]byte{}
	keep := func(out Output) {
		for _, w := range out.Writes {
			disk[w.Key] = w.Val
		}
	}
	old := NewHome(home, 1, Config{Deeds: simDeeds{s.nodes[5]}, Heartbeat: time.Second})
	_, out := old.Learn(titleBy(name, peerOf(0), home), Now{})
	keep(out)
	out, err := old.HandOff(name, next, Now{})
	if err != nil {
		t.Fatal(err)
	}
	keep(out)
	sent := func(out Output) *proto.Handoff {
		t.Helper()
		if len(out.Sends) != 1 || out.Sends[0].To != next || out.Sends[0].Type != proto.TypeHandoff {
			t.Fatalf("it sends %+v", out.Sends)
		}
		return out.Sends[0].Body.(*proto.Handoff)
	}
	first := sent(out)
	if out, err := old.HandOff(name, peerOf(7), Now{}); err != nil || len(out.Writes) > 0 {
		t.Errorf("a node that is not its home hands it over: %+v, %v", out, err)
	}
	old = NewHome(home, 2, Config{Deeds: simDeeds{s.nodes[5]}, Heartbeat: time.Second})
	for key, val := range disk {
		if _, err := old.Load(key, val); err != nil {
			t.Fatal(err)
		}
	}
	again := sent(old.Tick(Now{Mono: time.Minute}))
	bystander := NewHome(peerOf(4), 1, Config{Deeds: simDeeds{s.nodes[4]}, Heartbeat: time.Second})
	bystander.Learn(first.Queue, Now{})
	if out := bystander.Tick(Now{Mono: time.Minute}); len(out.Sends) > 0 {
		t.Errorf("a node that never had it sends %+v", out.Sends)
	}
	to := NewHome(next, 1, Config{Deeds: simDeeds{s.nodes[6]}, Heartbeat: time.Second})
	if out := to.OnHandoff(peerOf(3), first, Task{}, Now{}); len(out.Sends) > 0 || to.titles.byName[name].known() {
		t.Errorf("from a node that never had it: %+v", out)
	}
	for _, m := range []*proto.Handoff{first, again} {
		out := to.OnHandoff(home, m, Task{}, Now{})
		if got, generation := to.HomeOf(name); got != next || generation != 2 || len(out.Sends) != 1 {
			t.Fatalf("its home is %d since %d: %+v", got[0]-1, generation, out)
		}
		old.OnHandedOff(next, out.Sends[0].Body.(*proto.HandedOff), Now{Mono: time.Minute})
	}
	if out := old.Tick(Now{Mono: time.Hour}); len(out.Sends) > 0 {
		t.Errorf("it was confirmed, and goes again: %+v", out.Sends)
	}
}

// Drivers tell of names apart from queues, and keep them over a restart. That its home
// removed a name, or made it again, counts everywhere. Of a revoked home only the identity
// is kept.
func TestDriversKnowTitles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 2, time.Second)
		defer w.close()
		const name = "agent:ceo"
		home, other := w.nodes[0], w.nodes[1]
		set := func(removed bool) {
			t.Helper()
			if err := home.driver.CreateQueue(t.Context(), name, nil, func(s *proto.QueueState) { s.Removed = removed }); err != nil {
				t.Fatal(err)
			}
			home.Post(testPeer(1), proto.TypeQueues, &proto.QueueStates{Queues: []*proto.QueueState{home.driver.Titles()[name]}})
			time.Sleep(time.Second)
			for _, n := range w.nodes {
				switch s := n.driver.Titles()[name]; {
				case s == nil, proto.PeerID(s.Home) != testPeer(0), s.Kind != proto.TitleMailbox, s.Removed != removed:
					t.Errorf("node %d knows %v", n.index, s)
				case n.driver.QueueStates()[name] != nil || n.driver.WasHome(name, testPeer(0)):
					t.Errorf("node %d takes it for a queue", n.index)
				}
			}
		}
		set(false)
		for _, n := range w.nodes {
			n.end()
			n.start()
		}
		for _, removed := range []bool{false, true, false, true} {
			set(removed)
		}
		if err := other.driver.CreateQueue(t.Context(), name, nil, func(*proto.QueueState) {}); !errors.Is(err, ErrElsewhere) {
			t.Errorf("another node makes it: %v", err)
		}
		other.driver.Revoked(testPeer(0))
		time.Sleep(time.Second)
		if s := other.driver.Titles()[name]; s.GetKind() != proto.TitleMailbox || !s.GetRemoved() || len(s.GetRoot()) == 0 || len(s.GetDeeds()) != 0 {
			t.Errorf("after its home was revoked: %v", s)
		}
	})
}
