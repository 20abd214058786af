package mailbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/wire"
)

// A fullDisk is a fixture whose archive has no room.
type fullDisk struct{ *fixture }

var errNoRoom = errors.New("no space left on device")

func (fullDisk) ArchiveMail([]byte) (string, error) { return "", errNoRoom }

// archived reads the archive.
func (f *fixture) archived() (all []archivedMail) {
	f.t.Helper()
	text, err := os.ReadFile(f.archivePath())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	f.must(err)
	for line := range bytes.Lines(text) {
		var m archivedMail
		f.must(json.Unmarshal(line, &m))
		all = append(all, m)
	}
	return all
}

// I11, I21: dead letters that are too many or too old leave the ledger only for a file in which
// a person finds all of them, with their text; an audit line, an event and a count tell so.
func TestDeadLettersAreArchived(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", func(s *wire.MailboxSettings) { s.Dead, s.DeadAge = ptr(2), ptr(wire.Duration(time.Hour)) })
		sent := f.mail("agent:ceo", "zero <&>\n", func(m *wire.Mail) {
			m.Key, m.Type, m.Sender, m.Labels = "k", "order", "desk", map[string]string{"a": "b"}
		})
		f.kill("ceo", "", "zero <&>\n")
		for _, body := range []string{"one", "two", "\xff\x00"} {
			f.mail("agent:ceo", body, nil)
			f.kill("ceo", "", body)
		}
		time.Sleep(time.Minute) // in the bubble
		got := f.archived()
		if len(got) != 2 || got[0].Text != "zero <&>\n" || got[1].Text != "one" {
			t.Fatalf("archived %+v", got)
		}
		if m := got[0]; m.ID != sent.ID || m.Box != "agent:ceo@alpha" || m.Key != "k" || m.Type != "order" || m.Sender != "desk" || m.From != "alpha" || m.Labels["a"] != "b" ||
			m.State != "DEAD" || m.Reason != "broken" || m.Died == nil || m.Attempts != 1 || len(m.Body) != 0 {
			t.Errorf("archived %s", asJSON(t, m))
		}
		if v := f.box("ceo").Subscriptions[0].Dead; v != 2 {
			t.Errorf("%d dead letters, want 2", v)
		}
		f.mu.Lock()
		audits, e := slices.Clone(f.audits), f.events[len(f.events)-1]
		f.mu.Unlock()
		if want := "dead_mail.archive agent:ceo@alpha: 2 dead letters to dead-mail.jsonl"; !slices.Contains(audits, want) {
			t.Errorf("audit %q", audits)
		}
		if e["kind"] != wire.EventMailArchived || e["box"] != "agent:ceo@alpha" || e["count"] != "2" || e["file"] != "dead-mail.jsonl" {
			t.Errorf("event %q", e)
		}
		if n := f.figures("balefire_mail_archived_total")[""]; n != 2 {
			t.Errorf("%v counted", n)
		}
		time.Sleep(time.Hour)
		if got = f.archived(); len(got) != 4 || got[2].Text != "two" || string(got[3].Body) != "\xff\x00" || got[3].Text != "" {
			t.Errorf("after their age: %s", asJSON(t, got))
		}
	})
}

// While the archive has no room nothing is forgotten, over restarts; then all of it is there
// once.
func TestAFullDiskForgetsNoDeadLetters(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.ledgers = fullDisk{f}
		f.restart()
		f.topic("news", "desk")
		_, err := f.SetSubscription(t.Context(), "news", "desk", wire.SubscriptionSettings{Dead: ptr(1)})
		f.must(err)
		const mails = 5
		for i := range mails {
			body := fmt.Sprint(i, strings.Repeat("x", 200<<10)) // more than the archive is given at once
			f.mail("topic:news", body, nil)
			f.kill("topic:news", "desk", body)
		}
		for range 2 {
			time.Sleep(time.Minute) // in the bubble
			if n := f.box("topic:news").Subscriptions[0].Dead; n != mails {
				t.Errorf("%d dead letters, want %d", n, mails)
			}
			f.restart()
		}
		f.ledgers = nil
		f.restart()
		time.Sleep(time.Minute)
		got := f.archived()
		for i, m := range got {
			if m.Text[:1] != fmt.Sprint(i) || m.Subscription != "desk" || m.Box != "topic:news" {
				t.Errorf("line %d: %.40q of %s in %s", i, m.Text, m.Subscription, m.Box)
			}
		}
		if n := f.box("topic:news").Subscriptions[0].Dead; n != 1 || len(got) != mails-1 {
			t.Errorf("%d dead letters, %d archived", n, len(got))
		}
	})
}
