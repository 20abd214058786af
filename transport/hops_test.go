package transport

import (
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/route"
)

// TestNewReservationIsNotSilent checks that a relay which was rarely heard, as those without
// a reservation are, is not taken for silent when it grants one.
func TestNewReservationIsNotSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &conn{clock: clock.Runtime()}
		step := func(d time.Duration, want bool) {
			t.Helper()
			if time.Sleep(d); c.silent() != want {
				t.Errorf("silent: %v", !want)
			}
		}
		c.lastHeard.Store(int64(c.clock.Mono()))
		step(time.Minute, false)
		c.reservedAt.Store(int64(c.clock.Mono()))
		step(0, false)
		step(silentAfter, false)
		step(time.Second, true)
		c.lastHeard.Store(int64(c.clock.Mono()))
		step(0, false)
		c.reservedAt.Store(0)
		step(time.Minute, false)
	})
}

// The published paths to relays do not change because of noise: each change is sent to
// every member.
func TestAnnouncedHopsAreStable(t *testing.T) {
	var told hopPicker
	rng := rand.New(rand.NewPCG(1, 1))
	ways := func(n int) (all []Hop) {
		for i := range n {
			all = append(all, Hop{Relay: proto.PeerID{byte(i + 1)}, Path: route.Path{RTT: time.Duration(10+rng.IntN(10)) * time.Millisecond}})
		}
		return all
	}
	relays := func(hops []Hop) (all []proto.PeerID) {
		for _, h := range hops {
			all = append(all, h.Relay)
		}
		return all
	}
	score := func(p route.Path) float64 { return testWeights.Score(p).Total }
	first := relays(told.choose(ways(10), score, 0))
	if len(first) != maxHops {
		t.Fatalf("%d paths are published, want %d", len(first), maxHops)
	}
	now := time.Duration(0)
	for ; now < 10*time.Minute; now += 2 * time.Second {
		if got := relays(told.choose(ways(10), score, now)); !slices.Equal(got, first) {
			t.Fatalf("after %v others are published: %v, were %v", now, got, first)
		}
	}
	gone := slices.DeleteFunc(ways(10), func(h Hop) bool { return h.Relay == first[0] })
	got := relays(told.choose(gone, score, now))
	if slices.Contains(got, first[0]) || len(got) != maxHops {
		t.Errorf("without %v these are published: %v", first[0], got)
	}
	better := slices.DeleteFunc(ways(10), func(h Hop) bool { return slices.Contains(got, h.Relay) })[0]
	for end := now + 2*time.Minute; now < end; now += 2 * time.Second {
		all := ways(10)
		for i := range all {
			if all[i].Path.RTT *= 50; all[i].Relay == better.Relay {
				all[i].Path.RTT = time.Millisecond
			}
		}
		got = relays(told.choose(all, score, now))
	}
	if !slices.Contains(got, better.Relay) {
		t.Errorf("a path that was much better for minutes is not published: %v", got)
	}
}
