package node

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// Why states that the task which another one waits for is a dead letter, which nothing but a
// person ends.
func TestWhyBehindADeadLetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, time.Second)
		defer c.close()
		n, other := c.nodes[0], c.nodes[1].node
		spec := inbox.Spec{Kind: "bad", Allow: []string{"role:send"}, OnCrash: inbox.OnCrashRetry, MaxAttempts: 1}
		spec.Handler = handler.Func(func(context.Context, *handler.Run) *handler.Result {
			return &handler.Result{Outcome: handler.Fail}
		})
		if err := other.inbox.Register(spec); err != nil {
			t.Fatal(err)
		}
		other.gossip.Describe()
		time.Sleep(10 * time.Second)
		request := wire.Request{Target: "n1", Kind: "bad", Order: "repo", OnDead: "block"}
		first, second := n.mustSubmit(request), n.mustSubmit(request)
		time.Sleep(time.Minute)
		synctest.Wait()
		why, err := n.node.Explainer.Why(t.Context(), second)
		if err != nil || why.Cause.Code != wire.NoteBehind || why.Cause.Task != first || why.Cause.State != proto.DeadLetter.Name() {
			t.Errorf("%+v, %v", why, err)
		}
	})
}
