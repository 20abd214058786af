package gossip

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
)

// addRevocation stores a revocation at h, as if it had been on its disk.
func (h *testNode) addRevocation(s *proto.Signed, err error) {
	h.mesh.t.Helper()
	if err == nil {
		err = h.Revoke(h.mesh.t.Context(), s)
	}
	if err != nil {
		h.mesh.t.Fatal(err)
	}
}

// Two nodes that each miss hundreds of the other's revocations, more than fit in a
// message, know all of them after one exchange, as does a third node that knew none.
func TestThousandRevocationsSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestMesh(t, 3)
		w.introduceAll()
		for i := range 1000 {
			s, err := w.root.Revoke(identity.Revocation{Peer: proto.PeerID{byte(i), byte(i >> 8), 1}}, time.Now())
			for h := range 2 {
				if i%3 == h || i%3 == 2 {
					w.order[h].addRevocation(s, err)
				}
			}
		}
		w.start()
		defer w.stop()
		w.wait(5*time.Second, "1000 revocations are known to all", func() bool {
			for _, h := range w.order {
				if h.runner.revoked.count() != 1000 {
					return false
				}
			}
			return w.equal()
		})
		all := w.order[2].runner.Converge(t.Context())
		if len(all) != 2 {
			t.Errorf("exchanges with %d others, want 2", len(all))
		}
		for _, a := range all {
			if !a.Same || a.Err != nil {
				t.Errorf("no agreement with %s: %+v", a.Peer.Short(), a)
			}
		}
	})
}

// Records and revocations share the keys that an exchange walks in order: if both sides
// miss many of both, no step skips what another step does not transfer.
func TestRecordsAndRevocationsSyncTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const others, ended = 120, 700
		w := newTestMesh(t, 2)
		for range others {
			w.add()
		}
		w.introduceAll()
		v := &receiver{testMesh: w}
		for i := range ended {
			s, err := w.root.Revoke(identity.Revocation{Peer: proto.PeerID{byte(i), byte(i >> 8), 1}}, time.Now())
			w.order[i%2].addRevocation(s, err)
		}
		for i, h := range w.order[:2] {
			var err error
			if h.runner, err = Open(h.keys, w.mesh, h, h, Config{Tuning: testTuning(), Boot: 1000, Seed: 1}); err != nil {
				t.Fatal(err)
			}
			h.up = true
			for at := 2 + i; at < len(w.order); at += 2 {
				updates, _ := h.runner.verifyRumors(t.Context(), []*proto.Rumor{v.record(w.order[at], 0, 1)})
				h.runner.step(func(now time.Duration) []Action { return h.runner.core.Updates(now, w.order[at].keys.Peer(), updates) })
			}
		}
		a, b := w.order[0].runner, w.order[1].runner
		same, err := a.exchange(t.Context(), w.order[1].keys.Peer())
		if err != nil || !same {
			t.Errorf("agreement after one exchange: %v, %v", same, err)
		}
		for _, r := range []*Runner{a, b} {
			if s := r.Summary(); r.revoked.count() != ended || s.ByStatus[Alive] != others+1 {
				t.Errorf("%d revocations, %d alive", r.revoked.count(), s.ByStatus[Alive])
			}
		}
	})
}

// An admin's key was stolen. What the thief revoked while the founder was away becomes
// void wherever the founder's revocation arrives, which is everywhere, and the revoked
// member becomes alive again.
func TestFounderVoidsRevocationsByThief(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestMesh(t, 5)
		thief := identity.NewKeys(seeded(99), time.Now())
		own, err := w.root.IssueMember(identity.Member{Peer: thief.Peer(), Name: "admin", Roles: []string{identity.RoleAdmin}}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		w.introduceAll()
		w.start()
		defer w.stop()
		time.Sleep(5 * time.Second)
		founder, victim := w.order[0], w.order[4]
		founder.stop()
		s, err := thief.Revoke(w.mesh, own, identity.Revocation{Peer: victim.keys.Peer()}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if err := w.order[1].runner.Revoke(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		w.wait(5*time.Second, "the victim is out", func() bool {
			return w.order[1].status(victim) == Unknown && w.order[2].status(victim) == Unknown && w.order[3].status(victim) == Unknown
		})
		founder.addRevocation(w.root.Revoke(identity.Revocation{Peer: thief.Peer()}, time.Now()))
		founder.start()
		w.wait(10*time.Second, "the founder's revocation is known", func() bool {
			for _, h := range w.order {
				if h.runner.revoked.count() != 1 || h.runner.revoked.knows(identity.RevocationID(s)) {
					return false
				}
			}
			return true
		})
		for _, h := range w.order[:4] {
			h.runner.Connected(victim.keys.Peer(), true) // it is dialed again
			victim.runner.Connected(h.keys.Peer(), true)
		}
		w.wait(10*time.Second, "the victim is back", func() bool { return w.all(victim, Alive) && w.equal() })
		if !w.order[1].hasAlarm() {
			t.Error("no alarm that revocations became void")
		}
		if err := w.order[1].runner.Revoke(t.Context(), s); err == nil {
			t.Error("the thief's revocation is accepted again")
		}
	})
}

// hasAlarm reports whether h received an alarm.
func (h *testNode) hasAlarm() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.events {
		if e.Kind == Alarm {
			return true
		}
	}
	return false
}

// The event of a connection that a revoked member made in the moment in which it was revoked comes
// after its row was removed: the row that it makes does not stay.
func TestLateEventOfARevokedMemberLeavesNoRow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestMesh(t, 3)
		w.introduceAll()
		w.start()
		defer w.stop()
		time.Sleep(5 * time.Second)
		here, p := w.order[0].runner, w.order[2].keys.Peer()
		s, err := w.root.Revoke(identity.Revocation{Peer: p}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if err := here.Revoke(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		here.Connected(p, true)
		here.Connected(p, false)
		here.Reachable([]proto.PeerID{w.order[1].keys.Peer()})
		if m, ok := here.Member(p); ok {
			t.Errorf("the revoked member is listed as %v", m.Status)
		}
		if others := here.Members(); len(others) != 1 || !others[0].Connected {
			t.Errorf("the others are %+v", others)
		}
	})
}
