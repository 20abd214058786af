package ownership

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/balefire/balefire/ownership/dispatch"
	"github.com/balefire/balefire/proto"
)

// A bench is a home and an owner without disk and network: what one says the test
// hands to the other, or changes first.
type bench struct {
	t     *testing.T
	home  *Home
	owner *Owner
	now   Now
	task  Task
	grant *proto.Grant
}

var (
	homePeer, ownerPeer, otherPeer = peerOf(0), peerOf(1), peerOf(2)
	bootA, bootB                   = proto.BootID{1}, proto.BootID{2}
)

// newBench has one task granted to the owner.
func newBench(t *testing.T, change func(*Task)) *bench {
	t.Helper()
	b := &bench{t: t, home: NewHome(homePeer, 100, Config{}), owner: NewOwner(ownerPeer, bootA, Config{})}
	b.now = Now{Wall: 1_700_000_000_000, Mono: time.Hour, Boot: time.Hour}
	b.task = Task{ID: proto.TaskID{7}, Queue: "q", Kind: "k", NotAfter: b.now.Wall + time.Hour.Milliseconds()}
	if change != nil {
		change(&b.task)
	}
	b.home.Begin(b.now)
	b.home.SetQueue(func(*proto.QueueState) {}, b.now, "q")
	b.home.SetNode(Node{Member: dispatch.Member{Peer: ownerPeer, Alive: true, Kinds: []string{"k"}, Slots: 9}}, b.now)
	out := b.home.Add(b.task, b.now)
	for _, s := range out.Sends {
		if g, ok := s.Body.(*proto.Grant); ok {
			b.grant = g
		}
	}
	if b.grant == nil {
		t.Fatal("nothing was granted")
	}
	return b
}

func (b *bench) cell() *taskState { return b.home.cells[b.task.ID] }

// claim is the claim that counts.
func (b *bench) claim() *proto.Claim {
	c := b.grant.Claim
	m := &proto.Claim{Task: c.Task, EpochBoot: c.EpochBoot, EpochCounter: c.EpochCounter, Token: c.Token, Generation: c.Generation, BootId: bootA[:]}
	return m
}

// badClaims are claims that must change nothing, and who makes them.
func badClaims(b *bench) map[string]struct {
	from  proto.PeerID
	claim *proto.Claim
} {
	type bad = struct {
		from  proto.PeerID
		claim *proto.Claim
	}
	all := map[string]bad{}
	add := func(name string, from proto.PeerID, change func(*proto.Claim)) {
		c := b.claim()
		change(c)
		all[name] = bad{from, c}
	}
	add("another owner", otherPeer, func(*proto.Claim) {})
	add("the home itself", homePeer, func(*proto.Claim) {})
	add("an older epoch", ownerPeer, func(c *proto.Claim) { c.EpochCounter-- })
	add("an epoch to come", ownerPeer, func(c *proto.Claim) { c.EpochCounter++ })
	add("an older boot number", ownerPeer, func(c *proto.Claim) { c.EpochBoot-- })
	add("the highest boot number", ownerPeer, func(c *proto.Claim) { c.EpochBoot = 1<<64 - 1 })
	add("no epoch", ownerPeer, func(c *proto.Claim) { c.EpochBoot, c.EpochCounter = 0, 0 })
	add("a guessed token", ownerPeer, func(c *proto.Claim) { c.Token = make([]byte, 16) })
	add("a short token", ownerPeer, func(c *proto.Claim) { c.Token = c.Token[:15] })
	add("no token", ownerPeer, func(c *proto.Claim) { c.Token = nil })
	add("another boot id", ownerPeer, func(c *proto.Claim) { c.BootId = bootB[:] })
	add("no boot id", ownerPeer, func(c *proto.Claim) { c.BootId = nil })
	add("a long boot id", ownerPeer, func(c *proto.Claim) { c.BootId = make([]byte, 17) })
	add("another task", ownerPeer, func(c *proto.Claim) { c.Task = make([]byte, 16) })
	add("no task", ownerPeer, func(c *proto.Claim) { c.Task = nil })
	add("a long task id", ownerPeer, func(c *proto.Claim) { c.Task = make([]byte, 32) })
	return all
}

