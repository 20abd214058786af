package ownership

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
)

// rootBy returns the root of the deeds of a queue that an admin created.
func rootBy(queue string, admin proto.PeerID) Root {
	return sha256.Sum256(append([]byte(queue), admin[:]...))
}

// createdBy returns a queue with an admin's deed, as signed in the simulator.
func createdBy(queue string, admin, home proto.PeerID) *proto.QueueState {
	return &proto.QueueState{Name: queue, Home: slices.Clone(home[:]), Generation: 1, Deeds: []*proto.Signed{signDeedAs(queue, admin, Deed{Generation: 1, To: home})}}
}

// signedDeed returns a deed signed by by, whether that may or not.
func signedDeed(t *testing.T, by proto.PeerID, d Deed) *proto.Signed {
	t.Helper()
	d.Queue = "q"
	if d.Root == (Root{}) {
		d.Root = rootBy("q", peerOf(0))
	}
	s, err := plainDeeds{}.Sign(d)
	if err != nil {
		t.Fatal(err)
	}
	s.Signer = slices.Clone(by[:])
	return s
}

// A node becomes the home of an existing queue only by deeds of its homes, one after the
// other, or by an admin's deed.
func TestQueueClaimsNeedDeeds(t *testing.T) {
	s := newSim(1)
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
		{"seized by a node that is not an admin", claim(liar, 2, deed(liar, Deed{Generation: 2, From: home, To: liar, Seized: true})), home},
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

// A queue that two admins created in a partition has one home, that of the deed with the
// lower root, whatever arrives first, even if the other was handed over or seized since. A
// node that gets both reports a conflict. A queue that was never created stays unknown.
func TestAQueueCreatedTwiceHasOneHome(t *testing.T) {
	s := newSim(1)
	one, two := peerOf(0), peerOf(1)
	low, high := createdBy("q", one, peerOf(5)), createdBy("q", two, peerOf(6))
	lower, higher := rootBy("q", one), rootBy("q", two)
	if bytes.Compare(lower[:], higher[:]) > 0 {
		low, high, higher = high, low, lower
	}
	from, next := proto.PeerID(high.Home), peerOf(7)
	moved := &proto.QueueState{Name: "q", Home: next[:], Generation: 2, Deeds: append(slices.Clone(high.Deeds), signDeedAs("q", from, Deed{Generation: 2, From: from, To: next, Root: higher}))}
	nobody := &proto.QueueState{Name: "q", Home: next[:], Generation: 1}
	for i, order := range [][]*proto.QueueState{{low, high}, {high, low}, {low, moved}, {moved, low}, {nobody, low, nobody}, {high, moved, low, moved}} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			h := NewHome(peerOf(4), 1, Config{Deeds: simDeeds{s.nodes[4]}})
			conflicts := 0
			for _, q := range order {
				_, out := h.Learn(q, Now{})
				for _, e := range out.Events {
					if e.Kind == EventConflict {
						conflicts++
					}
				}
			}
			if got, _ := h.HomeOf("q"); string(got[:]) != string(low.Home) {
				t.Errorf("its home is %d, want %d", got[0]-1, low.Home[0]-1)
			}
			if want := 1; i != 4 && conflicts != want || i == 4 && conflicts != 0 {
				t.Errorf("%d conflicts are reported", conflicts)
			}
		})
	}
}

// revokedDeeds are the deeds of a node that knows which members are revoked.
type revokedDeeds struct {
	simDeeds
	revoked map[proto.PeerID]bool
}

func (d revokedDeeds) Verify(s *proto.Signed) (Deed, error) {
	x, err := d.simDeeds.Verify(s)
	if by, _ := proto.PeerIDFrom(s.GetSigner()); err == nil && d.revoked[by] {
		err = errors.New("its signer was revoked")
	}
	return x, err
}

