package node

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/transport/transporttest"
	"github.com/balefire/balefire/wire"
)

// A gatedHandler ends when its gate is opened.
type gatedHandler chan struct{}

func (h gatedHandler) Run(ctx context.Context, _ *handler.Run) *handler.Result {
	select {
	case <-h:
		return &handler.Result{Outcome: handler.Success}
	case <-ctx.Done():
		return &handler.Result{Outcome: handler.Cancelled}
	}
}

// stateCounts returns how many tasks of a node are in each state.
func (s *simNode) stateCounts() map[string]int {
	return s.node.Views.Status(context.Background()).Outbox
}

func (s *simNode) send(t *testing.T, to *simNode, kind string) {
	t.Helper()
	if _, err := s.node.Submit(t.Context(), wire.Request{Target: to.name, Kind: kind}); err != nil {
		t.Fatal(err)
	}
}

// Peers learn within a moment which kinds a node starts or stops to serve.
func TestKindsAreAnnouncedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSimMesh(t, 2, 1, transporttest.Link{Latency: 20 * time.Millisecond, Mbps: 50})
		defer w.close()
		a, b := w.nodes[0], w.nodes[1]
		time.Sleep(time.Minute)
		knows := func(want bool) {
			t.Helper()
			time.Sleep(300 * time.Millisecond)
			if m, err := a.node.Views.Member(b.name); err != nil || slices.Contains(m.Kinds, "fresh") != want {
				t.Errorf("the peer knows %v: %v, want %v", m.Kinds, err, want)
			}
		}
		if err := b.node.Handlers.Add(t.Context(), allow("fresh", wire.TypeDiscard)); err != nil {
			t.Fatal(err)
		}
		knows(true)
		if err := b.node.Handlers.Remove(t.Context(), "fresh"); err != nil {
			t.Fatal(err)
		}
		knows(false)
	})
}

// A task that was refused for long because its target does not serve its kind is sent as
// soon as the target does: the target notifies its peers (I20).
func TestNewHandlerWakesWaitingTasks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newSimMesh(t, 2, 1, transporttest.Link{Latency: 20 * time.Millisecond, Mbps: 50})
		defer w.close()
		a, b := w.nodes[0], w.nodes[1]
		for range 20 {
			a.send(t, b, "later")
		}
		a.send(t, a, "later") // for itself
		time.Sleep(20 * time.Minute)
		if got := a.stateCounts(); got["PENDING"] != 21 {
			t.Fatalf("before the handler is added: %v", got)
		}
		for _, s := range w.nodes {
			spec := allow("later", wire.TypeDiscard)
			spec.Allow = []string{"role:send"}
			if err := s.node.Handlers.Add(t.Context(), spec); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2 * time.Second)
		if got := a.stateCounts(); got["PENDING"] != 0 {
			t.Errorf("2 s after the handler was added: %v", got)
		}
	})
}

// A target that was full notifies the peers that it refused when it has room again.
func TestSpaceWakesRefusedTasks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSimMesh(t, 2, 1, transporttest.Link{Latency: 20 * time.Millisecond, Mbps: 50})
		defer w.close()
		a, b := w.nodes[0], w.nodes[1]
		b.halt()
		b.change = func(c *Config) { c.Limits.MaxInbox = 4 }
		b.start()
		gate := make(gatedHandler)
		if err := b.node.inbox.Register(inbox.Spec{Kind: "gated", Allow: []string{"role:send"}, Handler: gate}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		for range 8 {
			a.send(t, b, "gated")
		}
		time.Sleep(9 * time.Minute) // less than the handler's timeout
		if got := a.stateCounts(); got["PENDING"] == 0 {
			t.Fatalf("nothing was refused: %v", got)
		}
		close(gate)
		time.Sleep(5 * time.Second)
		if got := a.stateCounts(); got["PENDING"] != 0 {
			t.Errorf("5 s after there was room: %v", got)
		}
	})
}
