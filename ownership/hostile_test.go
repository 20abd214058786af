package ownership

import (
	"fmt"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
)

// Only its home changes the settings of a queue, even if another node names that home and
// uses a later time.
func TestOnlyTheHomeSetsAQueue(t *testing.T) {
	h := NewHome(homePeer, 1, Config{})
	h.SetQueue(func(s *proto.QueueState) { s.Concurrency = 3 }, Now{Wall: 1000}, "q")
	state := h.titles.stateOf(h.titles.keep(h.titles.named("q")))
	state.ChangedMs, state.Paused, state.Members = 1<<60, true, []*proto.QueueMember{{Peer: otherPeer[:]}}
	h.OnHandoff(otherPeer, &proto.Handoff{Queue: state}, Task{}, Now{Wall: 2000})
	h.Learn(state, Now{Wall: 2000})
	if s := h.Queue("q"); s.Paused || len(s.Members) != 0 || s.Concurrency != 3 {
		t.Errorf("another node set it: %v", s)
	}
}

// A node hands over only queues that it had, and at most so many.
func TestQueuesThatAreHandedOver(t *testing.T) {
	made := func(i int) *proto.Signed { return createdBy(fmt.Sprint("given-", i), peerOf(0), otherPeer).Deeds[0] }
	given := func(i int, deeds ...*proto.Signed) *proto.Handoff {
		deeds = append([]*proto.Signed{made(i)}, deeds...)
		return &proto.Handoff{Queue: &proto.QueueState{Name: fmt.Sprint("given-", i), Home: homePeer[:], Generation: uint64(len(deeds)), Paused: true, Deeds: deeds}}
	}
	deed := func(i int, from, to proto.PeerID) *proto.Signed {
		name := fmt.Sprint("given-", i)
		s, err := plainDeeds{}.Sign(Deed{Queue: name, Generation: 2, From: from, To: to, Root: rootBy(name, peerOf(0))})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for name, tt := range map[string]struct {
		handoff func(i int) *proto.Handoff
		want    int
	}{
		"without a deed":          {func(i int) *proto.Handoff { return given(i) }, 0},
		"by the deed of another":  {func(i int) *proto.Handoff { return given(i, deed(i, ownerPeer, homePeer)) }, 0},
		"by the deed of the home": {func(i int) *proto.Handoff { return given(i, deed(i, otherPeer, homePeer)) }, maxQueuesFromPeer},
	} {
		t.Run(name, func(t *testing.T) {
			h := NewHome(homePeer, 1, Config{})
			answers := 0
			for i := range maxQueuesFromPeer + 9 {
				answers += len(h.OnHandoff(otherPeer, tt.handoff(i), Task{}, Now{}).Sends)
			}
			if answers != tt.want {
				t.Errorf("it confirmed %d queues, want %d", answers, tt.want)
			}
			if len(h.titles.byName) != tt.want || len(h.titles.order) != tt.want {
				t.Errorf("it is the home of %d queues, want %d", len(h.titles.byName), tt.want)
			}
		})
	}
}

// A task of an unknown queue creates no queue, whatever node signed and sent it.
func TestTasksOfUnknownQueuesAreIgnored(t *testing.T) {
	h := NewHome(homePeer, 1, Config{})
	for i := range 9 {
		task := Task{ID: proto.TaskID{byte(i)}, Sent: otherPeer, Queue: fmt.Sprint("made-up-", i), Kind: "k", NotAfter: time.Hour.Milliseconds()}
		lease := (&taskState{task: task, state: proto.Pending, gen: 2}).record()
		h.OnHandoff(otherPeer, &proto.Handoff{Lease: lease}, task, Now{})
	}
	if len(h.titles.byName) != 0 || len(h.tasks) != 0 {
		t.Errorf("it has %d queues and %d tasks", len(h.titles.byName), len(h.tasks))
	}
}

// Later settings of a home are accepted by others, even if its clock was set back.
func TestSettingsAreOrderedUnderAnyClock(t *testing.T) {
	h, other := NewHome(homePeer, 1, Config{}), NewHome(otherPeer, 1, Config{})
	for i, wall := range []int64{1_000_000, 1_000_000, 5, 0} {
		h.SetQueue(func(s *proto.QueueState) { s.Concurrency = uint32(i + 1) }, Now{Wall: wall}, "q")
		if news, _ := other.Learn(h.Queue("q"), Now{}); !news || other.Queue("q").Concurrency != uint32(i+1) {
			t.Errorf("the setting %d, made when the clock showed %d, is not accepted", i+1, wall)
		}
	}
}

// Queues that a node announces without a deed use no room, and those that it is the home of
// only a bounded amount.
func TestQueueMessagesAreBounded(t *testing.T) {
	h := NewHome(homePeer, 1, Config{})
	for i := range 3 * maxQueuesPerHome {
		name := fmt.Sprint("talk-", i)
		h.OnHandoff(otherPeer, &proto.Handoff{Blocks: []*proto.LaneBlock{{Queue: name, Key: "k"}}}, Task{}, Now{})
		h.Learn(&proto.QueueState{Name: name, Home: otherPeer[:], Generation: 7}, Now{}) // without a deed
	}
	if len(h.titles.byName) != 0 || len(h.titles.order) != 0 {
		t.Errorf("%d unknown queues are kept", len(h.titles.byName))
	}
	for i := range maxQueuesPerHome + 9 {
		h.Learn(createdBy(fmt.Sprint("made-", i), peerOf(0), otherPeer), Now{})
	}
	if len(h.titles.byName) != maxQueuesPerHome || len(h.titles.order) != maxQueuesPerHome {
		t.Errorf("%d queues of one node, want %d", len(h.titles.byName), maxQueuesPerHome)
	}
	h.SetQueue(func(*proto.QueueState) {}, Now{}, "own")
	h.Learn(createdBy("third", peerOf(0), ownerPeer), Now{})
	if h.Queue("own") == nil || h.Queue("third") == nil {
		t.Error("they shut out the queues of others")
	}
}

// An owner that declines each grant as stale is not asked again at once, whatever epoch it
// claims to have seen.
func TestANodeThatDeclinesEachGrantIsBackedOff(t *testing.T) {
	for _, seen := range []proto.Seq{{}, {Boot: 100, Counter: 1}, {Boot: 1 << 30}, {Boot: maxBoot - 1}, {Boot: maxBoot}, {Boot: 1<<64 - 1, Counter: 1<<64 - 1}} {
		t.Run(fmt.Sprint(seen.Boot), func(t *testing.T) {
			f := newFixture(t, nil)
			grants := 0
			for range 60 {
				k := claimOf(f.state())
				refused := &proto.Taken{Claim: k, Code: proto.CodeStale, SeenBoot: seen.Boot + f.state().epoch.Boot, SeenCounter: seen.Counter}
				for _, s := range f.home.OnGranted(ownerPeer, &proto.Granted{Taken: []*proto.Taken{refused}}, f.now).Sends {
					if _, ok := s.Body.(*proto.Grant); ok {
						t.Fatal("it is granted the task again at once")
					}
				}
				f.now.Mono, f.now.Boot, f.now.Wall = f.now.Mono+time.Second, f.now.Boot+time.Second, f.now.Wall+1000
				for _, s := range f.home.Tick(f.now).Sends {
					if _, ok := s.Body.(*proto.Grant); ok {
						grants++
					}
				}
			}
			if grants == 0 {
				t.Error("it is never asked again")
			}
		})
	}
}

// An at_most_once task whose home is gone and does not permit the start gives its slot back
// when its lease is over, and never starts under that lease.
func TestAMissingPermitFreesTheSlot(t *testing.T) {
	f := newFixture(t, func(x *Task) { x.Mode = proto.AtMostOnce })
	f.owner.OnGrant(homePeer, f.grant, 0, f.now)
	f.owner.Ready(f.task.ID, false, f.now)
	lease := time.Duration(f.grant.LeaseMs) * time.Millisecond
	for waited := time.Duration(0); waited <= lease+time.Second; waited += time.Second {
		if waited < lease && f.owner.runs[f.task.ID].phase != proto.LeaseReceived {
			t.Fatalf("it was released %v before its lease was over", lease-waited)
		}
		f.now.Boot += time.Second
		f.owner.Tick(f.now)
	}
	if got := f.owner.runs[f.task.ID]; got.phase != proto.LeaseReleased || got.cause != proto.Unstarted {
		t.Errorf("it is %v (%v): its slot waits forever", got.phase, got.cause)
	}
	k, _ := claimFrom(f.claim())
	if out := f.owner.OnPermit(homePeer, &proto.Permit{Rulings: []*proto.Ruling{k.ruling(0)}}, f.now); len(out.Starts) != 0 {
		t.Error("it was started by a permit that came too late")
	}
}

// A member that asks about leases that were never granted causes a bounded number of
// records, and does not use up those for others.
func TestQuestionsAboutUnknownLeasesAreBounded(t *testing.T) {
	o := NewOwner(bootA, Config{})
	now := Now{Wall: 1_700_000_000_000, Mono: time.Hour, Boot: time.Hour}
	ask := func(from proto.PeerID, i int) {
		id := testTaskID(i)
		id[15] = from[0]
		k := &proto.Claim{Task: id[:], EpochBoot: 9, EpochCounter: uint64(i), Token: make([]byte, 16), Generation: 2}
		o.OnStatus(from, &proto.Status{Claims: []*proto.Claim{k}}, now)
	}
	for i := range 3 * maxUnknownLeases {
		ask(otherPeer, i)
	}
	if len(o.runs) != maxUnknownLeases {
		t.Errorf("%d leases are noted, want %d", len(o.runs), maxUnknownLeases)
	}
	ask(homePeer, 1)
	if len(o.runs) != maxUnknownLeases+1 {
		t.Error("another node is not answered any more")
	}
	for _, r := range o.runs { // all are answered: their places are free again
		o.close(r)
	}
	for range 2 {
		now.Boot += time.Hour
		o.Tick(now)
	}
	if len(o.runs)+len(o.unknownLeases) != 0 {
		t.Errorf("%d leases and %d askers are kept", len(o.runs), len(o.unknownLeases))
	}
}

// A node does not become the home of a lease by asking about a higher epoch: the result
// would go to it.
func TestAStrangersQuestionTakesNoLease(t *testing.T) {
	for name, prepare := range map[string]func(f *fixture){
		"that waits": func(*fixture) {},
		"that runs":  func(f *fixture) { f.owner.Ready(f.task.ID, false, f.now) },
		"that finished": func(f *fixture) {
			f.owner.Ready(f.task.ID, false, f.now)
			f.owner.Finish(f.task.ID, proto.Success, nil, f.now)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			f.owner.OnGrant(homePeer, f.grant, 0, f.now)
			prepare(f)
			was := f.owner.runs[f.task.ID].claim
			k := f.claim()
			k.EpochBoot, k.Generation, k.BootId = k.EpochBoot+1, 9, nil
			out := f.owner.OnStatus(otherPeer, &proto.Status{Claims: []*proto.Claim{k}}, f.now)
			if r := f.owner.runs[f.task.ID]; r.home != homePeer || r.claim != was || len(out.Sends)+len(out.Writes) != 0 {
				t.Errorf("its home is %d, and %d messages were sent", r.home[0], len(out.Sends))
			}
			if f.owner.OnStatus(homePeer, &proto.Status{Claims: []*proto.Claim{k}}, f.now); f.owner.runs[f.task.ID].claim.epoch.Boot != k.EpochBoot {
				t.Error("its home is not accepted either")
			}
		})
	}
}

