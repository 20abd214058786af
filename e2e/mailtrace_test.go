//go:build e2e

package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/wire"
)

// TestMailTrace checks that the nodes of a mail's sender and of its box tell one story of it
// afterwards: their events while they run, then why, and what they keep when both were killed.
func TestMailTrace(t *testing.T) {
	a, b := pair(t, config{engine: engines[0]})
	b.openMailbox("desk", wire.SubscriptionSettings{Attempts: new(2)})
	if _, err := b.SetMailbox(t.Context(), "closed", wire.MailboxSettings{}); err != nil {
		t.Fatal(err)
	}
	a.openMailbox("me", wire.SubscriptionSettings{})
	names := []string{"done", "again", "dead", "deferred", "closed"}
	var mails []wire.Mail
	for _, name := range names {
		mails = append(mails, wire.Mail{To: "agent:desk@b", Type: name, Receipt: true, BounceTo: "agent:me"})
	}
	mails[4].To = "agent:closed@b"
	ids := a.mustSend(mails...)
	b.until("the mail is taken", func() bool { return b.box("desk").Next == 5 })
	for _, d := range b.leaseAll("desk", 3) {
		s := wire.SettleMail{Ack: []string{d.Lease}}
		switch d.Mail.Type {
		case "again":
			s = wire.SettleMail{Nack: []wire.NackMail{{Lease: d.Lease, Delay: wire.Duration(time.Millisecond)}}}
		case "dead":
			s = wire.SettleMail{Nack: []wire.NackMail{{Lease: d.Lease, Final: true}}}
		}
		b.mustSettle("desk", s)
	}
	b.until("the one that failed is ready", func() bool {
		m, err := b.Mail(t.Context(), ids[1])
		return err == nil && m.Due != nil && !m.Due.After(time.Now())
	})
	for _, d := range b.leaseAll("desk", 2) {
		s := wire.SettleMail{Ack: []string{d.Lease}}
		if d.Mail.Type == "deferred" {
			s = wire.SettleMail{Defer: []wire.DeferMail{{Lease: d.Lease}}}
		}
		b.mustSettle("desk", s)
	}
	a.until("nothing is on its way", func() bool { return a.hasSent() && a.box("me").Next == 3 })
	traces(t, a, ids, map[string]string{"done": "sent done", "again": "sent done", "dead": "sent done", "deferred": "sent done", "closed": "sent dead"}, names)
	traces(t, b, ids, map[string]string{
		"done": "accepted delivered done", "again": "accepted delivered retry delivered done", "dead": "accepted delivered dead",
		"deferred": "accepted delivered retry", "closed": "refused",
	}, names)
	restarted(t, a, b)
	states := map[string]string{"done": "DONE", "again": "DONE", "dead": "DEAD", "deferred": "RETRYING"}
	for i, name := range names[:4] {
		there, err := b.Why(t.Context(), ids[i])
		here, failed := a.Why(t.Context(), ids[i])
		if err != nil || failed != nil || here.State != "ACCEPTED" || here.Cause.Peer != "b" || there.State != states[name] {
			t.Errorf("%s: the sender says %s at %s, the home %s; %v, %v", name, here.State, here.Cause.Peer, there.State, failed, err)
		}
	}
	kept, err := b.BoxMails(t.Context(), "desk", "", wire.MailQuery{State: "KEPT"})
	if err != nil || len(kept.Items) != 4 {
		t.Fatalf("the history has %d mails, %v", len(kept.Items), err)
	}
	for i, m := range kept.Items {
		if name := names[3-i]; m.ID != ids[3-i] || m.State != states[name] {
			t.Errorf("mail %d of the history is %s %s, want %s, %s", i, m.ID, m.State, name, states[name])
		}
	}
	if told := bounced(a.drain("me")); !slices.Equal(told, []string{ids[2], ids[4]}) {
		t.Errorf("the sender was told of %q, want %q and %q", told, ids[2], ids[4])
	}
}

// bounced returns of which mails letters tell.
func bounced(told []wire.DeliveredMail) (ids []string) {
	for _, d := range told {
		ids = append(ids, d.Mail.BounceOf)
	}
	slices.Sort(ids) // an id begins with its time
	return ids
}

// traces compares the events of each mail with what happened to it.
func traces(t *testing.T, m *machine, ids []string, want map[string]string, names []string) {
	t.Helper()
	page, err := m.MailEvents(t.Context(), "*", 0, 1000, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range names {
		var kinds []string
		for _, e := range page.Items {
			if e.Fields["mail"] == ids[i] {
				kinds = append(kinds, strings.TrimPrefix(e.Kind, "mail."))
			}
		}
		if got := strings.Join(kinds, " "); got != want[name] {
			t.Errorf("%s has the events %q of the mail %q, want %q", m.name, got, name, want[name])
		}
	}
}
