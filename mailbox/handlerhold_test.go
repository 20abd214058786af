package mailbox

import (
	"context"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/ledger"
	"github.com/balefire/balefire/wire"
)

// While the box to which a handler forwards is gone, or takes nothing, no program runs for nothing:
// the mail waits, nothing is spent, and why of the box tells.
func TestHandlerHoldsWhatItCannotForward(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		runs, remove := 0, true
		f.programs.run = func(context.Context, *handler.Run, string) *handler.Result {
			if runs++; remove { // while the program runs
				remove = false
				f.must(f.Remove(context.Background(), "next"))
			}
			return &handler.Result{Outcome: handler.Success, Output: []byte("rich")}
		}
		f.mailbox("next", nil)
		f.handle(wire.MailHandler{Forward: "agent:next"})
		f.sendRaw(wire.Mail{}, wire.Mail{})
		time.Sleep(10 * time.Minute)
		held := f.inState("raw", "")
		if len(held) != 2 || held[0].Attempts+held[0].Abandons+held[1].Attempts > 0 || runs != 1 {
			t.Fatalf("%d runs, %+v", runs, held)
		}
		want := wire.Note{Code: wire.NoteHandlerStopped, NoteArgs: wire.NoteArgs{Box: "agent:raw@alpha", Cause: string(wire.ProblemForwardMissing), Other: "agent:next@alpha"}}
		for _, why := range []func() (wire.Blocker, proto.PeerID, error){
			func() (wire.Blocker, proto.PeerID, error) { return f.WhyBox(t.Context(), "agent:raw") },
			func() (wire.Blocker, proto.PeerID, error) { return f.WhyMail(t.Context(), held[1].ID) },
		} {
			if e, _, err := why(); err != nil || !reflect.DeepEqual(e.Cause, want) {
				t.Errorf("%+v, %v", e.Cause, err)
			}
		}
		f.mailbox("next", nil)
		time.Sleep(time.Minute)
		if v, n := f.box("raw"), f.box("next"); v.Ended.Done != 2 || n.Waiting != 2 || runs != 3 || v.Problem != nil {
			t.Errorf("%d runs, %+v, %+v", runs, v, n)
		}
	})
}

// While there is no room for what a program wrote it does not run again; when there can never be,
// it is refused for good.
func TestHandlerHoldsWhatHasNoRoom(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		runs := 0
		f.programs.run = func(context.Context, *handler.Run, string) *handler.Result {
			runs++
			return &handler.Result{Outcome: handler.Success, Output: make([]byte, 150_000)}
		}
		limit := func(bytes int64) {
			f.mailbox("next", func(s *wire.MailboxSettings) { s.Bytes = &bytes })
		}
		limit(250_000)
		f.handle(wire.MailHandler{Forward: "agent:next"})
		fill := func() {
			f.mail("agent:next", strings.Repeat("x", 150_000), nil)
			f.sendRaw(wire.Mail{})
			time.Sleep(10 * time.Minute)
			if v := f.box("raw"); v.Waiting != 1 || v.Problem == nil || v.Problem.Code != wire.ProblemForwardRefused || v.Problem.Other != "agent:next@alpha" || v.Problem.Refusal != "FULL" {
				t.Errorf("after %d runs %+v", runs, v)
			}
		}
		fill()
		if runs != 1 {
			t.Errorf("%d runs while there is no room", runs)
		}
		given, _ := f.lease("next", "", 1, 0)
		f.ack("next", "", given[0])
		time.Sleep(time.Minute)
		if v := f.box("raw"); v.Ended.Done != 1 || runs != 2 {
			t.Errorf("after %d runs %+v", runs, v)
		}
		given, _ = f.lease("next", "", 1, 0)
		f.ack("next", "", given[0])
		fill()
		limit(100_000)
		given, _ = f.lease("next", "", 1, 0)
		f.ack("next", "", given[0])
		time.Sleep(time.Minute)
		if v := f.box("raw"); v.Ended.Dead != 1 || runs != 4 {
			t.Errorf("after %d runs %+v", runs, v)
		}
	})
}

// Why of a box whose program cannot be run says so, and not that nobody reads it.
func TestWhyABoxIsNotHandled(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.programs.run = func(context.Context, *handler.Run, string) *handler.Result {
			return &handler.Result{Outcome: handler.Unready, Reason: "no program there"}
		}
		f.handle(wire.MailHandler{})
		f.sendRaw(wire.Mail{})
		synctest.Wait()
		if e, _, err := f.WhyBox(t.Context(), "raw"); err != nil || e.Cause.Code != wire.NoteHandlerStopped || e.Cause.Cause != string(wire.ProblemUnready) || e.Cause.Detail != "no program there" || e.Cause.Box != "agent:raw@alpha" {
			t.Errorf("%+v, %v", e.Cause, err)
		}
	})
}