// Nor does it by granting a higher epoch without the right to do so. A new home, which has
// that right, gets the result even if this node would not accept the task now.
func TestAStrangersGrantTakesNoLease(t *testing.T) {
	for code, want := range map[proto.Code]proto.PeerID{
		proto.CodeDenied: homePeer, proto.CodeBadForm: homePeer, proto.CodeBadSignature: homePeer,
		proto.CodeOK: otherPeer, proto.CodeBusy: otherPeer, proto.CodeDraining: otherPeer,
	} {
		t.Run(code.Name(), func(t *testing.T) {
			f := newFixture(t, nil)
			f.owner.OnGrant(homePeer, f.grant, 0, f.now)
			f.owner.Ready(f.task.ID, false, f.now)
			k := f.claim()
			k.EpochBoot, k.Generation, k.BootId = k.EpochBoot+1, 9, nil
			f.owner.OnGrant(otherPeer, &proto.Grant{Claim: k, Queue: "q", LeaseMs: 15000, LeftMs: f.task.NotAfter - f.now.Wall}, code, f.now)
			if got := f.owner.runs[f.task.ID].home; got != want {
				t.Errorf("its home is %d, want %d", got[0], want[0])
			}
		})
	}
}

// A lane whose tasks have all gone to another home is forgotten.
func TestLanesThatMovedAreForgotten(t *testing.T) {
	f := newFixture(t, nil)
	for i := range 50 {
		f.home.Add(Task{ID: testTaskID(300 + i), Queue: "q", Kind: "k", Key: fmt.Sprint(i / 2), NotAfter: f.task.NotAfter}, f.now)
	}
	if _, err := f.home.HandOff("q", otherPeer, f.now); err != nil {
		t.Fatal(err)
	}
	for id, entry := range f.home.transit.byID {
		f.home.OnHandedOff(otherPeer, &proto.HandedOff{Moved: []*proto.Moved{{Task: id[:], Generation: entry.gen}}}, f.now)
	}
	if n := len(f.home.queue("q").lanes); n != 0 || f.home.PendingHandoffs() != 0 {
		t.Errorf("%d lanes are kept; %d handoffs are pending", n, f.home.PendingHandoffs())
	}
}
