//go:build e2e

package e2e

import (
	"testing"
	"time"

	"github.com/balefire/balefire/wire"
)

// sentMails are the mails that a node has acknowledged to have sent to the mailbox "full" of another.
type sentMails struct {
	read   map[string]bool // by id: whether the acknowledgement of its reader counts
	unsure int             // sends that failed: they may have been written
}

// newSentMails makes the mailbox.
func newSentMails(t *testing.T, home *machine) *sentMails {
	t.Helper()
	lease := wire.Duration(2 * time.Second)
	settings := wire.MailboxSettings{
		BoxSettings:          wire.BoxSettings{Allow: &[]string{"*"}},
		SubscriptionSettings: wire.SubscriptionSettings{Lease: &lease, Attempts: new(100)},
	}
	if _, err := home.SetMailbox(t.Context(), "full", settings); err != nil {
		t.Fatal(err)
	}
	return &sentMails{read: map[string]bool{}}
}

// send sends one mail.
func (s *sentMails) send(t *testing.T, from *machine) error {
	t.Helper()
	sent, err := from.SendMail(t.Context(), wire.Mail{To: "agent:full@b", Body: make([]byte, 2000)})
	if err != nil {
		s.unsure++
		return err
	}
	s.read[sent.ID] = false
	return nil
}

// untilOneWaits waits for a mail in the mailbox.
func (s *sentMails) untilOneWaits(home *machine) {
	home.until("a mail waits in the mailbox", func() bool {
		box, err := home.Mailbox(home.t.Context(), "full")
		return err == nil && box.Waiting > 0
	})
}

// readOne reads one mail, which must be there, and acknowledges it.
func (s *sentMails) readOne(t *testing.T, home *machine) {
	t.Helper()
	given, err := home.LeaseMail(t.Context(), "full", "", wire.LeaseMail{Max: 1})
	if err != nil || len(given) != 1 {
		t.Fatalf("%s gave %d mails, %v, want one", home.name, len(given), err)
	}
	if acked, err := s.acknowledge(t, home, given); err != nil || acked != 1 {
		t.Errorf("%s: %d acknowledgements count, %v, want one", home.name, acked, err)
	}
}

// readAll reads until every mail that was sent has been acknowledged, and no other is left (I21).
func (s *sentMails) readAll(t *testing.T, home *machine) {
	t.Helper()
	open := 0
	for _, read := range s.read {
		if !read {
			open++
		}
	}
	home.until("all mail that was sent has been read", func() bool {
		given, err := home.LeaseMail(t.Context(), "full", "", wire.LeaseMail{Max: 100, Wait: wire.Wait(100 * time.Millisecond)})
		if err != nil {
			t.Fatal(err)
		}
		acked, err := s.acknowledge(t, home, given)
		if err != nil {
			t.Fatal(err)
		}
		open -= acked
		return open <= 0 && len(given) == 0
	})
	t.Logf("counted: %d mails sent, each read once", len(s.read))
}

// acknowledge acknowledges deliveries, and returns how many acknowledgements count of mail that
// was sent.
func (s *sentMails) acknowledge(t *testing.T, home *machine, given []wire.DeliveredMail) (acked int, err error) {
	t.Helper()
	var settle wire.SettleMail
	for _, d := range given {
		if s.read[d.Mail.ID] {
			t.Errorf("I23: %s is delivered after its end", d.Mail.ID)
		}
		settle.Ack = append(settle.Ack, d.Lease)
	}
	if len(given) == 0 {
		return 0, nil
	}
	items, err := home.SettleMail(t.Context(), "full", "", settle)
	if err != nil {
		return 0, err
	}
	for i, d := range given {
		if items[i].Code != wire.SettledOK {
			continue
		}
		if _, sent := s.read[d.Mail.ID]; sent {
			acked++
		} else if s.unsure--; s.unsure < 0 {
			t.Errorf("I21: nobody sent %s", d.Mail.ID)
		}
		s.read[d.Mail.ID] = true
	}
	return acked, nil
}
