package mail

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
)

// I22: mail of this node for a box that came here goes behind what waits in the spool for it, also
// what a delivery became, until the spool is empty.
func TestMailLinesUpBehindTheSpool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, raw := rawFixture(t, Config{})
		f.forward("a")
		if err := f.SetBox(t.Context(), box.BoxSettings{Name: "agent:ceo", Kind: box.Mailbox, Generation: 2}); err != nil {
			t.Fatal(err)
		}
		to := func(body string) Item { return Item{Box: "agent:ceo", Letter: f.letter(body, nil)} }
		sent, err := f.Send(t.Context(), []Item{to("b"), {Box: "agent:next", Letter: f.letter("other", nil)}, to("c")}, false)
		if err != nil || !sent[0].Spooled || sent[1].Spooled || !sent[2].Spooled {
			t.Fatalf("%+v, %v", sent, err)
		}
		if s := f.pass(raw, Outgoing{Box: "agent:ceo", Home: originID, Letter: f.letter("d", nil)}); s.Code != proto.CodeOK || !s.Spooled {
			t.Errorf("%+v", s)
		}
		f.restart()
		f.send("agent:ceo", "e")
		if n := f.info("agent:ceo").Waiting; n != 0 || f.spool().Waiting != 5 {
			t.Errorf("%d mails are in the box, %+v", n, f.spool())
		}
		if err := f.Rehome(t.Context(), "agent:ceo", originID, 2); err != nil {
			t.Fatal(err)
		}
		l := f.lane(originID)
		for f.spool().Waiting > 0 {
			f.answer(l, f.take(f.bundle(l), nil))
			synctest.Wait()
		}
		if sent, err = f.Send(t.Context(), []Item{to("f")}, false); err != nil || sent[0].Spooled {
			t.Errorf("%+v, %v", sent, err)
		}
		if got := f.all("agent:ceo"); !slices.Equal(got, []string{"a", "b", "c", "d", "e", "f"}) {
			t.Errorf("%q", got)
		}
	})
}

// classes are those of the mails that were sent.
type classes struct {
	unobserved
	sent []proto.Class // of the broker's goroutine
}

func (c *classes) Sent(class proto.Class) { c.sent = append(c.sent, class) }

// QueueSend copies the letters: a caller reads its next ones over them, before the broker has looked
// at them.
func TestQueuedLettersAreCopied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent := new(classes)
		f, _ := rawFixture(t, Config{Observer: sent})
		f.forward("a")
		f.mailbox("agent:desk")
		if err := f.SetBox(t.Context(), box.BoxSettings{Name: "agent:ceo", Kind: box.Mailbox, Generation: 2}); err != nil {
			t.Fatal(err)
		}
		busy := make(chan struct{})
		if err := f.do(func(box.Now) { <-busy }); err != nil {
			t.Fatal(err)
		}
		var items []Item
		for _, to := range []string{"agent:ceo", "agent:desk"} {
			items = append(items, Item{Box: to, Letter: f.letter("for "+to, nil)})
		}
		s, err := f.QueueSend(items, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, it := range items {
			clear(it.Letter)
		}
		close(busy)
		if out, err := s.Wait(t.Context()); err != nil || !out[0].Spooled || out[0].Code != proto.CodeOK || out[1].Code != proto.CodeOK {
			t.Fatalf("%+v, %v", out, err)
		}
		if want := []proto.Class{proto.Normal, proto.Normal}; !slices.Equal(sent.sent[max(0, len(sent.sent)-2):], want) {
			t.Errorf("observed the classes %v, want %v", sent.sent, want)
		}
		if err := f.Rehome(t.Context(), "agent:ceo", originID, 2); err != nil {
			t.Fatal(err)
		}
		l := f.lane(originID)
		for f.spool().Waiting > 0 {
			f.answer(l, f.take(f.bundle(l), nil))
			synctest.Wait()
		}
		if got := append(f.all("agent:ceo"), f.all("agent:desk")...); !slices.Equal(got, []string{"a", "for agent:ceo", "for agent:desk"}) {
			t.Errorf("%q", got)
		}
	})
}
