package node

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/transport/transporttest"
	"github.com/balefire/balefire/wire"
)

// A revoked node learns of it: it reports that before everything else, even after a
// restart, and does not dial the others again and again.
func TestRevokedNodeReportsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSimMeshWith(t, 2, 1, transporttest.Link{Latency: 20 * time.Millisecond, Mbps: 50}, quietMesh)
		defer w.close()
		a, b := w.nodes[0], w.nodes[1]
		time.Sleep(time.Minute)
		s, err := b.node.Submit(t.Context(), wire.Request{Target: a.name, Kind: simKind, Delay: wire.Duration(24 * time.Hour), TTL: wire.Duration(48 * time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		if err := a.node.Pairing.Revoke(t.Context(), b.name, "test"); err != nil {
			t.Fatal(err)
		}
		knows := func(when string) {
			t.Helper()
			time.Sleep(10 * time.Minute)
			if s := b.node.Views.Status(t.Context()); len(s.Warnings) == 0 || s.Warnings[0].Code != wire.NoteSelfRevoked || s.Warnings[0].Peer != "" || s.Warnings[0].Time.Year() < 2000 {
				t.Errorf("%s: warnings %+v", when, s.Warnings)
			}
			if r := b.node.Views.MeshSummary(t.Context()).Risks; len(r) != 1 || r[0].Code != wire.NoteSelfRevoked {
				t.Errorf("%s: risks %+v", when, r)
			}
			for _, subject := range []string{a.name, s.ID} {
				if why, err := b.node.Explainer.Why(t.Context(), subject); err != nil || why.Cause.Code != wire.NoteSelfRevoked || why.Next != nil {
					t.Errorf("%s: why %s: %+v, %v", when, subject, why, err)
				}
			}
			if d := b.connection(a); d.Failed > 3 {
				t.Errorf("%s: %d dials failed in ten minutes", when, d.Failed)
			}
		}
		knows("revoked")
		b.halt()
		b.start()
		knows("started again")
		if s := a.node.Views.Status(t.Context()); len(s.Warnings) > 0 && s.Warnings[0].Code == wire.NoteSelfRevoked {
			t.Errorf("the admin considers itself revoked: %+v", s.Warnings)
		}
	})
}
