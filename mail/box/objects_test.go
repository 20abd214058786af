package box

import (
	"slices"
	"testing"

	"github.com/balefire/balefire/proto"
)

// bodies returns the first bytes of the names of the bodies that are needed.
func (b *bench) bodies() (out []byte) {
	for name := range b.s.Objects() {
		out = append(out, name[0])
	}
	slices.Sort(out)
	return out
}

// given returns those that the last call gave up.
func (b *bench) given() (out []byte) {
	for _, name := range b.out.Objects {
		out = append(out, name[0])
	}
	return out
}

func (b *bench) wantBodies(needed, given string) {
	b.Helper()
	if string(b.bodies()) != needed || string(b.given()) != given {
		b.Errorf("%q are needed and %q given up, want %q and %q", b.bodies(), b.given(), needed, given)
	}
}

// TestABodyIsNeededAsLongAsItsMail walks bodies outside of letters to each end of their mails.
func TestABodyIsNeededAsLongAsItsMail(t *testing.T) {
	b := newBench(t)
	b.apply(EncodePeer(1, proto.PeerID{7}))
	b.apply(EncodeSub(1, 0, &SubSettings{Attempts: 1}, Start{}))
	b.mustSend(note{object: 'a'})
	b.mustSend(note{object: 'b', origin: 1})
	b.mustSend(note{body: "inline"})
	b.wantBodies("ab", "")
	x := b.attach(1, 0)
	list := b.deliver(x, 2)
	b.must(Ack, list[0].Handle)
	b.wantBodies("b", "a")
	b.must(Final, list[1].Handle)
	b.wantBodies("b", "") // a dead letter may be sent again
	for _, origin := range b.s.Objects() {
		if origin != (proto.PeerID{7}) {
			t.Errorf("it came from %v", origin)
		}
	}
	b.apply(EncodeRedriven(1, 0, []uint64{2}))
	b.wantBodies("b", "")
	b.apply(EncodeArchived(1, 0, []uint64{2}))
	b.wantBodies("", "b")
	b.mustSend(note{object: 'c'})
	b.apply(EncodeRemoveBox(1))
	b.wantBodies("", "c")
}

// TestABodyOfATopicIsNeededByItsLastDeadLetter has a mail die in one of two subscriptions.
func TestABodyOfATopicIsNeededByItsLastDeadLetter(t *testing.T) {
	b := newBench(t)
	b.apply(EncodeBox(2, &BoxSettings{Name: "topic:orders", Kind: Topic, Interest: true}))
	for id := SubID(1); id <= 2; id++ {
		b.apply(EncodeSub(2, id, &SubSettings{Name: string('a' + byte(id)), Attempts: 1}, Start{At: StartFirst}))
	}
	b.mustSend(note{box: 2, object: 'a'})
	for id := SubID(1); id <= 2; id++ {
		b.wantBodies("a", "")
		d := b.deliver(b.attach(2, id), 1)[0]
		if code := b.settle(Settlement{Box: 2, Sub: id, Handle: d.Handle, Op: []Op{Final, Ack}[id-1]}); code != proto.CodeOK {
			t.Fatal(code)
		}
	}
	b.wantBodies("a", "")
	b.apply(EncodeRemoveSub(2, 1))
	b.wantBodies("", "a")
}
