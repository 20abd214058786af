package mailbox

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// why explains a mail, whose id must have the cause code.
func (f *fixture) why(id, state string, code wire.NoteCode) wire.Blocker {
	f.t.Helper()
	b, home, err := f.WhyMail(f.t.Context(), id)
	f.must(err)
	if b.State != state || b.Cause.Code != code || b.Subject != id || home.IsZero() == (state == "PENDING") {
		f.t.Errorf("%s is %s because of %+v at %s, want %s, %s", id, b.State, b.Cause, home, state, code)
	}
	return b
}

// Every cause that a mail in a box of this node can wait for is named, and how it ended.
func TestWhyMail(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		keyed := func(m *wire.Mail) { m.Key = "k" }
		first, second := f.mail("agent:ceo", "first", keyed), f.mail("agent:ceo", "second", keyed)
		if b := f.why(first.ID, "WAITING", wire.NoteNoReader); b.Cause.Box != "agent:ceo@alpha" || b.Steps[0].Code != wire.StepMail || b.Steps[0].Key != "k" {
			t.Errorf("%+v", b)
		}
		if b := f.why(second.ID, "WAITING", wire.NoteMailBehind); b.Cause.Task != first.ID || b.Cause.Key != "k" {
			t.Errorf("%+v", b)
		}
		_, err := f.Pause(t.Context(), "ceo", "", true)
		f.must(err)
		f.why(first.ID, "WAITING", wire.NoteMailPaused)
		_, err = f.Pause(t.Context(), "ceo", "", false)
		f.must(err)
		got, _ := f.lease("ceo", "", 9, time.Minute)
		if b := f.why(first.ID, "LEASED", wire.NoteMailLeased); !slices.Equal(b.Cause.Names, []string{"test"}) || b.Next == nil || b.Next.Sub(got[0].Until).Abs() > time.Second {
			t.Errorf("%+v until %v", b, b.Next)
		}
		f.settle("ceo", "", wire.SettleMail{Nack: []wire.NackMail{{Lease: got[0].Lease, Delay: wire.Duration(time.Hour), Reason: "rate limit"}}})
		if b := f.why(first.ID, "RETRYING", wire.NoteMailRetries); b.Cause.Detail != "rate limit" || b.Cause.State != "nacked" || !slices.Equal(b.Cause.Names, []string{"test"}) || time.Until(*b.Next).Round(time.Minute) != time.Hour {
			t.Errorf("%+v", b)
		}
		later := f.mail("agent:ceo", "later", func(m *wire.Mail) { m.Delay = wire.Duration(time.Hour) })
		if b := f.why(later.ID, "WAITING", wire.NoteNotDue); b.Next == nil {
			t.Errorf("%+v", b)
		}
		time.Sleep(61 * time.Minute)
		got, _ = f.lease("ceo", "", 1, time.Minute)
		f.settle("ceo", "", wire.SettleMail{Nack: []wire.NackMail{{Lease: got[0].Lease, Reason: "never", Final: true}}})
		if b := f.why(first.ID, "DEAD", wire.NoteMailDead); b.Cause.State != "final" || b.Cause.Detail != "never" || b.Cause.Count != 0 {
			t.Errorf("%+v", b)
		}
		f.ack("ceo", "", f.leased("ceo"))
		f.ack("ceo", "", f.leased("ceo"))
		for _, id := range []string{second.ID, later.ID} {
			if b := f.why(id, "DONE", wire.NoteMailEnded); b.Cause.Seconds > 1 {
				t.Errorf("%+v", b)
			}
		}
		_, err = f.Purge(t.Context(), "ceo", wire.PurgeMail{})
		f.must(err)
		gone := f.mail("agent:ceo", "gone", func(m *wire.Mail) { m.TTL = wire.Duration(time.Second) })
		time.Sleep(time.Minute)
		f.why(gone.ID, "EXPIRED", wire.NoteMailEnded)
		_, _, err = f.WhyMail(t.Context(), "01a1f84f-fb79-727b-b679-7a95fb475002")
		f.refused(err, wire.ErrNotFound, "no mail")
	})
}

// leased leases the next mail.
func (f *fixture) leased(name string) wire.DeliveredMail {
	f.t.Helper()
	got, _ := f.lease(name, "", 1, time.Minute)
	if len(got) != 1 {
		f.t.Fatal("no mail is ready")
	}
	return got[0]
}

