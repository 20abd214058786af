package box

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
)

// untold returns the sequences of the mails whose senders are to be told that they are done.
func (b *bench) untold() (seqs []uint64) {
	for _, k := range b.s.Untold(10) {
		seqs = append(seqs, k.Seq)
	}
	return seqs
}

// I21: a mail whose sender asked for that is untold from its acknowledgment until a record says that
// the sender was told, whatever is restarted, moved and forgotten in between.
func TestDoneIsUntoldUntilItWasTold(t *testing.T) {
	b := newBench(t)
	b.apply(EncodeBox(1, &BoxSettings{Name: "agent:ceo", Kind: Mailbox, Keep: time.Hour}))
	asked := b.mustSend(note{flags: proto.LetterTellEnd})
	b.mustSend(note{flags: proto.LetterReceipt})
	dead := b.mustSend(note{flags: proto.LetterTellEnd, class: proto.Low})
	late := b.mustSend(note{flags: proto.LetterTellEnd, class: proto.Low})
	x := b.attach(1, 0)
	list := b.deliver(x, 4)
	if got := b.untold(); got != nil {
		t.Errorf("untold while they are leased: %d", got)
	}
	b.must(Final, list[2].Handle)
	for _, i := range []int{3, 1, 0} {
		b.must(Ack, list[i].Handle)
	}
	if got, want := b.untold(), []uint64{asked, late}; !slices.Equal(got, want) || len(b.s.Untold(1)) != 1 {
		t.Fatalf("untold: %d, want %d; %d is dead", got, want, dead)
	}
	b.restart()
	b.wait(2 * time.Hour) // nothing is kept any more
	rec, err := AppendMove(nil, late, b.log[b.s.Untold(2)[1].Place-1])
	if err != nil {
		t.Fatal(err)
	}
	b.apply(rec)
	for _, k := range b.s.Untold(2) {
		if is, ok := b.s.Record(1, k.Seq); !ok || is != k {
			t.Errorf("the record of %d: %+v, %v, want %+v", k.Seq, is, ok, k)
		}
		if m, err := MailOf(b.log[k.Place-1]); err != nil || len(m.Letter) != int(k.Size) || len(b.log[k.Place-1]) != k.Length {
			t.Errorf("at the place of %d: %+v, %v", k.Seq, m, err)
		}
	}
	back, err := Load(bytes.NewReader(save(t, b.s)), chainNotes{})
	if err != nil || !slices.Equal(back.Untold(9), b.s.Untold(9)) {
		t.Errorf("a checkpoint has %+v, %v", back.Untold(9), err)
	}
	b.apply(EncodeTold(1, []uint64{asked, asked + 1}))
	b.apply(EncodeTold(7, []uint64{late}))
	if got := b.untold(); !slices.Equal(got, []uint64{late}) {
		t.Errorf("untold: %d", got)
	}
	if _, ok := b.s.Record(1, asked); ok {
		t.Error("the record of what was told is needed")
	}
	var out Output
	if err := b.s.Apply(100, EncodeRemoveBox(1), &out); err != nil || len(out.Bounces) != 1 || out.Bounces[0].Seq != late || out.Bounces[0].State != Done || b.untold() != nil || b.s.untold != 0 {
		t.Errorf("the box is removed: %+v, %d untold, %v", out.Bounces, b.s.untold, err)
	}
}

// What is kept and not told yet is needed once.
func TestUntoldMailNeedsOneRecord(t *testing.T) {
	b := newBench(t)
	b.apply(EncodeBox(1, &BoxSettings{Name: "agent:ceo", Kind: Mailbox, Keep: time.Hour}))
	b.mustSend(note{flags: proto.LetterTellEnd})
	b.must(Ack, b.deliver(b.attach(1, 0), 1)[0].Handle)
	n := 0
	for range b.s.Places(Cursor{}) {
		n++
	}
	if n != 1 || len(b.untold()) != 1 {
		t.Errorf("%d records of %d mails are needed", n, len(b.untold()))
	}
}

// Of a mail that goes on to another home, which has its end, nobody is told here; of one that ends
// with what came of it, its sender is. A topic has no end that one reader makes.
func TestNobodyIsToldOfWhatGoesOn(t *testing.T) {
	for flags, want := range map[proto.LetterFlags]int{proto.LetterTellEnd: 0, 0: 1} {
		b := newBench(t)
		b.mustSend(note{flags: proto.LetterTellEnd})
		h := b.deliver(b.attach(1, 0), 1)[0].Handle
		if r := b.forward(h, note{box: 1, flags: flags}); r.Code != proto.CodeOK || len(b.untold()) != want {
			t.Errorf("what came of it has flags %#x: %+v, %d untold, want %d", flags, r, len(b.untold()), want)
		}
	}
	b := newBench(t)
	b.topic(BoxSettings{Interest: true}, SubSettings{Name: "one"})
	b.mustSend(note{box: 2, flags: proto.LetterTellEnd})
	list := b.deliver(b.attach(2, 1), 1)
	if code := b.settle(Settlement{Box: 2, Sub: 1, Handle: list[0].Handle, Op: Ack}); code != proto.CodeOK || b.untold() != nil {
		t.Errorf("of a topic: %v, %d untold", code, b.untold())
	}
}
