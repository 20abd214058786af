package node

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/transport/transporttest"
	"github.com/balefire/balefire/wire"
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
		if why, err := a.node.Explainer.Why(t.Context(), b.name); err != nil || why.Cause.Code != wire.NotePeerConnected {
			t.Errorf("while all is well: %+v, %v", why, err)
		}
		w.Cut(0, 1)
		w.Cut(1, 0)
		cut, seen := time.Now(), false
		for time.Since(cut) < time.Minute {
			time.Sleep(time.Second)
			p, err := a.node.Views.Peer(b.name)
			if err != nil {
				t.Fatal(err)
			}
			if late := p.LastSeen.Sub(cut); late > 2*time.Second+200*time.Millisecond { // acknowledgments are noticed every two seconds, and some were on their way
				t.Errorf("%v after the cut the peer was last seen %v after it", time.Since(cut), late)
			}
			if p.State != "CONNECTED" || p.Liveness == "ALIVE" {
				continue
			}
			seen = true
			if why, err := a.node.Explainer.Why(t.Context(), b.name); err != nil || why.Cause.State != p.Liveness {
				t.Errorf("%v after the cut: %s, %+v, %v", time.Since(cut), p.Liveness, why, err)
			}
		}
		if !seen {
			t.Error("the connection closed before the mesh suspected the peer: nothing was tested")
		}
		if r := a.node.Views.MeshSummary(t.Context()).Risks; !slices.ContainsFunc(r, func(n wire.Note) bool {
			return n.Code == wire.NoteMembersDead && n.Count == 1 && slices.Equal(n.Names, []string{"n1"})
		}) {
			t.Errorf("risks %+v", r)
		}
	})
}

// noted reports whether a list has a note with this code.
func noted(list []wire.Note, code wire.NoteCode) bool {
	return slices.ContainsFunc(list, func(n wire.Note) bool { return n.Code == code })
}

// A drained node is reported as such, by itself and by the others, and not as one that
// stops; one that stops says so.
func TestDrainedNodeIsReported(t *testing.T) {
	t.Parallel()
	a, b := pair(t, nil)
	eventually(t, func() bool { return a.net.Connected(b.keys.Peer()) }, func() string { return "not connected" })
	if _, err := b.Queues.Drain(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if s := b.Views.Status(t.Context()); !noted(s.Warnings, wire.NoteDrained) || !noted(b.Views.MeshSummary(t.Context()).Risks, wire.NoteDrained) {
		t.Errorf("its own warnings: %+v", s.Warnings)
	}
	if m := b.Views.Members()[0]; m.Phase != "DRAINING" || m.Eligible {
		t.Errorf("itself: phase %s, eligible %v", m.Phase, m.Eligible)
	}
	eventually(t, func() bool {
		m, err := a.Views.Member("b")
		return err == nil && m.Phase == "DRAINING" && !m.Eligible
	}, func() string { m, err := a.Views.Member("b"); return m.Phase + " " + errText(err) })
	if _, err := b.Queues.Drain(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if m := b.Views.Members()[0]; m.Phase != "RUNNING" {
		t.Errorf("afterwards: phase %s", m.Phase)
	}
	b.draining.Store(true) // as Run does when it stops
	if s := b.Views.Status(t.Context()); !noted(s.Warnings, wire.NoteStopping) || noted(s.Warnings, wire.NoteDrained) || !noted(b.Views.MeshSummary(t.Context()).Risks, wire.NoteStopping) {
		t.Errorf("while it stops: %+v", s.Warnings)
	}
	b.draining.Store(false)
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
