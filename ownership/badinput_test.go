package ownership

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/balefire/balefire/ownership/dispatch"
	"github.com/balefire/balefire/proto"
)

// A fixture is a home and an owner without disk and network: the test passes messages
// between them, or changes them first.
type fixture struct {
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

// newFixture returns a fixture with one task granted to the owner.
func newFixture(t *testing.T, change func(*Task)) *fixture {
	t.Helper()
	f := &fixture{t: t, home: NewHome(homePeer, 100, Config{}), owner: NewOwner(bootA, Config{})}
	f.now = Now{Wall: 1_700_000_000_000, Mono: time.Hour, Boot: time.Hour}
	f.task = Task{ID: proto.TaskID{7}, Queue: "q", Kind: "k", NotAfter: f.now.Wall + time.Hour.Milliseconds()}
	if change != nil {
		change(&f.task)
	}
	f.home.Begin(f.now)
	f.home.SetQueue(func(*proto.QueueState) {}, f.now, "q")
	f.home.SetNode(Node{Member: dispatch.Member{Peer: ownerPeer, Alive: true, Kinds: []string{"k"}, Slots: 9}}, f.now)
	out := f.home.Add(f.task, f.now)
	for _, s := range out.Sends {
		if g, ok := s.Body.(*proto.Grant); ok {
			f.grant = g
		}
	}
	if f.grant == nil {
		t.Fatal("nothing was granted")
	}
	return f
}

func (f *fixture) state() *taskState { return f.home.tasks[f.task.ID] }

// claim returns the valid claim.
func (f *fixture) claim() *proto.Claim {
	c := f.grant.Claim
	m := &proto.Claim{Task: c.Task, EpochBoot: c.EpochBoot, EpochCounter: c.EpochCounter, Token: c.Token, Generation: c.Generation, BootId: bootA[:]}
	return m
}

// badClaims returns claims that must change nothing, with their senders.
func badClaims(f *fixture) map[string]struct {
	from  proto.PeerID
	claim *proto.Claim
} {
	type bad = struct {
		from  proto.PeerID
		claim *proto.Claim
	}
	all := map[string]bad{}
	add := func(name string, from proto.PeerID, change func(*proto.Claim)) {
		c := f.claim()
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

// Only the valid claim changes the record of a task, whatever message contains it (I4;
// forged, stale and damaged claims).
func TestBadClaimsChangeNothing(t *testing.T) {
	messages := map[string]func(f *fixture, from proto.PeerID, k *proto.Claim) Output{
		"ack": func(f *fixture, from proto.PeerID, k *proto.Claim) Output {
			return f.home.OnGranted(from, &proto.Granted{Taken: []*proto.Taken{{Claim: k}}}, f.now)
		},
		"start": func(f *fixture, from proto.PeerID, k *proto.Claim) Output {
			return f.home.OnStart(from, &proto.Start{Claims: []*proto.Claim{k}}, f.now)
		},
		"renew": func(f *fixture, from proto.PeerID, k *proto.Claim) Output {
			return f.home.OnRenew(from, &proto.Renew{Claims: []*proto.Claim{k}}, f.now)
		},
		"release": func(f *fixture, from proto.PeerID, k *proto.Claim) Output {
			return f.home.OnRelease(from, &proto.Release{Released: []*proto.Released{{Claim: k, Cause: proto.CauseFailed}}}, f.now)
		},
		"status": func(f *fixture, from proto.PeerID, k *proto.Claim) Output {
			return f.home.OnStatusReply(from, &proto.StatusReply{Held: []*proto.Held{{Claim: k}}}, f.now)
		},
		"result": func(f *fixture, from proto.PeerID, k *proto.Claim) Output {
			_, out := f.home.OnResult(from, Result{Claim: k, State: proto.Success, Digest: []byte("x")}, f.now)
			return out
		},
	}
	for what, send := range messages {
		for name := range badClaims(newFixture(t, nil)) {
			t.Run(what+" with "+name, func(t *testing.T) {
				f := newFixture(t, nil)
				f.home.OnGranted(ownerPeer, &proto.Granted{Taken: []*proto.Taken{{Claim: f.claim()}}}, f.now)
				before, until := f.state().record().String(), f.state().mem.leaseUntil
				f.now.Mono += time.Second
				bad := badClaims(f)[name]
				out := send(f, bad.from, bad.claim)
				if ts := f.state(); ts == nil || ts.record().String() != before || ts.mem.leaseUntil != until {
					t.Error("it changed the task")
				}
				if len(out.Writes)+len(out.Ends) != 0 {
					t.Errorf("it wrote %d records and ended %d tasks", len(out.Writes), len(out.Ends))
				}
			})
		}
	}
}

// The valid claim does count: otherwise the table above would show nothing. The result does
// not change afterwards, and another one is reported (I3).
func TestAValidClaimCounts(t *testing.T) {
	f := newFixture(t, nil)
	r, out := f.home.OnResult(ownerPeer, Result{Claim: f.claim(), State: proto.Success, Digest: []byte("one")}, f.now)
	if r.Code != 0 || len(out.Ends) != 1 || out.Ends[0].State != proto.Success {
		t.Fatalf("ruling %v, ends %v", r, out.Ends)
	}
	r, out = f.home.OnResult(ownerPeer, Result{Claim: f.claim(), State: proto.Success, Digest: []byte("one")}, f.now)
	if r.Code != 0 || len(out.Ends) != 0 {
		t.Errorf("the same result again: %v, ends %v", r, out.Ends)
	}
	r, out = f.home.OnResult(ownerPeer, Result{Claim: f.claim(), State: proto.Success, Digest: []byte("two")}, f.now)
	if r.Code != proto.CodeStale || len(out.Ends) != 0 || len(out.Orphans) != 1 || out.Orphans[0].From != ownerPeer || string(out.Orphans[0].Digest) != "two" {
		t.Errorf("another result: %v, ends %v, orphans %v", r, out.Ends, out.Orphans)
	}
}

// A result with an invalid state, or before any grant, ends nothing.
func TestInvalidResultsEndNothing(t *testing.T) {
	for _, s := range []proto.TaskState{0, proto.Pending, proto.Running, proto.Indeterminate, 99} {
		t.Run(s.String(), func(t *testing.T) {
			f := newFixture(t, nil)
			r, out := f.home.OnResult(ownerPeer, Result{Claim: f.claim(), State: s}, f.now)
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

// An owner accepts only from its home where the home went, and no copy of a grant with
// other contents.
func TestForgedMessagesToAnOwner(t *testing.T) {
	moved := func(f *fixture, change func(*proto.Ruling)) *proto.Ruling {
		k, _ := claimFrom(f.claim())
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
		{"from the home", homePeer, func(*proto.Ruling) {}, otherPeer},
		{"from the new home itself", otherPeer, func(*proto.Ruling) {}, homePeer},
		{"an older generation", homePeer, func(r *proto.Ruling) { r.Generation = 1 }, homePeer},
		{"no generation", homePeer, func(r *proto.Ruling) { r.Generation = 0 }, homePeer},
		{"about another epoch", homePeer, func(r *proto.Ruling) { r.EpochCounter++ }, homePeer},
		{"about another token", homePeer, func(r *proto.Ruling) { r.Token = make([]byte, 16) }, homePeer},
		{"sent to a clone", homePeer, func(r *proto.Ruling) { r.BootId = bootB[:] }, homePeer},
		{"to nowhere", homePeer, func(r *proto.Ruling) { r.Home = []byte{1} }, homePeer},
	}
	for _, tt := range tests {
		t.Run("moved: "+tt.name, func(t *testing.T) {
			f := newFixture(t, nil)
			f.owner.OnGrant(homePeer, f.grant, 0, f.now)
			f.owner.OnPermit(tt.from, &proto.Permit{Rulings: []*proto.Ruling{moved(f, tt.r)}}, f.now)
			if got := f.owner.runs[f.task.ID].home; got != tt.want {
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
			f := newFixture(t, nil)
			f.owner.OnGrant(homePeer, f.grant, 0, f.now)
			was := f.owner.runs[f.task.ID].claim
			k := f.claim()
			k.BootId = nil
			change(k)
			f.owner.OnGrant(homePeer, &proto.Grant{Claim: k, LeaseMs: 1000, LeftMs: f.task.NotAfter - f.now.Wall}, 0, f.now)
			if f.owner.runs[f.task.ID].claim != was {
				t.Error("it was taken")
			}
		})
	}
	t.Run("permit from another node", func(t *testing.T) {
		f := newFixture(t, func(x *Task) { x.Mode = proto.AtMostOnce })
		f.owner.OnGrant(homePeer, f.grant, 0, f.now)
		f.owner.Ready(f.task.ID, false, f.now)
		k, _ := claimFrom(f.claim())
		if out := f.owner.OnPermit(otherPeer, &proto.Permit{Rulings: []*proto.Ruling{k.ruling(0)}}, f.now); len(out.Starts) != 0 {
			t.Error("it was started")
		}
		if out := f.owner.OnPermit(homePeer, &proto.Permit{Rulings: []*proto.Ruling{k.ruling(0)}}, f.now); len(out.Starts) != 1 {
			t.Error("it was not started with the home's permit")
		}
	})
}

// A handoff that returns, is repeated or is invalid creates no second task.
func TestInvalidHandoffsAreIgnored(t *testing.T) {
	handed := func() (*Home, *proto.Handoff, Task, Now) {
		f := newFixture(t, nil)
		f.task.Sent = homePeer
		out, err := f.home.HandOff("q", otherPeer, f.now)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range out.Sends {
			if m, ok := s.Body.(*proto.Handoff); ok && m.Lease != nil {
				return f.home, m, f.task, f.now
			}
		}
		t.Fatal("nothing was handed over")
		return nil, nil, Task{}, Now{}
	}
	t.Run("back to where it came from, unchanged", func(t *testing.T) {
		h, m, task, now := handed()
		h.OnHandoff(otherPeer, m, task, now)
		if h.tasks[task.ID] != nil {
			t.Error("the old home has the task again")
		}
	})
	t.Run("back with a higher generation", func(t *testing.T) {
		h, m, task, now := handed()
		m.Lease.Generation++
		h.OnHandoff(otherPeer, m, task, now)
		if h.tasks[task.ID] == nil || h.transit.byID[task.ID] != nil {
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
			if len(to.tasks) != 0 || len(out.Writes) != 0 {
				t.Errorf("%d tasks, %d writes", len(to.tasks), len(out.Writes))
			}
		})
	}
	t.Run("twice, and late", func(t *testing.T) {
		_, m, task, now := handed()
		to := NewHome(otherPeer, 50, Config{})
		to.OnHandoff(homePeer, m, task, now)
		to.OnHandoff(homePeer, m, task, now)
		if len(to.tasks) != 1 {
			t.Fatalf("%d tasks", len(to.tasks))
		}
		_, out := to.OnResult(ownerPeer, Result{Claim: claimOf(to.tasks[task.ID]), State: proto.Success, Digest: []byte("x")}, now)
		if len(out.Ends) != 1 {
			t.Fatal("the owner's result did not count at the new home")
		}
		to.OnHandoff(homePeer, m, task, now)
		if len(to.tasks) != 0 {
			t.Error("an ended task was revived")
		}
	})
	t.Run("answered by a stranger", func(t *testing.T) {
		h, m, task, now := handed()
		done := &proto.HandedOff{Moved: []*proto.Moved{{Task: task.ID[:], Generation: m.Lease.Generation}}}
		h.OnHandedOff(ownerPeer, done, now)
		if h.PendingHandoffs() != 1 {
			t.Error("the old home accepted it")
		}
		h.OnHandedOff(otherPeer, done, now)
		if h.PendingHandoffs() != 0 {
			t.Error("the old home did not accept the answer of the new one")
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
			h, o := NewHome(homePeer, 1, Config{}), NewOwner(bootA, Config{})
			_, err := h.Load(taskKey(prefix, proto.TaskID{1}), []byte{0xff})
			if oerr := o.Load(taskKey(prefix, proto.TaskID{1}), []byte{0xff}); err == nil && oerr == nil {
				t.Error("damage was read")
			}
		})
	}
}

// A new home asks about a lease that its predecessor granted and that has not arrived.
// Whatever the new home has settled of its own epochs, the answer is stored, so that the
// grant starts nothing if it arrives later (I3, I6).
func TestALateGrantAfterTheNewHomeAsked(t *testing.T) {
	f := newFixture(t, func(x *Task) { x.Mode = proto.AtMostOnce })
	f.owner.raiseWatermark(otherPeer, proto.Seq{Boot: 1000, Counter: 9}) // its epochs are above those of the old home
	k := f.claim()
	k.BootId, k.Generation = nil, 2
	out := f.owner.OnStatus(otherPeer, &proto.Status{Claims: []*proto.Claim{k}}, f.now)
	if len(out.Writes) == 0 {
		t.Error("it answers that it will never start the task, but stores nothing")
	}
	f.owner.OnGrant(homePeer, f.grant, 0, f.now)
	if out = f.owner.Ready(f.task.ID, false, f.now); len(out.Starts)+len(out.Sends) != 0 {
		t.Error("the late grant was taken")
	}
}

// An owner whose success did not count keeps it for a while: a later grant of the task may
// be in transit, and no watermark of the home tells (I6).
func TestALateGrantOfATaskThatSucceededHere(t *testing.T) {
	f := newFixture(t, nil)
	f.owner.Begin(func(proto.TaskID) Policy { return PolicyRetry }, f.now)
	f.owner.OnGrant(homePeer, f.grant, 0, f.now)
	f.owner.Ready(f.task.ID, false, f.now)
	f.owner.Finish(f.task.ID, proto.Success, []byte("done"), f.now)
	r, _ := claimFrom(f.claim())
	over := r.ruling(proto.CodeStale)
	over.State = proto.Cancelled
	f.owner.OnResultAnswer(homePeer, over, f.now)
	f.owner.raiseWatermark(homePeer, r.epoch) // the next grant has not been accepted yet, which holds the watermark back
	wait := func(d time.Duration) {
		for range d / time.Second {
			f.now.Wall, f.now.Mono, f.now.Boot = f.now.Wall+1000, f.now.Mono+time.Second, f.now.Boot+time.Second
			f.owner.Tick(f.now)
		}
	}
	wait(20 * time.Second)
	f.grant.Claim.EpochCounter += 2
	f.grant.Claim.Token = bytes.Repeat([]byte{9}, 16)
	if out := f.owner.OnGrant(homePeer, f.grant, 0, f.now); len(out.Waits) > 0 {
		t.Error("the late grant was taken")
	}
	if out := f.owner.Ready(f.task.ID, false, f.now); len(out.Starts) > 0 {
		t.Error("it is started again")
	}
	k, _ := claimFrom(f.grant.Claim)
	k.boot = bootA
	f.owner.OnReleaseReply(homePeer, &proto.ReleaseReply{Rulings: []*proto.Ruling{k.ruling(proto.CodeStale)}}, f.now)
	f.owner.raiseWatermark(homePeer, k.epoch)
	wait(f.owner.cfg.MessageLifetime + 2*time.Second)
	if len(f.owner.runs) > 0 {
		t.Error("it is never forgotten")
	}
}

// Two homes have an at_most_once task after a rollback of one disk. The owner started it
// under the later lease. When that has ended it also answers questions about the earlier
// lease, so that no lane is blocked forever (I20).
func TestALeaseOfTwoHomesEndsForBoth(t *testing.T) {
	f := newFixture(t, func(x *Task) { x.Mode = proto.AtMostOnce })
	earlier := f.claim()
	earlier.EpochBoot--
	answer := func() proto.ReleaseCause {
		for _, s := range f.owner.OnStatus(otherPeer, &proto.Status{Claims: []*proto.Claim{earlier}}, f.now).Sends {
			if m, ok := s.Body.(*proto.Release); ok && s.To == otherPeer && m.Released[0].Claim.EpochBoot == earlier.EpochBoot {
				return m.Released[0].Cause
			}
		}
		return proto.CauseUnspecified
	}
	f.owner.OnGrant(homePeer, f.grant, 0, f.now)
	f.owner.Ready(f.task.ID, false, f.now)
	r, _ := claimFrom(f.claim())
	if out := f.owner.OnPermit(homePeer, &proto.Permit{Rulings: []*proto.Ruling{r.ruling(0)}}, f.now); len(out.Starts) != 1 {
		t.Fatal("it was not started")
	}
	if got := answer(); got != proto.CauseUnspecified {
		t.Errorf("while it runs: %v", got)
	}
	f.owner.Finish(f.task.ID, proto.Success, []byte("done"), f.now)
	if got := answer(); got != proto.CauseUnspecified {
		t.Errorf("while its result is on its way: %v", got)
	}
	over := r.ruling(proto.CodeStale)
	over.State = proto.Cancelled
	f.owner.OnResultAnswer(homePeer, over, f.now)
	if got := answer(); got != proto.CauseParked {
		t.Errorf("when its result does not count: %v", got)
	}
	run := f.owner.runs[f.task.ID]
	run.phase, run.orphan = proto.LeaseReleased, false // as after a crash, and the other home never learns of it
	if got := answer(); got != proto.CauseParked {
		t.Errorf("when its other home is gone for good: %v", got)
	}
}

// A task that came back goes to the end of its lane: no task of the lane waits for it, and
// it waits for the last one. The new home, which has forgotten it, gets them all.
func TestNoTaskWaitsForOneThatCameBack(t *testing.T) {
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
	if old.tasks[first] == nil && old.transit.byID[first].gen < 4 {
		t.Fatal("it did not come back: nothing is tested")
	}
	for i := range 10 {
		now.Wall, now.Mono, now.Boot = now.Wall+6000, now.Mono+6*time.Second, now.Boot+6*time.Second
		out := old.Tick(now)
		for _, s := range out.Sends {
			m, ok := s.Body.(*proto.Handoff)
			if !ok || i < 2 { // out of reach until the first had left again
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
	if len(to.tasks) != len(tasks) || old.PendingHandoffs() > 0 {
		t.Errorf("%d of %d tasks have arrived, %d are on their way", len(to.tasks), len(tasks), old.PendingHandoffs())
	}
}

// A task with a start time waits by the present wall clock, not by the clock when the task
// arrived: a clock that was wrong then delays nothing once it is right (I14).
func TestNotBeforeFollowsTheWallClock(t *testing.T) {
	f := newFixture(t, nil)
	wrong := f.now
	wrong.Wall -= time.Hour.Milliseconds()
	late := Task{ID: proto.TaskID{8}, Queue: "q", Kind: "k", NotBefore: f.now.Wall + 5000, NotAfter: f.task.NotAfter}
	if out := f.home.Add(late, wrong); len(out.Sends) != 0 {
		t.Fatal("it was granted before its time")
	}
	for range 60 {
		f.now.Wall, f.now.Mono, f.now.Boot = f.now.Wall+1000, f.now.Mono+time.Second, f.now.Boot+time.Second
		f.home.Tick(f.now)
		if ts := f.home.tasks[late.ID]; ts.epoch != (proto.Seq{}) {
			if f.now.Wall < late.NotBefore {
				t.Error("it was granted before its time")
			}
			return
		}
	}
	t.Error("the clock is right since a minute, and it was not granted")
}
