package node

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/pairing"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/transport/transporttest"
	"github.com/balefire/balefire/wire"
)

// markRestored marks the store of a stopped node as restored from a snapshot.
func (s *simNode) markRestored() {
	s.mesh.t.Helper()
	s.engine = s.engine.Reopen()
	st, err := store.Open(s.engine, store.Config{SweepEvery: -1, CompactEvery: -1})
	if err != nil {
		s.mesh.t.Fatal(err)
	}
	var b store.Batch
	pairing.MarkRestored(&b)
	if err := st.Apply(s.mesh.t.Context(), &b); err != nil {
		s.mesh.t.Fatal(err)
	}
	if err := st.Close(); err != nil {
		s.mesh.t.Fatal(err)
	}
	s.engine = s.engine.Reopen()
}

// A restored node admits only admins until one of them has told it which members were
// revoked since the snapshot, even if a revoked member comes first. If it meets no
// admin, it goes on after five minutes.
func TestRestoredNodeComparesRevocationsFirst(t *testing.T) {
	t.Parallel()
	for _, meets := range []bool{true, false} {
		t.Run(map[bool]string{true: "an admin comes", false: "no admin comes"}[meets], func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newSimMeshWith(t, 3, 1, transporttest.Link{Latency: 10 * time.Millisecond, Mbps: 100, Seed: 1}, quietMesh)
				defer w.close()
				time.Sleep(10 * time.Second)
				admin, other, restored := w.nodes[0], w.nodes[1], w.nodes[2]
				who := other.node.keys.Peer()
				in := func() bool { return restored.node.net.Connected(who) }
				restored.halt()
				if meets {
					other.halt()
					if err := admin.node.Pairing.Revoke(t.Context(), "n1", "test"); err != nil {
						t.Fatal(err)
					}
				}
				admin.halt()
				other.start()
				restored.markRestored()
				restored.start()
				alone := pairing.CompareFor - 10*time.Second
				if meets {
					alone = time.Minute
				}
				time.Sleep(alone)
				if in() {
					t.Error("it admits a member that may be revoked")
				}
				if st := restored.node.Views.Status(t.Context()); !noted(st.Warnings, wire.NoteComparing) {
					t.Errorf("the status does not report it: %+v", st.Warnings)
				}
				if meets {
					admin.start()
				}
				time.Sleep(2 * time.Minute)
				if in() == meets {
					t.Errorf("connected: %v, revoked: %v", in(), meets)
				}
				if meets && (!restored.node.book.Revoked(who) || !restored.node.net.Connected(admin.node.keys.Peer())) {
					t.Error("it does not know the revocation")
				}
				restored.halt()
				restored.start()
				time.Sleep(time.Second)
				if restored.node.Pairing.Comparing() {
					t.Error("it compares at every start")
				}
			})
		})
	}
}