// The handler of a mailbox that somebody else reads alone says who that is, and begins behind it.
func TestHandlerOfABoxThatIsHeld(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.programs.run = func(context.Context, *handler.Run, string) *handler.Result {
			return &handler.Result{Outcome: handler.Success}
		}
		f.mailbox("raw", func(s *wire.MailboxSettings) { s.Mode = ptr("exclusive") })
		r, err := f.Read(t.Context(), "raw", "", wire.LeaseMail{Reader: "ceo", Max: 1})
		f.must(err)
		f.handle(wire.MailHandler{})
		time.Sleep(time.Second)
		if p, want := f.box("raw").Problem, (&wire.Note{Code: wire.ProblemHeld, NoteArgs: wire.NoteArgs{Names: []string{"ceo"}}}); !reflect.DeepEqual(p, want) {
			t.Errorf("%+v, want %+v", p, want)
		}
		f.must(r.Close(t.Context(), true))
		time.Sleep(handlerRetry)
		f.sendRaw(wire.Mail{})
		time.Sleep(time.Second)
		if v := f.box("raw"); v.Problem != nil || v.Ended.Done != 1 {
			t.Errorf("%+v", v)
		}
	})
}

// Two changes of one mailbox at once both count.
func TestChangesAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		for range 20 {
			var both sync.WaitGroup
			f.mailbox("ceo", func(s *wire.MailboxSettings) {
				s.Mails, s.Attempts, s.Allow, s.Lease = ptr(0), ptr(0), &[]string{}, ptr(wire.Duration(0))
			})
			both.Go(func() { f.mailbox("ceo", func(s *wire.MailboxSettings) { s.Mails, s.Attempts = ptr(7), ptr(7) }) })
			both.Go(func() {
				f.mailbox("ceo", func(s *wire.MailboxSettings) { s.Allow, s.Lease = &[]string{"*"}, ptr(wire.Duration(time.Minute)) })
			})
			both.Wait()
			s, u := f.box("ceo").Settings, f.box("ceo").Subscriptions[0].Settings
			if *s.Mails != 7 || *u.Attempts != 7 || len(*s.Allow) != 1 || u.Lease == nil {
				t.Fatalf("%s %s", asJSON(t, s), asJSON(t, u))
			}
		}
	})
}

// A letter whose time has ended is refused before anything is written.
func TestExpiredLetterIsNotWritten(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		now := time.Now()
		raw, err := proto.AppendLetter(nil, &proto.Letter{Class: proto.Normal, ID: proto.NewMailID(now), Created: now.UnixMilli(), NotAfter: now.Add(time.Second).UnixMilli()})
		f.must(err)
		time.Sleep(time.Second)
		written := f.log.Stats().Last
		o := f.QueueLetters([]Letter{{[]byte("agent:ceo"), raw}}).Wait(t.Context())[0]
		f.refused(o.Err, wire.ErrInvalid, "its time to live has ended")
		if now := f.log.Stats().Last; now != written {
			t.Errorf("%d batches were written", now-written)
		}
		var found bool
		f.must(f.ledger.broker().View(t.Context(), func(s *box.State) { _, found = s.Find("agent:ceo@" + f.self.String()) }))
		if !found || f.box("ceo").Next != 1 {
			t.Errorf("the box has %d", f.box("ceo").Next)
		}
	})
}

// A noSpools refuses, while it is full, the records of boxes.
type noSpools struct {
	*ledger.Ledger
	full    atomic.Bool
	refused atomic.Int32
}

func (d *noSpools) Queue(es []ledger.Entry) *ledger.Pending {
	if len(es) == 1 && es[0].Data[4] == byte(box.TypeBox) && d.full.Load() {
		d.refused.Add(1)
		es[0].After(0, ledger.Place{}, store.ErrFull)
		return nil
	}
	return d.Ledger.Queue(es)
}

// A forward that fails, because there is no space for the spool of its box, spends nothing.
func TestFailedForwardSpendsNothing(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.stop()
		disk := new(noSpools)
		f.disk = func(l *ledger.Ledger) mail.Ledger { disk.Ledger = l; return disk }
		f.start()
		f.programs.run = func(context.Context, *handler.Run, string) *handler.Result {
			return &handler.Result{Outcome: handler.Success, Output: []byte("rich")}
		}
		f.handle(wire.MailHandler{Forward: "agent:next@beta"})
		disk.full.Store(true)
		f.sendRaw(wire.Mail{})
		time.Sleep(5 * time.Minute)
		if m := f.inState("raw", ""); len(m) != 1 || m[0].Attempts+m[0].Abandons > 0 || disk.refused.Load() < 10 {
			t.Fatalf("%d refused, %+v", disk.refused.Load(), m)
		}
		disk.full.Store(false)
		time.Sleep(time.Minute)
		if v := f.box("raw"); v.Ended.Done != 1 || v.Waiting != 0 {
			t.Errorf("%+v", v)
		}
	})
}
