package api

import (
	"runtime"
	"testing"
	"time"

	"github.com/balefire/balefire/node/nodetest"
	"github.com/balefire/balefire/wire"
)

// TestMailIsKeptWhileASettlementWaits sends mail for one node behind the settlement of a mail of
// another one that cannot be reached: the mail is on disk before that is answered.
func TestMailIsKeptWhileASettlementWaits(t *testing.T) {
	n := mailNode(t)
	nodetest.Admit(t, n, "beta")
	nodetest.Admit(t, n, "gamma")
	dial, _ := serveMail(t, n)
	f := &frames{t: t, c: dial(wire.MailFrames)}
	settle := wire.AppendMailFrame(nil, wire.OpSettle, 2, func(b []byte) []byte {
		return wire.AppendSettle(b, 1, []wire.FramedSettlement{{Op: wire.FrameAck, Lease: wire.FramedLease{Seq: 1, Boot: 1, N: 1}}})
	})
	f.write(readFrame(1, "agent:ceo@beta", 9), settle, sendFrame(3, "agent:ceo@gamma", letterOf(t, "x", nil)))
	for deadline := time.Now().Add(10 * time.Second); ; runtime.Gosched() { // the settlement waits for 15 s
		out, err := n.Mail.Outgoing(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(out) == 1 && out[0].Home == "gamma" && out[0].Mails == 1 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v waits for other nodes, want a mail for gamma", out)
		}
	}
}
