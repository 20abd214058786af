package mailbox

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// A mail of another node with times after the year 9999, for which JSON has no form, is shown and
// leased like any other: nothing that is read with it fails.
func TestMailOfTheFarFuture(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", f.allowAll)
		far := time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)
		letter, err := proto.AppendLetter(nil, &proto.Letter{
			Class: proto.Normal, ID: proto.NewMailID(far), Created: far.UnixMilli(), NotAfter: far.Add(time.Hour).UnixMilli(), Body: []byte("hello"),
		})
		f.must(err)
		payload, err := proto.Encode(nil, &proto.Bundle{
			Number: 1, Box: "agent:ceo@" + f.self.String(), Chain: proto.Normal, Runs: []*proto.Run{{Boot: 1, First: 1, Count: 1}}, Letters: letter,
		})
		f.must(err)
		f.must(f.Receive(t.Context(), f.beta, &proto.Message{Type: proto.TypeBundle, Payload: payload}))
		leased, _ := f.lease("ceo", "", 1, time.Second)
		listed, _, err := f.Mails(t.Context(), "ceo", "", wire.MailQuery{})
		f.must(err)
		for what, v := range map[string]any{"the list": listed, "the lease": leased} {
			if text, err := json.Marshal(v); err != nil || len(leased) != 1 || len(listed) != 1 {
				t.Errorf("%s: %s, %v", what, text, err)
			}
		}
	})
}