// No claim but the right one changes the record of a task, whatever message it is in
// (I4; forged, stale and damaged claims).
func TestBadClaimsChangeNothing(t *testing.T) {
	says := map[string]func(b *bench, from proto.PeerID, k *proto.Claim) Output{
		"ack": func(b *bench, from proto.PeerID, k *proto.Claim) Output {
			return b.home.OnGranted(from, &proto.Granted{Taken: []*proto.Taken{{Claim: k}}}, b.now)
		},
		"start": func(b *bench, from proto.PeerID, k *proto.Claim) Output {
			return b.home.OnStart(from, &proto.Start{Claims: []*proto.Claim{k}}, b.now)
		},
		"renew": func(b *bench, from proto.PeerID, k *proto.Claim) Output {
			return b.home.OnRenew(from, &proto.Renew{Claims: []*proto.Claim{k}}, b.now)
		},
		"release": func(b *bench, from proto.PeerID, k *proto.Claim) Output {
			return b.home.OnRelease(from, &proto.Release{Released: []*proto.Released{{Claim: k, Cause: proto.CauseFailed}}}, b.now)
		},
		"status": func(b *bench, from proto.PeerID, k *proto.Claim) Output {
			return b.home.OnStatusReply(from, &proto.StatusReply{Held: []*proto.Held{{Claim: k}}}, b.now)
		},
		"result": func(b *bench, from proto.PeerID, k *proto.Claim) Output {
			_, out := b.home.OnResult(from, Result{Claim: k, State: proto.Success, Digest: []byte("x")}, b.now)
			return out
		},
	}
	for what, say := range says {
		for name := range badClaims(newBench(t, nil)) {
			t.Run(what+" with "+name, func(t *testing.T) {
				b := newBench(t, nil)
				b.home.OnGranted(ownerPeer, &proto.Granted{Taken: []*proto.Taken{{Claim: b.claim()}}}, b.now)
				before, until := b.cell().record().String(), b.cell().mem.leaseUntil
				b.now.Mono += time.Second
				bad := badClaims(b)[name]
				out := say(b, bad.from, bad.claim)
				if ts := b.cell(); ts == nil || ts.record().String() != before || ts.mem.leaseUntil != until {
					t.Error("it changed the task")
				}
				if len(out.Writes)+len(out.Ends) != 0 {
					t.Errorf("it wrote %d records and ended %d tasks", len(out.Writes), len(out.Ends))
				}
			})
		}
	}
}

// The right claim does count: the table above is not empty talk.
func TestTheRightClaimCounts(t *testing.T) {
	b := newBench(t, nil)
	r, out := b.home.OnResult(ownerPeer, Result{Claim: b.claim(), State: proto.Success, Digest: []byte("one")}, b.now)
	if r.Code != 0 || len(out.Ends) != 1 || out.Ends[0].State != proto.Success {
		t.Fatalf("ruling %v, ends %v", r, out.Ends)
	}
	r, out = b.home.OnResult(ownerPeer, Result{Claim: b.claim(), State: proto.Success, Digest: []byte("one")}, b.now)
	if r.Code != 0 || len(out.Ends) != 0 {
		t.Errorf("the same result again: %v, ends %v", r, out.Ends)
	}
	r, out = b.home.OnResult(ownerPeer, Result{Claim: b.claim(), State: proto.Success, Digest: []byte("two")}, b.now)
	if r.Code != proto.CodeStale || len(out.Ends) != 0 || len(out.Orphans) != 1 {
		t.Errorf("another result: %v, ends %v, orphans %v", r, out.Ends, out.Orphans)
	}
}

// A result that is not one, or comes before any grant, ends nothing.
func TestResultsThatAreNone(t *testing.T) {
	for _, s := range []proto.TaskState{0, proto.Pending, proto.Running, proto.Indeterminate, 99} {
		t.Run(s.String(), func(t *testing.T) {
			b := newBench(t, nil)
			r, out := b.home.OnResult(ownerPeer, Result{Claim: b.claim(), State: s}, b.now)
			if r.Code != proto.CodeBadForm || len(out.Ends) != 0 {
				t.Errorf("ruling %v, ends %v", r, out.Ends)
			}
		})
	}
	t.Run("before a grant", func(t *testing.T) {
		h := NewHome(homePeer, 1, Config{})
		h.Add(Task{ID: proto.TaskID{7}, Queue: "q", Kind: "k", NotAfter: 1 << 60}, Now{})
		k := &proto.Claim{Task: make([]byte, 16), Token: make([]byte, 16), BootId: bootA[:]}
		k.Task[0] = 7
		r, out := h.OnResult(ownerPeer, Result{Claim: k, State: proto.Success}, Now{})
		if r.Code != proto.CodeStale || len(out.Ends) != 0 {
			t.Errorf("ruling %v, ends %v", r, out.Ends)
		}
	})
}

