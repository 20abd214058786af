package ownership

import (
	"slices"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
)

// signedDeed is a deed as by would sign it in the simulator, whether or not it may.
func signedDeed(t *testing.T, by proto.PeerID, d Deed) *proto.Signed {
	t.Helper()
	d.Queue = "q"
	s, err := plainDeeds{}.Sign(d)
	if err != nil {
		t.Fatal(err)
	}
	s.Signer = slices.Clone(by[:])
	return s
}

// Nobody becomes the home of a queue that another has, but by a deed of that home, one
// home after the other, or of an admin.
func TestClaimsToAQueue(t *testing.T) {
	s := newSim(1, sound)
	admin, home, next, third, liar := peerOf(0), peerOf(1), peerOf(2), peerOf(3), peerOf(6)
	claim := func(home proto.PeerID, generation uint64, deeds ...*proto.Signed) *proto.QueueState {
		return &proto.QueueState{Name: "q", Home: home[:], Generation: generation, Deeds: deeds}
	}
	deed := func(by proto.PeerID, d Deed) *proto.Signed { return signedDeed(t, by, d) }
	toNext := deed(home, Deed{Generation: 2, From: home, To: next})
	tests := []struct {
		name  string
		claim *proto.QueueState
		want  proto.PeerID
	}{
		{"the home hands it over", claim(next, 2, toNext), next},
		{"one home after the other", claim(third, 3, toNext, deed(next, Deed{Generation: 3, From: next, To: third})), third},
		{"an admin seizes it", claim(admin, 2, deed(admin, Deed{Generation: 2, From: home, To: admin, Seized: true})), admin},
		{"an admin seizes it from a home that is not known here", claim(admin, 5, deed(admin, Deed{Generation: 5, From: third, To: admin, Seized: true})), admin},
		{"no deed", claim(liar, 2), home},
		{"no deed, and the highest generation", claim(liar, 1<<64-1), home},
		{"signed by itself", claim(liar, 2, deed(liar, Deed{Generation: 2, From: liar, To: liar})), home},
		{"in the name of the home", claim(liar, 2, deed(liar, Deed{Generation: 2, From: home, To: liar})), home},
		{"seized by one who is no admin", claim(liar, 2, deed(liar, Deed{Generation: 2, From: home, To: liar, Seized: true})), home},
		{"handed to another", claim(liar, 2, toNext), home},
		{"another generation than that of its deed", claim(next, 7, toNext), home},
		{"a gap in the chain", claim(third, 3, deed(next, Deed{Generation: 3, From: next, To: third})), home},
		{"a chain that begins elsewhere", claim(third, 3, deed(liar, Deed{Generation: 2, From: liar, To: next}), deed(next, Deed{Generation: 3, From: next, To: third})), home},
		{"a lower generation", claim(liar, 0), home},
		{"made again by one with a higher name", claim(liar, 1), home},
		{"made again, with a deed of its own", claim(liar, 1, deed(liar, Deed{Generation: 1, To: liar})), home},
		{"of another queue", claim(next, 2, func() *proto.Signed {
			x, _ := plainDeeds{}.Sign(Deed{Queue: "other", Generation: 2, From: home, To: next})
			x.Signer = slices.Clone(home[:])
			return x
		}()), home},
		{"a home of a wrong size", &proto.QueueState{Name: "q", Home: liar[:31], Generation: 2}, home},
		{"no home", &proto.QueueState{Name: "q", Generation: 2}, home},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := NewHome(peerOf(4), 1, Config{Deeds: simDeeds{s.nodes[4]}})
			h.Learn(claim(home, 1, deed(admin, Deed{Generation: 1, To: home})), Now{})
			h.Learn(tt.claim, Now{})
			if got, _ := h.HomeOf("q"); got != tt.want {
				t.Errorf("its home is %d, want %d", got[0]-1, tt.want[0]-1)
			}
		})
	}
}

