package mailbox

import (
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// I14: a mail of a program that dates it by the clock of the machine is taken while that clock
// is doubted, with its whole delay and time to live, and so is a request.
func TestLetterUnderADoubtedClock(t *testing.T) {
	const year = 365 * 24 * time.Hour
	for _, off := range []time.Duration{0, 6 * time.Minute, time.Hour, -time.Hour, 240 * time.Hour, -240 * time.Hour, 20 * year, -20 * year} {
		t.Run(off.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T, f *fixture) {
				f.mailbox("ceo", nil)
				f.off.Store(int64(off))
				if doubted := f.cfg.Clock.Doubted(); doubted != (off != 0) {
					t.Fatalf("doubted %v", doubted)
				}
				letter := func(body string) Letter {
					made := time.Now().Add(off)
					l := &proto.Letter{Class: proto.Normal, ID: proto.NewMailID(made), Created: made.UnixMilli(), NotBefore: made.Add(time.Hour).UnixMilli(), NotAfter: made.Add(2 * time.Hour).UnixMilli(), Body: []byte(body)}
					raw, err := proto.AppendLetter(nil, l)
					f.must(err)
					return Letter{[]byte("agent:ceo"), raw}
				}
				began := time.Now()
				f.must(f.QueueLetters([]Letter{letter("mail")}).Wait(t.Context())[0].Err)
				_, _, err := f.RequestLetter(t.Context(), letter("request"), nil, time.Millisecond)
				f.must(err)
				f.off.Store(0)
				time.Sleep(time.Hour - time.Second)
				if _, bodies := f.lease("ceo", "", 9, 0); len(bodies) > 0 {
					t.Errorf("%q came before its time", bodies)
				}
				time.Sleep(2 * time.Second)
				got, bodies := f.lease("ceo", "", 9, 0)
				if len(bodies) != 2 {
					t.Errorf("%q came", bodies)
				}
				for _, d := range got {
					if d.Mail.Created.Sub(began).Abs() > time.Second || d.Mail.NotAfter.Sub(began.Add(2*time.Hour)).Abs() > time.Second {
						t.Errorf("%s was made at %s and ends at %s", d.Mail.Body, d.Mail.Created, d.Mail.NotAfter)
					}
				}
			})
		})
	}
}

// What died before the clock is known can be explained.
func TestWhyOfADeathBeforeTheClockIsKnown(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		sent := f.mail("agent:ceo", "dies", nil)
		f.off.Store(int64(50 * 365 * 24 * time.Hour))
		f.bound = true
		f.restart()
		got, _ := f.lease("ceo", "", 1, 0)
		f.settle("ceo", "", wire.SettleMail{Nack: []wire.NackMail{{Lease: got[0].Lease, Final: true}}})
		f.why(sent.ID, "DEAD", wire.NoteMailDead)
	})
}