// An owner believes nobody but its home about where the home went, and no copy of a
// grant with other contents.
func TestForgedWordsToAnOwner(t *testing.T) {
	moved := func(b *bench, change func(*proto.Ruling)) *proto.Ruling {
		k, _ := claimFrom(b.claim())
		r := k.ruling(proto.CodeMoved)
		r.Home, r.Generation = otherPeer[:], 2
		change(r)
		return r
	}
	tests := []struct {
		name string
		from proto.PeerID
		r    func(*proto.Ruling)
		want proto.PeerID
	}{
		{"the home says so", homePeer, func(*proto.Ruling) {}, otherPeer},
		{"the new home says so itself", otherPeer, func(*proto.Ruling) {}, homePeer},
		{"an older generation", homePeer, func(r *proto.Ruling) { r.Generation = 1 }, homePeer},
		{"no generation", homePeer, func(r *proto.Ruling) { r.Generation = 0 }, homePeer},
		{"about another epoch", homePeer, func(r *proto.Ruling) { r.EpochCounter++ }, homePeer},
		{"about another token", homePeer, func(r *proto.Ruling) { r.Token = make([]byte, 16) }, homePeer},
		{"said to a clone", homePeer, func(r *proto.Ruling) { r.BootId = bootB[:] }, homePeer},
		{"to nowhere", homePeer, func(r *proto.Ruling) { r.Home = []byte{1} }, homePeer},
	}
	for _, tt := range tests {
		t.Run("moved: "+tt.name, func(t *testing.T) {
			b := newBench(t, nil)
			b.owner.OnGrant(homePeer, b.grant, 0, b.now)
			b.owner.OnPermit(tt.from, &proto.Permit{Rulings: []*proto.Ruling{moved(b, tt.r)}}, b.now)
			if got := b.owner.runs[b.task.ID].home; got != tt.want {
				t.Errorf("home is %d, want %d", got[0], tt.want[0])
			}
		})
	}
	for name, change := range map[string]func(*proto.Claim){
		"a lower epoch": func(c *proto.Claim) { c.EpochCounter-- },
		"another token": func(c *proto.Claim) { c.Token = make([]byte, 16) },
		"no token":      func(c *proto.Claim) { c.Token = nil },
	} {
		t.Run("grant: "+name, func(t *testing.T) {
			b := newBench(t, nil)
			b.owner.OnGrant(homePeer, b.grant, 0, b.now)
			was := b.owner.runs[b.task.ID].claim
			k := b.claim()
			k.BootId = nil
			change(k)
			b.owner.OnGrant(homePeer, &proto.Grant{Claim: k, LeaseMs: 1000, NotAfterMs: b.task.NotAfter}, 0, b.now)
			if b.owner.runs[b.task.ID].claim != was {
				t.Error("it was taken")
			}
		})
	}
	t.Run("leave from a stranger", func(t *testing.T) {
		b := newBench(t, func(x *Task) { x.Mode = proto.AtMostOnce })
		b.owner.OnGrant(homePeer, b.grant, 0, b.now)
		b.owner.Ready(b.task.ID, b.now)
		k, _ := claimFrom(b.claim())
		if out := b.owner.OnPermit(otherPeer, &proto.Permit{Rulings: []*proto.Ruling{k.ruling(0)}}, b.now); len(out.Starts) != 0 {
			t.Error("it was started")
		}
		if out := b.owner.OnPermit(homePeer, &proto.Permit{Rulings: []*proto.Ruling{k.ruling(0)}}, b.now); len(out.Starts) != 1 {
			t.Error("it was not started with the home's leave")
		}
	})
}

