//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/mailbox"
	"github.com/balefire/balefire/wire"
)

// handoffPoints are the moments of a handover of a box at which one of its homes can be killed.
var handoffPoints = []struct {
	name string
	next bool // the new home is
	late bool // it is back when the other one has read all, removed the box and made it again
}{
	{mailbox.PointCopied + ":2", true, false},
	{mailbox.PointServe + ":1", true, false},
	{mailbox.PointLeave + ":1", false, true},
	{mailbox.PointPart + ":1", false, false},
	{mailbox.PointCopy + ":2", true, false},
	{mailbox.PointPart + ":3", false, false},
	{mailbox.PointCopied + ":3", true, false},
}

// TestMailHandoffIsKilled checks I21 when one of two nodes is killed while a mailbox goes from the
// one to the other: one of them has all of it afterwards, once, and what was acknowledged is done.
func TestMailHandoffIsKilled(t *testing.T) {
	a, b := pair(t, config{engine: engines[0]})
	settings := wire.MailboxSettings{Named: true, BoxSettings: wire.BoxSettings{Allow: &[]string{"*"}, AllowRead: &[]string{"*"}}}
	if _, err := a.SetMailbox(t.Context(), "desk", settings); err != nil {
		t.Fatal(err)
	}
	sent, home, other := 0, a, b
	for _, pt := range either(handoffPoints[:3], handoffPoints) {
		t.Run(strings.ReplaceAll(pt.name, "/", " "), func(t *testing.T) {
			dies := home
			if pt.next {
				dies = other
			}
			dies.stop()
			dies.start("BALEFIRE_FAILPOINT=" + pt.name)
			left := map[string]bool{}
			for range 3 {
				var mails []wire.Mail
				for range 300 {
					sent++
					left[fmt.Sprint(sent)] = true
					mails = append(mails, wire.Mail{To: "agent:desk", Body: fmt.Append(nil, sent)})
				}
				_, errs := home.SendMails(t.Context(), mails)
				for _, err := range errs {
					if err != nil {
						t.Fatal(err)
					}
				}
			}
			readLeft(t, home, left, 100)
			home.until("the two are connected", func() bool {
				p, err := home.Peer(t.Context(), other.name)
				return err == nil && p.State == "CONNECTED"
			})
			answered, dead := make(chan error, 1), make(chan struct{})
			from := home.Client
			go func() {
				answered <- handOffUntil(t, from, other.name, dead)
			}()
			dies.waitDeath()
			close(dead)
			<-answered
			if pt.late {
				other.until("the new home serves the box", func() bool {
					_, err := other.Mailbox(t.Context(), "agent:desk")
					return err == nil
				})
				readLeft(t, other, left, len(left))
				if err := other.RemoveMailbox(t.Context(), "agent:desk"); err != nil {
					t.Fatal(err)
				}
				if _, err := other.SetMailbox(t.Context(), "desk", settings); err != nil {
					t.Fatal(err)
				}
			}
			dies.start()
			has := func(m *machine) bool {
				_, err := m.Mailbox(t.Context(), "agent:desk")
				return err == nil
			}
			home.until("one of the two has the box", func() bool { return has(a) != has(b) })
			if has(other) {
				home, other = other, home
			}
			readLeft(t, home, left, len(left))
			if _, err := other.Mailbox(t.Context(), "agent:desk"); err == nil {
				t.Error("the other one has it, too")
			}
			if !pt.late {
				return
			}
			if given, err := home.LeaseMail(t.Context(), "agent:desk", "", wire.LeaseMail{Max: 1, Wait: wire.Wait(15 * time.Second)}); err != nil || len(given) > 0 {
				t.Errorf("%d mails come again: %v", len(given), err)
			}
		})
	}
}

// readLeft reads and acknowledges n mails of those that are left.
func readLeft(t *testing.T, at *machine, left map[string]bool, n int) {
	t.Helper()
	for n > 0 {
		given, err := at.LeaseMail(t.Context(), "agent:desk", "", wire.LeaseMail{Max: min(n, 100), Wait: wire.Wait(10 * time.Second)})
		if err != nil || len(given) == 0 {
			t.Fatalf("%d mails are missing: %v", n, err)
		}
		var done wire.SettleMail
		for _, d := range given {
			body := string(d.Mail.Body)
			if !left[body] {
				t.Errorf("mail %s comes again", body)
			}
			delete(left, body)
			done.Ack = append(done.Ack, d.Lease)
		}
		if _, err := at.SettleMail(t.Context(), "agent:desk", "", done); err != nil {
			t.Fatal(err)
		}
		n -= len(given)
	}
}

// handOffUntil hands the mailbox over. The other node may refuse it at first: it may have its own of
// an earlier handover until it has heard what became of that.
func handOffUntil(t *testing.T, from *client.Client, to string, dead <-chan struct{}) error {
	for {
		_, err := from.HandOffBox(t.Context(), "agent:desk", to)
		if !errors.Is(err, wire.ErrRefused) {
			return err
		}
		select {
		case <-dead:
			return err
		case <-time.After(time.Second):
		}
	}
}
