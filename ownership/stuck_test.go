package ownership

import (
	"os"
	"testing"
	"time"

	"github.com/balefire/balefire/ownership/dispatch"
	"github.com/balefire/balefire/proto"
)

// TestAStuckTaskIsFound checks S31: of 500 long tasks (50 000 with BALEFIRE_LONG=1) that
// all report progress, the one that does not is stopped after stall_after and no longer
// renewed, so that its home reclaims the lease; no other lease lapses, over 12 minutes (I20).
// It has the state machines of the home and its owners alone.
func TestAStuckTaskIsFound(t *testing.T) {
	leases := 500
	if os.Getenv("BALEFIRE_LONG") != "" {
		leases = 50_000
	}
	const owners, run = 5, 12 * time.Minute
	now := Now{Wall: 1_700_000_000_000, Mono: time.Hour, Boot: time.Hour}
	h := NewHome(homePeer, 1, Config{})
	h.Begin(now)
	all, tasks := map[proto.PeerID]*Owner{}, map[proto.PeerID][]proto.TaskID{}
	for i := range owners {
		p := peerOf(i + 1)
		all[p] = NewOwner(proto.BootID{byte(i + 1)}, Config{})
		all[p].Begin(func(proto.TaskID) Policy { return PolicyRetry }, now)
		h.SetNode(Node{Member: dispatch.Member{Peer: p, Alive: true, Kinds: []string{"k"}, Slots: leases}}, now)
	}
	var stuck proto.TaskID
	for i := range leases {
		for _, s := range h.Add(Task{ID: testTaskID(i), Queue: "q", Kind: "k", NotAfter: now.Wall + 1e9}, now).Sends {
			x := all[s.To]
			for _, a := range x.OnGrant(homePeer, s.Body.(*proto.Grant), 0, now).Sends {
				h.OnGranted(s.To, a.Body.(*proto.Granted), now)
			}
			id := proto.TaskID(s.Body.(*proto.Grant).Claim.Task)
			x.Ready(id, false, now)
			if !x.Progress(id, now) {
				t.Fatalf("the handler of %s does not run", id)
			}
			tasks[s.To] = append(tasks[s.To], id)
			if i == leases/2 {
				stuck = id
			}
		}
	}
	if len(h.tasks) != leases || stuck == (proto.TaskID{}) {
		t.Fatalf("%d leases, want %d", len(h.tasks), leases)
	}
	const step = 2 * time.Second
	began, found, events := now.Boot, time.Duration(0), 0
	for now.Boot-began < run {
		now.Wall, now.Mono, now.Boot = now.Wall+step.Milliseconds(), now.Mono+step, now.Boot+step
		for p, o := range all {
			if now.Boot%time.Minute < step {
				for _, id := range tasks[p] {
					if id != stuck {
						o.Progress(id, now)
					}
				}
			}
			out := o.Tick(now)
			for _, s := range out.Stops {
				if s.Task != stuck || found != 0 {
					t.Fatalf("%s is stopped: %s", s.Task, s.Cause)
				}
				found = now.Boot - began
			}
			for _, e := range out.Events {
				if e.Kind == EventStalled {
					events++
				}
			}
			for _, s := range out.Sends {
				if m, ok := s.Body.(*proto.Renew); ok {
					for _, a := range h.OnRenew(p, m, now).Sends {
						o.OnRenewed(homePeer, a.Body.(*proto.Renewed), now)
					}
				}
			}
		}
		h.Tick(now)
	}
	t.Logf("counted: %d leases, one of them stuck", len(h.tasks))
	if stall := (Config{}).withDefaults().StallAfter; found < stall || found > stall+2*step || events != 1 {
		t.Errorf("the stuck one was found after %v, with %d events; want %v", found, events, stall)
	}
	for id, ts := range h.tasks {
		if lost := ts.mem.lapsed || ts.abandons > 0; lost != (id == stuck) {
			t.Errorf("%s: its home took the lease back: %v", id, lost)
		}
	}
}

// A task whose handler hangs after its first report, at each of its nodes, spends an abandon
// with each stop: it ends as a dead letter after ten. One that must not start twice ends with
// the first.
func TestAStuckTaskSpendsAbandons(t *testing.T) {
	for _, tt := range []struct {
		mode   proto.Mode
		rounds int
		why    proto.TaskCause
	}{
		{0, 10, proto.TaskAbandonedOften},
		{proto.AtMostOnce, 1, proto.TaskAbandonedOnce},
	} {
		t.Run(tt.mode.Name(), func(t *testing.T) {
			f := newFixture(t, func(x *Task) { x.Mode, x.NotAfter = tt.mode, x.NotAfter+1e9 })
			var ends []End
			for round := range tt.rounds {
				if len(ends) > 0 || f.state() == nil || f.state().abandons != uint32(round) || f.state().attempts != 0 {
					t.Fatalf("round %d: the task is %+v, its end %+v", round, f.state(), ends)
				}
				ends = f.hang()
			}
			if len(ends) != 1 || ends[0].State != proto.DeadLetter || ends[0].Cause != tt.why {
				t.Errorf("its end is %+v", ends)
			}
		})
	}
}

// hang runs a granted task that reports progress once, until it is stopped, and returns what
// its home ended by the release. The home then grants it again.
func (f *fixture) hang() (ends []End) {
	f.t.Helper()
	f.owner.OnGrant(homePeer, f.grant, 0, f.now)
	f.exchange(f.home, f.owner.Ready(f.task.ID, false, f.now))
	if !f.owner.Progress(f.task.ID, f.now) {
		f.t.Fatal("its handler does not run")
	}
	out := f.owner.Tick(f.now)
	for began := f.now.Boot; len(out.Stops) == 0; out = f.owner.Tick(f.now) {
		if f.exchange(f.home, out); f.now.Boot-began > time.Hour {
			f.t.Fatal("it is not stopped")
		}
		f.advance(time.Second)
		f.home.Tick(f.now)
	}
	for _, s := range f.owner.Fail(f.task.ID, &proto.Released{Cause: proto.CauseStopped, Reason: "its lease was lost while it ran"}, f.now).Sends {
		answer := f.home.OnRelease(ownerPeer, s.Body.(*proto.Release), f.now)
		ends = append(ends, answer.Ends...)
		f.owner.OnReleaseReply(homePeer, answer.Sends[0].Body.(*proto.ReleaseReply), f.now)
	}
	for f.grant = nil; len(ends) == 0 && f.grant == nil; f.advance(time.Second) {
		for _, s := range f.home.Tick(f.now).Sends {
			if g, ok := s.Body.(*proto.Grant); ok {
				f.grant = g
			}
		}
	}
	return ends
}
