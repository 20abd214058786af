package node

import (
	"errors"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/submit/redrive"
	"github.com/balefire/balefire/wire"
)

// After a redrive the idempotency key stays bound to its request: the same request
// returns the existing task.
func TestRedriveLeavesTheKeyWithItsRequest(t *testing.T) {
	a, b := pair(t, nil)
	if err := b.Handlers.Add(t.Context(), shell(nil)); err != nil {
		t.Fatal(err)
	}
	r := wire.Request{Target: b.keys.Peer().String(), Kind: "run", Args: []string{"sh", "-c", "exit 65"}, Key: "k"}
	id := a.submit(t, r)
	a.waitEnd(t, id, "FAILED")
	again, err := a.Redriver.Retry(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	s, err := a.Submit(t.Context(), r)
	if err != nil || !s.Known || s.ID != again.ID {
		t.Errorf("the same request again: %+v, %v, want %s", s, err, again.ID)
	}
}

// The root key of another mesh, left in the folder by an earlier use, cannot admit
// members to this mesh.
func TestRootOfAnotherMeshAdmitsNobody(t *testing.T) {
	_, b := pair(t, nil)
	if _, err := identity.CreateRoot(filepath.Join(b.cfg.Dir, datadir.Identity)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Pairing.Invite(t.Context(), wire.InviteOptions{}); !errors.Is(err, wire.ErrDenied) {
		t.Errorf("invite: %v, want %v", err, wire.ErrDenied)
	}
}

// A process that dies after it created a redriven task, and before the old task is
// marked, does not create a second one when asked again (S17), with or without an
// idempotency key.
func TestInterruptedRedriveIsNotRepeated(t *testing.T) {
	died := errors.New("died")
	var dying atomic.Bool
	a, b := pair(t, func(name string, c *Config) {
		c.Fail = func(point string) error {
			if name == "a" && point == redrive.PointRedriven && dying.Load() {
				return died
			}
			return nil
		}
	})
	if err := b.Handlers.Add(t.Context(), shell(nil)); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"", "k"} {
		id := a.submit(t, wire.Request{Target: "b", Kind: "run", Args: []string{"sh", "-c", "exit 65"}, Key: key})
		a.waitEnd(t, id, "FAILED")
		dying.Store(true)
		first, err := a.Redriver.Retry(t.Context(), id)
		if !errors.Is(err, died) {
			t.Fatalf("the failpoint was not reached: %+v, %v", first, err)
		}
		a.halt()
		dying.Store(false)
		a = start(t, a.cfg)
		again, err := a.Redriver.Retry(t.Context(), id)
		if err != nil || !again.Known || again.ID != first.ID {
			t.Errorf("key %q: a repeated call: %+v, %v, want %s", key, again, err, first.ID)
		}
		if old, err := a.Views.Task(t.Context(), id); err != nil || old.RedrivenAs != first.ID {
			t.Errorf("key %q: the old task is redriven as %q, %v", key, old.RedrivenAs, err)
		}
		if _, err := a.Redriver.Retry(t.Context(), id); !errors.Is(err, wire.ErrRefused) {
			t.Errorf("key %q: a third time: %v", key, err)
		}
		tid, err := proto.ParseTaskID(id)
		if err != nil {
			t.Fatal(err)
		}
		if _, there, err := a.outbox.RedrivenAs(tid); there || err != nil {
			t.Errorf("key %q: the marker still exists, %v", key, err)
		}
	}
}
