package api

import (
	"testing"

	"github.com/balefire/balefire/wire"
)

// FuzzStreamRequests decodes any message in both forms: a request that is done is one that
// may be.
func FuzzStreamRequests(f *testing.F) {
	f.Add([]byte(`{"op":"send","ref":1,"mails":[{"to":"agent:ceo","body":"eA=="}]}`))
	f.Add([]byte(`{"op":"send","mails":[{"to":"agent:ceo","producer":"000102030405060708090a0b0c0d0e0f","number":1,"id":"01a206d9-3c5e-7838-8157-1936a50bdeb9"}]}`))
	f.Add([]byte(`{"op":"read","session":1,"box":"agent:ceo","credit":9223372036854775808}`))
	f.Add([]byte(`{"op":"settle","session":1,"ack":["1.2.3"],"nack":[{"lease":"1.2.4","delay":"1s","final":true}],"extend":[{"lease":"1.2.5","for":"1m"}]}`))
	f.Add([]byte(`{"op":"credit","session":1,"add":1}{}`))
	f.Add([]byte(`{"op":"request","ref":1,"mail":{"to":"agent:ceo","text":"how many?","wait":"1s"}}`))
	f.Add(wire.AppendMailFrame(nil, wire.OpRequest, 1, func(b []byte) []byte {
		return wire.AppendRequest(b, &wire.FramedRequest{Ms: 1, ReplyFrom: []string{"*"}, FramedMail: wire.FramedMail{To: []byte("agent:ceo"), Letter: []byte("letter")}})
	}))
	f.Add(sendFrame(1, "agent:ceo", []byte("letter")))
	f.Add(readFrame(1, "agent:ceo", 1<<63))
	f.Add(wire.AppendMailFrame(nil, wire.OpSettle, 1, func(b []byte) []byte {
		return wire.AppendSettle(b, 1, []wire.FramedSettlement{{Op: wire.FrameExtend, Ms: 1}, {Op: 7}})
	}))
	f.Fuzz(func(t *testing.T, msg []byte) {
		for _, form := range []streamForm{jsonForm{}, new(binaryForm)} {
			_ = form.requests(msg, func(q *streamRequest) error {
				switch n := len(q.mails) + len(q.letters); {
				case q.op == 0 || q.op > wire.OpRequest:
					t.Errorf("op %#x", q.op)
				case (q.op == wire.OpRequest) != (q.ask != nil):
					t.Errorf("op %#x with a request %v", q.op, q.ask != nil)
				case (q.op == wire.OpSend) != (n > 0) || n > wire.MaxMailBatch:
					t.Errorf("op %#x with %d mails", q.op, n)
				case (q.op == wire.OpSettle) != (len(q.settle) > 0) || len(q.settle) > wire.MaxMailBatch:
					t.Errorf("op %#x with %d settlements", q.op, len(q.settle))
				}
				return nil
			})
		}
	})
}
