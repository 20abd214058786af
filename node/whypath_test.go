package node

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/wire"
)

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
		expectCause := func(what string, codes ...wire.NoteCode) {
			t.Helper()
			var last wire.Blocker
			c.await(3*time.Minute, "why to report "+what, func() bool {
				for _, subject := range []string{s.ID, b.name} {
					if last, err = a.node.Explainer.Why(t.Context(), subject); err != nil || !slices.Contains(codes, last.Cause.Code) {
						return false
					}
				}
				return true
			})
		}
		expectCause("that it is dead", wire.NotePeerLost)
		c.await(time.Minute, "the last dial to be reported", func() bool {
			w, err := a.node.Explainer.Why(t.Context(), s.ID)
			return err == nil && w.Cause.State == "DEAD" && w.Cause.Dial != nil && w.Cause.Dial.Error != ""
		})
		c.await(time.Minute, "the next dial to be reported", func() bool {
			w, err := a.node.Explainer.Why(t.Context(), s.ID)
			return err == nil && w.Next != nil && len(w.Steps) >= 4
		})
		c.Unplug(0)
		expectCause("that this node is isolated", wire.NoteIsolated)
		c.Heal()
		expectCause("that it is dead", wire.NotePeerLost)
		if err := a.node.Pairing.Block(t.Context(), b.name); err != nil {
			t.Fatal(err)
		}
		expectCause("that it is blocked", wire.NotePeerBlocked)
		if err := a.node.Pairing.Unblock(t.Context(), b.name); err != nil {
			t.Fatal(err)
		}
		b.start()
		c.await(time.Minute, "the peer to be connected", func() bool { return a.node.net.Connected(b.node.keys.Peer()) })
		if err := b.node.Pairing.Block(t.Context(), a.name); err != nil {
			t.Fatal(err)
		}
		c.await(3*time.Minute, "why to report that the peer refuses", func() bool {
			w, err := a.node.Explainer.Why(t.Context(), b.name)
			return err == nil && w.Cause.Code == wire.NoteRefusedByPeer && w.Cause.Peer == "n1" && w.Cause.Self == "n0"
		})
	})
}

// A peer that is blocked on this node is not dialed, no task is sent to it, and its path
// states that.
func TestWhyOfABlockedPeer(t *testing.T) {
	a, _ := pair(t, nil)
	id := a.submit(t, wire.Request{Target: "b", Kind: "any", Delay: wire.Duration(time.Hour)})
	if err := a.Pairing.Block(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	for _, subject := range []string{"b", id} {
		if why, err := a.Explainer.Why(t.Context(), subject); err != nil || why.Next != nil || why.Cause.Code != wire.NotePeerBlocked || why.Cause.Peer != "b" {
			t.Errorf("why %s: %+v, %v", subject, why, err)
		}
	}
	if path, err := a.Views.Path("b"); err != nil || path.Cause.Code != wire.NotePeerBlocked || path.Cause.Peer != "b" {
		t.Errorf("path: %+v, %v", path, err)
	}
}

// An unknown subject may be meant as a peer, a queue or a task.
func TestWhyOfAnUnknownSubject(t *testing.T) {
	a, _ := pair(t, nil)
	for subject, want := range map[string]string{"nothing": "nothing known here has the name", "01a1f": "nothing known here has the name", "01a1f84f": "no task id begins with", "queue:build": "build"} {
		if _, err := a.Explainer.Why(t.Context(), subject); !errors.Is(err, wire.ErrNotFound) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", subject, err, want)
		}
	}
	if _, err := a.Queues.Set(t.Context(), "build", wire.QueueSettings{Home: "here"}); err != nil {
		t.Fatal(err)
	}
	if why, err := a.Explainer.Why(t.Context(), "build"); err != nil || why.Subject != "queue:build" {
		t.Errorf("a queue without its prefix: %+v, %v", why, err)
	}
}

// While a task runs, why says so, both for a task to this node itself and for one to a
// peer; and cancelling it once more after its end names its end.
func TestWhyOfARunningTask(t *testing.T) {
	t.Parallel()
	a, b := pair(t, nil)
	for _, n := range []*testNode{a, b} {
		if err := n.Handlers.Add(t.Context(), wire.HandlerSpec{Kind: "slow", Exec: []string{"sleep", "1000"}, Allow: []string{"role:send"}}); err != nil {
			t.Fatal(err)
		}
	}
	for to, want := range map[string]wire.NoteCode{"a": wire.NoteRuns, "b": wire.NoteStartedThere} {
		id := a.submit(t, wire.Request{Target: to, Kind: "slow"})
		var got wire.Blocker
		eventually(t, func() bool {
			why, err := a.Explainer.Why(t.Context(), id)
			got = why
			return err == nil && why.State == "RUNNING"
		}, func() string { return fmt.Sprintf("to %s: %+v", to, got) })
		if got.Cause.Code != want {
			t.Errorf("to %s: the cause is %+v, want %s", to, got.Cause, want)
		}
		if _, err := a.Cancel(t.Context(), id, true, ""); err != nil {
			t.Fatal(err)
		}
		a.waitEnd(t, id, "CANCELLED")
		if _, err := a.Cancel(t.Context(), id, true, ""); !errors.Is(err, wire.ErrRefused) || !strings.Contains(err.Error(), "has ended as CANCELLED") {
			t.Errorf("to %s: cancelled again: %v", to, err)
		}
	}
}
