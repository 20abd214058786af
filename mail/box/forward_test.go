package box

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
)

// forwardBench returns a bench whose box 1 has a leased mail, and box 2.
func forwardBench(t *testing.T) (b *bench, x *Session, h Handle) {
	b = newBench(t)
	b.apply(EncodeBox(2, &BoxSettings{Name: "agent:next", Kind: Mailbox}))
	b.mustSend(note{key: "k"})
	b.mustSend(note{key: "k"})
	x = b.attach(1, 0)
	return b, x, b.want(x, 1)[0].Handle
}

func (b *bench) forward(h Handle, n note) Result {
	b.Helper()
	n.box = or(n.box, 2)
	return b.apply(EncodeForward(1, 0, h.Seq, b.record(n)))
}

// in returns how many mails wait in a box.
func (b *bench) in(id BoxID) (n int) {
	for range b.s.Mails(id, 0, 0) {
		n++
	}
	return n
}

// A mail that is passed on is none of the producer of the letter that it copies.
func TestForwardHasNoNumber(t *testing.T) {
	b, _, h := forwardBench(t)
	b.mustSend(note{produced: by(1, 1)})
	if r := b.forward(h, note{produced: by(1, 1)}); r.Code != proto.CodeOK || r.Duplicate || b.in(2) != 1 {
		t.Errorf("%+v, %d mails", r, b.in(2))
	}
}

// I21, I23: the mail ends and its successor is there, or neither.
func TestForward(t *testing.T) {
	for _, tt := range []struct {
		name   string
		before func(b *bench, h *Handle)
		want   proto.Code // of Forward
		result proto.Code // of the record
		left   int        // mails in the first box
		next   int        // mails in the second
	}{
		{"the newest delivery", nil, proto.CodeOK, proto.CodeOK, 1, 1},
		{"after a restart", func(b *bench, _ *Handle) { b.restart() }, proto.CodeOK, proto.CodeOK, 1, 1},
		{"acknowledged before", func(b *bench, h *Handle) { b.must(Ack, *h) }, proto.CodeOK, proto.CodeStale, 1, 0},
		{"dead", func(b *bench, h *Handle) { b.must(Final, *h) }, proto.CodeStale, proto.CodeStale, 1, 0},
		{"never given", func(_ *bench, h *Handle) { h.N++ }, proto.CodeBadForm, proto.CodeOK, 1, 1},
		{"the next box is gone", func(b *bench, _ *Handle) { b.apply(EncodeRemoveBox(2)) }, proto.CodeOK, proto.CodeNoHandler, 2, 0},
		{"the next box takes nothing", func(b *bench, _ *Handle) {
			b.apply(EncodeBox(2, &BoxSettings{Name: "agent:next", Kind: Mailbox, Draining: true}))
		}, proto.CodeOK, proto.CodeDraining, 2, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, _, h := forwardBench(t)
			if tt.before != nil {
				tt.before(b, &h)
			}
			b.out.Reset()
			code, counts := b.s.Forward(1, 0, h, &b.out)
			if code != tt.want || counts != (code == proto.CodeOK && tt.name != "acknowledged before") || len(b.out.Records) > 0 {
				t.Errorf("%v, %v", code, counts)
			}
			if r := b.forward(h, note{body: "next"}); r.Code != tt.result {
				t.Errorf("%+v, want %v", r, tt.result)
			}
			if b.in(1) != tt.left || b.in(2) != tt.next {
				t.Errorf("%d and %d mails, want %d and %d", b.in(1), b.in(2), tt.left, tt.next)
			}
			if r := b.forward(h, note{body: "again"}); r.Code == proto.CodeOK {
				t.Errorf("forwarded twice: %+v", r)
			}
			again := New(chainNotes{})
			var out Output
			for i, rec := range b.log {
				if err := again.Apply(Place(i+1), rec, &out); err != nil {
					t.Fatal(err)
				}
			}
			if !bytes.Equal(save(t, again), save(t, b.s)) {
				t.Error("a replay arrives at another state")
			}
		})
	}
}

// A forwarded mail is given to nobody until its record is applied; then the next one of its
// lane is.
func TestForwardHoldsItsLane(t *testing.T) {
	b, x, h := forwardBench(t)
	if code, counts := b.s.Forward(1, 0, h, &b.out); !counts {
		t.Fatal(code)
	}
	b.want(x)
	b.wait(2 * time.Minute)
	b.want(x)
	b.forward(h, note{})
	b.want(x, 2)
}

