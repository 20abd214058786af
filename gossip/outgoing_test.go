package gossip

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/proto"
)

// A slow receiver of events misses some, and then receives the current state: it learns
// of a death whose event was dropped.
func TestDroppedEventsAreReplacedByCurrentState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestMesh(t, 3)
		w.introduceAll()
		a, alive, gone := w.order[0], w.order[1].keys.Peer(), w.order[2].keys.Peer()
		var heard []Event
		var err error
		if a.runner, err = Open(a.keys, w.mesh, a, a, Config{Tuning: testTuning(), Boot: 1, Changed: func(e Event) { heard = append(heard, e) }}); err != nil {
			t.Fatal(err)
		}
		for range maxEvents { // not delivered yet
			a.runner.out.event(Event{Kind: Described, Peer: gone})
		}
		for _, p := range []proto.PeerID{alive, gone} {
			a.runner.step(func(now time.Duration) []Action {
				return a.runner.core.Updates(now, p, []*Update{{Peer: p, By: p, Incarnation: 1, Record: &proto.NodeRecord{}}})
			})
		}
		a.runner.step(func(now time.Duration) []Action {
			a.runner.core.begin(now)
			a.runner.core.declareDead(now, a.runner.core.members[gone], nil)
			return a.runner.core.end(now)
		})
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := a.runner.Run(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if len(heard) < maxEvents+3 {
			t.Fatalf("%d events were delivered", len(heard))
		}
		told := map[proto.PeerID]Status{}
		for _, e := range heard[maxEvents+1:] {
			if e.Kind == Changed {
				told[e.Peer] = e.To
			}
		}
		if heard[maxEvents].Kind != Alarm || told[alive] != Alive || told[gone] != Dead {
			t.Errorf("the loss was reported by %v; the live node is %v, the dead one %v", heard[maxEvents], told[alive], told[gone])
		}
	})
}

// Reachable corrects missed connection events: for a connected, a disconnected and an
// unknown member. A stranger is not added.
func TestReachableFixesMissedConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestMesh(t, 4)
		w.introduceAll()
		a, b, c, d := w.order[0], w.order[1].keys.Peer(), w.order[2].keys.Peer(), w.order[3].keys.Peer()
		var err error
		if a.runner, err = Open(a.keys, w.mesh, a, a, Config{Tuning: testTuning(), Boot: 1}); err != nil {
			t.Fatal(err)
		}
		a.runner.Introduced(b)
		a.runner.Introduced(c)
		a.runner.Connected(b, true)
		stranger := proto.PeerID{9}
		a.runner.Reachable([]proto.PeerID{c, d, stranger})
		connected := map[proto.PeerID]bool{}
		for _, m := range a.runner.Members() {
			connected[m.Peer] = m.Connected
		}
		if connected[b] || !connected[c] || !connected[d] || len(connected) != 3 {
			t.Errorf("connected with %v", connected)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := a.runner.Run(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}
