package gossip

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/proto"
)

// Who hears events too slowly misses some, and hears then what is true now: a death
// among those that found no room is known in the end.
func TestDroppedEventsAreMadeUpFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 3)
		w.meetAll()
		a, alive, gone := w.order[0], w.order[1].keys.Peer(), w.order[2].keys.Peer()
		var heard []Event
		var err error
		if a.room, err = Open(a.keys, w.mesh, a, a, Config{Boot: 1, Changed: func(e Event) { heard = append(heard, e) }}); err != nil {
			t.Fatal(err)
		}
		for range maxEvents { // nobody hears them yet
			a.room.out.event(Event{What: Described, Peer: gone})
		}
		for _, p := range []proto.PeerID{alive, gone} {
			a.room.step(func(now time.Duration) []Action {
				return a.room.core.Heard(now, p, []*News{{Peer: p, By: p, Incarnation: 1, Record: &proto.NodeRecord{}}})
			})
		}
		a.room.step(func(now time.Duration) []Action {
			a.room.core.begin(now)
			a.room.core.condemn(now, a.room.core.members[gone], nil)
			return a.room.core.end(now)
		})
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := a.room.Run(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if len(heard) < maxEvents+3 {
			t.Fatalf("%d events were heard", len(heard))
		}
		told := map[proto.PeerID]Status{}
		for _, e := range heard[maxEvents+1:] {
			if e.What == Changed {
				told[e.Peer] = e.To
			}
		}
		if heard[maxEvents].What != Alarm || told[alive] != Alive || told[gone] != Dead {
			t.Errorf("told of the loss by %v; then who lives is %v, who died is %v", heard[maxEvents], told[alive], told[gone])
		}
	})
}

// What no event told of a connection is made up for by the truth: who is connected, who
// is not, and who is not known yet; a stranger is no row.
func TestLostConnectionsAreFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 4)
		w.meetAll()
		a, b, c, d := w.order[0], w.order[1].keys.Peer(), w.order[2].keys.Peer(), w.order[3].keys.Peer()
		var err error
		if a.room, err = Open(a.keys, w.mesh, a, a, Config{Boot: 1}); err != nil {
			t.Fatal(err)
		}
		a.room.Introduced(b)
		a.room.Introduced(c)
		a.room.Connected(b, true)
		stranger := proto.PeerID{9}
		a.room.Reachable([]proto.PeerID{c, d, stranger})
		connected := map[proto.PeerID]bool{}
		for _, m := range a.room.Members() {
			connected[m.Peer] = m.Connected
		}
		if connected[b] || !connected[c] || !connected[d] || len(connected) != 3 {
			t.Errorf("connected with %v", connected)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := a.room.Run(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}
