package nodetest_test

import (
	"testing"

	"github.com/balefire/balefire/node"
	"github.com/balefire/balefire/node/nodetest"
	"github.com/balefire/balefire/wire"
)

// TestNode checks that a node does its own tasks, knows an admitted member, and has the
// events that a test makes happen.
func TestNode(t *testing.T) {
	n := nodetest.Open(t, func(cfg *node.Config) {
		cfg.Handlers = []wire.HandlerSpec{{Kind: "echo", Type: wire.TypeEcho, Allow: []string{"peer:here"}}}
	})
	stop := nodetest.Run(t, n)
	s, err := n.Submit(t.Context(), wire.Request{Target: "here", Kind: "echo", Body: []byte("x")})
	if err != nil {
		t.Fatal(err)
	}
	if done, err := n.Views.Wait(t.Context(), s.ID); err != nil || done.State != "SUCCESS" || done.ResultSize != 1 {
		t.Errorf("%+v, %v", done, err)
	}
	nodetest.Admit(t, n, "laptop")
	if p, err := n.Views.Peer("laptop"); err != nil || p.State != "OFFLINE" {
		t.Errorf("%+v, %v", p, err)
	}
	before := n.Events.Read(t.Context(), 0, 1000, 0).Next
	nodetest.Happen(t, n, 3)
	if p := n.Events.Read(t.Context(), before, 1000, 0); len(p.Items) != 3 || p.Items[0].Kind != "lan.stranger" {
		t.Errorf("%+v", p)
	}
	stop()
}
