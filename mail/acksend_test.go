package mail

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/ledger"
)

// pass forwards a delivery of agent:raw.
func (f *fixture) pass(d Delivery, to Outgoing) Sent {
	f.t.Helper()
	s, err := f.AckAndSend(f.t.Context(), "agent:raw", "", d.Handle, to, time.Second)
	if err != nil {
		f.t.Fatal(err)
	}
	return s
}

// rawFixture returns a broker with the mail "raw" in agent:raw, and its delivery.
func rawFixture(t *testing.T, cfg Config) (*fixture, Delivery) {
	t.Helper()
	cfg.Self = originID
	f := newFixture(t, cfg)
	f.mailbox("agent:raw")
	f.mailbox("agent:next")
	f.send("agent:raw", "raw")
	got, _ := f.next(f.read("agent:raw", 1), 1)
	return f, got[0]
}

// I21, I23: a mail is done and what came of it is in its box, here or in the spool of another
// node: both, also after a restart; and never twice.
func TestAckAndSend(t *testing.T) {
	for _, home := range []proto.PeerID{originID, homeID} {
		synctest.Test(t, func(t *testing.T) {
			f, d := rawFixture(t, Config{})
			to := Outgoing{Box: "agent:next", Home: home, Letter: f.letter("rich", nil)}
			if s := f.pass(d, to); s.Code != proto.CodeOK || s.Duplicate || s.ID.IsZero() {
				t.Fatalf("%+v", s)
			}
			if s := f.pass(d, to); s.Code != proto.CodeOK || !s.Duplicate {
				t.Errorf("again: %+v", s)
			}
			f.restart()
			if s := f.pass(d, to); s.Code != proto.CodeOK || !s.Duplicate {
				t.Errorf("again after a restart: %+v", s)
			}
			if i := f.info("agent:raw"); i.Waiting != 0 || i.EndedAs(box.Done) != 1 {
				t.Errorf("%+v", i)
			}
			if home == originID {
				if _, bodies := f.next(f.read("agent:next", 9), 1); fmt.Sprint(bodies) != "[rich]" || f.info("agent:next").Waiting != 1 {
					t.Errorf("%q", bodies)
				}
				return
			}
			h := newFixture(t, Config{Self: homeID})
			h.mailbox("agent:next")
			l := f.lane(homeID)
			f.answer(l, h.take(f.bundle(l), nil))
			if _, bodies := h.next(h.read("agent:next", 9), 1); fmt.Sprint(bodies) != "[rich]" {
				t.Errorf("at its home: %q", bodies)
			}
			synctest.Wait() // the answer is applied after it was handed over
			if i := f.info("out:agent:next"); i.Waiting != 0 || i.EndedAs(box.Done) != 1 {
				t.Errorf("%+v", i)
			}
		})
	}
}

// I21: wherever the process is killed, the mail and what came of it are never both there or both
// gone.
func TestAckAndSendIsWhole(t *testing.T) {
	for _, written := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t, Config{Self: originID})
			f.late = new(lateLog)
			f.restart()
			f.mailbox("agent:raw")
			f.mailbox("agent:next")
			f.send("agent:raw", "raw")
			got, _ := f.next(f.read("agent:raw", 1), 1)
			if written {
				f.late.hold()
			} else {
				f.late.refuse(store.ErrFailed)
			}
			result := make(chan error, 1)
			to := Outgoing{Box: "agent:next", Home: originID, Letter: f.letter("rich", nil)}
			go func() {
				_, err := f.AckAndSend(context.Background(), "agent:raw", "", got[0].Handle, to, time.Second)
				result <- err
			}()
			synctest.Wait()
			f.stop()
			if err := <-result; !errors.Is(err, ErrUnknown) {
				t.Errorf("written %v: %v", written, err)
			}
			f.late = nil
			f.start()
			raw, next := f.info("agent:raw").Waiting, f.info("agent:next").Waiting
			if raw+next != 1 || written != (next == 1) {
				t.Errorf("written %v: %d and %d mails", written, raw, next)
			}
		})
	}
}

