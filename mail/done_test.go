package mail

import (
	"bytes"
	"context"
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
)

// untold returns how many mails are done and not told.
func (f *fixture) untold() (n int) {
	f.t.Helper()
	if err := f.View(f.t.Context(), func(s *box.State) { n = len(s.Untold(9)) }); err != nil {
		f.t.Fatal(err)
	}
	return n
}

// finish sends a letter to agent:ceo, reads it and acknowledges it.
func (f *fixture) finish(s *Session, change func(*proto.Letter)) (id proto.MailID) {
	f.t.Helper()
	letter := f.letter("x", func(l *proto.Letter) {
		l.Flags, l.Sender, id = proto.LetterTellEnd, []byte("desk"), l.ID
		change(l)
	})
	if _, err := f.Send(f.t.Context(), []Item{{Box: "agent:ceo", Letter: letter}}, false); err != nil {
		f.t.Fatal(err)
	}
	got, _ := f.next(s, 1)
	f.settle("agent:ceo", got[0], box.Ack, proto.CodeOK)
	return id
}

// I21: who asked for it is told that its mail is DONE, by a letter that is told nobody itself.
func TestDoneIsToldOnRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := make(chan Bounce, 9)
		f := newFixture(t, Config{Bounced: func(_ context.Context, b Bounce) { told <- b }})
		f.mailbox("agent:ceo")
		s := f.read("agent:ceo", 1)
		f.finish(s, func(l *proto.Letter) { l.Flags = 0 })
		for _, typ := range []string{TypeBounce, TypeDone} {
			f.finish(s, func(l *proto.Letter) { l.Type = []byte(typ) })
		}
		id := f.finish(s, func(l *proto.Letter) {
			l.Key, l.Type, l.Correlation, l.Hops, l.BounceTo = []byte("k"), []byte("order"), []byte("7"), 3, []byte("agent:me")
		})
		synctest.Wait()
		if len(told) != 1 || f.untold() != 0 {
			t.Fatalf("%d letters, %d mails are untold", len(told), f.untold())
		}
		b := <-told
		l, err := proto.ParseLetter(b.Letter)
		if err != nil || b.To != "agent:me" || b.Loop || !b.Origin.IsZero() || string(l.Type) != TypeDone || l.BounceOf != id || string(l.Correlation) != "7" || l.Hops != 4 || l.Class != proto.High || l.Flags != 0 {
			t.Errorf("%+v, %+v, %v", b, l, err)
		}
		var is, want ended
		want = ended{Box: "agent:ceo", State: "DONE", ID: id.String(), Key: "k", Type: "order"}
		if err := json.Unmarshal(l.Body, &is); err != nil || is.ID != want.ID || is.Box != want.Box || is.State != want.State || is.Cause != "" || is.Key != want.Key || is.Type != want.Type || is.Body != nil {
			t.Errorf("%s, %v, want %+v", l.Body, err, want)
		}
	})
}

// I21: a sender is told that its mail is DONE also if the process died before that was noted, by the
// same letter; and a checkpoint does not wait until it knows.
func TestDoneIsToldAfterACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := make(chan Bounce, 9)
		f := newFixture(t, Config{CheckpointRecords: 1, Bounced: func(ctx context.Context, b Bounce) {
			told <- b
			<-ctx.Done()
		}})
		f.mailbox("agent:ceo")
		f.finish(f.read("agent:ceo", 1), func(*proto.Letter) {})
		first := <-told
		time.Sleep(3 * tickEvery)
		synctest.Wait()
		if st := f.log.Stats(); st.Checkpoint != st.Last {
			t.Errorf("no checkpoint: %+v", st)
		}
		f.restart()
		again := <-told
		if a, err := proto.ParseLetter(first.Letter); err != nil {
			t.Error(err)
		} else if b, err := proto.ParseLetter(again.Letter); err != nil || a.ID != b.ID || !bytes.Equal(a.Dedupe, b.Dedupe) || !bytes.Equal(a.Body, b.Body) {
			t.Errorf("told by another letter: %+v, %+v, %v", a, b, err)
		}
		f.stop()
		f.cfg.Bounced = func(_ context.Context, b Bounce) { told <- b }
		f.start()
		<-told
		synctest.Wait()
		f.restart()
		synctest.Wait()
		if len(told) != 0 || f.untold() != 0 {
			t.Errorf("told %d times more after that was noted; %d are untold", len(told), f.untold())
		}
	})
}
