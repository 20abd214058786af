package node

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/pairing"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/wire"
)

// TestTransferReportsProgress verifies the progress of a transfer: bytes, rate and remaining
// time, as far as known.
func TestTransferReportsProgress(t *testing.T) {
	n := start(t, func() Config {
		c := testConfig(t, t.TempDir()+"/a")
		if _, err := pairing.Init(pairing.InitOptions{Dir: c.Dir, Name: "a", NewMesh: true}); err != nil {
			t.Fatal(err)
		}
		return c
	}())
	for _, tt := range []struct {
		flow transport.Flow
		want wire.Transfer
	}{
		{transport.Flow{Out: true, Peer: n.keys.Peer(), Size: 200 << 20, Done: 50 << 20, Rate: 10 << 20}, wire.Transfer{What: "body", Direction: "out", Peer: "a", Bytes: 50 << 20, Size: 200 << 20, Rate: 10 << 20, Left: 15}},
		{transport.Flow{Result: true, Peer: n.keys.Peer(), Size: 3 << 30}, wire.Transfer{What: "result", Direction: "in", Peer: "a", Size: 3 << 30}},
	} {
		if got := n.Views.Transfer(tt.flow); got != tt.want {
			t.Errorf("%+v, want %+v", got, tt.want)
		}
	}
	if x := n.Views.Transfers(proto.TaskID{1}); x != nil {
		t.Errorf("%v for an unknown task", x)
	}
}

// While a body is being transferred, the task, why and the events of its sender report it.
func TestTransferIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newLargeCluster(t, nil)
		defer c.close()
		ids, bodies := c.submitLarge(1, 1)
		origin := c.nodes[1].node
		var shown []wire.Transfer
		var causes []wire.NoteCode
		for range 40 {
			time.Sleep(100 * time.Millisecond)
			task, err := origin.Views.Task(t.Context(), ids[0])
			if err != nil {
				t.Fatal(err)
			}
			why, err := origin.Explainer.Why(t.Context(), ids[0])
			if err != nil {
				t.Fatal(err)
			}
			shown, causes = append(shown, task.Transfers...), append(causes, why.Cause.Code)
		}
		if !slices.ContainsFunc(shown, func(x wire.Transfer) bool {
			return x.What == "body" && x.Direction == "out" && x.Peer == "n0" && 0 < x.Bytes && x.Bytes < x.Size && x.Size > largeBody
		}) {
			t.Errorf("the task shows %+v", shown)
		}
		if !slices.Contains(causes, wire.NoteTransferring) {
			t.Errorf("why reports %v", causes)
		}
		c.waitLarge(1, ids, bodies, 10*time.Minute)
		for s, way := range map[*simNode]string{c.nodes[1]: "out", c.nodes[0]: "in"} { // the body; where the task runs, and so its result, varies
			if b := s.metrics()["balefire_body_bytes_total{"+way+"}"]; b < largeBody {
				t.Errorf("%s counted %.0f bytes %s", s.name, b, way)
			}
		}
		events := map[string]bool{}
		for _, e := range origin.Events.Read(t.Context(), 0, 1000, 0).Items {
			if e.Fields["task"] == ids[0] {
				events[e.Kind] = true
			}
		}
		if !events["body.began"] || !events["body.ended"] {
			t.Errorf("the events of its body are %v", events)
		}
	})
}
