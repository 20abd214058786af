package box

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
)

// newSpoolBench returns a bench whose box 2 is a spool with some mails.
func newSpoolBench(t testing.TB, mails int) *bench {
	b := newBench(t)
	b.apply(EncodeBox(2, &BoxSettings{Name: "out:agent:far", Kind: Spool, Home: proto.PeerID{9}, Generation: 4, Mails: 8}))
	for range mails {
		b.mustSend(b.spooled(note{}))
	}
	return b
}

// spooled gives a note the next number of the spool.
func (b *bench) spooled(n note) note {
	b.ids++
	n.box, n.chain, n.number = 2, proto.Normal, proto.Seq{Boot: 1, Counter: uint64(b.ids)}
	return n
}

// A spool takes what this node has numbered, and nothing else does.
func TestOnlyASpoolTakesMailOfThisNodeWithANumber(t *testing.T) {
	b := newSpoolBench(t, 0)
	b.apply(EncodePeer(1, proto.PeerID{1}))
	number := proto.Seq{Boot: 1, Counter: 100}
	for _, tt := range []struct {
		name string
		note note
		want proto.Code
	}{
		{"numbered, for the spool", note{box: 2, chain: proto.Low, number: number}, proto.CodeOK},
		{"numbered, for a mailbox", note{chain: proto.Low, number: number}, proto.CodeBadForm},
		{"without a number", note{box: 2}, proto.CodeBadForm},
		{"of another node", note{box: 2, origin: 1, chain: proto.Low, number: number}, proto.CodeBadForm},
		{"too late", b.spooled(note{ttl: -1}), proto.CodeExpired},
	} {
		if r := b.send(tt.note); r.Code != tt.want || r.ForGood != (tt.want != proto.CodeOK) {
			t.Errorf("%s: %+v", tt.name, r)
		}
	}
	skip := AppendSkip(nil, &Skip{Box: 2, Origin: 1, Chain: proto.Low, Number: number, NotAfter: start, Code: proto.CodeDenied})
	if r := b.apply(skip); r.Code != proto.CodeNoHandler {
		t.Errorf("a refusal: %+v", r)
	}
}

// What is in a spool ends by ACK and END records alone, and senders are told of all but DONE.
func TestNothingButItsRecordsEndsASpool(t *testing.T) {
	b := newSpoolBench(t, 5)
	if _, err := b.s.Attach(2, 0, "x", 0, 1); !errors.Is(err, ErrNotFound) {
		t.Errorf("a session of a spool: %v", err)
	}
	if n := b.s.Purge(b.now, 2, 9, "", &b.out); n > 0 {
		t.Errorf("%d are purged", n)
	}
	if r := b.apply(EncodeRemoveBox(2)); r.Code != proto.CodeBusy {
		t.Errorf("removed with mail: %+v", r)
	}
	b.wait(40 * 24 * time.Hour)
	if i, _ := b.s.Info(2); i.Waiting != 5 {
		t.Errorf("after 40 days: %+v", i)
	}
	ends := func(rec []byte, state MailState, cause Cause, bounces int) {
		t.Helper()
		b.apply(rec)
		if len(b.out.Ends) == 0 || b.out.Ends[0].State != state || b.out.Ends[0].Cause != cause || len(b.out.Bounces) != bounces {
			t.Errorf("%+v, %d bounces", b.out.Ends, len(b.out.Bounces))
		}
	}
	ends(EncodeSpoolDone(2, []uint64{1, 3, 77}), Done, CauseNone, 0)
	ends(EncodeSpoolEnd(2, SpoolEnd{State: Dead, Cause: CauseRefused, Reason: strings.Repeat("x", 2*MaxReason)}, []uint64{2}), Dead, CauseRefused, 1)
	ends(EncodeSpoolEnd(2, SpoolEnd{State: Expired, Cause: CauseUnheard}, []uint64{4, 5}), Expired, CauseUnheard, 2)
	for _, rec := range [][]byte{EncodeSpoolDone(2, []uint64{1}), EncodeSpoolEnd(2, SpoolEnd{State: Dead, Cause: CauseRefused}, []uint64{1, 2, 5})} {
		if b.apply(rec); len(b.out.Ends) > 0 {
			t.Errorf("ended twice: %+v", b.out.Ends)
		}
	}
	if r := b.apply(EncodeRemoveBox(2)); r.Code != proto.CodeOK {
		t.Errorf("removed when it is empty: %+v", r)
	}
	if b.s.bytes != 0 {
		t.Errorf("%d bytes are left", b.s.bytes)
	}
}

// A full spool refuses. A second mail of a dedupe key is the first one.
func TestSpoolLimits(t *testing.T) {
	b := newSpoolBench(t, 7)
	n := b.spooled(note{dedupe: "d", body: "x"})
	first := b.send(n)
	if again := b.send(n); again.Code != proto.CodeOK || !again.Duplicate || again.ID != first.ID {
		t.Errorf("%+v, then %+v", first, again)
	}
	if r := b.send(b.spooled(note{})); r.Code != proto.CodeFull || r.ForGood {
		t.Errorf("the ninth of eight: %+v", r)
	}
	if r := b.s.Room(&Mail{Box: 2}); r.Code != proto.CodeFull {
		t.Errorf("room for the ninth: %+v", r)
	}
	if r := b.s.Room(&Mail{Box: 9}); r.Code != proto.CodeNoHandler {
		t.Errorf("room in no box: %+v", r)
	}
}

// What a spool has can be looked at, and read where it is, also after a move.
func TestLookIntoASpool(t *testing.T) {
	b := newSpoolBench(t, 2)
	n := 0
	for i := range b.s.Mails(2, 0, 0) {
		k, ok := b.s.Mail(2, i.Seq)
		if !ok || k.Place != i.Place || k.Length != i.Length || i.State != Waiting {
			t.Errorf("%+v, %+v", i, k)
		}
		rec := b.log[k.Place-1]
		move, err := AppendMove(nil, i.Seq, rec)
		if err != nil {
			t.Fatal(err)
		}
		b.apply(move)
		k, _ = b.s.Mail(2, i.Seq)
		m, err := MailOf(b.log[k.Place-1])
		if err != nil || m.Number.Counter == 0 || m.Chain != proto.Normal || len(b.log[k.Place-1]) != k.Length {
			t.Errorf("%+v, %v", m, err)
		}
		n++
	}
	if _, ok := b.s.Mail(2, 3); ok || n != 2 {
		t.Errorf("%d mails, and one that never was: %v", n, ok)
	}
	if _, ok := b.s.Mail(7, 1); ok {
		t.Error("a mail of no box")
	}
	if s, ok := b.s.Settings(2); !ok || s.Generation != 4 || s.Home != (proto.PeerID{9}) {
		t.Errorf("%+v", s)
	}
	if _, ok := b.s.Settings(7); ok {
		t.Error("settings of no box")
	}
}
