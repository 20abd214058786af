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
	"github.com/balefire/balefire/store/ledger"
)

// large returns a change of a letter whose body is an object.
func large(name byte) func(*proto.Letter) {
	return func(l *proto.Letter) {
		l.Body, l.Object = nil, proto.LetterObject{Name: [32]byte{name}, Size: 1 << 20}
	}
}

// forwardLarge forwards a letter whose body is an object, and another one behind it.
func (f *fixture) forwardLarge(name byte) {
	f.t.Helper()
	letter := f.letter("", func(l *proto.Letter) {
		large(name)(l)
		l.Sender = []byte("desk")
	})
	if sent, err := f.Forward(f.t.Context(), []Outgoing{{Box: "agent:ceo", Home: homeID, Letter: letter}}, false); err != nil || sent[0].Code != proto.CodeOK {
		f.t.Fatalf("%+v, %v", sent, err)
	}
	f.forward("behind it")
}

// objects returns the first bytes of the names of the bodies that are needed.
func (f *fixture) objects() (all string) {
	f.t.Helper()
	if err := f.Objects(f.t.Context(), func(name [32]byte, _ proto.PeerID) { all += string(name[:1]) }); err != nil {
		f.t.Fatal(err)
	}
	return all
}

// lacks is an admit of a home that lacks all bodies until has is true.
func lacks(has *bool) Admit {
	return func(_ string, l *proto.Letter) (proto.Code, string) {
		if !l.Object.IsZero() && !*has {
			return proto.CodeNeedBody, "its body is not here yet"
		}
		return proto.CodeOK, ""
	}
}

// needed returns the body that the home lacks.
func (f *fixture) needed(l *Lane, name byte) *MissingBody {
	f.t.Helper()
	x, err := l.NextBody(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	letter, err := proto.ParseLetter(x.Letter)
	if err != nil || x.Box != "agent:ceo" || letter.Object.Name != [32]byte{name} {
		f.t.Fatalf("%+v, %v", letter, err)
	}
	return x
}

func (f *fixture) sentBody(l *Lane, x *MissingBody, why error) {
	f.t.Helper()
	if err := l.SentBody(f.t.Context(), x, why); err != nil {
		f.t.Fatal(err)
	}
}

// TestAMailWaitsForItsBody has a home lack a body: the mail waits in its spool, with the one
// behind it, until the body is there, through refusals, a restart and a lost connection.
func TestAMailWaitsForItsBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, h := newFixture(t, Config{}), newFixture(t, Config{Self: homeID})
		h.mailbox("agent:ceo")
		o.forwardLarge('x')
		l, has := o.lane(homeID), false
		o.answer(l, h.take(o.bundle(l), lacks(&has)))
		if s := o.spool(); s.Waiting != 2 || len(s.Stops) != 1 || s.Stops[0].Code != proto.CodeNeedBody || s.Stops[0].Detail != "its body is not here yet" {
			t.Fatalf("%+v", s)
		}
		x := o.needed(l, 'x')
		o.sentBody(l, x, &RefusedError{proto.CodeFull, "no space for the body"})
		if s := o.spool(); s.Stops[0].Code != proto.CodeFull || s.Stops[0].Detail != "no space for the body" {
			t.Errorf("%+v", s)
		}
		began := time.Now()
		o.answer(l, h.take(o.bundle(l), lacks(&has))) // it is asked again
		if d := time.Since(began); d < time.Second || d > 5*time.Second {
			t.Errorf("a refused body was tried again after %v", d)
		}
		o.sentBody(l, o.needed(l, 'x'), errors.New("the path broke"))
		if s := o.spool(); s.Stops[0].Code != proto.CodeNeedBody || s.Stops[0].Detail != "the path broke" {
			t.Errorf("%+v", s)
		}
		o.restart()
		l = o.lane(homeID)
		o.answer(l, h.take(o.bundle(l), lacks(&has)))
		x = o.needed(l, 'x')
		if err := l.Reset(t.Context()); err != nil { // the connection was lost, and is back
			t.Fatal(err)
		}
		if err := l.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		m := o.bundle(l)
		o.answer(l, h.take(m, lacks(&has)))
		has = true
		o.sentBody(l, x, nil)
		began = time.Now()
		o.answer(l, h.take(o.bundle(l), lacks(&has)))
		if s := o.spool(); s.Waiting != 0 || time.Since(began) > 0 {
			t.Errorf("%+v after %v", s, time.Since(began))
		}
		got, bodies := h.next(h.read("agent:ceo", 9), 2)
		if p, err := proto.ParseLetter(got[0].Letter); err != nil || p.Object.Name[0] != 'x' || bodies[1] != "behind it" {
			t.Errorf("%+v, %q, %v", p, bodies, err)
		}
	})
}

