package node

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/proto"
)

// An ownership message that cannot be decoded, or whose claims are invalid, is counted.
// Other messages in the same group are processed as usual.
func TestBadOwnershipIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, time.Second)
		defer c.close()
		home, from := c.nodes[0].node, c.nodes[1].node.keys.Peer()
		encode := func(b proto.Body) []byte {
			payload, err := proto.Encode(nil, b)
			if err != nil {
				t.Fatal(err)
			}
			return payload
		}
		id := make([]byte, 16)
		claim := &proto.Claim{Task: id, EpochBoot: 1, EpochCounter: 1, Token: id, BootId: id}
		ignored := func() float64 { return counted(t, home, "balefire_ownership_events_total", "ignored") }
		before := ignored()
		ans, err := receiver{home}.Receive(t.Context(), from, []*proto.Message{
			{Type: proto.TypeRenew, Payload: []byte("no renewal")},
			{Type: proto.TypeRenew, Payload: encode(&proto.Renew{Claims: []*proto.Claim{{Task: id[:3]}}})},
			{Type: proto.TypeRenew, Payload: encode(&proto.Renew{Claims: []*proto.Claim{claim}})},
		})
		if err != nil || len(ans.Refusals) > 0 {
			t.Fatalf("%v, %v: no answer is expected", ans, err)
		}
		time.Sleep(2 * time.Second)
		if n := counted(t, home, "balefire_ownership_refused_total", "renew"); n != 2 {
			t.Errorf("%v messages are counted as refused, want 2", n)
		}
		if n := ignored() - before; n < 1 {
			t.Error("a claim to a task that is not here is not counted")
		}
	})
}

// counted returns the value of a counter for its only label.
func counted(t *testing.T, n *Node, name, label string) float64 {
	t.Helper()
	families, err := n.Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && m.GetLabel()[0].GetValue() == label {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}
