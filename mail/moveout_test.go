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
)

// moveOut moves all that a box has to homeID.
func (f *fixture) moveOut(name string) *Moving {
	f.t.Helper()
	m := &Moving{Box: name, Home: homeID, Generation: 1, Change: func(_ proto.PeerID, l *proto.Letter) { l.BounceTo = []byte("agent:first") }}
	for more := true; more; {
		var err error
		if more, err = f.MoveOut(f.t.Context(), m); err != nil {
			f.t.Fatal(err)
		}
	}
	return m
}

// sentOn returns the bodies of what waits for a box at homeID, in the order in which it is sent.
func (f *fixture) sentOn() (all []string) {
	f.t.Helper()
	l := f.lane(homeID)
	for {
		ctx, stop := context.WithTimeout(f.t.Context(), time.Second)
		m, err := l.Next(ctx)
		stop()
		if errors.Is(err, context.DeadlineExceeded) {
			return all
		} else if err != nil {
			f.t.Fatal(err)
		}
		for rest := m.GetLetters(); len(rest) > 0; {
			var letter []byte
			if letter, rest, err = proto.CutLetter(rest); err != nil {
				f.t.Fatal(err)
			}
			p, err := proto.ParseLetter(letter)
			if err != nil || string(p.BounceTo) != "agent:first" {
				f.t.Errorf("%+v, %v", p, err)
			}
			all = append(all, string(p.Body))
		}
	}
}

// I21, I22: what is in a mailbox, leased or not, goes into the spool for its new home, in order
// and once.
func TestMoveOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, Config{Self: originID})
		f.mailbox("agent:ceo")
		var want []string
		for i := range 2*MaxSend + 1 {
			want = append(want, fmt.Sprint(i))
			f.send("agent:ceo", want[i])
		}
		f.next(f.read("agent:ceo", 5), 5)
		if m := f.moveOut("agent:ceo"); m.Moved != len(want) {
			t.Errorf("%d mails were moved, want %d", m.Moved, len(want))
		}
		f.restart()
		if m := f.moveOut("agent:ceo"); m.Moved != 0 || f.info("agent:ceo").Waiting != 0 {
			t.Errorf("%d mails are moved again, %d wait", m.Moved, f.info("agent:ceo").Waiting)
		}
		if got := f.sentOn(); strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("%q", got)
		}
		if _, err := f.MoveOut(t.Context(), &Moving{Box: "agent:nobody"}); !errors.Is(err, box.ErrNotFound) {
			t.Errorf("of no box: %v", err)
		}
	})
}

// Of a topic all goes that it keeps, once, however many subscriptions have read it.
func TestMoveOutOfATopic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, Config{Self: originID})
		settings := box.BoxSettings{Name: "topic:news", Kind: box.Topic}
		if err := f.SetBox(t.Context(), settings); err != nil {
			t.Fatal(err)
		}
		for _, sub := range []string{"a", "b"} {
			if err := f.SetSub(t.Context(), "topic:news", box.SubSettings{Name: sub}, box.Start{}); err != nil {
				t.Fatal(err)
			}
		}
		f.send("topic:news", "1")
		f.send("topic:news", "2")
		if m := f.moveOut("topic:news"); m.Moved != 2 || f.info("topic:news").Waiting != 0 {
			t.Errorf("%d mails were moved, %d wait", m.Moved, f.info("topic:news").Waiting)
		}
		if got := f.sentOn(); strings.Join(got, " ") != "1 2" {
			t.Errorf("%q", got)
		}
	})
}

