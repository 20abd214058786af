package box

import (
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
