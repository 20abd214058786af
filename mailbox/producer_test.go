package mailbox

import (
	"testing"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// TestNumberedMailIsTakenOnce sends mails again whose answers were lost, to boxes here and
// away, in both forms, also after a restart: each is there once, with its first id.
func TestNumberedMailIsTakenOnce(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		const name = "000102030405060708090a0b0c0d0e0f"
		ids := []string{"01a206d9-3c5e-7838-8157-1936a50bdeb9", "01a206d9-3c9a-7e52-a0d4-55b6c2f0d7a1", "01a206d9-3c9a-7e52-a0d4-55b6c2f0d7a2"}
		mails := []wire.Mail{
			{To: "agent:ceo", Producer: name, Number: 1, ID: ids[0], Body: []byte("here")},
			{To: "agent:desk@beta", Producer: name, Number: 2, ID: ids[1]},
			{To: "agent:none", Producer: name, Number: 3, ID: ids[2]},
		}
		for i, again := range []bool{false, true, true} {
			sent, errs := f.Send(t.Context(), mails)
			for j := range 2 {
				if errs[j] != nil || sent[j].ID != ids[j] || sent[j].Known != again {
					t.Errorf("call %d, mail %d: %+v, %v", i, j, sent[j], errs[j])
				}
			}
			f.refused(errs[2], wire.ErrNotFound, "none")
			f.restart()
		}
		raw, to, err := f.mailer.composer.encode(&mails[0], proto.LetterObject{})
		f.must(err)
		if o := f.QueueLetters([]Letter{{[]byte(to.name), raw}}).Wait(t.Context())[0]; o.Err != nil || !o.Known || o.ID.String() != ids[0] {
			t.Errorf("its letter: %+v", o)
		}
		f.mailbox("none", nil)
		mails[0].Number = proto.ProducerWindow + 2
		if sent, errs := f.Send(t.Context(), mails); errs[0] != nil || sent[0].Known || errs[2] != nil || sent[2].Known {
			t.Errorf("other numbers: %+v, %v", sent, errs)
		}
		mails[2].Number = 2
		_, errs := f.Send(t.Context(), mails[2:])
		f.refused(errs[0], wire.ErrInvalid, "number 2 of its producer is 4096 behind the newest one")
		if _, bodies := f.lease("ceo", "", 9, 0); len(bodies) != 2 {
			t.Errorf("the mailbox has %q", bodies)
		}
		if out, err := f.Outgoing(t.Context()); err != nil || len(out) != 1 || out[0].Mails != 1 {
			t.Errorf("outgoing: %+v, %v", out, err)
		}
		for _, change := range []func(*wire.Mail){
			func(m *wire.Mail) { m.Producer = "" },
			func(m *wire.Mail) { m.Producer = "producer" },
			func(m *wire.Mail) { m.Number = 0 },
			func(m *wire.Mail) { m.ID = "" },
			func(m *wire.Mail) { m.ID = "00000000-0000-0000-0000-000000000000" },
		} {
			m := mails[0]
			change(&m)
			_, errs := f.Send(t.Context(), []wire.Mail{m})
			f.refused(errs[0], wire.ErrInvalid, "")
		}
	})
}

// TestRedrivenMailHasNoNumber sends a dead letter again: it is no mail of its producer.
func TestRedrivenMailHasNoNumber(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		m := wire.Mail{To: "agent:ceo", Producer: "000102030405060708090a0b0c0d0e0f", Number: 1, ID: "01a206d9-3c5e-7838-8157-1936a50bdeb9"}
		if _, errs := f.Send(t.Context(), []wire.Mail{m}); errs[0] != nil {
			t.Fatal(errs)
		}
		got, _ := f.lease("ceo", "", 1, 0)
		f.settle("ceo", "", wire.SettleMail{Nack: []wire.NackMail{{Lease: got[0].Lease, Final: true}}})
		r, err := f.Redrive(t.Context(), "ceo", "", wire.RedriveMail{})
		if err != nil || len(r.Items) != 1 || r.Items[0].Mail == nil || r.Items[0].Mail.Known {
			t.Fatalf("%s, %v", asJSON(t, r), err)
		}
		if got, _ := f.lease("ceo", "", 1, 0); len(got) != 1 || got[0].Mail.RedriveOf != m.ID {
			t.Errorf("leased %+v", got)
		}
	})
}
