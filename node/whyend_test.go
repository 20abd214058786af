package node

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/wire"
)

// Why states that a handler has returned and why the end of its task cannot be stored.
func TestWhyOfAnEndThatIsNotStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, time.Second)
		defer c.close()
		n := c.nodes[0]
		missing := filepath.Join(t.TempDir(), "result")
		spec := inbox.Spec{Kind: "big", Allow: []string{"role:send"}, OnCrash: inbox.OnCrashRetry}
		spec.Handler = handler.Func(func(context.Context, *handler.Run) *handler.Result {
			return &handler.Result{Outcome: handler.Success, File: missing, Size: 1, Digest: make([]byte, 32)}
		})
		if err := n.node.inbox.Register(spec); err != nil {
			t.Fatal(err)
		}
		n.node.gossip.Describe()
		time.Sleep(10 * time.Second)
		id := n.mustSubmit(wire.Request{Target: "n0", Kind: "big"})
		time.Sleep(10 * time.Second)
		synctest.Wait()
		why, err := n.node.Explainer.Why(t.Context(), id)
		if err != nil || why.Cause.Code != wire.NoteUnwritten || !strings.Contains(why.Cause.Detail, missing) {
			t.Errorf("%+v, %v", why, err)
		}
	})
}