// A mail whose successor is refused is delivered again, and nothing is spent; or it is a dead
// letter.
func TestUnforward(t *testing.T) {
	b, x, h := forwardBench(t)
	b.s.Unforward(b.now, 1, 0, h, false, time.Minute, "no", &b.out)
	if len(b.out.Records) > 0 {
		t.Fatal("it was not forwarded")
	}
	b.s.Forward(1, 0, h, &b.out)
	b.out.Reset()
	b.s.Unforward(b.now, 1, 0, h, false, time.Minute, "FULL", &b.out)
	b.commit()
	b.want(x)
	b.wait(time.Minute)
	d := b.want(x, 1)[0]
	if d.Attempt != 1 {
		t.Errorf("%+v", d)
	}
	b.s.Forward(1, 0, d.Handle, &b.out)
	b.out.Reset()
	b.s.Unforward(b.now, 1, 0, d.Handle, true, time.Minute, "TOO_LARGE", &b.out)
	b.commit()
	n := 0
	for dead := range b.s.DeadLetters(1, 0, 0) {
		n++
		if dead.Seq != 1 || dead.Reason != "TOO_LARGE" || dead.Cause != CauseFinal {
			t.Errorf("%+v", dead)
		}
	}
	if n != 1 {
		t.Errorf("%d dead letters", n)
	}
	b.want(x, 2)
}

// An abandon that its reader tells of is one of ten.
func TestAbandon(t *testing.T) {
	b := newBench(t)
	b.mustSend(note{ttl: 24 * time.Hour})
	x := b.attach(1, 0)
	for n := range MaxAbandons {
		d := b.want(x, 1)[0]
		if d.Attempt != 1 || d.Redelivered != (n > 0) {
			t.Errorf("%d: %+v", n, d)
		}
		if code := b.settle(Settlement{Box: 1, Handle: d.Handle, Op: Abandon, Delay: time.Second, Reason: "killed", Stderr: "boom"}); code != proto.CodeOK {
			t.Fatal(code)
		}
		b.want(x)
		b.wait(time.Second)
	}
	b.want(x)
	n := 0
	for dead := range b.s.DeadLetters(1, 0, 0) {
		n++
		if dead.Abandons != MaxAbandons || dead.Attempts != 0 || dead.Reason != "killed\nboom" || len(dead.Tries) != MaxAbandons-1 || dead.Tries[0].Reason != "killed" {
			t.Errorf("%+v", dead)
		}
	}
	if n != 1 {
		t.Errorf("%d dead letters", n)
	}
}

// What programs wrote is kept with dead letters, as far as there is memory for it.
func TestStderrOfDeadLetters(t *testing.T) {
	b := newBench(t)
	text := strings.Repeat("x", MaxStderr) + "the end"
	x := b.attach(1, 0)
	kill := func() DeadLetter {
		seq := b.mustSend(note{})
		b.settle(Settlement{Box: 1, Handle: b.want(x, seq)[0].Handle, Op: Final, Reason: "exit code 65", Stderr: text})
		return *b.s.find(1, 0).deadLetter(seq)
	}
	want := "exit code 65\n" + text[len("the end"):]
	if d := kill(); d.Reason != want || b.s.details != len(want) {
		t.Errorf("%d bytes, %d counted", len(d.Reason), b.s.details)
	}
	b.restart()
	x = b.attach(1, 0)
	if b.s.details != len(want) {
		t.Errorf("%d bytes after a restart", b.s.details)
	}
	again, err := Load(bytes.NewReader(save(t, b.s)), chainNotes{})
	if err != nil || again.details != len(want) {
		t.Fatal(err)
	}
	b.s.details = maxDetails - len(want) + 1
	if d := kill(); d.Reason != want[:MaxReason] || b.s.details != maxDetails-len(want)+1 {
		t.Errorf("%d bytes, although there is no memory", len(d.Reason))
	}
	b.s.details = len(want)
	b.apply(EncodeArchived(1, 0, []uint64{1}))
	if b.s.details != 0 {
		t.Errorf("%d bytes of nothing", b.s.details)
	}
	kill()
	b.apply(EncodeRemoveBox(1))
	if b.s.details != 0 {
		t.Errorf("%d bytes of a box that is gone", b.s.details)
	}
}

// Without a subscription, a mail of a topic ends for all, with what came of it, or neither does.
func TestForwardForAll(t *testing.T) {
	b, _, _ := forwardBench(t)
	b.apply(EncodeBox(3, &BoxSettings{Name: "topic:news", Kind: Topic}))
	b.apply(EncodeSub(3, 1, &SubSettings{Name: "a"}, Start{}))
	b.apply(EncodeSub(3, 2, &SubSettings{Name: "b"}, Start{}))
	for range 2 {
		b.mustSend(note{box: 3})
	}
	forward := func(seq uint64, to BoxID) Result {
		return b.apply(EncodeForward(3, 0, seq, b.record(note{box: to})))
	}
	if r := forward(1, 9); r.Code != proto.CodeNoHandler || b.in(3) != 2 {
		t.Errorf("into no box: %+v, %d mails", r, b.in(3))
	}
	if r := forward(1, 2); r.Code != proto.CodeOK || b.in(3) != 1 || b.in(2) != 1 {
		t.Errorf("%+v, %d and %d mails", r, b.in(3), b.in(2))
	}
	if r := forward(1, 2); r.Code != proto.CodeStale || b.in(3) != 1 || b.in(2) != 1 {
		t.Errorf("again: %+v, %d and %d mails", r, b.in(3), b.in(2))
	}
	for sub := SubID(1); sub <= 2; sub++ {
		n := 0
		for range b.s.Mails(3, sub, 0) {
			n++
		}
		if n != 1 {
			t.Errorf("subscription %d has %d mails", sub, n)
		}
	}
}