// A reader without credit, a reader with some, and a dead letter in a lane are causes, too.
func TestWhyMailAndItsReaders(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", func(s *wire.MailboxSettings) { s.OnDead = new("block") })
		f.mail("agent:ceo", "dead", func(m *wire.Mail) { m.Key = "k" })
		f.kill("ceo", "", "dead")
		blocked := f.mail("agent:ceo", "blocked", func(m *wire.Mail) { m.Key = "k" })
		if b := f.why(blocked.ID, "WAITING", wire.NoteMailBlocked); b.Cause.Key != "k" {
			t.Errorf("%+v", b)
		}
		f.whyBox("ceo", "OPEN", wire.NoteNoReader)
		r, err := f.Read(t.Context(), "ceo", "", wire.LeaseMail{Max: 1, Reader: "w1"})
		f.must(err)
		f.whyBox("ceo", "OPEN", wire.NoteKeysBlocked)
		f.mail("agent:ceo", "given", nil)
		second := f.mail("agent:ceo", "second", nil)
		if b := f.why(second.ID, "WAITING", wire.NoteReadersBusy); b.Cause.Count != 1 {
			t.Errorf("%+v", b)
		}
		f.whyBox("ceo", "OPEN", wire.NoteReadersBusy)
		f.must(r.Close(t.Context(), false))
	})
}

// A reader that asks once has its mail and comes back for no more: it is not too busy for the rest.
func TestWhyNobodyReadsTheRest(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		f.mail("agent:ceo", "first", nil)
		second := f.mail("agent:ceo", "second", nil)
		f.leased("ceo")
		f.whyBox("ceo", "OPEN", wire.NoteReadersLeft)
		f.why(second.ID, "WAITING", wire.NoteReadersLeft)
	})
}

func (f *fixture) whyBox(name, state string, code wire.NoteCode) wire.Blocker {
	f.t.Helper()
	b, _, err := f.WhyBox(f.t.Context(), name)
	f.must(err)
	if b.State != state || b.Cause.Code != code {
		f.t.Errorf("%s is %s because of %+v, want %s, %s", name, b.State, b.Cause, state, code)
	}
	return b
}

// stepOf returns the first step with a code.
func stepOf(t *testing.T, b wire.Blocker, code wire.NoteCode) wire.Note {
	t.Helper()
	i := slices.IndexFunc(b.Steps, func(n wire.Note) bool { return n.Code == code })
	if i < 0 {
		t.Fatalf("no step %s in %+v", code, b.Steps)
	}
	return b.Steps[i]
}

// The state of a box is told with what waits in it by class, its readers, its limits and the
// senders that it refused.
func TestWhyBox(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		_, _, err := f.WhyBox(t.Context(), "ceo")
		f.refused(err, wire.ErrNotFound, "mailbox add ceo")
		f.mailbox("ceo", func(s *wire.MailboxSettings) { s.Mails = new(3) })
		f.whyBox("agent:ceo", "OPEN", wire.NoteNothingWaits)
		f.must(f.Receive(t.Context(), f.beta, f.bundleFor("ceo", 1, 10)))
		synctest.Wait()
		f.mail("agent:ceo", "a", nil)
		f.mail("agent:ceo", "b", func(m *wire.Mail) { m.Class = "high" })
		b := f.whyBox("agent:ceo@alpha", "OPEN", wire.NoteNoReader)
		if s := stepOf(t, b, wire.StepBoxClasses); s.Count != 2 || !slices.Equal(s.Names, []string{"1 high", "1 normal"}) {
			t.Errorf("%+v", s)
		}
		if s := stepOf(t, b, wire.StepBoxMails); s.Count != 2 || s.Of != 3 {
			t.Errorf("%+v", s)
		}
		if s := stepOf(t, b, wire.StepBoxRefused); s.Peer != "beta" || !strings.HasPrefix(s.Detail, "DENIED: ") {
			t.Errorf("%+v", s)
		}
		f.mail("agent:ceo", "c", nil)
		if b := f.whyBox("ceo", "FULL", wire.NoteBoxFull); b.Cause.Detail != string(wire.NoteNoReader) {
			t.Errorf("%+v", b.Cause)
		}
		_, err = f.Pause(t.Context(), "ceo", "", true)
		f.must(err)
		f.mailbox("ceo", func(s *wire.MailboxSettings) { s.Mails = new(0) })
		f.whyBox("ceo", "PAUSED", wire.NoteMailPaused)
		f.mailbox("ceo", func(s *wire.MailboxSettings) { s.Draining = new(true) })
		f.whyBox("ceo", "DRAINING", wire.NoteBoxDraining)

		f.topic("orders", "audit", "billing")
		f.mail("topic:orders", "x", nil)
		if b := f.whyBox("topic:orders/billing", "OPEN", wire.NoteNoReader); b.Cause.Box != "topic:orders/billing" || b.Subject != "topic:orders/billing" {
			t.Errorf("%+v", b)
		}
		_, _, err = f.WhyBox(t.Context(), "topic:orders/none")
		f.refused(err, wire.ErrNotFound, "sub add orders none")
	})
}