// A handoff that comes back, comes twice or is none makes no second cell.
func TestHandoffsThatMustNotCount(t *testing.T) {
	handed := func() (*Home, *proto.Handoff, Task, Now) {
		b := newBench(t, nil)
		b.task.Sent = homePeer
		out, err := b.home.HandOff("q", otherPeer, b.now)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range out.Sends {
			if m, ok := s.Body.(*proto.Handoff); ok && m.Lease != nil {
				return b.home, m, b.task, b.now
			}
		}
		t.Fatal("nothing was handed over")
		return nil, nil, Task{}, Now{}
	}
	t.Run("back to where it came from, unchanged", func(t *testing.T) {
		h, m, task, now := handed()
		h.OnHandoff(otherPeer, m, task, now)
		if h.cells[task.ID] != nil {
			t.Error("the old home has the cell again")
		}
	})
	t.Run("back with a higher generation", func(t *testing.T) {
		h, m, task, now := handed()
		m.Lease.Generation++
		h.OnHandoff(otherPeer, m, task, now)
		if h.cells[task.ID] == nil || h.moved[task.ID] != nil {
			t.Error("the task did not come back")
		}
	})
	for name, change := range map[string]func(*proto.Handoff, *Task){
		"first generation": func(m *proto.Handoff, _ *Task) { m.Lease.Generation = 1 },
		"another task":     func(_ *proto.Handoff, x *Task) { x.ID[5]++ },
		"ended already":    func(m *proto.Handoff, _ *Task) { m.Lease.State = proto.Success },
		"uses up epochs":   func(m *proto.Handoff, _ *Task) { m.Lease.EpochBoot = 1<<64 - 1 },
		"nothing in it":    func(m *proto.Handoff, _ *Task) { m.Lease = nil },
		"out of its order": func(m *proto.Handoff, _ *Task) { m.Behind = make([]byte, 16) },
	} {
		t.Run(name, func(t *testing.T) {
			_, m, task, now := handed()
			m.Queue = nil
			change(m, &task)
			to := NewHome(otherPeer, 50, Config{})
			out := to.OnHandoff(homePeer, m, task, now)
			if len(to.cells) != 0 || len(out.Writes) != 0 {
				t.Errorf("%d cells, %d writes", len(to.cells), len(out.Writes))
			}
		})
	}
	t.Run("twice, and late", func(t *testing.T) {
		_, m, task, now := handed()
		to := NewHome(otherPeer, 50, Config{})
		to.OnHandoff(homePeer, m, task, now)
		to.OnHandoff(homePeer, m, task, now)
		if len(to.cells) != 1 {
			t.Fatalf("%d cells", len(to.cells))
		}
		_, out := to.OnResult(ownerPeer, Result{Claim: claimOf(to.cells[task.ID]), State: proto.Success, Digest: []byte("x")}, now)
		if len(out.Ends) != 1 {
			t.Fatal("the owner's result did not count at the new home")
		}
		to.OnHandoff(homePeer, m, task, now)
		if len(to.cells) != 0 {
			t.Error("an ended task was raised from the dead")
		}
	})
	t.Run("answered by a stranger", func(t *testing.T) {
		h, m, task, now := handed()
		done := &proto.HandedOff{Moved: []*proto.Moved{{Task: task.ID[:], Generation: m.Lease.Generation}}}
		h.OnHandedOff(ownerPeer, done, now)
		if h.PendingHandoffs() != 1 {
			t.Error("the old home believed it")
		}
		h.OnHandedOff(otherPeer, done, now)
		if h.PendingHandoffs() != 0 {
			t.Error("the old home did not believe the new one")
		}
	})
}

func claimOf(ts *taskState) *proto.Claim {
	k := ts.claim()
	k.boot = bootA
	return k.message()
}

// Damaged records are errors, never a panic.
func TestDamagedRecords(t *testing.T) {
	for _, prefix := range []byte{keyLease, keyMoved, keyOwner, keyQueue, keyBlock, keyHomeBoot, keyWatermark} {
		t.Run(fmt.Sprintf("%c", prefix), func(t *testing.T) {
			h, o := NewHome(homePeer, 1, Config{}), NewOwner(homePeer, bootA, Config{})
			_, err := h.Load(taskKey(prefix, proto.TaskID{1}), []byte{0xff})
			if oerr := o.Load(taskKey(prefix, proto.TaskID{1}), []byte{0xff}); err == nil && oerr == nil {
				t.Error("damage was read")
			}
		})
	}
}

