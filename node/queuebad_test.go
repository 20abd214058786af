package node

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

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
		bad, unheeded := home.queues.log.refusals.WithLabelValues("renew"), home.queues.log.count.WithLabelValues("unheeded")
		before := testutil.ToFloat64(unheeded)
		ans, err := home.Receive(t.Context(), from, []*proto.Message{
			{Type: proto.TypeRenew, Payload: []byte("no renewal")},
			{Type: proto.TypeRenew, Payload: encode(&proto.Renew{Claims: []*proto.Claim{{Task: id[:3]}}})},
			{Type: proto.TypeRenew, Payload: encode(&proto.Renew{Claims: []*proto.Claim{claim}})},
		})
		if err != nil || len(ans.Refusals) > 0 {
			t.Fatalf("%v, %v: no answer is expected", ans, err)
		}
		time.Sleep(2 * time.Second)
		if n := testutil.ToFloat64(bad); n != 2 {
			t.Errorf("%v messages are counted as refused, want 2", n)
		}
		if n := testutil.ToFloat64(unheeded) - before; n < 1 {
			t.Error("a claim to a task that is not here is not counted")
		}
	})
}
