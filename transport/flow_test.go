package transport

import (
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/balefire/balefire/proto"
)

// TestFlowRate checks that a body's rate is that of the last seconds, that the remaining
// time follows from it, and that bytes of an earlier attempt count in neither.
func TestFlowRate(t *testing.T) {
	met, err := newMetrics(nil)
	if err != nil {
		t.Fatal(err)
	}
	var now time.Duration
	var told []EventKind
	fs := flows{mono: func() time.Duration { return now }, met: met, emit: func(e Event) { told = append(told, e.Kind) }}
	f := fs.begin(proto.Header{ID: proto.TaskID{1}}, proto.PeerID{2}, true, 1000, 400)
	if v := f.snapshot(); v.Rate != 0 || v.Left() != 0 || v.Done != 400 {
		t.Errorf("at the begin: %+v", v)
	}
	for range 4 {
		now += time.Second
		f.advance(f.done.Load() + 100)
	}
	if v := f.snapshot(); v.Rate != 100 || v.Left() != 2*time.Second {
		t.Errorf("after 4 s: %+v", v)
	}
	for range 20 { // the transfer stalls
		now += time.Second
		f.advance(f.done.Load())
	}
	if v := f.snapshot(); v.Rate != 0 || v.Left() != 0 || v.Done != 800 {
		t.Errorf("after a stall of 20 s: %+v", v)
	}
	if n := testutil.ToFloat64(met.bodies.WithLabelValues("out")); n != 400 {
		t.Errorf("%v bytes counted, want the 400 of this attempt", n)
	}
	f.end()
	if len(fs.all) != 0 {
		t.Error("a finished flow is kept")
	}
	if want := []EventKind{EventBodyBegan, EventBodyMoves, EventBodyMoves, EventBodyEnded}; !slices.Equal(told, want) { // every 10 s
		t.Errorf("reported %v, want %v", told, want)
	}
}

// TestFlowsListBodiesInTransit checks that both sides report the progress of a streamed
// body in transit, and drop it when it has arrived.
func TestFlowsListBodiesInTransit(t *testing.T) {
	s := newBodyStore(t)
	a, b := start(t, 1, nil), start(t, 2, withBodies(s))
	link(t, a, b)
	source := newBody(t, 1, 12<<20)
	size := source.Manifest.Size
	var out, in Flow
	body := &trackingSource{BodySource: source, at: bodyWindow + 20, reached: func() { // 16 chunks are acknowledged by then
		if flows := a.Flows(); len(flows) == 1 {
			out = flows[0]
		}
		if flows := b.Flows(); len(flows) == 1 {
			in = flows[0]
		}
	}}
	if err := a.SendBody(t.Context(), b.Peer(), source.offer, body); err != nil {
		t.Fatal(err)
	}
	for side, f := range map[string]Flow{"sender": out, "receiver": in} {
		if f.Task != (proto.TaskID{1}) || f.Result || f.Size != size || f.Done < 4<<20 || f.Out != (side == "sender") {
			t.Errorf("%s: %+v", side, f)
		}
	}
	if n := len(a.Flows()); n != 0 {
		t.Errorf("%d flows at the sender when the body is there", n)
	}
	eventually(t, "the receiver drops it", func() bool { return len(b.Flows()) == 0 })
	if n := testutil.ToFloat64(a.met.bodies.WithLabelValues("out")); n != float64(size) {
		t.Errorf("%v bytes counted, want %d", n, size)
	}
}
