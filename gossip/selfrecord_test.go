package gossip

import (
	"math"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
)

// A changed description is published at once, after some seconds or after a minute,
// depending on how much it matters to others.
func TestSelfRecordIsRepublishedWhenItMatters(t *testing.T) {
	hops := func(relay byte, rtt uint32) []*proto.Hop {
		return []*proto.Hop{{Relay: []byte{relay}, RttMs: rtt}}
	}
	relays := func(ids ...byte) (all []proto.PeerID) {
		for _, id := range ids {
			all = append(all, proto.PeerID{id})
		}
		return all
	}
	was := Self{Version: "1", Load: &proto.Load{Slots: 4, Busy: 1, CpuPermille: 100}, Hops: hops(1, 20), Relays: relays(1, 2)}
	with := func(change func(*Self)) Self { s := was; change(&s); return s }
	for _, tt := range []struct {
		name string
		is   Self
		want time.Duration
	}{
		{"no change", was, math.MaxInt64},
		{"another version", with(func(s *Self) { s.Version = "2" }), 0},
		{"one of two relays stays", with(func(s *Self) { s.Relays = relays(2, 3) }), relaysEvery},
		{"a relay less", with(func(s *Self) { s.Relays = relays(2) }), relaysEvery},
		{"a relay more", with(func(s *Self) { s.Relays = relays(1, 2, 3) }), relaysEvery},
		{"no relay stays", with(func(s *Self) { s.Relays = relays(3, 4) }), 0},
		{"no relay is left", with(func(s *Self) { s.Relays = nil }), 0},
		{"a relay and the version", with(func(s *Self) { s.Version, s.Relays = "2", relays(2, 3) }), 0},
		{"no slot is free", with(func(s *Self) { s.Load = &proto.Load{Slots: 4, Busy: 4, CpuPermille: 100} }), workEvery},
		{"a path to another relay", with(func(s *Self) { s.Hops = hops(2, 20) }), relaysEvery},
		{"CPU load rises", with(func(s *Self) { s.Load = &proto.Load{Slots: 4, Busy: 1, CpuPermille: 300} }), measuredEvery},
		{"CPU load rises a little", with(func(s *Self) { s.Load = &proto.Load{Slots: 4, Busy: 1, CpuPermille: 150} }), math.MaxInt64},
		{"RTT to the relay rises", with(func(s *Self) { s.Hops = hops(1, 60) }), measuredEvery},
		{"RTT rises a little", with(func(s *Self) { s.Hops = hops(1, 24) }), math.MaxInt64},
	} {
		if got := was.minAge(tt.is, intervalsAmong(1)); got != tt.want {
			t.Errorf("%s: published after %v, want %v", tt.name, got, tt.want)
		}
	}

	// What many nodes see at once they publish at random moments.
	measured := selfRecord{info: was, spread: 0.25}
	louder := with(func(s *Self) { s.Hops = hops(1, 60) })
	for members, least := range map[int]time.Duration{1: 75 * time.Second, 30: 75 * time.Second, 60: 150 * time.Second, 200: 500 * time.Second} {
		if every := intervalsAmong(members); measured.due(louder, least-1, every) || !measured.due(louder, least, every) {
			t.Errorf("a measurement is not published after %v among %d members", least, members)
		}
	}
	busier := with(func(s *Self) { s.Load = &proto.Load{Slots: 4, Busy: 4, CpuPermille: 100} })
	full := selfRecord{info: busier}
	if !full.due(was, workEvery, intervalsAmong(300)) { // until then no home gives it a task
		t.Error("that a slot is free again is not told soon in a large mesh")
	}
	for members, least := range map[int]time.Duration{1: 5 * time.Second, 15: 5 * time.Second, 30: 10 * time.Second, 300: 100 * time.Second} {
		if every := intervalsAmong(members); measured.due(busier, least-time.Millisecond, every) || !measured.due(busier, least, every) {
			t.Errorf("other work is not published after %v among %d members", least, members)
		}
	}
	const at = time.Hour // when relay 1 dies
	among := intervalsAmong(2)
	lost := selfRecord{info: was, spread: 0.5}
	left, next := with(func(s *Self) { s.Relays = relays(2) }), with(func(s *Self) { s.Relays = relays(2, 3) })
	if least := at + relaysSpread/2; lost.due(left, at, among) || lost.due(next, least-1, among) || !lost.due(next, least, among) {
		t.Errorf("a lost relay is not published %v later", least-at)
	}
	if lost.due(was, at+relaysSpread/2, among); lost.due(left, at+relaysSpread, among) {
		t.Error("a relay that is lost again is published at once")
	}
	if !lost.due(with(func(s *Self) { s.Relays = relays(3) }), at, among) {
		t.Error("a node that no relay reaches does not publish that at once")
	}
}
