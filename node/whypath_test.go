package node

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/gossip"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/wire"
)

// TestUnreachablePeer verifies which of several causes is named, and its text.
func TestUnreachablePeer(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	failed := transport.PeerStatus{LastError: "all dials failed\n  * [/ip4/192.0.2.1/tcp/1] connection refused", FailedAt: now.Add(-7 * time.Second), Failed: 3, NextDial: 2 * time.Second}
	refused := func(theirs bool, reason string) transport.PeerStatus {
		r := &transport.RefusedError{Reason: reason, Theirs: theirs}
		return transport.PeerStatus{LastError: r.Error(), Refused: r, FailedAt: now.Add(-time.Minute), Failed: 1, NextDial: time.Second}
	}
	const lastTry = "the last attempt, 7s ago, failed: all dials failed * [/ip4/192.0.2.1/tcp/1] connection refused; the next dial is in 2s"
	tests := []struct {
		name  string
		a     unreachablePeer
		cause string
		fix   string
	}{
		{"revoked", unreachablePeer{revoked: true, blocked: true, dial: refused(true, "it is blocked")}, "b is no longer a member", "invite it again"},
		{"blocked here", unreachablePeer{blocked: true, isolated: true, addrs: 1}, "b is blocked here", "peers unblock b"},
		{"the clocks differ, as the peer sees it", unreachablePeer{isolated: true, addrs: 1, dial: refused(true, identity.ErrNotYet.Error()+": it begins 2027-01-01")}, "the clocks of this machine and of b differ too much: b refused this node 1m0s ago", "correct both clocks"},
		{"the clocks differ, as this node sees it", unreachablePeer{addrs: 1, dial: refused(false, identity.ErrNotYet.Error())}, "differ too much: this node refused b 1m0s ago", "correct both clocks"},
		{"refused by the peer", unreachablePeer{addrs: 1, status: gossip.Dead, since: now, dial: refused(true, "it is blocked")}, "b refused this node 1m0s ago: it is blocked", "on b: balefire-node peers show a"},
		{"refused here", unreachablePeer{addrs: 1, dial: refused(false, "the boot number went back")}, "this node refused b 1m0s ago: the boot number went back", "on b"},
		{"isolated", unreachablePeer{isolated: true, status: gossip.Dead, since: now, dial: failed}, "this node is isolated", "balefire-node netcheck"},
		{"no address", unreachablePeer{status: gossip.Alive}, "no address of b is known", "start it"},
		{"stopped", unreachablePeer{addrs: 2, status: gossip.Left, since: now.Add(-time.Hour), dial: failed}, "b cannot be reached: it was stopped 1h0m0s ago", "start b"},
		{"dead", unreachablePeer{addrs: 2, relays: []string{"r"}, status: gossip.Dead, since: now.Add(-time.Minute), dial: failed}, "b cannot be reached: it has been DEAD for 1m0s according to gossip; " + lastTry, "start b"},
		{"suspect", unreachablePeer{addrs: 2, status: gossip.Suspect, since: now.Add(-3 * time.Second), dial: failed}, "it has been SUSPECT for 3s according to gossip", "start b"},
		{"no relay", unreachablePeer{addrs: 2, relays: []string{"r", "s"}, status: gossip.Alive, dial: failed}, "none of its relays (r, s) is connected here; " + lastTry, "balefire-node path r"},
		{"a relay cannot reach it", unreachablePeer{relays: []string{"r", "s"}, connectedRelays: []string{"s"}, dial: failed}, "neither directly nor through its relays (s); " + lastTry, "balefire-node path b"},
		{"each dial fails", unreachablePeer{addrs: 2, status: gossip.Alive, dial: failed}, "b cannot be reached: none of its 2 addresses answers; " + lastTry, "start b or check the network"},
		{"another dial is in progress", unreachablePeer{addrs: 1, dial: transport.PeerStatus{LastError: "no route", FailedAt: now}}, "failed: no route; it is being dialed now", "start b"},
		{"no dial has ended", unreachablePeer{addrs: 1, dial: transport.PeerStatus{NextDial: time.Second}}, "b cannot be reached: the next dial is in 1s", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := tt.a
			a.name, a.self, a.now = "b", "a", now
			cause, fix := a.blocker()
			if !strings.Contains(cause, tt.cause) || strings.Contains(cause, "\n") {
				t.Errorf("cause %q, want %q in it", cause, tt.cause)
			}
			if !strings.Contains(fix, tt.fix) || tt.fix == "" && fix != "" {
				t.Errorf("fix %q, want %q in it", fix, tt.fix)
			}
		})
	}
}

