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
// renewed, so that its home reclaims the lease; no other lease lapses, over 12 minutes.
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
		all[p] = NewOwner(p, proto.BootID{byte(i + 1)}, Config{})
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
