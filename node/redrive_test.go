package node

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/balefire/balefire/identity"
)

// A redrive leaves the idempotency key with its request: sent again, it is known.
func TestRedriveLeavesTheKeyWithItsRequest(t *testing.T) {
	a, b := pair(t, nil)
	if err := b.AddHandler(t.Context(), shell(nil)); err != nil {
		t.Fatal(err)
	}
	r := Request{Target: b.keys.Peer().String(), Kind: "run", Args: []string{"sh", "-c", "exit 65"}, Key: "k"}
	id := a.submit(t, r)
	a.ended(t, id, "FAILED")
	again, err := a.Retry(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	s, err := a.Submit(t.Context(), r)
	if err != nil || !s.Known || s.ID != again.ID {
		t.Errorf("the same request again: %+v, %v, want %s", s, err, again.ID)
	}
}

// The root key of another mesh, left by an earlier life of the folder, admits
// nobody to this one.
func TestRootOfAnotherMeshAdmitsNobody(t *testing.T) {
	_, b := pair(t, nil)
	if _, err := identity.CreateRoot(filepath.Join(b.cfg.Dir, identityDir)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Invite(t.Context(), InviteOptions{}); !errors.Is(err, ErrDenied) {
		t.Errorf("invite: %v, want %v", err, ErrDenied)
	}
}