// TestWhyExplainsThePath verifies that a task waiting for its peer, and the peer itself,
// are explained by the current obstacle.
func TestWhyExplainsThePath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, time.Second)
		defer c.close()
		a, b := c.nodes[0], c.nodes[1]
		b.crash()
		s, err := a.node.Submit(t.Context(), wire.Request{Target: b.name, Kind: simKind, TTL: wire.Duration(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		expectCause := func(text string) {
			t.Helper()
			var last wire.Blocker
			c.await(3*time.Minute, "why to report "+text, func() bool {
				for _, subject := range []string{s.ID, b.name} {
					if last, err = a.node.Why(t.Context(), subject); err != nil || !strings.Contains(last.Cause, text) {
						return false
					}
				}
				return true
			})
		}
		expectCause("n1 cannot be reached: it has been DEAD for")
		expectCause("the last attempt, ")
		c.await(time.Minute, "the next dial to be reported", func() bool {
			w, err := a.node.Why(t.Context(), s.ID)
			return err == nil && w.Next != nil && len(w.Steps) >= 4
		})
		c.Unplug(0)
		expectCause("this node is isolated")
		c.Heal()
		expectCause("n1 cannot be reached: it has been DEAD for")
		if err := a.node.Pairing.Block(t.Context(), b.name); err != nil {
			t.Fatal(err)
		}
		expectCause("n1 is blocked here")
		if err := a.node.Pairing.Unblock(t.Context(), b.name); err != nil {
			t.Fatal(err)
		}
		b.start()
		c.await(time.Minute, "the peer to be connected", func() bool { return a.node.net.Connected(b.node.keys.Peer()) })
		if err := b.node.Pairing.Block(t.Context(), a.name); err != nil {
			t.Fatal(err)
		}
		c.await(3*time.Minute, "why to report that the peer refuses", func() bool {
			w, err := a.node.Why(t.Context(), b.name)
			return err == nil && strings.HasPrefix(w.Cause, "n1 refused this node ") && strings.Contains(w.Fix, "on n1: ")
		})
	})
}

// A peer that is blocked on this node is not dialed, and its path states that.
func TestWhyOfABlockedPeer(t *testing.T) {
	a, _ := pair(t, nil)
	if err := a.Pairing.Block(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	if why, err := a.Why(t.Context(), "b"); err != nil || why.Next != nil || why.Fix != "balefire-node peers unblock b" {
		t.Errorf("why: %+v, %v", why, err)
	}
	if path, err := a.Path(t.Context(), "b"); err != nil || !strings.Contains(path.Why, "b is blocked here") {
		t.Errorf("path: %+v, %v", path, err)
	}
}

// An unknown subject may be meant as a peer, a queue or a task.
func TestWhyOfAnUnknownSubject(t *testing.T) {
	a, _ := pair(t, nil)
	for subject, want := range map[string]string{"nothing": "nothing known here has the name", "01a1f": "nothing known here has the name", "01a1f84f": "no task id begins with", "queue:build": "build"} {
		if _, err := a.Why(t.Context(), subject); !errors.Is(err, wire.ErrNotFound) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", subject, err, want)
		}
	}
	if _, err := a.SetQueue(t.Context(), "build", wire.QueueSettings{Home: "here"}); err != nil {
		t.Fatal(err)
	}
	if why, err := a.Why(t.Context(), "build"); err != nil || why.Subject != "queue:build" {
		t.Errorf("a queue without its prefix: %+v, %v", why, err)
	}
}