// What cannot be put into its box leaves its mail where it was: to be delivered again, or as a
// dead letter.
func TestAckAndSendRefused(t *testing.T) {
	for _, tt := range []struct {
		name  string
		to    func(f *fixture) Outgoing
		want  proto.Code
		state box.MailState // of the mail
	}{
		{"no such box", func(f *fixture) Outgoing {
			return Outgoing{Box: "agent:nobody", Home: originID, Letter: f.letter("rich", nil)}
		}, proto.CodeNoHandler, box.Retrying},
		{"a spool", func(f *fixture) Outgoing {
			if err := f.SetHome(f.t.Context(), "agent:next", homeID, 1); err != nil {
				f.t.Fatal(err)
			}
			return Outgoing{Box: "out:agent:next", Home: originID, Letter: f.letter("rich", nil)}
		}, proto.CodeNoHandler, box.Retrying},
		{"full", func(f *fixture) Outgoing {
			if err := f.SetBox(f.t.Context(), box.BoxSettings{Name: "agent:next", Kind: box.Mailbox, Mails: 1}); err != nil {
				f.t.Fatal(err)
			}
			f.send("agent:next", "first")
			return Outgoing{Box: "agent:next", Home: originID, Letter: f.letter("rich", nil)}
		}, proto.CodeFull, box.Retrying},
		{"too large", func(f *fixture) Outgoing {
			if err := f.SetBox(f.t.Context(), box.BoxSettings{Name: "agent:next", Kind: box.Mailbox, Bytes: 100}); err != nil {
				f.t.Fatal(err)
			}
			return Outgoing{Box: "agent:next", Home: originID, Letter: f.letter(strings.Repeat("x", 100), nil)}
		}, proto.CodeTooLarge, box.Dead},
		{"no letter", func(*fixture) Outgoing {
			return Outgoing{Box: "agent:next", Home: homeID, Letter: []byte("x")}
		}, proto.CodeBadForm, box.Dead},
		{"a bad name", func(f *fixture) Outgoing {
			return Outgoing{Box: "a b", Home: homeID, Letter: f.letter("rich", nil)}
		}, proto.CodeBadForm, box.Dead},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f, d := rawFixture(t, Config{})
			if s := f.pass(d, tt.to(f)); s.Code != tt.want || s.Detail == "" {
				t.Errorf("%+v, want %v", s, tt.want)
			}
			if err := f.View(t.Context(), func(*box.State) {}); err != nil { // the record is queued
				t.Fatal(err)
			}
			f.restart()
			i := f.info("agent:raw")
			if (i.Waiting == 1) != (tt.state == box.Retrying) || i.EndedAs(box.Dead) != uint64(1-i.Waiting) {
				t.Errorf("%+v", i)
			}
			err := f.View(t.Context(), func(s *box.State) {
				id, _ := s.Find("agent:raw")
				for m := range s.Mails(id, 0, 0) {
					if m.Attempts != 0 || len(m.Tries) != 1 || m.Tries[0].Cause != box.CauseDeferred {
						t.Errorf("%+v", m)
					}
				}
			})
			if err != nil {
				t.Error(err)
			}
			if s := f.info("agent:next"); tt.want != proto.CodeFull && s.Waiting > 0 {
				t.Errorf("it was sent: %+v", s)
			}
		})
	}
	f, d := rawFixture(t, Config{})
	d.Handle.N++
	if s := f.pass(d, Outgoing{Box: "agent:next", Home: originID, Letter: f.letter("rich", nil)}); s.Code != proto.CodeBadForm || f.info("agent:raw").Waiting != 1 {
		t.Errorf("a delivery that never was: %+v", s)
	}
	if _, err := f.AckAndSend(t.Context(), "agent:nobody", "", d.Handle, Outgoing{Box: "agent:next", Home: originID, Letter: f.letter("rich", nil)}, time.Second); !errors.Is(err, box.ErrNotFound) {
		t.Errorf("of no box: %v", err)
	}
}

// Behind a gap of a rebuilt ledger what came of a mail is kept, and can be read.
func TestForwardBehindAGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, Config{Self: originID})
		f.mailbox("agent:raw")
		f.mailbox("agent:next")
		f.send("agent:raw", "lost mail", "raw")
		got, _ := f.next(f.read("agent:raw", 2), 2)
		f.pass(got[1], Outgoing{Box: "agent:next", Home: originID, Letter: f.letter("rich", nil)})
		time.Sleep(time.Second)
		f.stop()
		damage(t, f.dir, "lost mail")
		dir := f.dir + "-rebuilt"
		if _, err := ledger.Rebuild(f.dir, dir); err != nil {
			t.Fatal(err)
		}
		f.dir = dir
		f.start()
		if _, bodies := f.next(f.read("agent:next", 9), 1); fmt.Sprint(bodies) != "[rich]" {
			t.Errorf("%q", bodies)
		}
	})
}
