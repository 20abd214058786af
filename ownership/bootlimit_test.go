package ownership

import (
	"testing"
	"time"

	"github.com/balefire/balefire/ownership/dispatch"
	"github.com/balefire/balefire/proto"
)

// No boot number that another node states, however often, makes the grants and answers of a
// home malformed after its next start.
func TestStatedBootNumbersAreBounded(t *testing.T) {
	t.Run("by a node that declines", func(t *testing.T) {
		f := newFixture(t, func(x *Task) { x.NotAfter += (24 * time.Hour).Milliseconds() })
		disk := map[string][]byte{}
		keep(disk, f.home.SetQueue(func(s *proto.QueueState) { s.Concurrency = 9 }, f.now, "q"))
		for range 100 {
			for _, seen := range []uint64{maxBoot - 1, f.now.plausibleBoot()} {
				f.now.Mono, f.now.Boot, f.now.Wall = f.now.Mono+time.Minute, f.now.Boot+time.Minute, f.now.Wall+60_000
				keep(disk, f.home.Tick(f.now)) // grants it again
				refused := &proto.Taken{Claim: claimOf(f.state()), Code: proto.CodeStale, SeenBoot: seen}
				keep(disk, f.home.OnGranted(ownerPeer, &proto.Granted{Taken: []*proto.Taken{refused}}, f.now))
			}
		}
		checkNextStart(t, disk, f.task, f.now)
	})
	t.Run("by a former home", func(t *testing.T) {
		now := Now{Wall: 1_700_000_000_000, Mono: time.Hour, Boot: time.Hour}
		h, disk := NewHome(homePeer, 100, Config{}), map[string][]byte{}
		keep(disk, h.Begin(now))
		_, out := h.Learn(createdBy("q", peerOf(0), otherPeer), now)
		keep(disk, out)
		given := h.Queue("q")
		given.Home, given.Generation = homePeer[:], 2
		given.Deeds = append(given.Deeds, signDeedAs("q", otherPeer, Deed{Generation: 2, From: otherPeer, To: homePeer}))
		_, out = h.Learn(given, now)
		keep(disk, out)
		last := Task{}
		for i, boot := range []uint64{100, now.plausibleBoot(), now.plausibleBoot() + 1, maxBoot} {
			x := Task{ID: proto.TaskID{7, byte(i)}, Sent: otherPeer, Queue: "q", Kind: "k", NotAfter: now.Wall + time.Hour.Milliseconds()}
			ts := &taskState{task: x, state: proto.Pending, gen: 2, epoch: proto.Seq{Boot: boot, Counter: 1}, owner: ownerPeer, released: true}
			keep(disk, h.OnHandoff(otherPeer, &proto.Handoff{Lease: ts.record()}, x, now))
			if here := h.tasks[x.ID] != nil; here != (i < 2) {
				t.Errorf("a task with an epoch of boot %d is taken: %v", boot, here)
			}
			if i < 2 {
				last = x
			}
		}
		checkNextStart(t, disk, last, now)
	})
}

// keep adds the writes of o to a disk.
func keep(disk map[string][]byte, o Output) {
	for _, w := range o.Writes {
		disk[w.Key] = w.Val
	}
}

// checkNextStart starts a home from its disk and checks what it sends about task x.
func checkNextStart(t *testing.T, disk map[string][]byte, x Task, now Now) {
	t.Helper()
	h := NewHome(homePeer, 101, Config{})
	var lease *proto.Lease
	for key, val := range disk {
		if val == nil {
			continue
		}
		m, err := h.Load(key, val)
		if err != nil {
			t.Fatal(err)
		}
		if m != nil && string(m.Task) == string(x.ID[:]) {
			lease = m
		}
	}
	h.Restore(x, lease, now)
	h.Begin(now)
	now.Mono, now.Boot = now.Mono+time.Minute, now.Boot+time.Minute
	h.Tick(now)
	var grant *proto.Grant
	for _, s := range h.SetNode(Node{Member: dispatch.Member{Peer: ownerPeer, Alive: true, Kinds: []string{"k"}, Slots: 9}}, now).Sends {
		if g, ok := s.Body.(*proto.Grant); ok {
			grant = g
		}
	}
	if grant == nil {
		t.Fatal("nothing is granted after the restart")
	}
	if err := validate(grant); err != nil {
		t.Error(err)
	}
	grant.Claim.BootId = bootA[:]
	for _, s := range h.OnRenew(ownerPeer, &proto.Renew{Claims: []*proto.Claim{grant.Claim}}, now).Sends {
		if err := validate(s.Body); err != nil {
			t.Error(err)
		}
	}
}