// A deed counts if it was seen before its signer was revoked, even when it is repeated or
// the queue moves on. A deed first seen after the revocation does not count until another
// admin confirms the home or seizes the queue.
func TestDeedsOfRevokedMembers(t *testing.T) {
	s := newSim(1)
	admin, other, home, next := peerOf(0), peerOf(1), peerOf(5), peerOf(6)
	claim := func(home proto.PeerID, generation uint64, deeds ...*proto.Signed) *proto.QueueState {
		return &proto.QueueState{Name: "q", Home: slices.Clone(home[:]), Generation: generation, Deeds: deeds}
	}
	made := signedDeed(t, admin, Deed{Generation: 1, To: home})
	handed := signedDeed(t, home, Deed{Generation: 2, From: home, To: next})
	seized := func(by proto.PeerID) *proto.Signed {
		return signedDeed(t, by, Deed{Generation: 2, From: home, To: other, Seized: true})
	}
	confirmed := signedDeed(t, other, Deed{Generation: 2, To: next})
	on := signedDeed(t, next, Deed{Generation: 3, From: next, To: home})
	nobody := peerOf(4) // an unknown queue is treated as at home here
	tests := []struct {
		name   string
		before *proto.QueueState // nil: the queue is unknown
		after  *proto.QueueState
		want   proto.PeerID
	}{
		{"made, and seen before", claim(home, 1, made), claim(home, 1, made), home},
		{"made, and seen after", nil, claim(home, 1, made), nobody},
		{"handed over since, and seen before", claim(home, 1, made), claim(next, 2, made, handed), next},
		{"handed over since, and seen after", nil, claim(next, 2, made, handed), nobody},
		{"confirmed by another", nil, claim(next, 2, made, handed, confirmed), next},
		{"confirmed by another, and handed over", nil, claim(home, 3, made, handed, confirmed, on), home},
		{"seized by it, and seen before", claim(other, 2, made, seized(admin)), claim(other, 2, made, seized(admin)), other},
		{"seized by it, and seen after", claim(home, 1, made), claim(other, 2, made, seized(admin)), home},
		{"seized by another", claim(home, 1, made), claim(other, 2, made, seized(other)), other},
		{"handed over by a revoked home, and seen before", claim(next, 2, made, handed), claim(next, 2, made, handed), next},
		{"handed over by a revoked home, and seen after", claim(home, 1, made), claim(next, 2, made, handed), home},
		{"handed over by a revoked home, and confirmed", claim(home, 1, made), claim(next, 2, made, handed, confirmed), next},
		{"seized by another, and not known before", nil, claim(other, 2, made, seized(other)), other},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			deeds := revokedDeeds{simDeeds{s.nodes[4]}, map[proto.PeerID]bool{}}
			h := NewHome(peerOf(4), 1, Config{Deeds: deeds})
			if tt.before != nil {
				h.Learn(tt.before, Now{})
			}
			deeds.revoked[admin], deeds.revoked[home] = !strings.Contains(tt.name, "a revoked home"), strings.Contains(tt.name, "a revoked home")
			for range 2 {
				h.Learn(tt.after, Now{})
			}
			if got, _ := h.HomeOf("q"); got != tt.want {
				t.Errorf("its home is %v, want %v", got[0], tt.want[0])
			}
		})
	}
}

// A chain of deeds begins with an admin's, even for a node that does not know the queue,
// and no generation exceeds the bound: a name cannot be taken forever.
func TestADeedChainBeginsWithAnAdmin(t *testing.T) {
	s := newSim(1)
	admin, home, next := peerOf(0), peerOf(5), peerOf(6)
	hand := func(g uint64) *proto.Signed { return signDeedAs("q", home, Deed{Generation: g, From: home, To: next}) }
	made := signDeedAs("q", admin, Deed{Generation: 1, To: home})
	confirmed := signDeedAs("q", admin, Deed{Generation: 9, To: home})
	for name, tt := range map[string]struct {
		generation uint64
		deeds      []*proto.Signed
		want       bool
	}{
		"made and handed over":                          {2, []*proto.Signed{made, hand(2)}, true},
		"confirmed by an admin and handed over":         {10, []*proto.Signed{confirmed, hand(10)}, true},
		"handed over by a node that was never the home": {2, []*proto.Signed{hand(2)}, false},
		"the highest generation":                        {1<<64 - 1, []*proto.Signed{hand(1<<64 - 1)}, false},
		"beyond the bound, by an admin":                 {1<<32 + 1, []*proto.Signed{signDeedAs("q", admin, Deed{Generation: 1<<32 + 1, To: next})}, false},
		"at the bound, by an admin":                     {1 << 32, []*proto.Signed{signDeedAs("q", admin, Deed{Generation: 1 << 32, To: next})}, true},
		"created by a node that is not an admin":        {1, []*proto.Signed{signDeedAs("q", next, Deed{Generation: 1, To: next})}, false},
		"of another root":                               {2, []*proto.Signed{made, signDeedAs("q", home, Deed{Generation: 2, From: home, To: next, Root: Root{1}})}, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := NewHome(peerOf(4), 1, Config{Deeds: simDeeds{s.nodes[4]}})
			news, _ := h.Learn(&proto.QueueState{Name: "q", Home: next[:], Generation: tt.generation, Deeds: tt.deeds}, Now{})
			if news != tt.want || h.titles.byName["q"].known() != tt.want {
				t.Errorf("it is taken for the home: %v, want %v", news, tt.want)
			}
			if tt.want {
				return
			}
			x := NewHome(peerOf(1), 1, Config{Deeds: simDeeds{s.nodes[1]}}) // an admin can create it
			x.Learn(&proto.QueueState{Name: "q", Home: next[:], Generation: tt.generation, Deeds: tt.deeds}, Now{})
			if _, err := x.CreateQueue("q", func(*proto.QueueState) {}, nil, Now{}); err != nil {
				t.Errorf("an admin cannot make it: %v", err)
			}
			h.Learn(x.Queue("q"), Now{})
			if got, _ := h.HomeOf("q"); got != peerOf(1) {
				t.Errorf("its home is %d", got[0]-1)
			}
		})
	}
}

