package gossip

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
)

// keep gives h a revocation as if it had been on its disk.
func (h *home) keep(s *proto.Signed, err error) {
	h.town.t.Helper()
	if err == nil {
		err = h.Revoke(h.town.t.Context(), s)
	}
	if err != nil {
		h.town.t.Fatal(err)
	}
}

// Two nodes that each know of hundreds of revocations which the other lacks, more than
// a message names, know all of them after one exchange, and a third that knew none.
func TestAThousandRevocationsAreCompared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 3)
		w.meetAll()
		for i := range 1000 {
			s, err := w.root.Revoke(identity.Revocation{Peer: proto.PeerID{byte(i), byte(i >> 8), 1}}, time.Now())
			for h := range 2 {
				if i%3 == h || i%3 == 2 {
					w.order[h].keep(s, err)
				}
			}
		}
		w.start()
		defer w.end()
		w.wait(5*time.Second, "1000 revocations are known to all", func() bool {
			for _, h := range w.order {
				if h.room.Summary().Revocations != 1000 {
					return false
				}
			}
			return w.equal()
		})
		for _, a := range w.order[2].room.Converge(t.Context()) {
			if !a.Same || a.Err != nil {
				t.Errorf("no agreement with %s: %+v", a.Peer.Short(), a)
			}
		}
	})
}

// Records and revocations share the keys that an exchange goes through in order: where
// both sides lack many of both, no step passes over what another step does not bring.
func TestRecordsAndRevocationsAreComparedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const others, ended = 120, 700
		w := newTown(t, 2)
		for range others {
			w.add()
		}
		w.meetAll()
		v := &victim{town: w}
		for i := range ended {
			s, err := w.root.Revoke(identity.Revocation{Peer: proto.PeerID{byte(i), byte(i >> 8), 1}}, time.Now())
			w.order[i%2].keep(s, err)
		}
		for i, h := range w.order[:2] {
			var err error
			if h.room, err = Open(h.keys, w.mesh, h, h, Config{Boot: 1000, Seed: 1}); err != nil {
				t.Fatal(err)
			}
			h.up = true
			for at := 2 + i; at < len(w.order); at += 2 {
				news, _ := h.room.believe(t.Context(), []*proto.Rumor{v.record(w.order[at], 0, 1)})
				h.room.step(func(now time.Duration) []Action { return h.room.core.Heard(now, w.order[at].keys.Peer(), news) })
			}
		}
		a, b := w.order[0].room, w.order[1].room
		same, err := a.exchange(t.Context(), w.order[1].keys.Peer())
		if err != nil || !same {
			t.Errorf("after one exchange they agree: %v, %v", same, err)
		}
		for _, r := range []*Room{a, b} {
			if s := r.Summary(); s.Revocations != ended || s.ByStatus[Alive] != others+1 {
				t.Errorf("%d revocations, %d alive", s.Revocations, s.ByStatus[Alive])
			}
		}
	})
}

// A mesh in which the key of an admin was stolen: what the thief revoked while the
// founder was away is void where the founder's word comes, which is everywhere, and who
// was put out is alive again.
func TestTheFounderUndoesWhatAThiefRevoked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 5)
		thief := identity.NewKeys(seeded(99), time.Now())
		own, err := w.root.IssueMember(identity.Member{Peer: thief.Peer(), Name: "admin", Roles: []string{identity.RoleAdmin}}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		w.meetAll()
		w.start()
		defer w.end()
		time.Sleep(5 * time.Second)
		founder, victim := w.order[0], w.order[4]
		founder.stop()
		s, err := thief.Revoke(w.mesh, own, identity.Revocation{Peer: victim.keys.Peer()}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if err := w.order[1].room.Revoke(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		w.wait(5*time.Second, "the victim is out", func() bool {
			return w.order[1].sees(victim) == Unknown && w.order[2].sees(victim) == Unknown && w.order[3].sees(victim) == Unknown
		})
		founder.keep(w.root.Revoke(identity.Revocation{Peer: thief.Peer()}, time.Now()))
		founder.start()
		w.wait(10*time.Second, "the founder's word is known", func() bool {
			for _, h := range w.order {
				if h.room.Summary().Revocations != 1 || h.room.ended.knows(identity.RevocationID(s)) {
					return false
				}
			}
			return true
		})
		for _, h := range w.order[:4] {
			h.room.Connected(victim.keys.Peer(), true) // it is dialled again
			victim.room.Connected(h.keys.Peer(), true)
		}
		w.wait(10*time.Second, "the victim is back", func() bool { return w.all(victim, Alive) && w.equal() })
		if !w.order[1].alarmed() {
			t.Error("nobody was told that revocations are void")
		}
		if err := w.order[1].room.Revoke(t.Context(), s); err == nil {
			t.Error("the thief's word is taken again")
		}
	})
}

// alarmed reports whether h was told of an alarm.
func (h *home) alarmed() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.events {
		if e.What == Alarm {
			return true
		}
	}
	return false
}