// A queue that was made twice has one home: that of an admin before any other, else
// the higher, whatever is heard first.
func TestAQueueThatWasMadeTwice(t *testing.T) {
	s := newSim(1, sound)
	admin, low, high := peerOf(0), peerOf(5), peerOf(6)
	made := func(home proto.PeerID) *proto.QueueState {
		q := &proto.QueueState{Name: "q", Home: slices.Clone(home[:]), Generation: 1}
		if home == admin {
			q.Deeds = []*proto.Signed{signedDeed(t, admin, Deed{Generation: 1, To: admin})}
		}
		return q
	}
	for _, tt := range []struct{ a, b, want proto.PeerID }{{admin, high, admin}, {low, high, high}, {admin, low, admin}} {
		for _, order := range [][]proto.PeerID{{tt.a, tt.b}, {tt.b, tt.a}} {
			h := NewHome(peerOf(4), 1, Config{Deeds: simDeeds{s.nodes[4]}})
			for _, p := range order {
				h.Learn(made(p), Now{})
			}
			if got, _ := h.HomeOf("q"); got != tt.want {
				t.Errorf("heard of %d, then of %d: its home is %d, want %d", order[0][0]-1, order[1][0]-1, got[0]-1, tt.want[0]-1)
			}
		}
	}
}

// A task, a blocked lane or a wish to cancel counts from a home of the queue, or from
// whom the task was sent to, and from nobody else.
func TestWordsOfWhoWasNeverTheHome(t *testing.T) {
	for _, tt := range []struct {
		name string
		from proto.PeerID
		sent proto.PeerID
		want bool
	}{
		{"the home until now", homePeer, homePeer, true},
		{"whom the task was sent to", ownerPeer, ownerPeer, true},
		{"a stranger", ownerPeer, homePeer, false},
		{"a stranger, of a task sent to nobody knows whom", ownerPeer, proto.PeerID{}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t, func(x *Task) { x.Sent = homePeer })
			out, err := b.home.HandOff("q", otherPeer, b.now)
			if err != nil {
				t.Fatal(err)
			}
			to, task := NewHome(otherPeer, 50, Config{}), b.task
			for _, s := range out.Sends {
				m, ok := s.Body.(*proto.Handoff)
				if !ok {
					continue
				}
				if m.Lease == nil {
					to.OnHandoff(homePeer, m, Task{}, b.now)
					continue
				}
				task.Sent = tt.sent
				m.Blocks = []*proto.LaneBlock{{Queue: "q", Key: "k"}}
				to.OnHandoff(tt.from, m, task, b.now)
				if got := to.cells[task.ID] != nil; got != tt.want {
					t.Errorf("the task is there: %v, want %v", got, tt.want)
				}
				if l := to.queue("q").lanes["k"]; (l != nil && l.blocked) != tt.want {
					t.Errorf("the lane stands still: %v, want %v", l != nil && l.blocked, tt.want)
				}
				to.OnHandoff(homePeer, m, task, b.now)
				to.OnCancel(tt.from, &proto.Cancel{Task: task.ID[:]}, b.now)
				if got := to.cells[task.ID].cancel; got != tt.want {
					t.Errorf("it is cancelled: %v, want %v", got, tt.want)
				}
			}
		})
	}
}

// A home that has forgotten that a task moved is refused by who knows that, and does
// not ask it again at once.
func TestAHomeThatForgotIsRefusedInPeace(t *testing.T) {
	b := newBench(t, nil)
	k := b.claim()
	k.BootId = bootA[:]
	seen := &proto.Taken{Claim: k, Code: proto.Code_CODE_STALE, SeenBoot: 1}
	out := b.home.OnGranted(ownerPeer, &proto.Granted{Taken: []*proto.Taken{seen}}, b.now)
	if len(out.Sends) != 0 {
		t.Errorf("it is granted the task again at once: %v", out.Sends)
	}
	b.now.Mono += time.Minute
	if out = b.home.Tick(b.now); len(out.Sends) == 0 {
		t.Error("it is never asked again")
	}
}
