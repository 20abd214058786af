package mailbox

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/wire"
)

// A disk below its reserve takes no new mail, and the ends of mail: their senders are told, here
// and on another node.
func TestBounceOnAFullDisk(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		f.mailbox("boss", nil)
		for _, to := range []string{"", "agent:desk@beta"} {
			f.mail("agent:ceo", "hello", func(m *wire.Mail) { m.Sender, m.BounceTo, m.TTL = "boss", to, wire.Duration(time.Minute) })
		}
		f.full.Store(true)
		time.Sleep(2 * time.Minute)
		_, err := f.trySend("agent:boss", "new", nil)
		f.refused(err, wire.ErrFull, "the disk is below its reserve")
		if got, bodies := f.lease("boss", "", 9, time.Second); len(got) != 1 || got[0].Mail.Type != wire.TypeBounce || !strings.Contains(bodies[0], `"cause":"expired"`) {
			t.Errorf("leased %q", bodies)
		}
		out, err := f.Outgoing(t.Context())
		if err != nil || len(out) != 1 || out[0].Mails != 1 || len(f.events) > 0 {
			t.Errorf("for the other node %+v, %v; events %v", out, err, f.events)
		}
	})
}

// A mail that its box for JSON refuses is a dead letter at once, and its sender is told; the bounce itself
// is JSON.
func TestBounceOfABodyThatIsNotJSON(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		only := func(s *wire.MailboxSettings) { s.JSON = ptr(true) }
		f.mailbox("ceo", only)
		f.mailbox("boss", only)
		f.mail("agent:ceo", `{"ok":true}`, nil)
		sent := f.mail("agent:ceo", "hello", func(m *wire.Mail) { m.Sender = "boss" })
		synctest.Wait()
		if dead := f.mails("ceo", "", wire.MailQuery{State: "DEAD"}); len(dead) != 1 || dead[0] != "hello" {
			t.Errorf("dead letters %q", dead)
		}
		if got, bodies := f.lease("boss", "", 9, time.Second); len(got) != 1 || got[0].Mail.BounceOf != sent.ID || !strings.Contains(bodies[0], `"cause":"not_json"`) {
			t.Errorf("leased %q", bodies)
		}
		f.one("ceo", "", `{"ok":true}`)
	})
}

// The event of a bounce that is not sent says why (I21).
func TestUnheardBounce(t *testing.T) {
	for cause, change := range map[string]func(f *fixture){
		"full": func(f *fixture) {
			f.mailbox("boss", func(s *wire.MailboxSettings) { s.Mails = ptr(1) })
			f.mail("agent:boss", "fills it", nil)
		},
		"full of keys": func(f *fixture) {
			f.limits = box.Limits{Keys: 1}
			f.restart()
			synctest.Wait() // until they are set
			f.mail("agent:boss", "a key", func(m *wire.Mail) { m.Dedupe = "1" })
		},
		"refused": func(f *fixture) { f.mailbox("boss", func(s *wire.MailboxSettings) { s.Draining = ptr(true) }) },
		"no_box":  func(f *fixture) { f.must(f.Remove(t.Context(), "boss")) },
	} {
		t.Run(cause, func(t *testing.T) {
			bubble(t, func(t *testing.T, f *fixture) {
				f.mailbox("ceo", nil)
				f.mailbox("boss", nil)
				f.mail("agent:ceo", "hello", func(m *wire.Mail) { m.Sender = "boss" })
				change(f)
				f.kill("ceo", "", "hello")
				synctest.Wait()
				want, _, _ := strings.Cut(cause, " ")
				if len(f.events) != 1 || f.events[0]["cause"] != want || f.events[0]["to"] != "agent:boss@alpha" {
					t.Errorf("events %v", f.events)
				}
			})
		})
	}
}