// A mail for a box on another node is explained by its spool and what its home said, and a box
// there by what waits for it.
func TestWhyOutgoing(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		b, home, err := f.WhyBox(t.Context(), "agent:desk@beta")
		if err != nil || home != f.beta || b.State != "ELSEWHERE" || b.Cause.Code != wire.NoteBoxElsewhere || b.Cause.Peer != "beta" {
			t.Errorf("%+v, %v", b, err)
		}
		sent := f.mail("agent:desk@beta", "far", nil)
		b = f.why(sent.ID, "PENDING", wire.NoteMailSent)
		if s := stepOf(t, b, wire.StepSpool); s.Count != 1 || s.Peer != "beta" || s.Box != "agent:desk@beta" {
			t.Errorf("%+v", s)
		}
		lane, err := f.ledger.broker().Lane(t.Context(), f.beta)
		f.must(err)
		bundle, err := lane.Next(t.Context())
		f.must(err)
		f.must(lane.Answer(t.Context(), &proto.Bundled{Number: bundle.GetNumber(), Code: proto.CodeFull, Detail: "the box is full"}))
		b = f.why(sent.ID, "PENDING", wire.NoteMailRefused)
		if b.Cause.Refusal != "FULL" || b.Cause.Detail != "the box is full" || b.Cause.Self != "alpha" || b.Next == nil {
			t.Errorf("%+v", b)
		}
		f.whyBox("agent:desk@beta", "ELSEWHERE", wire.NoteMailRefused)
		time.Sleep(time.Minute)
		bundle, err = lane.Next(t.Context())
		f.must(err)
		f.must(lane.Answer(t.Context(), &proto.Bundled{Number: bundle.GetNumber(), Boot: f.boot, UpToNumber: 1}))
		synctest.Wait()
		if b := f.why(sent.ID, "ACCEPTED", wire.NoteMailTaken); b.Cause.Peer != "beta" || b.Cause.Box != "agent:desk@beta" || b.Cause.Task != sent.ID {
			t.Errorf("%+v", b)
		}
		refused := f.mail("agent:desk@beta", "denied", nil)
		bundle, err = lane.Next(t.Context())
		f.must(err)
		f.must(lane.Answer(t.Context(), &proto.Bundled{
			Number: bundle.GetNumber(), Boot: f.boot, UpToNumber: 2, Skipped: []*proto.Skipped{{Boot: f.boot, Number: 2, Code: proto.CodeDenied, Detail: "not allowed"}},
		}))
		synctest.Wait()
		if b := f.why(refused.ID, "DEAD", wire.NoteMailEnded); !strings.Contains(b.Cause.Detail, "DENIED: not allowed") {
			t.Errorf("%+v", b)
		}
	})
}

// The events of a mail are told in order, to who waits for them and by box.
func TestMailEvents(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		page, err := f.Events(t.Context(), AllBoxes, 7, 0, time.Second)
		if err != nil || len(page.Items) > 0 || page.Next != 0 || page.Boot != f.boot {
			t.Errorf("%+v, %v", page, err)
		}
		_, err = f.Events(t.Context(), "a b", 0, 0, 0)
		f.refused(err, wire.ErrInvalid, "a b")
		f.mailbox("ceo", nil)
		f.mailbox("other", nil)
		waited := make(chan wire.EventPage)
		go func() {
			page, _ := f.Events(t.Context(), "ceo", 0, 1, time.Hour)
			waited <- page
		}()
		synctest.Wait()
		f.mail("agent:other", "x", nil)
		sent := f.mail("agent:ceo", "a", nil)
		if page := <-waited; len(page.Items) != 1 || page.Items[0].Kind != "mail.accepted" || page.Items[0].Fields["mail"] != sent.ID || page.Items[0].Fields["box"] != "agent:ceo@alpha" {
			t.Errorf("%+v", page)
		}
		d := f.one("ceo", "", "a")
		f.settle("ceo", "", wire.SettleMail{Nack: []wire.NackMail{{Lease: d.Lease, Reason: "no"}}})
		f.ack("ceo", "", f.leased("ceo"))
		f.mail("agent:far@beta", "b", nil)
		page, err = f.Events(t.Context(), "ceo", 0, 0, 0)
		f.must(err)
		var got []string
		for _, e := range page.Items {
			got = append(got, strings.TrimPrefix(e.Kind, "mail.")+" "+e.Fields["number"]+" "+e.Fields["attempt"]+e.Fields["text"])
			if e.Fields["mail"] != sent.ID {
				t.Errorf("%+v", e)
			}
		}
		if want := []string{"accepted 1 ", "delivered 1 1test", "retry 1 nacked: no", "delivered 1 2test", "done 1 "}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		if page, err = f.Events(t.Context(), "agent:far@beta", 0, 0, 0); err != nil || len(page.Items) != 1 || page.Items[0].Kind != "mail.sent" || page.Items[0].Fields["number"] != "" {
			t.Errorf("%+v, %v", page, err)
		}
		all, err := f.Events(t.Context(), AllBoxes, 0, 2, 0)
		if err != nil || len(all.Items) != 2 || all.Next != 2 {
			t.Errorf("%+v, %v", all, err)
		}
	})
}

