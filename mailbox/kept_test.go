package mailbox

import (
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/wire"
)

// kept returns the states and texts of what a box keeps, the newest first.
func (f *fixture) kept(name string) string {
	f.t.Helper()
	all, _, err := f.Mails(f.t.Context(), name, "", wire.MailQuery{State: stateKept})
	f.must(err)
	var out []string
	for _, m := range all {
		out = append(out, m.State+" "+string(m.Body))
	}
	return strings.Join(out, ", ")
}

// TestMailboxKeepsWhatIsDone looks at mail that is done, in a list and by its id, over a restart,
// until it is too old.
func TestMailboxKeepsWhatIsDone(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", func(s *wire.MailboxSettings) { s.Keep = ptr(wire.Duration(2 * time.Hour)) })
		f.mailbox("desk", nil)
		var ids []string
		for _, text := range []string{"first", "second", "third"} {
			ids = append(ids, f.mail("agent:ceo", text, nil).ID)
		}
		f.mail("agent:desk", "elsewhere", nil)
		d, _ := f.lease("ceo", "", 2, 0)
		f.ack("ceo", "", d[1])
		f.ack("ceo", "", d[0])
		e, _ := f.lease("desk", "", 1, 0)
		f.ack("desk", "", e[0])
		why := func(id string) {
			t.Helper()
			x, _, err := f.WhyMail(t.Context(), id)
			f.must(err)
			if x.State != "DONE" || x.Cause.Code != wire.NoteMailEnded || x.Cause.Box != "agent:ceo@alpha" || x.Cause.State != "DONE" {
				t.Errorf("why: %s", asJSON(t, x))
			}
		}
		why(ids[1])
		f.restart()
		why(ids[1]) // its end is not among the events of this start
		if got := f.kept("ceo"); got != "WAITING third, DONE second, DONE first" {
			t.Errorf("it keeps %q", got)
		}
		if got := f.kept("desk"); got != "" {
			t.Errorf("a mailbox that keeps nothing has %q", got)
		}
		m, err := f.Mail(t.Context(), ids[0])
		f.must(err)
		if m.State != "DONE" || string(m.Body) != "first" || m.Seq != 1 {
			t.Errorf("by its id it is %s", asJSON(t, m))
		}
		if v := f.box("ceo"); v.Waiting != 1 || v.Ended.Done != 2 {
			t.Errorf("what is kept counts: %s", asJSON(t, v))
		}
		time.Sleep(3 * time.Hour)
		if got := f.kept("ceo"); got != "WAITING third" {
			t.Errorf("after three hours it keeps %q", got)
		}
		_, err = f.Mail(t.Context(), ids[0])
		f.refused(err, wire.ErrNotFound, "it has ended and is not kept")
	})
}
