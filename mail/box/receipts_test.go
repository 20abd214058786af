package box

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
)

// asks sends the n-th mail of an origin to box 1, and returns its letter. Its sender wants a receipt.
func (b *bench) asks(origin uint32, n uint64) []byte {
	b.Helper()
	x := note{flags: proto.LetterReceipt, origin: origin, chain: proto.Normal, number: proto.Seq{Boot: 1, Counter: n}}
	rec := b.record(x)
	if r := b.apply(rec); r.Code != proto.CodeOK {
		b.Fatalf("mail %d of origin %d: %+v", n, origin, r)
	}
	m, err := ParseMail(rec)
	if err != nil {
		b.Fatal(err)
	}
	return m.Letter
}

func (b *bench) took(peer byte, n uint64, letter []byte) bool {
	return b.s.Took(Chain{Origin: proto.PeerID{peer}, Box: "agent:ceo", Class: proto.Normal}, proto.Seq{Boot: 1, Counter: n}, sha256.Sum256(letter))
}

// I22: a home states of no other letter that it took it, whatever it is sent with the number, also
// after a restart, and when the mail is gone.
func TestHomeKnowsTheLettersThatItTook(t *testing.T) {
	b := newBench(t)
	b.apply(EncodePeer(1, proto.PeerID{1}))
	b.apply(EncodePeer(2, proto.PeerID{2}))
	first, second := b.asks(1, 1), b.asks(1, 2)
	b.mustSend(note{origin: 2, chain: proto.Normal, number: proto.Seq{Boot: 1, Counter: 1}})
	b.must(Ack, b.deliver(b.attach(1, 0), 1)[0].Handle)
	for range 2 {
		for what, is := range map[string]bool{
			"first": b.took(1, 1, first), "second": b.took(1, 2, second),
			"another number": !b.took(1, 2, first), "another letter": !b.took(1, 1, second), "another origin": !b.took(2, 1, first), "none that wanted it": !b.took(2, 1, nil),
			"another class": !b.s.Took(Chain{proto.PeerID{1}, "agent:ceo", proto.High}, proto.Seq{Boot: 1, Counter: 1}, sha256.Sum256(first)),
			"another box":   !b.s.Took(Chain{proto.PeerID{1}, "agent:cto", proto.Normal}, proto.Seq{Boot: 1, Counter: 1}, sha256.Sum256(first)),
		} {
			if !is {
				t.Error(what)
			}
		}
		back, err := Load(bytes.NewReader(save(t, b.s)), chainNotes{})
		if err != nil {
			t.Fatal(err)
		}
		b.s.taken = back.taken
	}
}

// Of too many letters the oldest of the origin with the most are forgotten: no other one loses its own.
func TestOriginsShareWhatWasTaken(t *testing.T) {
	var x taken
	of := func(origin uint32, n uint64) takenMail {
		return takenMail{origin, 1, proto.Normal, proto.Seq{Boot: 1, Counter: n}}
	}
	for n := range uint64(10) {
		x.note(of(2, n), [32]byte{2})
		x.note(of(2, n), [32]byte{3}) // it is known
	}
	for n := range uint64(2 * maxTaken) {
		x.note(of(1, n), [32]byte{1})
	}
	for n := range uint64(10) {
		if d, ok := x.digests[of(2, n)]; !ok || d != [32]byte{2} {
			t.Errorf("letter %d of the small origin: %x, %v", n, d[:1], ok)
		}
	}
	_, oldest := x.digests[of(1, maxTaken)]
	_, newest := x.digests[of(1, 2*maxTaken-1)]
	if len(x.digests) != maxTaken || oldest || !newest || len(x.order[1]) != maxTaken-10 {
		t.Errorf("%d are remembered, %d of the large origin", len(x.digests), len(x.order[1]))
	}
}