// What a box keeps is listed the newest first, in pages and by time.
func TestHistory(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.topic("orders", "audit")
		var at []time.Time
		for i := range 5 {
			at = append(at, time.Now())
			f.mail("topic:orders", fmt.Sprint(i), nil)
			time.Sleep(time.Hour)
		}
		f.ack("topic:orders", "audit", func() wire.DeliveredMail { got, _ := f.lease("topic:orders", "audit", 1, 0); return got[0] }())
		got, next, err := f.Mails(t.Context(), "topic:orders", "", wire.MailQuery{State: "KEPT", Limit: 3})
		if err != nil || len(got) != 3 || string(got[0].Body) != "4" || string(got[2].Body) != "2" || next != "2" {
			t.Fatalf("%+v, %s, %v", got, next, err)
		}
		got, next, err = f.Mails(t.Context(), "topic:orders", "", wire.MailQuery{State: "KEPT", Limit: 3, Cursor: next})
		if err != nil || len(got) != 2 || string(got[0].Body) != "1" || got[1].State != "DONE" || next != "" {
			t.Errorf("%+v, %s, %v", got, next, err)
		}
		got, _, err = f.Mails(t.Context(), "topic:orders", "", wire.MailQuery{State: "KEPT", Since: at[1], Until: at[3]})
		if err != nil || len(got) != 2 || string(got[0].Body) != "2" || string(got[1].Body) != "1" {
			t.Errorf("%+v, %v", got, err)
		}
		_, _, err = f.Mails(t.Context(), "topic:orders", "", wire.MailQuery{State: "DEAD"})
		f.refused(err, wire.ErrInvalid, "name one of its subscriptions")

		f.mailbox("ceo", nil)
		f.mail("agent:ceo", "a", nil)
		f.kill("ceo", "", "a")
		f.mail("agent:ceo", "b", nil)
		got, _, err = f.Mails(t.Context(), "ceo", "", wire.MailQuery{State: "KEPT"})
		if err != nil || len(got) != 2 || got[0].State != "WAITING" || got[1].State != "DEAD" || got[1].Reason != "broken" || got[1].Died == nil {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

// The home before may hand over a mail that is tried again later without what was tried.
func TestWhyOfAMailWithoutTries(t *testing.T) {
	paired(t, func(t *testing.T, p *pair) {
		p.named("desk", nil)
		p.alpha.mail("agent:desk", "x", nil)
		given := p.alpha.leased("desk")
		p.alpha.settle("desk", "", wire.SettleMail{Nack: []wire.NackMail{{Lease: given.Lease, Delay: wire.Duration(time.Hour)}}})
		cut := false
		p.onWay(func(m *proto.BoxPart) {
			for i, r := range m.Records {
				if len(r) > 40 && r[4] == 14 && r[12] == 6 { // a part of a copy: a retry, whose tries come last
					m.Records[i] = append(slices.Clone(r[:39]), 0)
					binary.BigEndian.PutUint32(m.Records[i], 40)
					cut = true
				}
			}
		}, nil)
		_, err := p.alpha.Handoff(t.Context(), "desk", "beta")
		p.alpha.must(err)
		b, _, err := p.beta.WhyMail(t.Context(), given.Mail.ID)
		p.beta.must(err)
		if !cut || b.Cause.Code != wire.NoteMailRetries || b.Next == nil {
			t.Errorf("cut: %t, %+v", cut, b)
		}
	})
}
