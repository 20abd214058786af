package mailbox

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// verified checks a receipt from its proof and its letter alone, and returns the statement.
func (f *fixture) verified(r wire.MailReceipt) proto.MailStatement {
	f.t.Helper()
	raw, err := base64.StdEncoding.DecodeString(r.Proof)
	f.must(err)
	p, err := proto.ParseMailReceipt(raw)
	f.must(err)
	f.must(identity.VerifyMailReceipt(identity.NewVerifier(), &p))
	digest := sha256.Sum256(r.Letter)
	l, err := proto.ParseLetter(r.Letter)
	if s := p.Statement; err != nil || s.Digest != digest || l.ID != s.Mail || r.Mail != l.ID.String() || r.NodeID != s.Home.String() || r.OriginID != s.Origin.String() || !r.Verified || r.Problem != nil ||
		r.Digest != "sha256:"+hex.EncodeToString(digest[:]) || r.Time.UnixMilli() != s.Time {
		f.t.Errorf("%+v of %+v, %v", r, s, err)
	}
	return p.Statement
}

// A mail in a box of its own node is signed by that as long as it is there, kept or a dead letter.
func TestReceiptOfALocalMail(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", func(s *wire.MailboxSettings) { s.Keep = ptr(wire.Duration(time.Hour)) })
		f.topic("orders", "one")
		for _, name := range []string{"agent:ceo", "topic:orders"} {
			sent := f.mail(name, "asked", func(m *wire.Mail) { m.Receipt = true })
			all, err := f.Receipts(t.Context(), sent.ID, time.Minute)
			if err != nil || len(all) != 1 {
				t.Fatalf("%s: %+v, %v", name, all, err)
			}
			s := f.verified(all[0])
			if s.Home != f.self || s.Origin != f.self || s.Mesh != (proto.MeshID{7}) || s.Class != 0 || s.Number != (proto.Seq{}) || all[0].Number != "" || all[0].Node != "alpha" || s.Time != time.Now().UnixMilli() {
				t.Errorf("%s: %+v", name, s)
			}
			m, err := f.Mail(t.Context(), sent.ID)
			if err != nil || m.Receipt == nil || m.Receipt.Proof != all[0].Proof || m.Receipt.Letter != nil {
				t.Errorf("%s: %+v, %v", name, m, err)
			}
		}
		d := f.one("ceo", "", "asked")
		f.ack("ceo", "", d)
		f.restart()
		if all, err := f.Receipts(t.Context(), d.Mail.ID, 0); err != nil || len(all) != 1 || f.verified(all[0]).Box != "agent:ceo@"+f.self.String() {
			t.Errorf("when it is done: %+v, %v", all, err)
		}
		plain := f.mail("agent:ceo", "not asked", nil)
		if all, err := f.Receipts(t.Context(), plain.ID, time.Minute); err != nil || len(all) != 0 {
			t.Errorf("not asked: %+v, %v", all, err)
		}
		if m, err := f.Mail(t.Context(), plain.ID); err != nil || m.Receipt != nil {
			t.Errorf("not asked: %+v, %v", m, err)
		}
		_, err := f.Receipts(t.Context(), "01a1f84f-fb79-727b-b679-7a95fb475002", time.Minute)
		f.refused(err, wire.ErrNotFound, "no mail")
		_, err = f.Receipts(t.Context(), plain.ID, -1)
		f.refused(err, wire.ErrInvalid, "must be from 0 to 10 minutes")
		_, err = f.trySend("agent:ceo", "x", func(m *wire.Mail) { m.Receipt, m.Relaxed = true, true })
		f.refused(err, wire.ErrInvalid, "cannot have an answer before the mail is synced")
	})
}

// homeOf answers the next bundle for beta as a home with these keys would.
func (f *fixture) homeOf(lane *mail.Lane, beta *identity.Keys) {
	f.t.Helper()
	m, err := lane.Next(f.t.Context())
	f.must(err)
	k, l := m.GetRuns()[0], m.GetLetters()
	a := &proto.Bundled{Number: m.GetNumber(), Boot: k.GetBoot(), UpToNumber: k.GetFirst(), Time: time.Now().UnixMilli()}
	if beta != nil {
		a.Signature = beta.SignMail([]proto.MailStatement{{
			Mesh: f.cfg.Mesh, Mail: proto.LetterID(l), Home: beta.Peer(), Origin: f.self, Time: a.Time, Class: m.GetChain(), Number: proto.Seq{Boot: k.GetBoot(), Counter: k.GetFirst()},
			Digest: sha256.Sum256(l), Box: m.GetBox(),
		}})
	}
	_ = lane.Answer(f.t.Context(), a) // an offense is one of the stream
	f.mailbox("barrier", nil)
}

