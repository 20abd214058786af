package node

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/transporttest"
)

// A probeHandler runs for long and can report what it had done before its node died.
type probeHandler struct {
	clusterHandler
	slow time.Duration // a probe lasts so long

	mu    sync.Mutex
	done  map[proto.TaskID]bool
	asked map[proto.TaskID]int
}

// Run records its effect halfway through.
func (h *probeHandler) Run(ctx context.Context, r *handler.Run) *handler.Result {
	time.AfterFunc(h.work/2, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.done[r.ID] = true
	})
	return h.clusterHandler.Run(ctx, r)
}

// Probe implements [handler.Prober].
func (h *probeHandler) Probe(_ context.Context, r *handler.Run) handler.ProbeResult {
	time.Sleep(h.slow)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked[r.ID]++
	if h.done[r.ID] {
		return handler.Done
	}
	return handler.NotDone
}

// A task that was running when its owner's node died is probed when the node is back: if
// it is done, it ends without another run (I7).
func TestQueueProbesTheHandlerAfterACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, 10*time.Second)
		defer c.close()
		d := &probeHandler{clusterHandler: clusterHandler{c, 1, 10 * time.Second}, done: map[proto.TaskID]bool{}, asked: map[proto.TaskID]int{}}
		keep := func(n *Node) {
			spec := inbox.Spec{Kind: "build", Allow: []string{"role:send"}, OnCrash: inbox.OnCrashProbe, Handler: d}
			if err := n.inbox.Register(spec); err != nil {
				t.Fatal(err)
			}
			n.gossip.Describe()
		}
		keep(c.nodes[1].node)
		if _, err := c.nodes[0].node.Queues.Drain(t.Context(), true); err != nil { // so that the other node runs all
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		ids := c.submitMany(0, 10)
		time.Sleep(7 * time.Second)
		c.nodes[1].beforeRun = keep
		c.nodes[1].crash()
		c.nodes[1].start()
		for _, ref := range ids {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			task, err := c.nodes[0].node.Views.Wait(ctx, ref)
			cancel()
			if err != nil || task.State != "SUCCESS" {
				t.Fatalf("%s is %s (%s): %v", ref, task.State, task.Reason, err)
			}
			id, _ := proto.ParseTaskID(ref)
			if d.asked[id] != 1 || !d.done[id] || len(c.runs[id]) != 1 {
				t.Errorf("%s: asked %d times, done %v, started %d times", ref, d.asked[id], d.done[id], len(c.runs[id]))
			}
		}
	})
}

// A task that ran when its owner's node died and waits for a slot to be probed is no lease
// without a handler: it is not reported as one.
func TestInterruptedLeaseWaitsForASlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := new(logBuffer)
		c := newClusterOf(t, newSimMeshWith(t, 2, 1, transporttest.Link{Latency: 10 * time.Millisecond, Mbps: 100, Seed: 1}, func(s *simNode, cfg *Config) {
			smallMesh(s, cfg)
			if s.place == 1 {
				cfg.Logger = slog.New(slog.NewTextHandler(log, nil))
			}
		}), 10*time.Second)
		defer c.close()
		d := &probeHandler{clusterHandler: clusterHandler{c, 1, 10 * time.Second}, slow: 25 * time.Second, done: map[proto.TaskID]bool{}, asked: map[proto.TaskID]int{}}
		limit := 3
		keep := func(n *Node) {
			spec := inbox.Spec{Kind: "build", Allow: []string{"role:send"}, OnCrash: inbox.OnCrashProbe, Concurrency: limit, Handler: d}
			if err := n.inbox.Register(spec); err != nil {
				t.Fatal(err)
			}
			n.gossip.Describe()
		}
		keep(c.nodes[1].node)
		c.onlyNode(1, 0)
		time.Sleep(3 * time.Second)
		ids := c.submitMany(0, 3)
		time.Sleep(7 * time.Second)
		limit, c.nodes[1].beforeRun = 1, keep
		c.nodes[1].crash()
		c.nodes[1].start()
		for _, ref := range ids {
			if task, err := c.nodes[0].node.Views.Wait(t.Context(), ref); err != nil || task.State != "SUCCESS" {
				t.Fatalf("%s is %s (%s): %v", ref, task.State, task.Reason, err)
			}
		}
		if n := c.reruns(); n != 0 || len(d.asked) != 3 {
			t.Errorf("%d tasks were started again, and %d probed", n, len(d.asked))
		}
		if text := log.String(); strings.Contains(text, "without a running handler") {
			t.Errorf("the log has\n%s", text)
		}
	})
}
