package ownership

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/balefire/balefire/proto"
)

// queueStateWith returns the state of a queue that an admin signed as home's, with settings
// of so many bytes.
func queueStateWith(name string, home proto.PeerID, settings int) *proto.QueueState {
	s := createdBy(name, peerOf(0), home)
	withSettings(settings)(s)
	return s
}

// withSettings adds settings of so many bytes, at most some 20 KiB.
func withSettings(n int) func(*proto.QueueState) {
	return func(s *proto.QueueState) {
		for i := 0; n > 0; i, n = i+1, n-130 {
			text := strings.Repeat("x", 128)
			switch {
			case i < 32:
				s.Labels = append(s.Labels, text)
			case i < 64:
				s.Allow = append(s.Allow, text)
			case i < 96:
				s.NextHomes = append(s.NextHomes, text)
			case i < 160:
				s.Kinds = append(s.Kinds, &proto.KindLimit{Kind: text})
			}
		}
	}
}

// usageOf returns the number of known queues of a home, and the bytes of their states.
func usageOf(h *Home, home proto.PeerID) (names, size int) {
	for _, q := range h.titles.byName {
		if string(q.state.GetHome()) == string(home[:]) {
			names, size = names+1, size+proto.Size(q.state)
		}
	}
	return names, size
}

// However many queues an admin gave a member, and whatever it publishes about them: each
// uses 1 KiB at other nodes, and all together at most 64 KiB more.
func TestQueueStatesOfAMemberAreBounded(t *testing.T) {
	const bound = maxQueuesPerHome*freeStateBytes + maxStateBytes
	for name, settings := range map[string]int{"nothing": 0, "a little": 900, "much": 4000} {
		t.Run(name, func(t *testing.T) {
			h := NewHome(homePeer, 1, Config{})
			for i := range maxQueuesPerHome + 9 {
				_, out := h.Learn(queueStateWith(fmt.Sprint("fat-", i), otherPeer, settings), Now{})
				for _, w := range out.Writes {
					if len(w.Val) > proto.MaxQueueState {
						t.Fatalf("a record of %d bytes is written", len(w.Val))
					}
				}
			}
			names, size := usageOf(h, otherPeer)
			if names > maxQueuesPerHome || size > bound || settings <= freeStateBytes/2 && names != maxQueuesPerHome {
				t.Errorf("%d queues of it are kept, with %d bytes: the bounds are %d and %d", names, size, maxQueuesPerHome, bound)
			}
			events := 0
			for i := range names { // it publishes them again and again, each a little larger
				_, out := h.Learn(queueStateWith(fmt.Sprint("fat-", i), otherPeer, settings+130*(i%20)), Now{})
				events += len(out.Events)
			}
			if _, size := usageOf(h, otherPeer); size > bound {
				t.Errorf("%d bytes are kept after all was published again, the bound is %d", size, bound)
			}
			if h.Learn(queueStateWith("mine", ownerPeer, 4000), Now{}); h.Queue("mine") == nil {
				t.Error("it uses the room of another member")
			}
			a, n, rest := h.titles.usage[otherPeer], 0, 0
			for _, q := range h.titles.byName {
				if q.chargedTo == otherPeer {
					n, rest = n+1, rest+max(proto.Size(q.state)-freeStateBytes, 0)
				}
			}
			if a.queues != n || a.stateBytes != rest {
				t.Errorf("its usage is %+v, want %d queues and %d bytes", *a, n, rest)
			}
		})
	}
}

// A home obeys the bound itself and reports it, since other nodes would reject the state.
// It does not hand a queue to a node that has no room for it.
func TestAHomeObeysTheBound(t *testing.T) {
	h := NewHome(homePeer, 1, Config{})
	var err error
	made := 0
	for ; err == nil && made < 9; made++ {
		_, err = h.CreateQueue(fmt.Sprint("own-", made), withSettings(20000), nil, Now{})
	}
	if made != 4 || !strings.Contains(fmt.Sprint(err), "65536 bytes together") {
		t.Errorf("queue %d is refused: %v", made, err)
	}
	if _, err := h.CreateQueue("small", func(*proto.QueueState) {}, nil, Now{}); err != nil {
		t.Errorf("a queue without settings: %v", err)
	}
	for i := range 3 {
		h.Learn(queueStateWith(fmt.Sprint("others-", i), otherPeer, 19000), Now{})
	}
	if _, err := h.HandOff("own-0", otherPeer, Now{}); err == nil {
		t.Error("it hands a queue to a node that has no room for it")
	}
	if home, _ := h.HomeOf("own-0"); home != homePeer {
		t.Error("it is not its home any more")
	}
	if _, err := h.HandOff("own-0", ownerPeer, Now{}); err != nil {
		t.Errorf("to a node that has: %v", err)
	}
}

