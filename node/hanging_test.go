package node

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/transport/transporttest"
	"github.com/balefire/balefire/view"
)

// While a connection hangs, the status that the mesh gives a peer takes precedence,
// and the peer was last seen when its last byte arrived.
func TestHangingConnectionIsNotTrusted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSimMeshWith(t, 2, 1, transporttest.Link{Latency: 20 * time.Millisecond, Mbps: 50}, func(s *simNode, cfg *Config) {
			quietMesh(s, cfg)
			cfg.Mesh.ProbeInterval = time.Second
		})
		defer w.close()
		a, b := w.nodes[0], w.nodes[1]
		time.Sleep(time.Minute)
		if why, err := a.node.Why(t.Context(), b.name); err != nil || !strings.Contains(why.Cause, "nothing: it is connected") {
			t.Errorf("while all is well: %+v, %v", why, err)
		}
		w.Cut(0, 1)
		w.Cut(1, 0)
		cut, seen := time.Now(), false
		for time.Since(cut) < time.Minute {
			time.Sleep(time.Second)
			p, err := a.node.Peer(t.Context(), b.name)
			if err != nil {
				t.Fatal(err)
			}
			if late := p.LastSeen.Sub(cut); late > time.Second {
				t.Errorf("%v after the cut the peer was last seen %v after it", time.Since(cut), late)
			}
			if p.State != "CONNECTED" || p.Liveness == "ALIVE" {
				continue
			}
			seen = true
			if why, err := a.node.Why(t.Context(), b.name); err != nil || !strings.Contains(why.Cause, p.Liveness) {
				t.Errorf("%v after the cut: %s, %+v, %v", time.Since(cut), p.Liveness, why, err)
			}
		}
		if !seen {
			t.Error("the connection closed before the mesh suspected the peer: nothing was tested")
		}
		if r := a.node.MeshSummary(t.Context()).Risks; !slices.Contains(r, "1 member is dead: n1 (balefire-node why n1)") {
			t.Errorf("risks %q", r)
		}
	})
}

// A drained node is reported as such, by itself and by the others, and not as one that
// stops.
func TestDrainedNodeIsReported(t *testing.T) {
	a, b := pair(t, nil)
	eventually(t, func() bool { return a.net.Connected(b.keys.Peer()) }, func() string { return "not connected" })
	if _, err := b.Drain(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if s := b.Status(t.Context()); !slices.Contains(s.Warnings, view.DrainedText) || !slices.Contains(b.MeshSummary(t.Context()).Risks, view.DrainedText) {
		t.Errorf("its own warnings: %q", s.Warnings)
	}
	if m := b.Members(t.Context())[0]; m.Phase != "DRAINING" || m.Eligible {
		t.Errorf("itself: phase %s, eligible %v", m.Phase, m.Eligible)
	}
	eventually(t, func() bool {
		m, err := a.Member(t.Context(), "b")
		return err == nil && m.Phase == "DRAINING" && !m.Eligible
	}, func() string { m, err := a.Member(t.Context(), "b"); return m.Phase + " " + errText(err) })
	if _, err := b.Drain(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if m := b.Members(t.Context())[0]; m.Phase != "RUNNING" {
		t.Errorf("afterwards: phase %s", m.Phase)
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
