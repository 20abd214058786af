//go:build e2e

package e2e

import (
	"testing"

	"github.com/balefire/balefire/wire"
)

// openMailbox makes a mailbox to which every node may send.
func (m *machine) openMailbox(name string, s wire.SubscriptionSettings) {
	m.t.Helper()
	if _, err := m.SetMailbox(m.t.Context(), name, wire.MailboxSettings{BoxSettings: wire.BoxSettings{Allow: &[]string{"*"}}, SubscriptionSettings: s}); err != nil {
		m.t.Fatal(err)
	}
}

// box returns a mailbox.
func (m *machine) box(name string) wire.Box {
	m.t.Helper()
	box, err := m.Mailbox(m.t.Context(), name)
	if err != nil {
		m.t.Fatal(err)
	}
	return box
}

// mustSend sends mails, and returns their ids.
func (m *machine) mustSend(mails ...wire.Mail) (ids []string) {
	m.t.Helper()
	for _, mail := range mails {
		sent, err := m.SendMail(m.t.Context(), mail)
		if err != nil {
			m.t.Fatal(err)
		}
		ids = append(ids, sent.ID)
	}
	return ids
}

// mustLease waits for a mail, and leases at most n.
func (m *machine) mustLease(name string, n int) []wire.DeliveredMail {
	m.t.Helper()
	given, err := m.LeaseMail(m.t.Context(), name, "", wire.LeaseMail{Max: n, Wait: wire.Wait(testTimeout)})
	if err != nil || len(given) == 0 {
		m.t.Fatalf("%s leases %d mails of %s: %v", m.name, len(given), name, err)
	}
	return given
}

// leaseAll leases n mails.
func (m *machine) leaseAll(name string, n int) (all []wire.DeliveredMail) {
	m.t.Helper()
	for len(all) < n {
		all = append(all, m.mustLease(name, n-len(all))...)
	}
	return all
}

// hasSent reports whether no mail waits for another node.
func (m *machine) hasSent() bool {
	spools, err := m.Outgoing(m.t.Context())
	return err == nil && len(spools) == 0
}

// mustSettle settles deliveries, each of which counts.
func (m *machine) mustSettle(name string, s wire.SettleMail) {
	m.t.Helper()
	items, err := m.SettleMail(m.t.Context(), name, "", s)
	if err != nil {
		m.t.Fatal(err)
	}
	for _, item := range items {
		if item.Code != wire.SettledOK {
			m.t.Errorf("%s: the settlement of %s is %s", m.name, item.Lease, item.Code)
		}
	}
}

// drain reads and acknowledges mail until none waits, and returns it in the order in which it came.
func (m *machine) drain(name string) (all []wire.DeliveredMail) {
	m.t.Helper()
	for m.box(name).Waiting > 0 {
		given := m.mustLease(name, 100)
		var s wire.SettleMail
		for _, d := range given {
			s.Ack = append(s.Ack, d.Lease)
		}
		m.mustSettle(name, s)
		all = append(all, given...)
	}
	return all
}

// bodies returns the bodies of deliveries.
func bodies(given []wire.DeliveredMail) (all []string) {
	for _, d := range given {
		all = append(all, string(d.Mail.Body))
	}
	return all
}

// restarted kills nodes and starts them again.
func restarted(t *testing.T, ms ...*machine) {
	t.Helper()
	for _, m := range ms {
		m.kill()
		m.start()
	}
}