// The deeds of a queue are trimmed when its home has no room for more than those that prove
// it.
func TestDeedChainsAreTrimmedToFit(t *testing.T) {
	h := NewHome(homePeer, 1, Config{})
	for i := range 4 { // nearly all that it may use
		h.Learn(queueStateWith(fmt.Sprint("large-", i), otherPeer, []int{20500, 20500, 20500, 5500}[i]), Now{})
	}
	s := createdBy("q", peerOf(0), otherPeer)
	for g := uint64(2); g <= 30; g++ { // an admin confirms each
		s.Deeds = append(s.Deeds, signedDeed(t, peerOf(0), Deed{Generation: g, To: otherPeer}))
		s.Generation, s.ChangedMs = g, s.ChangedMs+1
		if news, out := h.Learn(s, Now{}); !news {
			t.Fatalf("generation %d is not accepted: %v", g, out.Events)
		}
	}
	if n, size := len(h.titles.byName["q"].deeds), proto.Size(h.Queue("q")); n == 30 || size > freeStateBytes+1500 {
		t.Errorf("%d deeds are kept, the state has %d bytes", n, size)
	}
}

// keptOfARevokedHome is the number of bytes that are kept, with the name, of a name whose home was
// revoked, as docs/ownership.md states it.
const keptOfARevokedHome = 97

// The longest name with the highest generations takes no more than what is stated.
func TestWhatIsKeptOfARevokedHomeIsBounded(t *testing.T) {
	name := "topic:" + strings.Repeat("x", proto.MaxQueueName)
	h := NewHome(homePeer, 1, Config{})
	deed := signDeedAs(name, peerOf(0), Deed{Generation: proto.MaxGeneration, To: otherPeer, Seizure: proto.MaxGeneration})
	s := &proto.QueueState{Name: name, Kind: proto.TitleTopic, Home: otherPeer[:], Generation: proto.MaxGeneration, Deeds: []*proto.Signed{deed}, Removed: true}
	if news, out := h.Learn(s, Now{}); !news {
		t.Fatalf("it is not accepted: %v", out.Events)
	}
	out := h.Revoked(otherPeer, Now{})
	if len(out.Writes) != 1 || len(out.Writes[0].Val) != len(name)+keptOfARevokedHome {
		t.Fatalf("it writes %d times, %d bytes, want %d", len(out.Writes), len(out.Writes[0].Val), len(name)+keptOfARevokedHome)
	}
	again := NewHome(homePeer, 2, Config{})
	if _, err := again.Load(out.Writes[0].Key, out.Writes[0].Val); err != nil {
		t.Fatal(err)
	}
	if home, gen := again.HomeOf(name); home != otherPeer || gen != proto.MaxGeneration {
		t.Errorf("generation %d of %s", gen, home.Short())
	}
}

// Of a revoked home only its identity, the generation and the root are kept. It cannot
// regain the queue with its own messages, and an admin can seize the queue.
func TestQueueStatesOfARevokedHomeAreDropped(t *testing.T) {
	h := NewHome(homePeer, 1, Config{})
	state := queueStateWith("q", otherPeer, 4000)
	h.Learn(state, Now{})
	h.Learn(queueStateWith("other", ownerPeer, 500), Now{})
	out := h.Revoked(otherPeer, Now{})
	if len(out.Writes) != 1 || len(out.Writes[0].Val) > len("q")+keptOfARevokedHome {
		t.Fatalf("it writes %v", out.Writes)
	}
	if h.Queue("other").Labels == nil {
		t.Error("the queue of another lost its settings")
	}
	again := NewHome(homePeer, 2, Config{})
	if _, err := again.Load(out.Writes[0].Key, out.Writes[0].Val); err != nil {
		t.Fatal(err)
	}
	for name, h := range map[string]*Home{"at once": h, "started again": again} {
		if home, gen := h.HomeOf("q"); home != otherPeer || gen != 1 {
			t.Errorf("%s: generation %d of %s", name, gen, home.Short())
		}
		if _, _, err := h.SignCreation("q", ownerPeer, Now{}); !errors.Is(err, ErrNameTaken) {
			t.Errorf("%s: another node makes it: %v", name, err)
		}
		forged := signedDeed(t, ownerPeer, Deed{Generation: 2, From: ownerPeer, To: ownerPeer})
		if news, _ := h.Learn(&proto.QueueState{Name: "q", Generation: 2, Home: ownerPeer[:], Deeds: []*proto.Signed{forged}}, Now{}); news {
			t.Errorf("%s: the claim of a node that never had it is accepted", name)
		}
		if _, err := h.Seize("q", otherPeer, Now{}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		s := h.Queue("q")
		if home, gen := h.HomeOf("q"); home != homePeer || gen != 2 || len(s.Root) != 0 || h.titles.byName["q"].root != rootBy("q", peerOf(0)) {
			t.Errorf("%s: seized, generation %d of %s", name, gen, home.Short())
		}
		third := NewHome(ownerPeer, 1, Config{}) // did not learn of the revocation
		third.Learn(state, Now{})
		if news, out := third.Learn(s, Now{}); !news {
			t.Errorf("%s: others do not accept it: %v", name, out.Events)
		}
	}
}
