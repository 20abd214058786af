package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/ownership/dispatch"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// A loadHandler runs for a while, fails the tasks that are planned to fail, and checks
// the order and the number of starts (I6, I10).
type loadHandler struct {
	t    *testing.T
	mu   sync.Mutex
	last map[string]int // number of the latest started task by lane
	busy map[string]bool
	runs map[proto.TaskID]int
}

// Run parses "LANE NUMBER MILLISECONDS dies".
func (h *loadHandler) Run(ctx context.Context, r *handler.Run) *handler.Result {
	var lane string
	var number, ms int
	var dies bool
	body, err := io.ReadAll(r.Body)
	if _, serr := fmt.Sscan(string(body), &lane, &number, &ms, &dies); err != nil || serr != nil {
		return &handler.Result{Outcome: handler.Fail, Reason: "the body cannot be decoded"}
	}
	h.mu.Lock()
	if h.runs[r.ID]++; h.runs[r.ID] > 1 {
		h.t.Errorf("I6: %s was started %d times without a fault", r.ID, h.runs[r.ID])
	}
	if lane != "-" {
		if h.busy[lane] || number <= h.last[lane] {
			h.t.Errorf("I10: number %d of %s starts after number %d, which runs: %v", number, lane, h.last[lane], h.busy[lane])
		}
		h.last[lane], h.busy[lane] = number, true
	}
	h.mu.Unlock()
	select {
	case <-ctx.Done():
		return &handler.Result{Outcome: handler.Cancelled}
	case <-time.After(time.Duration(ms) * time.Millisecond):
	}
	h.mu.Lock()
	h.busy[lane] = false
	h.mu.Unlock()
	if dies {
		return &handler.Result{Outcome: handler.Fail, Reason: "planned failure"}
	}
	return &handler.Result{Outcome: handler.Success}
}

// loadRequests returns the tasks of the test: every third has no lane, the others belong
// to six lanes, of which the last two block when a task fails. A quarter are
// at_most_once.
func loadRequests(n int) (rs []wire.Request) {
	for i := range n {
		r := wire.Request{Target: "queue:build", Kind: "build"}
		lane := "-"
		if i%3 > 0 {
			k := i % 6
			lane = fmt.Sprint("lane", k)
			r.Order = lane
			if k > 3 {
				r.OnDead = "block"
			}
		}
		if i%4 == 0 {
			r.Mode = proto.AtMostOnce.Name()
		}
		r.Body = fmt.Appendf(nil, "%s %d %d %v", lane, i+1, 20+i*37%300, i%29 == 7)
		rs = append(rs, r)
	}
	return rs
}

// The strategy is changed ten times while a queue is busy: every task ends and starts
// once; lanes keep their order, and those that should block do so after a failure until
// they are unblocked.
func TestQueueSwitchesItsStrategyUnderLoad(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, time.Second)
		defer c.close()
		l := &loadHandler{t: t, last: map[string]int{}, busy: map[string]bool{}, runs: map[proto.TaskID]int{}}
		for _, s := range c.nodes {
			spec := inbox.Spec{Kind: "build", Allow: []string{"role:send"}, OnCrash: inbox.OnCrashRetry, MaxAttempts: 1, Handler: l}
			if err := s.node.inbox.Register(spec); err != nil {
				t.Fatal(err)
			}
		}
		rs := loadRequests(600)
		got, errs := c.nodes[1].node.SubmitMany(t.Context(), rs)
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		names := dispatch.Names()
		for i := range 10 {
			time.Sleep(300 * time.Millisecond)
			if _, err := c.nodes[0].node.Queues.Set(t.Context(), "build", wire.QueueSettings{Strategy: new(names[i%len(names)])}); err != nil {
				t.Fatal(err)
			}
		}
		unblocked := 0
		for range 300 { // lanes block a few times
			time.Sleep(time.Second)
			q, _ := c.nodes[0].node.Queues.Get(t.Context(), "build")
			if q.Waiting+q.Owned == 0 {
				break
			}
			for _, lane := range []string{"lane4", "lane5"} {
				if _, err := c.nodes[0].node.Queues.UnblockLane(t.Context(), "build", lane); err == nil {
					unblocked++
				}
			}
		}
		if unblocked == 0 {
			t.Error("no lane ever unblocked still")
		}
		for i, s := range got {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			task, err := c.nodes[1].node.Views.Wait(ctx, s.ID)
			cancel()
			want := "SUCCESS"
			if i%29 == 7 {
				want = "FAILED"
			}
			id, _ := proto.ParseTaskID(s.ID)
			if err != nil || task.State != want || l.runs[id] != 1 {
				t.Errorf("number %d is %s (%s) after %d starts, want %s: %v", i+1, task.State, task.Reason, l.runs[id], want, err)
			}
		}
	})
}
