package node

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/balefire/balefire/datadir"
)

// A member that was revoked after a snapshot stays revoked when the snapshot is
// restored, even if no other node can report the revocation, and also if the log of
// revocations was truncated or lost while the store is intact.
func TestRevocationSurvivesARestore(t *testing.T) {
	a, b := pair(t, func(_ string, c *Config) { c.Store.Engine, c.Net.Listen = datadir.EnginePebble, []string{freeAddr(t)} })
	eventually(t, func() bool { return a.net.Connected(b.keys.Peer()) }, func() string { return "not connected" })
	snap := filepath.Join(t.TempDir(), "snap")
	if err := a.Snapshot(t.Context(), snap, ""); err != nil {
		t.Fatal(err)
	}
	if err := a.Pairing.Revoke(t.Context(), "b", "test"); err != nil {
		t.Fatal(err)
	}
	a.halt()
	r, err := RestoreStore(a.cfg, snap, "")
	if err != nil || !slices.Equal(r.Revoked, []string{"b"}) {
		t.Fatalf("%+v, %v", r, err)
	}
	refused := func(when string) {
		t.Helper()
		n, err := New(a.cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		if !n.book.Revoked(b.keys.Peer()) {
			t.Errorf("%s the member is admitted again", when)
		}
	}
	refused("after the restore")
	log := filepath.Join(a.cfg.Dir, datadir.Identity, "revocations")
	whole, err := os.ReadFile(log)
	if err != nil || len(whole) == 0 {
		t.Fatalf("%d bytes, %v", len(whole), err)
	}
	for _, cut := range [][]byte{whole[:len(whole)-1], nil} {
		if err := os.WriteFile(log, cut, 0o600); err != nil {
			t.Fatal(err)
		}
		refused("with a truncated log")
		if got, err := os.ReadFile(log); err != nil || !slices.Equal(got, whole) {
			t.Errorf("the log was not repaired: %d bytes of %d, %v", len(got), len(whole), err)
		}
	}
	a = start(t, a.cfg)
	if err := a.net.Dial(context.Background(), b.keys.Peer(), b.Addrs()); err == nil {
		t.Error("the node dials a revoked member")
	}
	if a.net.Connected(b.keys.Peer()) {
		t.Error("the node is connected to a revoked member")
	}
}