// TestNoBodyIsAskedForWithoutRoom has a full box refuse a mail before its body.
func TestNoBodyIsAskedForWithoutRoom(t *testing.T) {
	o, h := newFixture(t, Config{}), newFixture(t, Config{Self: homeID})
	if err := h.SetBox(t.Context(), box.BoxSettings{Name: "agent:ceo", Kind: box.Mailbox, Mails: 1}); err != nil {
		t.Fatal(err)
	}
	h.send("agent:ceo", "the only one")
	o.forwardLarge('x')
	if a := h.take(o.bundle(o.lane(homeID)), lacks(new(bool))); a.GetCode() != proto.CodeFull {
		t.Errorf("%v", a)
	}
}

// TestALostBodyEndsItsMail has the disk of the sender lose a body: its sender is told, and what is
// behind it goes on.
func TestALostBodyEndsItsMail(t *testing.T) {
	bounced := make(chan Bounce, 1)
	o, h := newFixture(t, Config{Bounced: func(_ context.Context, b Bounce) { bounced <- b }}), newFixture(t, Config{Self: homeID})
	h.mailbox("agent:ceo")
	o.forwardLarge('x')
	l := o.lane(homeID)
	o.answer(l, h.take(o.bundle(l), lacks(new(bool))))
	o.sentBody(l, o.needed(l, 'x'), fmt.Errorf("%w: a bad sector", ErrNoBody))
	b := <-bounced
	if p, err := proto.ParseLetter(b.Letter); err != nil || b.To != "desk" || !strings.Contains(string(p.Body), "the body is lost: a bad sector") {
		t.Errorf("%+v: %s", b, p.Body)
	}
	o.answer(l, h.take(o.bundle(l), nil))
	if _, bodies := h.next(h.read("agent:ceo", 9), 1); bodies[0] != "behind it" {
		t.Errorf("%q", bodies)
	}
	if s, i := o.spool(), o.info("out:agent:ceo"); s.Waiting != 0 || i.EndedAs(box.Dead) != 1 {
		t.Errorf("%+v, %+v", s, i)
	}
}

// TestObjectsAreThoseOfLiveMail asks for the bodies that mail needs, also before a broker runs,
// and hears of those that it needs no more.
func TestObjectsAreThoseOfLiveMail(t *testing.T) {
	freed := make(chan byte, 4)
	f := newFixture(t, Config{Freed: func(name [32]byte) { freed <- name[0] }})
	f.mailbox("agent:me")
	for _, name := range []byte{'a', 'b'} {
		if sent, err := f.Send(t.Context(), []Item{{Box: "agent:me", Letter: f.letter("", large(name))}}, false); err != nil || sent[0].Code != proto.CodeOK {
			t.Fatalf("%+v, %v", sent, err)
		}
	}
	f.forwardLarge('c')
	if got := f.objects(); len(got) != 3 || strings.Trim(got, "abc") != "" {
		t.Errorf("%q are needed", got)
	}
	s := f.read("agent:me", 1)
	list, _ := f.next(s, 1)
	f.settle("agent:me", list[0], box.Ack, proto.CodeOK)
	if name := <-freed; name != 'a' {
		t.Errorf("%q is not needed", name)
	}
	f.stop()
	log, err := ledger.Open(f.dir, f.disk)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	stopped, err := New(log, Config{Boot: 9, Clock: f.cfg.Clock})
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	if err := stopped.Objects(t.Context(), func(name [32]byte, _ proto.PeerID) { got += string(name[:1]) }); err != nil || len(got) != 2 || strings.Trim(got, "bc") != "" {
		t.Errorf("%q are needed, %v", got, err)
	}
	if len(freed) > 0 {
		t.Errorf("%q is not needed", <-freed)
	}
}

// TestBodiesOfArrivingMailAreNeeded checks that a sweep which comes while the disk writes a mail
// spares its body, also if another mail with the same body has just ended.
func TestBodiesOfArrivingMailAreNeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, h := newFixture(t, Config{}), newFixture(t, Config{Self: homeID})
		h.late = new(lateLog)
		h.restart()
		h.mailbox("agent:ceo")
		o.forwardLarge('x')
		m := o.bundle(o.lane(homeID))
		h.late.hold()
		for range 2 { // it is sent again meanwhile
			if _, err := h.Arrive(originID, m, nil); err != nil {
				t.Fatal(err)
			}
			if got := h.objects(); got != "x" {
				t.Errorf("while a mail is written its home needs %q, want x", got)
			}
		}
		h.late.release()
		synctest.Wait()
		if got := h.objects(); got != "x" {
			t.Errorf("then it needs %q, want x", got)
		}
		got, _ := h.next(h.read("agent:ceo", 1), 1)
		h.settle("agent:ceo", got[0], box.Ack, proto.CodeOK)
		if got := h.objects(); got != "" {
			t.Errorf("after the mail has ended it needs %q", got)
		}
	})
}