// A mail for another node is kept with what that has signed, over a restart; who waits for it is given
// it when it is there.
func TestReceiptFromAnotherNode(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		asked := func(m *wire.Mail) { m.Receipt, m.Class = true, "high" }
		sent := f.mail("agent:ceo@beta", "asked", asked)
		began := time.Now()
		if all, err := f.Receipts(t.Context(), sent.ID, time.Minute); err != nil || len(all) != 0 || time.Since(began) != time.Minute {
			t.Errorf("on its way: %+v, %v after %v", all, err, time.Since(began))
		}
		got := make(chan []wire.MailReceipt)
		go func() {
			all, _ := f.Receipts(t.Context(), sent.ID[:30], time.Minute)
			got <- all
		}()
		synctest.Wait()
		lane, err := f.ledger.broker().Lane(t.Context(), f.beta)
		f.must(err)
		f.homeOf(lane, f.betaKeys)
		all := <-got
		if len(all) != 1 {
			t.Fatalf("%d receipts", len(all))
		}
		if s := f.verified(all[0]); s.Home != f.beta || s.Origin != f.self || s.Box != "agent:ceo@"+f.beta.String() || s.Class != proto.High || all[0].Node != "beta" || all[0].Origin != "alpha" || all[0].Box != "agent:ceo@beta" || all[0].Number != "high.1.1" {
			t.Errorf("%+v of %+v", all[0], s)
		}
		f.restart()
		again, err := f.Receipts(t.Context(), sent.ID, time.Minute)
		if err != nil || len(again) != 1 || again[0].Proof != all[0].Proof || !bytes.Equal(again[0].Letter, all[0].Letter) {
			t.Errorf("after a restart: %+v, %v", again, err)
		}
		m, err := f.Mail(t.Context(), sent.ID)
		if err != nil || m.State != "ACCEPTED" || string(m.Body) != "asked" || m.Receipt == nil || m.Receipt.Proof != all[0].Proof || m.Seq != 0 {
			t.Errorf("%+v, %v", m, err)
		}
		f.why(sent.ID, "ACCEPTED", wire.NoteMailTaken)
		if out, err := f.Outgoing(t.Context()); err != nil || len(out) != 0 {
			t.Errorf("it still waits: %+v, %v", out, err)
		}
	})
}

// A mail that another node has and does not sign, or signs wrongly, has no receipt; an event tells so.
func TestReceiptThatNobodySigns(t *testing.T) {
	for cause, keys := range map[wire.NoteCode]*identity.Keys{wire.ReceiptNone: nil, wire.ReceiptUnsigned: identity.NewKeys(nil, time.Now())} {
		t.Run(string(cause), func(t *testing.T) {
			bubble(t, func(t *testing.T, f *fixture) {
				sent := f.mail("agent:ceo@beta", "asked", func(m *wire.Mail) { m.Receipt = true })
				lane, err := f.ledger.broker().Lane(t.Context(), f.beta)
				f.must(err)
				f.homeOf(lane, keys)
				if all, err := f.Receipts(t.Context(), sent.ID, time.Minute); err != nil || len(all) != 0 {
					t.Errorf("%+v, %v", all, err)
				}
				if m, err := f.Mail(t.Context(), sent.ID); err != nil || m.State != "ACCEPTED" || m.Receipt != nil {
					t.Errorf("%+v, %v", m, err)
				}
				if len(f.events) != 1 || f.events[0]["kind"] != wire.EventMailUnproven || f.events[0]["box"] != "agent:ceo@beta" || f.events[0]["count"] != "1" || f.events[0]["cause"] != string(cause) || f.events[0]["peer"] != f.beta.String() {
					t.Errorf("%v", f.events)
				}
			})
		})
	}
}

// What was kept of a receipt and is not one any more is told.
func TestReceiptThatIsDamaged(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		sent := f.mail("agent:ceo@beta", "asked", func(m *wire.Mail) { m.Receipt = true })
		lane, err := f.ledger.broker().Lane(t.Context(), f.beta)
		f.must(err)
		f.homeOf(lane, f.betaKeys)
		all, err := f.Receipts(t.Context(), sent.ID, 0)
		f.must(err)
		raw, err := base64.StdEncoding.DecodeString(all[0].Proof)
		f.must(err)
		p, err := proto.ParseMailReceipt(raw)
		f.must(err)
		changed := p
		changed.Statement.Time++
		if v := f.lookup.receipts.view(changed, all[0].Letter); v.Verified || v.Problem == nil || v.Problem.Code != wire.ReceiptUnsigned {
			t.Errorf("%+v", v)
		}
		if v := f.lookup.receipts.view(p, []byte("another letter")); v.Verified || v.Problem == nil || v.Problem.Code != wire.ReceiptOtherLetter || v.Problem.Detail != all[0].Digest {
			t.Errorf("%+v", v)
		}
	})
}
