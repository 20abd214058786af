package box

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
)

// keyed returns a bench whose box 1 is still and has so many mails with dedupe keys.
func keyed(t *testing.T, n int) *bench {
	t.Helper()
	src := newBench(t)
	for i := range n {
		src.mustSend(note{dedupe: fmt.Sprint(i), ttl: 30 * 24 * time.Hour})
	}
	src.stage(1, Still)
	return src
}

// A box that comes from another home leaves dedupe keys to others, as a node that sends does, also
// if several boxes come from that home. Those of a copy that is dropped are free again.
func TestKeysOfACopyLeaveSpaceForOthers(t *testing.T) {
	src, dst := keyed(t, 30), newBench(t)
	dst.apply(EncodeLimits(Limits{Keys: 20}))
	dst.apply(EncodePeer(1, proto.PeerID{1}))
	dst.mustSend(note{dedupe: "own"})
	for range 3 {
		at := dst.copyOf(src, 1)
		dst.take(src, at, src.parts(1))
		if n := dst.s.dedupe.len(); n < 15 || n > 19 {
			t.Errorf("%d of 20 keys are in use", n)
		}
		s := dst.moving(at, Copying, oldHome)
		s.Name += "-more"
		more := dst.s.NewBox()
		dst.apply(EncodeBox(more, &s))
		before := dst.s.dedupe.len()
		dst.take(src, more, src.parts(1))
		if n := dst.s.dedupe.len(); n != before {
			t.Errorf("a second box of that home takes %d more keys", n-before)
		}
		back, err := Load(bytes.NewReader(save(t, dst.s)), chainNotes{})
		if err != nil || back.dedupe.held[back.Origin(oldHome)] != dst.s.dedupe.held[dst.s.Origin(oldHome)] {
			t.Errorf("another share after a checkpoint: %v", err)
		}
		dst.apply(EncodeLeave(at))
		dst.apply(EncodeLeave(more))
		if n := dst.s.dedupe.len(); n != 1 || len(dst.s.dedupe.held) != 1 {
			t.Fatalf("%d keys are in use without the copies, shares %v", n, dst.s.dedupe.held)
		}
	}
	dst.mustSend(note{origin: 1, dedupe: "other"})
	if r := dst.send(note{dedupe: "own"}); !r.Duplicate {
		t.Errorf("the key of another box: %+v", r)
	}
}

// A dedupe key that the old home has forgotten is not remembered again.
func TestOldKeysDoNotCome(t *testing.T) {
	for _, tt := range []struct {
		age  time.Duration
		want int
	}{{35 * time.Hour, 2}, {37 * time.Hour, 0}} {
		src, dst := keyed(t, 2), newBench(t)
		dst.wait(tt.age)
		at := dst.copyOf(src, 1)
		dst.take(src, at, src.parts(1))
		if n := dst.s.dedupe.len(); n != tt.want {
			t.Errorf("mail of %v ago: %d keys, want %d", tt.age, n, tt.want)
		}
	}
}

// What a subscription has read comes in order: to add a part takes no longer than the one before it.
func TestReadPartsComeInOrder(t *testing.T) {
	src, dst := newBench(t), newBench(t)
	topic := src.s.NewBox()
	src.apply(EncodeBox(topic, &BoxSettings{Name: "topic:news", Kind: Topic}))
	src.apply(EncodeSub(topic, 1, &SubSettings{Name: "all"}, Start{}))
	for range 9 {
		src.mustSend(note{box: topic})
	}
	src.stage(topic, Still)
	at := dst.copyOf(src, topic)
	dst.take(src, at, src.s.CopyHead(topic))
	for _, tt := range []struct {
		spans seqSet
		want  proto.Code
	}{
		{seqSet{{3, 4}, {5, 6}}, proto.CodeOK}, {seqSet{{1, 2}}, proto.CodeBadForm}, {seqSet{{6, 7}}, proto.CodeBadForm}, {seqSet{{7, 8}}, proto.CodeOK},
	} {
		if r := dst.apply(encodePart(at, 1, &part{op: partRead, spans: tt.spans})); r.Code != tt.want {
			t.Errorf("%v: %+v, want %v", tt.spans, r, tt.want)
		}
	}
}

// The record of a mail that was forgotten meanwhile is moved to no use: a mail that was done does
// not wait in a copy.
func TestMoveOfAForgottenMailRevivesNone(t *testing.T) {
	src, dst := newBench(t), newBench(t)
	src.apply(EncodeBox(1, &BoxSettings{Name: "agent:ceo", Kind: Mailbox, Keep: time.Hour}))
	seq := src.mustSend(note{})
	src.must(Ack, src.want(src.attach(1, 0), seq)[0].Handle)
	src.stage(1, Still)
	dst.wait(time.Second)
	at := dst.copyOf(src, 1)
	dst.take(src, at, src.parts(1))
	k, kept := dst.s.Record(at, seq)
	if !kept {
		t.Fatal("it is not kept")
	}
	move, err := AppendMove(nil, seq, dst.log[k.Place-1])
	if err != nil {
		t.Fatal(err)
	}
	dst.wait(2 * time.Hour)
	dst.apply(move)
	if i, _ := dst.s.Info(at); i.Waiting != 0 {
		t.Errorf("%d mails wait", i.Waiting)
	}
	if _, there := dst.s.Record(at, seq); there {
		t.Error("it is there")
	}
}

// A home signs nothing about mail that it did not take itself: the mail of a box that came there asks
// for no receipt.
func TestMailOfACopyAsksForNoReceipt(t *testing.T) {
	src, dst := newBench(t), newBench(t)
	src.mustSend(note{flags: proto.LetterReceipt | proto.LetterTellEnd})
	src.mustSend(note{})
	src.stage(1, Still)
	at := dst.copyOf(src, 1)
	dst.take(src, at, src.parts(1))
	for seq := range uint64(2) {
		k, _ := dst.s.Record(at, seq+1)
		m, err := MailOf(dst.log[k.Place-1])
		if err != nil || WantsReceipt(m.Letter) || asksToTell(m.Letter) != (seq == 0) {
			t.Errorf("mail %d: %v, wants a receipt: %v, to be told: %v", seq+1, err, WantsReceipt(m.Letter), asksToTell(m.Letter))
		}
		k, _ = src.s.Record(1, seq+1)
		if m, err = MailOf(src.log[k.Place-1]); err != nil || WantsReceipt(m.Letter) != (seq == 0) {
			t.Errorf("the old home has changed mail %d (%v)", seq+1, err)
		}
	}
}