// I21: a mail is in its box or in the spool, whenever the node dies.
func TestMoveOutIsWhole(t *testing.T) {
	for _, written := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t, Config{Self: originID})
			f.late = new(lateLog)
			f.restart()
			f.mailbox("agent:ceo")
			f.send("agent:ceo", "x")
			if err := f.SetHome(t.Context(), "agent:ceo", homeID, 1); err != nil {
				t.Fatal(err)
			}
			if written {
				f.late.hold()
			} else {
				f.late.refuse(store.ErrFailed)
			}
			result := make(chan error, 1)
			go func() {
				_, err := f.MoveOut(context.Background(), &Moving{Box: "agent:ceo", Home: homeID, Generation: 1, Change: func(proto.PeerID, *proto.Letter) {}})
				result <- err
			}()
			synctest.Wait()
			f.stop()
			if err := <-result; !errors.Is(err, ErrUnknown) {
				t.Errorf("written %v: %v", written, err)
			}
			f.late = nil
			f.start()
			here, spooled := f.info("agent:ceo").Waiting, f.spool().Waiting
			if here+spooled != 1 || written != (spooled == 1) {
				t.Errorf("written %v: %d and %d mails", written, here, spooled)
			}
		})
	}
}

// I23: whoever has a mail that goes to the new home of its box is not told that its settlement counts
// while the record of that is being written, and is if the record is refused.
func TestAckOfAMailThatMovesOut(t *testing.T) {
	for _, refused := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t, Config{Self: originID})
			f.late = new(lateLog)
			f.restart()
			f.mailbox("agent:ceo")
			f.send("agent:ceo", "x")
			got, _ := f.next(f.read("agent:ceo", 1), 1)
			if err := f.SetHome(t.Context(), "agent:ceo", homeID, 1); err != nil {
				t.Fatal(err)
			}
			if f.late.hold(); refused {
				f.late.refuse(store.ErrNoDisk)
			}
			moved := make(chan error, 1)
			go func() {
				_, err := f.MoveOut(context.Background(), &Moving{Box: "agent:ceo", Home: homeID, Generation: 1, Change: func(proto.PeerID, *proto.Letter) {}})
				moved <- err
			}()
			synctest.Wait()
			if f.late.refuse(nil); refused {
				f.late.release()
				<-moved
				f.settle("agent:ceo", got[0], box.Ack, proto.CodeOK)
				return
			}
			settled := make(chan []Settled, 1)
			go func() {
				s, _ := f.Settle(context.Background(), "agent:ceo", "", []Settlement{{Handle: got[0].Handle, Op: box.Ack}})
				settled <- s
			}()
			synctest.Wait()
			f.late.release()
			if err := <-moved; err != nil {
				t.Fatal(err)
			}
			if s := <-settled; len(s) != 1 || s[0].Code != proto.CodeStale || f.spool().Waiting != 1 {
				t.Errorf("%v, %d mails in the spool", s, f.spool().Waiting)
			}
		})
	}
}

// What the spool does not take for now stays in its order; what it never takes is passed over.
func TestMoveOutRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, Config{Self: originID})
		f.mailbox("agent:ceo")
		f.send("agent:ceo", string(make([]byte, 3000)))
		f.send("agent:ceo", "small")
		if err := f.SetLimits(t.Context(), box.Limits{Bytes: 4000}); err != nil {
			t.Fatal(err)
		}
		m := &Moving{Box: "agent:ceo", Home: homeID, Generation: 1, Change: func(proto.PeerID, *proto.Letter) {}}
		var refused *RefusedError
		if _, err := f.MoveOut(t.Context(), m); !errors.As(err, &refused) || refused.Code != proto.CodeFull || f.info("agent:ceo").Waiting != 2 {
			t.Errorf("without room: %v, %d mails", err, f.info("agent:ceo").Waiting)
		}
		if err := f.SetLimits(t.Context(), box.Limits{}); err != nil {
			t.Fatal(err)
		}
		other := Item{Box: "agent:ceo", Letter: f.letter("two", func(l *proto.Letter) { l.Dedupe = []byte("k") })}
		if s, err := f.Send(t.Context(), []Item{other}, false); err != nil || s[0].Code != proto.CodeOK {
			t.Fatalf("%+v, %v", s, err)
		}
		once := Outgoing{Box: "agent:ceo", Home: homeID, Generation: 1, Letter: f.letter("one", func(l *proto.Letter) { l.Dedupe = []byte("k") })}
		if _, err := f.Forward(t.Context(), []Outgoing{once}, false); err != nil {
			t.Fatal(err)
		}
		if m := f.moveOut("agent:ceo"); m.Moved != 2 || f.info("agent:ceo").Waiting != 1 {
			t.Errorf("%d mails were moved, %d wait", m.Moved, f.info("agent:ceo").Waiting)
		}
	})
}

