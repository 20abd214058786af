package api

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/balefire/balefire/node/nodetest"
	"github.com/balefire/balefire/proto"
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

// TestMailInFlightHasHeaders sends mail without a body in each form: its headers count as part of
// what a connection may have that is not on disk.
func TestMailInFlightHasHeaders(t *testing.T) {
	n, key := mailNode(t), strings.Repeat("k", 250)
	for form, msg := range map[streamForm][]byte{
		jsonForm{}:      fmt.Appendf(nil, `{"op":"send","ref":1,"mails":[{"to":"agent:ceo","key":%q}]}`, key),
		new(binaryForm): sendFrame(1, "agent:ceo", letterOf(t, "", func(l *proto.Letter) { l.Key = []byte(key) })),
	} {
		m := &mailStream{boxes: n.Mail, waiting: make(chan unanswered, 1), inFlight: semaphore.NewWeighted(maxInFlight)}
		if err := form.requests(msg, func(q *streamRequest) error { return m.do(t.Context(), q) }); err != nil {
			t.Fatal(err)
		}
		if m.inFlight.TryAcquire(maxInFlight - int64(len(key)) + 1) {
			t.Errorf("%T: the %d bytes of the key do not count", form, len(key))
		}
		u := <-m.waiting
		for _, o := range u.queued.Wait(t.Context()) {
			if o.Err != nil {
				t.Error(o.Err)
			}
		}
		if m.inFlight.Release(u.size); !m.inFlight.TryAcquire(maxInFlight) {
			t.Errorf("%T: not all is given back", form)
		}
	}
}
