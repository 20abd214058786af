package node

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/transport/transporttest"
)

// A revoked node learns of it: it reports that before everything else, even after a
// restart, and does not dial the others again and again.
func TestRevokedNodeReportsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSimMeshWith(t, 2, 1, transporttest.Link{Latency: 20 * time.Millisecond, Mbps: 50}, quietMesh)
		defer w.close()
		a, b := w.nodes[0], w.nodes[1]
		time.Sleep(time.Minute)
		if err := a.node.Pairing.Revoke(t.Context(), b.name, "test"); err != nil {
			t.Fatal(err)
		}
		knows := func(when string) {
			t.Helper()
			time.Sleep(10 * time.Minute)
			if s := b.node.Status(t.Context()); len(s.Warnings) == 0 || !strings.Contains(s.Warnings[0], "this node was revoked by the mesh's root on 20") {
				t.Errorf("%s: warnings %q", when, s.Warnings)
			}
			if r := b.node.MeshSummary(t.Context()).Risks; len(r) != 1 || !strings.Contains(r[0], "revoked") {
				t.Errorf("%s: risks %q", when, r)
			}
			if why, err := b.node.Why(t.Context(), a.name); err != nil || !strings.Contains(why.Cause, "this node was revoked") || !strings.Contains(why.Fix, "join") {
				t.Errorf("%s: why %+v, %v", when, why, err)
			}
			if d := b.connection(a); d.Failed > 3 {
				t.Errorf("%s: %d dials failed in ten minutes", when, d.Failed)
			}
		}
		knows("revoked")
		b.halt()
		b.start()
		knows("started again")
		if s := a.node.Status(t.Context()); len(s.Warnings) > 0 && strings.Contains(s.Warnings[0], "this node was revoked") {
			t.Errorf("the admin considers itself revoked: %q", s.Warnings)
		}
	})
}