// A spool goes to the home that the mesh knows, whatever its generation is, and so does one whose
// home says MOVED if the mesh knows that.
func TestRehome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		known := proto.PeerID{}
		f := newFixture(t, Config{Moved: func(_ string, home proto.PeerID, _ uint64) bool { return home == known }})
		if err := f.Rehome(t.Context(), "agent:ceo", originID, 1); err != nil || len(*f.boxes.Load()) != 0 {
			t.Errorf("without a spool: %v, %v", err, *f.boxes.Load())
		}
		f.forward("a")
		third := proto.PeerID{5, 6}
		for _, to := range []struct {
			home       proto.PeerID
			generation uint64
		}{{originID, 3}, {third, 3}, {originID, 1}} {
			if err := f.Rehome(t.Context(), "agent:ceo", to.home, to.generation); err != nil {
				t.Fatal(err)
			}
			if s := f.spool(); s.Home != to.home || f.generation() != to.generation {
				t.Errorf("%+v, want %+v", s, to)
			}
			if m := f.bundle(f.lane(to.home)); m.GetGeneration() != to.generation || len(m.GetRuns()) != 1 {
				t.Errorf("%v", m)
			}
		}
		l := f.lane(originID)
		for _, home := range []proto.PeerID{{}, third} {
			known = home
			if err := l.Reset(t.Context()); err != nil {
				t.Fatal(err)
			}
			m := f.bundle(l)
			f.answer(l, &proto.Bundled{Number: m.GetNumber(), Code: proto.CodeMoved, Home: third[:], Generation: 1})
		}
		synctest.Wait()
		if s := f.spool(); s.Home != third {
			t.Errorf("after MOVED: %+v", s)
		}
	})
}

// A node that is not the home of a box any more says where that is, and what it took before.
func TestRedirect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, h := newFixture(t, Config{}), newFixture(t, Config{Self: homeID})
		h.mailbox("agent:ceo")
		o.forward("a")
		l := o.lane(homeID)
		h.take(o.bundle(l), nil) // the answer is lost
		o.forward("b")
		if err := l.Reset(t.Context()); err != nil {
			t.Fatal(err)
		}
		m := o.bundle(l)
		third := proto.PeerID{5, 6}
		a, err := h.Redirect(originID, m, third, 1)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := a.Wait(t.Context())
		if err != nil || answer.Check() != nil || answer.GetCode() != proto.CodeMoved || proto.PeerID(answer.GetHome()) != third || answer.GetUpToNumber() != 1 {
			t.Fatalf("%v, %v", answer, err)
		}
		o.answer(l, answer)
		if s := o.spool(); s.Waiting != 1 {
			t.Errorf("%+v", s)
		}
		a, err = Redirect(originID, m, time.Now(), third, 1)
		if err != nil {
			t.Fatal(err)
		}
		if answer, err := a.Wait(t.Context()); err != nil || answer.Check() != nil || answer.GetCode() != proto.CodeMoved || answer.GetUpToNumber() != 0 {
			t.Errorf("without a ledger: %v, %v", answer, err)
		}
		if _, err := h.Redirect(originID, new(proto.Bundle), third, 1); !errors.Is(err, proto.ErrBadMail) {
			t.Errorf("of a bad bundle: %v", err)
		}
	})
}
