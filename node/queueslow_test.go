package node

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/transport/transporttest"
	"github.com/balefire/balefire/wire"
)

// A bulkyHandler returns a result of this size, which cannot be compressed.
type bulkyHandler int

func (h bulkyHandler) Run(context.Context, *handler.Run) *handler.Result {
	return &handler.Result{Outcome: handler.Success, Output: noise(int(h))}
}

// noise returns n bytes that cannot be compressed.
func noise(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(n)}).Read(b)
	return b
}

// Tasks with large bodies or results take much longer than a lease on a link of 64 kbit/s.
// Each runs once, its result counts, and the other leases are renewed meanwhile (I4, I6).
func TestBulkyTasksOnASlowLink(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name                string
		tasks, body, result int
		most                time.Duration // line rate: 200 kB take 25 s
	}{
		{"a result", 1, 0, 200_000, time.Minute},
		{"results", 4, 0, 200_000, 3 * time.Minute},
		{"a body", 1, 200_000, 0, time.Minute},
		{"bodies", 4, 200_000, 0, 3 * time.Minute},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, 2, 4*time.Minute)
				defer c.close()
				home, owner := c.nodes[0].node, c.nodes[1].node
				home.inbox.Unregister("build")
				home.gossip.Describe()
				spec := inbox.Spec{Kind: "bulky", Allow: []string{"role:send"}, OnCrash: inbox.OnCrashRetry, Handler: bulkyHandler(tt.result)}
				if err := owner.inbox.Register(spec); err != nil {
					t.Fatal(err)
				}
				owner.gossip.Describe()
				time.Sleep(time.Minute)
				c.SetNodeLink(1, transporttest.Both(transporttest.Direction{Latency: 30 * time.Millisecond, Mbps: 0.064, Queue: 24_000}))
				time.Sleep(time.Minute)
				others := c.submitMany(0, 4)
				time.Sleep(5 * time.Second)
				began := time.Now()
				var ids []string
				for i := range tt.tasks {
					s, err := home.Submit(t.Context(), wire.Request{Target: "queue:build", Kind: "bulky", Body: noise(tt.body + i)})
					if err != nil {
						t.Fatal(err)
					}
					ids = append(ids, s.ID)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
				defer cancel()
				for _, id := range ids {
					if task, err := home.Views.Wait(ctx, id); err != nil || task.State != "SUCCESS" || len(task.History) != 1 {
						t.Fatalf("%s is %s after %d grants: %v", id, task.State, len(task.History), err)
					}
				}
				if took := time.Since(began); took > tt.most {
					t.Errorf("they took %v, want at most %v", took, tt.most)
				}
				c.waitAll(0, others, 10*time.Minute)
				if n := c.reruns(); n != 0 {
					t.Errorf("I6: %d tasks were started again", n)
				}
				for _, e := range append(home.Queues.Events(0, 4096), owner.Queues.Events(0, 4096)...) {
					switch e.Kind {
					case "lapsed", "lease_lost", "conflict", "late_result":
						t.Errorf("%s of %s: %s %s", e.Kind, e.Task, e.Cause, e.Detail)
					}
				}
				grants, results := c.nodes[0].metrics()["balefire_ownership_messages_total{grant}"], c.nodes[1].metrics()["balefire_ownership_messages_total{ended}"]
				if all := float64(len(ids) + len(others)); grants > all+1 || results > all+1 { // an answer may be late
					t.Errorf("%v grants and %v results were sent of %v tasks", grants, results, all)
				}
			})
		})
	}
}
