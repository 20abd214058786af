//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/mailbox"
	"github.com/balefire/balefire/wire"
)

// handoffPoints are the moments of a handover of a box at which one of its homes can be killed.
var handoffPoints = []struct {
	name string
	next bool // the new home is
}{
	{mailbox.PointCopied + ":2", true},
	{mailbox.PointServe + ":1", true},
	{mailbox.PointLeave + ":1", false},
	{mailbox.PointPart + ":1", false},
	{mailbox.PointCopy + ":2", true},
	{mailbox.PointPart + ":3", false},
	{mailbox.PointCopied + ":3", true},
}

// TestMailHandoffIsKilled checks I21 when one of two nodes is killed while a mailbox goes from the
// one to the other: one of them has all of it afterwards, once, and what was acknowledged is done.
func TestMailHandoffIsKilled(t *testing.T) {
	a, b := pair(t, config{engine: engines[0]})
	if _, err := a.SetMailbox(t.Context(), "desk", wire.MailboxSettings{Named: true, BoxSettings: wire.BoxSettings{Allow: &[]string{"*"}, AllowRead: &[]string{"*"}}}); err != nil {
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
			read := func(at *machine, n int) {
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
			read(home, 100)
			home.until("the two are connected", func() bool {
				p, err := home.Peer(t.Context(), other.name)
				return err == nil && p.State == "CONNECTED"
			})
			answered := make(chan error, 1)
			from := home.Client
			go func() {
				_, err := from.HandOffBox(t.Context(), "agent:desk", other.name)
				answered <- err
			}()
			dies.waitFailpoint()
			<-answered
			has := func(m *machine) bool {
				_, err := m.Mailbox(t.Context(), "agent:desk")
				return err == nil
			}
			home.until("one of the two has the box", func() bool { return has(a) != has(b) })
			if has(other) {
				home, other = other, home
			}
			read(home, len(left))
			if _, err := other.Mailbox(t.Context(), "agent:desk"); err == nil {
				t.Error("the other one has it, too")
			}
		})
	}
}