// An admin signs the creation of a queue once for each name, even after a restart, and only
// so many for one member. Without a deed there is no queue.
func TestAnAdminSignsANameOnce(t *testing.T) {
	s := newSim(1)
	admin := func() *Home { return NewHome(peerOf(0), 1, Config{Deeds: simDeeds{s.nodes[0]}}) }
	h := admin()
	first, out, err := h.SignCreation("q", peerOf(5), Now{})
	if err != nil {
		t.Fatal(err)
	}
	again := admin()
	for _, w := range out.Writes {
		if w.Key[0] != keyCreation {
			continue // what it knows of the queue may be lost: the stored deed counts
		}
		if _, err := again.Load(w.Key, w.Val); err != nil {
			t.Fatal(err)
		}
	}
	for name, x := range map[string]*Home{"in the same start": h, "after a restart": again} {
		if d, _, err := x.SignCreation("q", peerOf(5), Now{}); err != nil || !bytes.Equal(d.Details, first.Details) {
			t.Errorf("%s, to the same member: %v", name, err)
		}
		if _, _, err := x.SignCreation("q", peerOf(6), Now{}); !errors.Is(err, ErrNameTaken) {
			t.Errorf("%s, to another: %v", name, err)
		}
		if _, err := x.CreateQueue("q", func(*proto.QueueState) {}, nil, Now{}); !errors.Is(err, ErrNameTaken) {
			t.Errorf("%s, to itself: %v", name, err)
		}
	}
	const names = 64 // the default
	for i := range names + 1 {
		_, _, err := h.SignCreation(fmt.Sprint("name-", i), peerOf(7), Now{})
		if want := i < names; (err == nil) != want {
			t.Fatalf("name %d of one member: %v", i+1, err)
		}
	}
	member := NewHome(peerOf(6), 1, Config{Deeds: simDeeds{s.nodes[6]}})
	if _, err := member.CreateQueue("q", func(*proto.QueueState) {}, nil, Now{}); err == nil || len(member.titles.byName) != 0 {
		t.Errorf("a member makes a queue alone: %v; %d queues are left", err, len(member.titles.byName))
	}
	if _, err := member.CreateQueue("q", func(*proto.QueueState) {}, first, Now{}); err == nil || len(member.titles.byName) != 0 {
		t.Errorf("by the deed of another: %v; %d queues are left", err, len(member.titles.byName))
	}
}