// A question about an epoch that no home can have reached leaves nothing behind: a task that its
// home grants here later would be declined for good.
func TestQuestionsAboutImpossibleEpochsAreIgnored(t *testing.T) {
	for _, known := range []bool{false, true} {
		f := newFixture(t, nil)
		if known { // and over
			f.owner.OnGrant(homePeer, f.grant, 0, f.now)
			f.owner.close(f.owner.runs[f.task.ID])
		}
		was := f.owner.runs[f.task.ID]
		k := f.claim()
		k.EpochBoot, k.Generation, k.BootId = f.now.plausibleBoot()+1, 2, nil
		out := f.owner.OnStatus(otherPeer, &proto.Status{Claims: []*proto.Claim{k}}, f.now)
		if r := f.owner.runs[f.task.ID]; r != was || len(out.Writes)+len(out.Sends) > 0 {
			t.Errorf("with a lease that is over: %v: there is %+v, and %d records are written", known, r, len(out.Writes))
		}
		k.EpochBoot--
		if f.owner.OnStatus(otherPeer, &proto.Status{Claims: []*proto.Claim{k}}, f.now); f.owner.runs[f.task.ID].claim.epoch.Boot != k.EpochBoot {
			t.Errorf("with a lease that is over: %v: an epoch that is possible is not noted", known)
		}
	}
}

// A task of which a node claims to know a higher epoch, whether it was told so by the sender of
// the task or makes it up, keeps no other task of that kind from the node.
func TestAStaleTaskHoldsUpNoOther(t *testing.T) {
	for _, seen := range []uint64{0, 200, maxBoot - 1} {
		f := newFeed(t, 0)
		now := f.now.Wall
		refuse := func() {
			for _, g := range f.grants {
				x := &proto.Taken{Claim: g.Claim, Code: proto.CodeStale, SeenBoot: seen}
				out := f.home.OnGranted(ownerPeer, &proto.Granted{Taken: []*proto.Taken{x}}, f.now)
				if len(out.Sends) > 0 {
					t.Errorf("seen %d: it is granted again at once", seen)
				}
			}
			f.grants = nil
		}
		add := func(i int) {
			for _, s := range f.home.Add(Task{ID: testTaskID(i), Queue: "q", Kind: "k", NotAfter: now + time.Hour.Milliseconds()}, f.now).Sends {
				f.grants = append(f.grants, s.Body.(*proto.Grant))
			}
		}
		add(0)
		refuse()
		add(1)
		if len(f.grants) != 1 || proto.TaskID(f.grants[0].Claim.Task) != testTaskID(1) {
			t.Errorf("seen %d: the other task is not granted: %d grants", seen, len(f.grants))
		}
		f.take(Output{Sends: []Send{{Body: f.grants[0]}}})
		f.grants = nil
		f.pass(time.Minute)
		if f.take(f.home.Tick(f.now)); len(f.grants) == 0 {
			t.Errorf("seen %d: the task is not granted again", seen)
		}
	}
}

// A node that declines whatever it is granted is left alone for a while, and the tasks go on when
// it takes one.
func TestANodeThatFindsAllStaleIsBackedOff(t *testing.T) {
	f := newFeed(t, 0)
	grants := 0
	var take func(out Output)
	take = func(out Output) {
		for _, s := range out.Sends {
			if g, ok := s.Body.(*proto.Grant); ok {
				grants++
				x := &proto.Taken{Claim: g.Claim, Code: proto.CodeStale, SeenBoot: maxBoot}
				take(f.home.OnGranted(ownerPeer, &proto.Granted{Taken: []*proto.Taken{x}}, f.now))
			}
		}
	}
	for i := range 1000 {
		take(f.home.Add(Task{ID: testTaskID(i), Queue: "q", Kind: "k", NotAfter: f.now.Wall + time.Hour.Milliseconds()}, f.now))
	}
	if grants > 2*maxStale {
		t.Errorf("it was granted %d tasks, and declined each", grants)
	}
	f.pass(time.Minute)
	if f.take(f.home.Tick(f.now)); len(f.grants) != feedSlots {
		t.Errorf("it owns %d of the tasks now", len(f.grants))
	}
}
