package transport

import (
	"testing"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
)

// What a peer told of its clock stays true while the machine sleeps, and is told as unreliable
// if the peer itself does not rely on it.
func TestClockOfAPeer(t *testing.T) {
	wall := clock.NewManual(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	c := &conn{peer: proto.PeerID{1}}
	tr := &Transport{cfg: Config{Clock: wall.Clock()}, peers: newPeerTable(wall.Clock())}
	tr.peers.get(c.peer)
	tr.greeter = &greeter{cfg: tr.cfg, peers: tr.peers}
	expect := func(want time.Duration, relied bool) {
		t.Helper()
		if shown := tr.peers.byID[c.peer].status(wall.Clock()).Clock; shown != want {
			t.Errorf("it is shown %v ahead, want %v", shown, want)
		}
		if ahead, ok := tr.ClockAhead(c.peer); ahead != want || ok != relied {
			t.Errorf("the peer is %v ahead (%v), want %v (%v)", ahead, ok, want, relied)
		}
	}
	expect(0, false)
	hello := &proto.Hello{ClockMs: wall.Clock().Now().Add(time.Minute).UnixMilli(), ClockDoubted: true}
	tr.greeter.helloClock(c, hello)
	expect(time.Minute, false)
	hello.ClockDoubted = false
	tr.greeter.helloClock(c, hello)
	expect(time.Minute, true)
	wall.Suspend(8 * time.Hour)
	expect(time.Minute, true)
	wall.Advance(time.Hour)
	expect(time.Minute, true)
	wall.SetWall(wall.Clock().Now().Add(-time.Hour))
	expect(time.Hour+time.Minute, true)
}