// The chain of deeds of a queue that changes its home often can be verified by a new node:
// an admin confirms the home before there are more deeds than fit, and without an admin the
// handoff is refused.
func TestDeedsOfManyMovesFit(t *testing.T) {
	s := newSim(1)
	homes := []*Home{NewHome(peerOf(5), 1, Config{Deeds: simDeeds{s.nodes[5]}}), NewHome(peerOf(6), 1, Config{Deeds: simDeeds{s.nodes[6]}})}
	for _, h := range homes {
		h.Learn(createdBy("q", peerOf(0), peerOf(5)), Now{})
	}
	refused := 0
	for i := range 3 * proto.MaxDeeds {
		at, to := homes[i%2], homes[1-i%2]
		may := at.MayMove("q", to.self, Now{})
		if home, g := at.HomeOf("q"); home != at.self || g != uint64(i)+1 {
			t.Fatalf("the question has changed the home: %d, in generation %d", home[0]-1, g)
		}
		_, err := at.HandOff("q", to.self, Now{})
		if errors.Is(err, errTooManyMoves) != errors.Is(may, errTooManyMoves) {
			t.Fatalf("%v, and before: %v", err, may)
		}
		if errors.Is(err, errTooManyMoves) {
			refused++
			q := at.titles.byName["q"]
			admin := NewHome(peerOf(0), 1, Config{Deeds: simDeeds{s.nodes[0]}})
			admin.Learn(at.Queue("q"), Now{})
			signed, cerr := admin.Confirm("q", q.state.Generation, at.self)
			if cerr != nil {
				t.Fatal(cerr)
			}
			if _, cerr = at.Confirmed("q", signed, Now{}); cerr != nil || len(q.sinceAdmin()) != 0 {
				t.Fatalf("%v, %d deeds since", cerr, len(q.sinceAdmin()))
			}
			_, err = at.HandOff("q", to.self, Now{})
		}
		if err != nil {
			t.Fatal(err)
		}
		to.Learn(at.Queue("q"), Now{})
		newcomer := NewHome(peerOf(4), 1, Config{Deeds: simDeeds{s.nodes[4]}})
		newcomer.Learn(at.Queue("q"), Now{})
		if got, g := newcomer.HomeOf("q"); got != to.self || g != uint64(i)+2 {
			t.Fatalf("after %d moves a newcomer takes %d for the home, in generation %d", i+1, got[0]-1, g)
		}
	}
	if refused == 0 {
		t.Error("no move was refused: nothing is tested")
	}
}

// A task, a blocked lane or a cancel counts only from a node that is or was a home of the
// queue, whatever node the task was sent to.
func TestMessagesFromANodeThatWasNeverTheHome(t *testing.T) {
	for _, tt := range []struct {
		name string
		from proto.PeerID
		sent proto.PeerID
		want bool
	}{
		{"the home until now", homePeer, homePeer, true},
		{"whom the task was sent to", ownerPeer, ownerPeer, false},
		{"a stranger", ownerPeer, homePeer, false},
		{"a stranger, of a task sent to an unknown node", ownerPeer, proto.PeerID{}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t, func(x *Task) { x.Sent, x.Key = homePeer, "k" })
			out, err := f.home.HandOff("q", otherPeer, f.now)
			if err != nil {
				t.Fatal(err)
			}
			to, task := NewHome(otherPeer, 50, Config{}), f.task
			for _, s := range out.Sends {
				m, ok := s.Body.(*proto.Handoff)
				if !ok {
					continue
				}
				if m.Lease == nil {
					to.OnHandoff(homePeer, m, Task{}, f.now)
					continue
				}
				task.Sent = tt.sent
				m.Blocks = []*proto.LaneBlock{{Queue: "q", Key: "k"}}
				to.OnHandoff(tt.from, m, task, f.now)
				if got := to.tasks[task.ID] != nil; got != tt.want {
					t.Errorf("the task is there: %v, want %v", got, tt.want)
				}
				if l := to.queue("q").lanes[laneKey{key: "k"}]; (l != nil && l.blocked) != tt.want {
					t.Errorf("the lane is blocked: %v, want %v", l != nil && l.blocked, tt.want)
				}
				to.OnHandoff(homePeer, m, task, f.now)
				to.OnCancel(tt.from, &proto.Cancel{Task: task.ID[:]}, f.now)
				if got := to.tasks[task.ID].cancel; got != tt.want {
					t.Errorf("it is cancelled: %v, want %v", got, tt.want)
				}
			}
		})
	}
}

// A home that has lost the fact that a task moved is refused by a node that knows it, and
// does not ask that node again at once.
func TestAHomeThatLostItsQueueIsRefusedWithoutAlarm(t *testing.T) {
	f := newFixture(t, nil)
	k := f.claim()
	k.BootId = bootA[:]
	seen := &proto.Taken{Claim: k, Code: proto.CodeStale, SeenBoot: 1}
	out := f.home.OnGranted(ownerPeer, &proto.Granted{Taken: []*proto.Taken{seen}}, f.now)
	if len(out.Sends) != 0 {
		t.Errorf("it is granted the task again at once: %v", out.Sends)
	}
	f.now.Mono += time.Minute
	if out = f.home.Tick(f.now); len(out.Sends) == 0 {
		t.Error("it is never asked again")
	}
}
