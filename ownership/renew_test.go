package ownership

import (
	"testing"
	"time"

	"github.com/balefire/balefire/ownership/dispatch"
	"github.com/balefire/balefire/proto"
)

// A renewed lease has the length that its queue sets, at its owner as at its home:
// otherwise the owner would stop too late, or too early.
func TestARenewedLeaseHasTheLengthOfItsQueue(t *testing.T) {
	now := Now{Wall: 1_700_000_000_000, Mono: time.Hour, Boot: time.Hour}
	h, o := NewHome(homePeer, 100, Config{}), NewOwner(bootA, Config{})
	h.Begin(now)
	o.Begin(func(proto.TaskID) Policy { return PolicyRetry }, now)
	lease := map[string]time.Duration{"brief": 5 * time.Second, "plain": 15 * time.Second, "long": time.Hour}
	for name, d := range lease {
		if name != "plain" {
			h.SetQueue(func(s *proto.QueueState) { s.LeaseMs = uint32(d.Milliseconds()) }, now, name)
		}
	}
	h.SetNode(Node{Member: dispatch.Member{Peer: ownerPeer, Alive: true, Kinds: []string{"k"}, Slots: 9}}, now)
	at := map[string]proto.TaskID{"brief": {1}, "plain": {2}, "long": {3}}
	for name, id := range at {
		for _, s := range h.Add(Task{ID: id, Queue: name, Kind: "k", NotAfter: now.Wall + 1e9}, now).Sends {
			for _, a := range o.OnGrant(homePeer, s.Body.(*proto.Grant), 0, now).Sends {
				h.OnGranted(ownerPeer, a.Body.(*proto.Granted), now)
			}
		}
		o.Ready(id, false, now)
	}
	now.Wall, now.Mono, now.Boot = now.Wall+3000, now.Mono+3*time.Second, now.Boot+3*time.Second
	for _, s := range o.Tick(now).Sends {
		for _, a := range h.OnRenew(ownerPeer, s.Body.(*proto.Renew), now).Sends {
			o.OnRenewed(homePeer, a.Body.(*proto.Renewed), now)
		}
	}
	for name, id := range at {
		want := lease[name]
		if got := o.runs[id].mem.leaseUntil - now.Boot; got != want {
			t.Errorf("%s: the owner has it for %v, want %v", name, got, want)
		}
		if got := h.tasks[id].mem.leaseUntil - now.Mono; got != want {
			t.Errorf("%s: the home gave it for %v, want %v", name, got, want)
		}
	}
}

// A renewal that crosses the result of its lease is no loss: the home has ended the task by
// that result, and the owner is told so by whichever answer comes first.
func TestARenewalCrossesItsResult(t *testing.T) {
	f := newFixture(t, nil)
	f.exchange(f.home, f.owner.OnGrant(homePeer, f.grant, 0, f.now))
	f.exchange(f.home, f.owner.Ready(f.task.ID, false, f.now))
	for _, s := range f.succeed().Sends {
		if m, ok := s.Body.(*proto.Outcome); ok { // the answer to it is late
			if r, _ := f.home.OnResult(ownerPeer, ResultOf(s.Task, m), f.now); r.Code != proto.CodeOK {
				t.Fatal(r)
			}
		}
	}
	f.advance(f.owner.cfg.Heartbeat)
	renewed := 0
	for _, s := range f.owner.Tick(f.now).Sends {
		if m, ok := s.Body.(*proto.Renew); ok {
			for _, a := range f.home.OnRenew(ownerPeer, m, f.now).Sends {
				renewed++
				for _, e := range f.owner.OnRenewed(homePeer, a.Body.(*proto.Renewed), f.now).Events {
					t.Errorf("%+v", e)
				}
			}
		}
	}
	if renewed == 0 {
		t.Error("the lease is not renewed")
	}
	if r := f.owner.runs[f.task.ID]; r.phase != proto.LeaseClosed || r.orphan {
		t.Errorf("the lease is %v, its result an orphan: %v", r.phase, r.orphan)
	}
}