// A new home asks about a lease that its predecessor gave and that is not here yet.
// Whatever the new home has settled of its own epochs: the answer is kept, so that
// the grant, when it comes after all, starts nothing (I3, I6).
func TestAGrantThatComesAfterItsNewHomeAsked(t *testing.T) {
	b := newBench(t, func(x *Task) { x.Mode = proto.AtMostOnce })
	b.owner.raiseWatermark(otherPeer, proto.Seq{Boot: 1000, Counter: 9}) // its epochs are above those of the old home
	k := b.claim()
	k.BootId, k.Generation = nil, 2
	out := b.owner.OnStatus(otherPeer, &proto.Status{Claims: []*proto.Claim{k}}, b.now)
	if len(out.Writes) == 0 {
		t.Error("it says that it will never start the task, and notes nothing")
	}
	b.owner.OnGrant(homePeer, b.grant, 0, b.now)
	if out = b.owner.Ready(b.task.ID, b.now); len(out.Starts)+len(out.Sends) != 0 {
		t.Error("the late grant was taken")
	}
}

// An owner whose success did not count forgets it neither at once nor for ever: a later
// grant of the task may be on its way to it, and no mark of the home says so (I6).
func TestALateGrantOfATaskThatSucceededHere(t *testing.T) {
	b := newBench(t, nil)
	b.owner.Begin(func(proto.TaskID) Policy { return PolicyRetry }, b.now)
	b.owner.OnGrant(homePeer, b.grant, 0, b.now)
	b.owner.Ready(b.task.ID, b.now)
	b.owner.Finish(b.task.ID, proto.Success, []byte("done"), b.now)
	r, _ := claimFrom(b.claim())
	over := r.ruling(proto.CodeStale)
	over.State = proto.Cancelled
	b.owner.OnResultAnswer(homePeer, over, b.now)
	b.owner.raiseWatermark(homePeer, r.epoch) // what it was granted next is not taken yet, and holds the mark here
	wait := func(d time.Duration) {
		for range d / time.Second {
			b.now.Wall, b.now.Mono, b.now.Boot = b.now.Wall+1000, b.now.Mono+time.Second, b.now.Boot+time.Second
			b.owner.Tick(b.now)
		}
	}
	wait(20 * time.Second)
	b.grant.Claim.EpochCounter += 2
	b.grant.Claim.Token = bytes.Repeat([]byte{9}, 16)
	if out := b.owner.OnGrant(homePeer, b.grant, 0, b.now); len(out.Waits) > 0 {
		t.Error("the late grant was taken")
	}
	if out := b.owner.Ready(b.task.ID, b.now); len(out.Starts) > 0 {
		t.Error("it is started again")
	}
	k, _ := claimFrom(b.grant.Claim)
	k.boot = bootA
	b.owner.OnReleaseReply(homePeer, &proto.ReleaseReply{Rulings: []*proto.Ruling{k.ruling(proto.CodeStale)}}, b.now)
	b.owner.raiseWatermark(homePeer, k.epoch)
	wait(b.owner.cfg.MessageLifetime + 2*time.Second)
	if len(b.owner.runs) > 0 {
		t.Error("it is never forgotten")
	}
}

// Two homes have a task that may start once only, for the disk of one was put back. The
// owner started it under the later lease: to who asks about the earlier one it says that
// this is over once it is, so that no lane there stands still for ever (I20).
func TestALeaseOfTwoHomesIsOverForBoth(t *testing.T) {
	b := newBench(t, func(x *Task) { x.Mode = proto.AtMostOnce })
	earlier := b.claim()
	earlier.EpochBoot--
	says := func() proto.ReleaseCause {
		for _, s := range b.owner.OnStatus(otherPeer, &proto.Status{Claims: []*proto.Claim{earlier}}, b.now).Sends {
			if m, ok := s.Body.(*proto.Release); ok && s.To == otherPeer && m.Released[0].Claim.EpochBoot == earlier.EpochBoot {
				return m.Released[0].Cause
			}
		}
		return proto.CauseUnspecified
	}
	b.owner.OnGrant(homePeer, b.grant, 0, b.now)
	b.owner.Ready(b.task.ID, b.now)
	r, _ := claimFrom(b.claim())
	if out := b.owner.OnPermit(homePeer, &proto.Permit{Rulings: []*proto.Ruling{r.ruling(0)}}, b.now); len(out.Starts) != 1 {
		t.Fatal("it was not started")
	}
	if got := says(); got != proto.CauseUnspecified {
		t.Errorf("while it runs: %v", got)
	}
	b.owner.Finish(b.task.ID, proto.Success, []byte("done"), b.now)
	if got := says(); got != proto.CauseUnspecified {
		t.Errorf("while its result is on its way: %v", got)
	}
	over := r.ruling(proto.CodeStale)
	over.State = proto.Cancelled
	b.owner.OnResultAnswer(homePeer, over, b.now)
	if got := says(); got != proto.CauseParked {
		t.Errorf("when nobody takes its result: %v", got)
	}
	run := b.owner.runs[b.task.ID]
	run.phase, run.orphan = proto.LeaseReleased, false // as after a crash, and the other home never hears of it
	if got := says(); got != proto.CauseParked {
		t.Errorf("when its other home is gone for good: %v", got)
	}
}

