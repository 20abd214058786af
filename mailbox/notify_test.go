package mailbox

import (
	"encoding/json"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// I21: a sender that asked for it is told that its mail is DONE, by a mail to the box that would be
// told of another end; of a dead letter that was sent again its first sender is.
func TestNotifyDone(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		f.mailbox("boss", nil)
		f.mail("agent:ceo", "not asked", func(m *wire.Mail) { m.Sender = "boss" })
		sent := f.mail("agent:ceo", "asked", func(m *wire.Mail) { m.Sender, m.Notify, m.Correlation = "boss", "done", "7" })
		given, _ := f.lease("ceo", "", 2, 0)
		for _, d := range given {
			f.ack("ceo", "", d)
		}
		told, bodies := f.lease("boss", "", 9, time.Second)
		if len(told) != 1 {
			t.Fatalf("%d mails: %q", len(told), bodies)
		}
		m := told[0].Mail
		var end struct{ Box, State, Cause, ID string }
		if err := json.Unmarshal(m.Body, &end); err != nil || m.Type != wire.TypeDone || m.BounceOf != sent.ID || m.Class != "high" || m.Correlation != "7" ||
			end.Box != "agent:ceo@"+f.self.String() || end.State != "DONE" || end.Cause != "" || end.ID != sent.ID {
			t.Errorf("%+v, %s, %v", m, m.Body, err)
		}
		f.ack("boss", "", told[0])
		again := f.mail("agent:ceo", "again", func(m *wire.Mail) { m.Sender, m.Notify = "boss", "done" })
		f.kill("ceo", "", "again")
		_, err := f.Redrive(t.Context(), "ceo", "", wire.RedriveMail{})
		f.must(err)
		f.ack("ceo", "", f.one("ceo", "", "again"))
		synctest.Wait()
		ends := map[string]string{}
		told, _ = f.lease("boss", "", 9, time.Second)
		for _, d := range told {
			var end struct {
				State   string
				FirstID string `json:"first_id"`
			}
			f.must(json.Unmarshal(d.Mail.Body, &end))
			ends[end.State] = end.FirstID
		}
		if want := map[string]string{"DEAD": "", "DONE": again.ID}; !maps.Equal(ends, want) {
			t.Errorf("told of %v, want %v", ends, want)
		}
	})
}

// A mail is not sent that asks for what nobody could be told.
func TestNotifyThatNobodyHears(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		f.topic("orders", "one")
		for says, m := range map[string]wire.Mail{
			"a mail to a topic has an end in each subscription":            {To: "topic:orders", Notify: "done", Sender: "boss"},
			"nobody could be told: name the sender, reply_to or bounce_to": {To: "agent:ceo", Notify: "done"},
			`notify "read": must be done`:                                  {To: "agent:ceo", Notify: "read", Sender: "boss"},
		} {
			_, err := f.trySend(m.To, "x", func(x *wire.Mail) { *x = m })
			f.refused(err, wire.ErrInvalid, says)
		}
		_, err := f.Request(t.Context(), wire.MailRequest{Mail: wire.Mail{To: "agent:ceo", Notify: "done", Sender: "boss"}})
		f.refused(err, wire.ErrInvalid, "the reply to a request tells that it is done")
		now := time.Now()
		letter := func(to string, change func(*proto.Letter)) Letter {
			l := &proto.Letter{Class: proto.Normal, ID: proto.NewMailID(now), Created: now.UnixMilli(), NotAfter: now.Add(time.Hour).UnixMilli(), Flags: proto.LetterTellEnd}
			change(l)
			raw, err := proto.AppendLetter(nil, l)
			f.must(err)
			return Letter{To: []byte(to), Letter: raw}
		}
		boss := func(l *proto.Letter) { l.Sender = []byte("boss") }
		out := f.QueueLetters([]Letter{letter("topic:orders", boss), letter("agent:ceo", func(*proto.Letter) {})}).Wait(t.Context())
		for i, says := range []string{"a mail to a topic has", "nobody could be told"} {
			f.refused(out[i].Err, wire.ErrInvalid, says)
		}
		_, _, err = f.RequestLetter(t.Context(), letter("agent:ceo", boss), nil, 0)
		f.refused(err, wire.ErrInvalid, "the reply to a request tells")
		if n := f.box("ceo").Waiting + f.box("topic:orders").Waiting; n != 0 {
			t.Errorf("%d mails were sent", n)
		}
	})
}

// An event has what nobody could be told, and the mail is told once (I21).
func TestDoneThatNobodyHears(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		sent := f.mail("agent:ceo", "asked", func(m *wire.Mail) { m.Sender, m.Notify = "boss", "done" })
		f.ack("ceo", "", f.one("ceo", "", "asked"))
		synctest.Wait()
		if len(f.events) != 1 || f.events[0]["kind"] != wire.EventMailUntold || f.events[0]["mail"] != sent.ID || f.events[0]["cause"] != "no_box" {
			t.Errorf("%v", f.events)
		}
		f.restart()
		synctest.Wait()
		if len(f.events) != 1 {
			t.Errorf("after a restart: %v", f.events)
		}
	})
}
