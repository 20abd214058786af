package why

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/gossip"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/wire"
)

// TestUnreachablePeer verifies which of several causes is named, and its arguments.
func TestUnreachablePeer(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	failed := transport.PeerStatus{LastError: "all dials failed\n  * [/ip4/192.0.2.1/tcp/1] connection refused; [/ip4/192.0.2.2/tcp/1] no route", FailedAt: now.Add(-7 * time.Second), Failed: 3, NextDial: 2 * time.Second}
	refused := func(theirs bool, code proto.Code, reason string) transport.PeerStatus {
		r := &transport.RefusedError{Reason: reason, Theirs: theirs, Code: code}
		return transport.PeerStatus{LastError: r.Error(), Refused: r, FailedAt: now.Add(-time.Minute), Failed: 1, NextDial: time.Second}
	}
	isolated := &wire.Note{Code: wire.NoteIsolated}
	const lastError = "all dials failed * [/ip4/192.0.2.1/tcp/1] connection refused"
	dial := &wire.Dialed{Failed: 3, Error: lastError, Seconds: 7, Next: 2}
	refusal := func(code wire.NoteCode, side, reason string) wire.Note {
		return wire.Note{Code: code, NoteArgs: wire.NoteArgs{Peer: "b", Self: "a", State: side, Seconds: 60, Detail: reason}}
	}
	about := func(code wire.NoteCode, a wire.NoteArgs) wire.Note {
		a.Peer = "b"
		return wire.Note{Code: code, NoteArgs: a}
	}
	const notYet = "the record is not valid yet"
	tests := []struct {
		name string
		a    reach
		want wire.Note
	}{
		{"revoked", reach{revoked: true, blocked: true, dial: refused(true, 0, "it is blocked")}, about(wire.NotePeerRevoked, wire.NoteArgs{})},
		{"blocked here", reach{blocked: true, isolated: isolated, addrs: 1}, about(wire.NotePeerBlocked, wire.NoteArgs{})},
		{"the clocks differ, as the peer sees it", reach{isolated: isolated, addrs: 1, dial: refused(true, proto.CodeClock, notYet+": it begins 2027-01-01")}, refusal(wire.NoteClocksDiffer, "theirs", notYet+": it begins 2027-01-01")},
		{"the clocks differ, as this node sees it", reach{addrs: 1, dial: refused(false, proto.CodeClock, notYet)}, refusal(wire.NoteClocksDiffer, "ours", notYet)},
		{"refused by the peer", reach{addrs: 1, status: gossip.Dead, since: now, dial: refused(true, 0, "it is blocked")}, refusal(wire.NoteRefusedByPeer, "theirs", "it is blocked")},
		{"refused here", reach{addrs: 1, dial: refused(false, 0, "the boot number\nwent back")}, refusal(wire.NoteRefusedHere, "ours", "the boot number went back")},
		{"isolated", reach{isolated: isolated, status: gossip.Dead, since: now, dial: failed}, *isolated},
		{"no address", reach{status: gossip.Alive}, about(wire.NoteNoAddress, wire.NoteArgs{})},
		{"stopped", reach{addrs: 2, status: gossip.Left, since: now.Add(-time.Hour), dial: failed}, about(wire.NotePeerLeft, wire.NoteArgs{Seconds: 3600, Dial: dial})},
		{"dead", reach{addrs: 2, relays: []string{"r"}, status: gossip.Dead, since: now.Add(-time.Minute), dial: failed}, about(wire.NotePeerLost, wire.NoteArgs{State: "DEAD", Seconds: 60, Dial: dial})},
		{"suspect", reach{addrs: 2, status: gossip.Suspect, since: now.Add(-3 * time.Second), dial: failed}, about(wire.NotePeerLost, wire.NoteArgs{State: "SUSPECT", Seconds: 3, Dial: dial})},
		{"no relay", reach{addrs: 2, relays: []string{"r", "s"}, status: gossip.Alive, dial: failed}, about(wire.NoteRelaysAway, wire.NoteArgs{Names: []string{"r", "s"}, Dial: dial})},
		{"a relay cannot reach it", reach{relays: []string{"r", "s"}, near: []string{"s"}, dial: failed}, about(wire.NoteRelaysFail, wire.NoteArgs{Names: []string{"s"}, Dial: dial})},
		{"each dial fails", reach{addrs: 2, status: gossip.Alive, dial: failed}, about(wire.NoteNoAnswer, wire.NoteArgs{Count: 2, Dial: dial})},
		{"another dial is in progress", reach{addrs: 1, dial: transport.PeerStatus{LastError: "no route", FailedAt: now}}, about(wire.NoteNoAnswer, wire.NoteArgs{Count: 1, Dial: &wire.Dialed{Error: "no route"}})},
		{"no dial has ended", reach{addrs: 1, dial: transport.PeerStatus{NextDial: time.Second}}, about(wire.NoteDialing, wire.NoteArgs{Dial: &wire.Dialed{Next: 1}})},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := tt.a
			a.name, a.self, a.now = "b", "a", now
			if got := a.blocker(); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("%+v, want %+v", got, tt.want)
			}
		})
	}
}

// Nothing that leads through this node itself is a way to a peer.
func TestWaysLeadNotThroughThisNode(t *testing.T) {
	self, relay := proto.PeerID{1}, proto.PeerID{2}
	const direct = "/ip4/192.0.2.1/tcp/1"
	other := direct + "/p2p/" + relay.String() + "/p2p-circuit"
	addrs, relays := ways(addressbook.Peer{Addrs: []string{direct + "/p2p/" + self.String() + "/p2p-circuit", direct, other}, Relays: []proto.PeerID{self, relay}}, self)
	if !slices.Equal(addrs, []string{direct, other}) || !slices.Equal(relays, []proto.PeerID{relay}) {
		t.Errorf("%v, %v", addrs, relays)
	}
}

// A long list of failed dials is cut between two words.
func TestLongDialErrorIsCutBetweenWords(t *testing.T) {
	r := &reach{dial: transport.PeerStatus{Failed: 1, LastError: strings.Repeat("unreachable ", 100)}}
	steps := r.steps()
	if got := steps[len(steps)-1].Dial.Error; !strings.HasSuffix(got, "unreachable …") || len(got) > maxDetail {
		t.Errorf("%d bytes: %q", len(got), got)
	}
}
