package mail

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
)

// At the level debug each event of a mail is a line with stable keys, and no other level has one.
func TestMailIsLogged(t *testing.T) {
	for _, level := range []slog.Level{slog.LevelDebug, slog.LevelInfo} {
		t.Run(level.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				f := newFixture(t, Config{Logger: slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: level}))})
				f.mailbox("agent:ceo")
				f.send("agent:ceo", "x")
				s := f.read("agent:ceo", 1)
				got, _ := f.next(s, 1)
				f.settle("agent:ceo", got[0], box.Nack, proto.CodeOK)
				got, _ = f.next(s, 1)
				f.settle("agent:ceo", got[0], box.Ack, proto.CodeOK)
				l, err := proto.ParseLetter(got[0].Letter)
				if err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				f.stop()
				var events []string
				for line := range bytes.Lines(log.Bytes()) {
					var m struct {
						Msg, Event, Box, Reader, Err string
						ID                           string `json:"mail_id"`
						Seq, Attempt                 int
					}
					if err := json.Unmarshal(line, &m); err != nil {
						t.Fatal(err)
					}
					if m.Msg != "mail" {
						continue
					}
					events = append(events, m.Event)
					if m.Box != "agent:ceo" || m.ID != l.ID.String() || m.Seq != 1 || (m.Event == "mail.delivered") != (m.Reader == "test" && m.Attempt > 0) || (m.Event == "mail.retry") != (m.Err != "") {
						t.Errorf("%s", line)
					}
				}
				want := []string{"mail.accepted", "mail.delivered", "mail.retry", "mail.delivered", "mail.done"}
				if level > slog.LevelDebug {
					want = nil
				}
				if !slices.Equal(events, want) {
					t.Errorf("events %q, want %q", events, want)
				}
			})
		})
	}
}