// A task that came back goes behind its lane: nobody of the lane waits for it any more,
// and it waits for the last. The new home, which has forgotten it, gets them all.
func TestATaskThatCameBackIsAwaitedByNobody(t *testing.T) {
	old := NewHome(homePeer, 100, Config{Heartbeat: time.Second})
	to := NewHome(otherPeer, 50, Config{})
	now := Now{Wall: 1_700_000_000_000, Mono: time.Hour, Boot: time.Hour}
	tasks := map[proto.TaskID]Task{}
	old.SetQueue(func(*proto.QueueState) {}, now, "q")
	for i := range byte(3) {
		x := Task{ID: proto.TaskID{7, i}, Queue: "q", Kind: "k", Key: "lane", Sent: homePeer, NotAfter: now.Wall + time.Hour.Milliseconds()}
		tasks[x.ID] = x
		old.Add(x, now)
	}
	if _, err := old.HandOff("q", otherPeer, now); err != nil {
		t.Fatal(err)
	}
	first := proto.TaskID{7, 0}
	old.OnHandedOff(otherPeer, &proto.HandedOff{Moved: []*proto.Moved{{Task: first[:], Generation: 2}}}, now)
	back := &proto.Handoff{Lease: &proto.Lease{Task: first[:], Queue: "q", State: proto.Pending, Generation: 3, NotAfterMs: tasks[first].NotAfter}}
	old.OnHandoff(otherPeer, back, tasks[first], now)
	if old.cells[first] == nil && old.moved[first].gen < 4 {
		t.Fatal("it did not come back: nothing is tested")
	}
	for i := range 10 {
		now.Wall, now.Mono, now.Boot = now.Wall+6000, now.Mono+6*time.Second, now.Boot+6*time.Second
		out := old.Tick(now)
		for _, s := range out.Sends {
			m, ok := s.Body.(*proto.Handoff)
			if !ok || i < 2 { // it was out of reach until the first had gone again
				continue
			}
			var task Task
			if m.Lease != nil {
				task = tasks[proto.TaskID(m.Lease.Task)]
			}
			for _, answer := range to.OnHandoff(homePeer, m, task, now).Sends {
				if a, ok := answer.Body.(*proto.HandedOff); ok {
					old.OnHandedOff(otherPeer, a, now)
				}
			}
		}
	}
	if len(to.cells) != len(tasks) || old.PendingHandoffs() > 0 {
		t.Errorf("%d of %d tasks have arrived, %d are on their way", len(to.cells), len(tasks), old.PendingHandoffs())
	}
}

// A task that is to start later waits by the wall clock as it is, not as it was when
// the task came: a clock that was wrong then delays nothing once it is right (I14).
func TestNotBeforeFollowsTheWallClock(t *testing.T) {
	b := newBench(t, nil)
	wrong := b.now
	wrong.Wall -= time.Hour.Milliseconds()
	late := Task{ID: proto.TaskID{8}, Queue: "q", Kind: "k", NotBefore: b.now.Wall + 5000, NotAfter: b.task.NotAfter}
	if out := b.home.Add(late, wrong); len(out.Sends) != 0 {
		t.Fatal("it was granted before its time")
	}
	for range 60 {
		b.now.Wall, b.now.Mono, b.now.Boot = b.now.Wall+1000, b.now.Mono+time.Second, b.now.Boot+time.Second
		b.home.Tick(b.now)
		if ts := b.home.cells[late.ID]; ts.epoch != (proto.Seq{}) {
			if b.now.Wall < late.NotBefore {
				t.Error("it was granted before its time")
			}
			return
		}
	}
	t.Error("the clock is right since a minute, and it was not granted")
}
