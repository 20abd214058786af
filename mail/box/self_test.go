package box

import (
	"bytes"
	"testing"

	"github.com/balefire/balefire/proto"
)

// What this node sent to a box that was elsewhere then is mail of its own: it shares lanes and dedupe
// keys with what its programs send now, and its numbers count once.
func TestMailOfThisNodeThatCameBack(t *testing.T) {
	b := newBench(t)
	b.apply(EncodeRemoveBox(1))
	id := b.s.NewBox()
	b.apply(EncodeBox(id, &BoxSettings{Name: "agent:desk", Kind: Mailbox, PerPeer: true}))
	b.apply(EncodePeer(1, proto.PeerID{31: 7}))
	b.apply(EncodeSelf(2, proto.PeerID{31: 8}))
	came := note{box: id, key: "k", dedupe: "d", origin: 2, chain: proto.Normal, number: proto.Seq{Boot: 1, Counter: 1}}
	first := b.mustSend(came)
	if r := b.send(came); !r.Duplicate {
		t.Errorf("it is taken twice: %+v", r)
	}
	if r := b.send(note{box: id, key: "k", dedupe: "d"}); !r.Duplicate || r.Seq != first {
		t.Errorf("its dedupe key is not known: %+v", r)
	}
	b.mustSend(note{box: id, key: "k"})
	if given := b.deliver(b.attach(id, 0), 9); len(given) != 1 || given[0].Handle.Seq != first {
		t.Errorf("given %+v", given)
	}
	back, err := Load(bytes.NewReader(save(t, b.s)), chainNotes{})
	if err != nil || back.self != 2 || !bytes.Equal(save(t, back), save(t, b.s)) {
		t.Errorf("%v", err)
	}
}
