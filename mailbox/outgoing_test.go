package mailbox

import (
	"errors"
	"slices"
	"testing"

	"github.com/balefire/balefire/wire"
)

// A mail that waits for a box on another node is found by its id and by the beginning of it,
// and is counted, as is a dead letter.
func TestMailInASpoolIsFound(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		sent, errs := f.Send(t.Context(), []wire.Mail{{To: "agent:ceo"}, {To: "agent:desk@beta", Key: "k", Body: []byte("far")}})
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		for _, id := range []string{sent[1].ID, sent[1].ID[:35]} {
			m, err := f.Mail(t.Context(), id)
			if err != nil || m.ID != sent[1].ID || m.State != "PENDING" || m.Box != "agent:desk@beta" || m.From != "alpha" || m.Seq != 0 || m.Key != "k" || string(m.Body) != "far" || m.Accepted.IsZero() {
				t.Errorf("%s: %+v, %v", id, m, err)
			}
		}
		if m, err := f.Mail(t.Context(), sent[0].ID); err != nil || m.State != "WAITING" || m.Seq != 1 {
			t.Errorf("%+v, %v", m, err)
		}
		letters, err := f.Lease(t.Context(), "ceo", "", wire.LeaseMail{})
		f.must(err)
		_, err = f.Settle(t.Context(), "ceo", "", wire.SettleMail{Nack: []wire.NackMail{{Lease: letters[0].Lease, Final: true}}})
		f.must(err)
		if s, err := f.Status(t.Context()); err != nil || s.Outgoing != 1 || s.Dead != 1 || !slices.Equal(s.DeadIn, []string{"agent:ceo@alpha"}) {
			t.Errorf("%+v, %v", s, err)
		}
		out, err := f.Outgoing(t.Context())
		if err != nil || len(out) != 1 || out[0].Box != "agent:desk@beta" || out[0].Home != "beta" || out[0].Mails != 1 || out[0].Oldest == nil {
			t.Errorf("%+v, %v", out, err)
		}
	})
}
