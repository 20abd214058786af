package box

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/balefire/balefire/proto"
)

// One origin has at most nine times what is free: in a box that keeps its mail, and of the dedupe
// keys. A topic that drops its oldest mail takes all of it.
func TestSharesOfOrigins(t *testing.T) {
	for _, tt := range []struct {
		name   string
		box    BoxID
		topic  BoxSettings
		limits Limits
		keys   bool
		refuse bool
	}{
		{"a mailbox", 1, BoxSettings{}, Limits{}, false, true},
		{"a topic that keeps what nobody has read", 2, BoxSettings{Mails: 10, Interest: true}, Limits{}, false, true},
		{"a topic", 2, BoxSettings{Mails: 10}, Limits{}, false, false},
		{"dedupe keys", 2, BoxSettings{}, Limits{Keys: 10}, true, true},
	} {
		b := newBench(t)
		b.apply(EncodePeer(1, proto.PeerID{1}))
		b.apply(EncodePeer(2, proto.PeerID{2}))
		b.apply(EncodeBox(1, &BoxSettings{Name: "agent:ceo", Kind: Mailbox, Mails: 10}))
		b.apply(EncodeLimits(tt.limits))
		b.topic(tt.topic, SubSettings{})
		for i, origin := range []uint32{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2} {
			n := note{box: tt.box, origin: origin}
			if tt.keys {
				n.dedupe = fmt.Sprint(i)
			}
			want := proto.CodeOK
			if tt.refuse && i == 9 {
				want = proto.CodeFull
			}
			if r := b.send(n); r.Code != want {
				t.Errorf("%s: mail %d of origin %d: %+v, want %v", tt.name, i, origin, r, want)
			}
		}
	}
}

// What this node tells of the ends of mails leaves dedupe keys to other mail, and what the mail of one node
// causes leaves some to what others cause, whichever boxes that names, also over a checkpoint.
func TestDedupeKeysOfBounces(t *testing.T) {
	b := newBench(t)
	b.apply(EncodeLimits(Limits{Keys: 100}))
	b.apply(EncodePeer(1, proto.PeerID{1}))
	b.apply(EncodePeer(2, proto.PeerID{3}))
	b.apply(EncodeBox(2, &BoxSettings{Name: "out:a", Kind: Spool, Home: proto.PeerID{1}}))
	b.apply(EncodeBox(3, &BoxSettings{Name: "out:b", Kind: Spool, Home: proto.PeerID{2}})) // it never sent any
	counter := uint64(0)
	flood := func(to BoxID, origin uint32, bounce bool, cause uint32) (taken int) {
		for range 120 {
			counter++
			n := note{box: to, origin: origin, dedupe: fmt.Sprint(counter), bounce: bounce, cause: cause}
			if to > 1 {
				n.chain, n.number = proto.Normal, proto.Seq{Boot: 1, Counter: counter}
			}
			if r := b.send(n); r.Code == proto.CodeFull {
				return taken
			}
			taken++
		}
		return taken
	}
	if n := flood(2, 0, true, 2) + flood(3, 0, true, 2) + flood(1, 0, true, 2); n < 70 || n > 85 {
		t.Errorf("bounces that one node caused have %d of 100 keys", n)
	}
	var image bytes.Buffer
	if err := b.s.Save(&image); err != nil {
		t.Fatal(err)
	}
	var err error
	if b.s, err = Load(&image, chainNotes{}); err != nil {
		t.Fatal(err)
	}
	if n := flood(3, 0, true, 2); n != 0 {
		t.Errorf("after a checkpoint they have %d more", n)
	}
	if r := b.send(note{dedupe: "unknown", bounce: true, cause: 3}); r.Code != proto.CodeBusy {
		t.Errorf("one that a node caused which is not known: %+v", r)
	}
	if n := flood(2, 0, true, 1) + flood(1, 0, true, 0); n < 5 || n > 20 {
		t.Errorf("bounces that others caused have %d", n)
	}
	if r := b.apply(EncodeForward(1, 0, 0, b.record(note{dedupe: "moves on", bounce: true}))); r.Code != proto.CodeOK {
		t.Errorf("a bounce that moves to the next home of its box: %+v", r)
	}
	if n := flood(1, 1, false, 0); n < 5 {
		t.Errorf("mail of a node has %d", n)
	}
	b.apply(EncodeLimits(Limits{Keys: 101}))
	if n := flood(1, 0, false, 0); n == 0 {
		t.Error("mail of this node has none")
	}
}

// Between keys the class decides: in a mailbox of all mail, in a topic of the oldest maxAhead.
func TestUrgentMailBehindManyOthers(t *testing.T) {
	for _, tt := range []struct {
		name string
		box  BoxID
		sub  SubID
		want []uint64
	}{
		{"a mailbox", 1, 0, []uint64{maxAhead + 1, 1}},
		{"a topic", 2, 1, []uint64{1, maxAhead + 1}},
	} {
		b := newBench(t)
		b.topic(BoxSettings{}, SubSettings{})
		low := b.record(note{box: tt.box, class: proto.Low})
		var out Output
		for range maxAhead {
			if err := b.s.Apply(1, low, &out); err != nil {
				t.Fatal(err)
			}
		}
		b.mustSend(note{box: tt.box, class: proto.Critical})
		x := b.attach(tt.box, tt.sub)
		if got := seqs(b.deliver(x, 2)); fmt.Sprint(got) != fmt.Sprint(tt.want) {
			t.Errorf("%s: delivered %v, want %v", tt.name, got, tt.want)
		}
	}
}