// receiptBench returns a bench with n mails in a spool, box 2.
func receiptBench(t *testing.T, n uint64) *bench {
	b := newBench(t)
	b.apply(EncodeBox(2, &BoxSettings{Name: "out:agent:far", Kind: Spool, Home: proto.PeerID{2}}))
	for i := range n {
		b.mustSend(note{box: 2, flags: proto.LetterReceipt, chain: proto.Normal, number: proto.Seq{Boot: 1, Counter: i + 1}})
	}
	return b
}

// A mail of a spool that its home has is kept with what that signed, for a month.
func TestReceiptsAreKept(t *testing.T) {
	b := receiptBench(t, 4)
	b.wait(agePeriod)
	b.apply(EncodeSpoolDone(2, []uint64{3}))
	b.apply(EncodeTaken(2, []Receipt{{1, []byte("signed")}, {2, nil}, {3, []byte("late")}}))
	b.apply(EncodeTaken(1, []Receipt{{1, []byte("of a mailbox")}}))
	check := func() {
		t.Helper()
		b.wantKept(2, "4 WAITING", "2 DONE", "1 DONE")
		for seq, want := range map[uint64]string{1: "signed", 2: ""} {
			if proof, ok := b.s.Receipt(2, seq); !ok || string(proof) != want {
				t.Errorf("the receipt of %d: %q, %v", seq, proof, ok)
			}
			if _, ok := b.s.Record(2, seq); !ok {
				t.Errorf("the record of %d is not needed", seq)
			}
		}
		for _, seq := range []uint64{3, 4} {
			if proof, ok := b.s.Receipt(2, seq); ok {
				t.Errorf("a receipt of %d: %q", seq, proof)
			}
		}
	}
	check()
	if i, _ := b.s.Info(2); i.Waiting != 1 || i.EndedAs(Done) != 3 {
		t.Errorf("%+v", i)
	}
	b.restart()
	check()
	b.wait(receiptAge - agePeriod)
	check()
	b.wait(2 * agePeriod)
	b.wantKept(2, "4 WAITING")
	if b.s.receipts != 0 || b.s.kept != 0 || len(b.s.boxes[2].receipts) != 0 {
		t.Errorf("%d receipts, %d bytes are kept", b.s.receipts, b.s.kept)
	}
}

// Receipts are bounded in number, and go with their spool.
func TestReceiptsAreBounded(t *testing.T) {
	const some = 300
	b := receiptBench(t, maxReceipts+some)
	b.apply(EncodeBox(3, &BoxSettings{Name: "out:agent:other", Kind: Spool, Home: proto.PeerID{2}}))
	b.mustSend(note{box: 3, flags: proto.LetterReceipt, chain: proto.Normal, number: proto.Seq{Boot: 1, Counter: 1}})
	b.apply(EncodeTaken(3, []Receipt{{1, []byte("other")}}))
	for first := uint64(1); first <= maxReceipts+some; first += 100 {
		var list []Receipt
		for i := range uint64(100) {
			list = append(list, Receipt{first + i, fmt.Append(nil, first+i)})
		}
		b.apply(EncodeTaken(2, list))
	}
	_, gone := b.s.Receipt(2, some+1)
	_, there := b.s.Receipt(2, some+2)
	_, other := b.s.Receipt(3, 1)
	if b.s.receipts != maxReceipts || b.s.Receipts(3) != 1 || b.s.Receipts(9) != 0 || gone || !there || !other {
		t.Errorf("%d receipts, %v %v %v", b.s.receipts, gone, there, other)
	}
	b.apply(EncodeRemoveBox(2))
	if b.s.receipts != 1 {
		t.Errorf("%d receipts without the spool", b.s.receipts)
	}
}

// The mails that a box ever had are counted by class.
func TestAcceptedByClass(t *testing.T) {
	b := newBench(t)
	for _, c := range []proto.Class{proto.Low, proto.Critical, proto.Low} {
		b.mustSend(note{class: c, ttl: time.Minute})
	}
	b.wait(time.Hour)
	b.restart()
	if got := b.info().Accepted; got != [4]uint64{1, 0, 0, 2} {
		t.Errorf("%d", got)
	}
}
