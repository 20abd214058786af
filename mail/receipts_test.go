package mail

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	pb "google.golang.org/protobuf/proto"
)

// A receipted is a node that sends to agent:ceo at another one, and wants receipts.
type receipted struct {
	*fixture // of the origin
	h        *fixture
	home     *identity.Keys
	mesh     proto.MeshID
	unproven []string    // why, of each answer without a receipt
	gone     atomic.Bool // the home was revoked
}

func newReceipted(t *testing.T) *receipted {
	p := &receipted{home: identity.NewKeys(nil, time.Now()), mesh: proto.MeshID{7}}
	p.fixture = newFixture(t, Config{
		CheckpointRecords: 1, Gone: func(string, proto.PeerID) bool { return p.gone.Load() }, Self: originID, Mesh: p.mesh, Verify: identity.NewVerifier().MailReceipts,
		Unproven: func(box string, home proto.PeerID, n int, why error) {
			p.unproven = append(p.unproven, fmt.Sprintf("%d of %s at %v: %v", n, box, home == p.home.Peer(), why))
		},
	})
	p.h = newFixture(t, Config{CheckpointRecords: 1, Self: p.home.Peer(), Mesh: p.mesh, Sign: p.home.SignMail})
	p.h.mailbox("agent:ceo")
	return p
}

// post sends mails, and returns the digests of their letters. Those whose bodies begin with "no" want
// no receipt.
func (p *receipted) post(bodies ...string) (digests [][32]byte) {
	p.t.Helper()
	var out []Outgoing
	for _, body := range bodies {
		letter := p.letter(body, func(l *proto.Letter) {
			if !strings.HasPrefix(body, "no") {
				l.Flags = proto.LetterReceipt
			}
		})
		out, digests = append(out, Outgoing{Box: "agent:ceo", Home: p.home.Peer(), Letter: letter}), append(digests, sha256.Sum256(letter))
	}
	if _, err := p.Forward(p.t.Context(), out, false); err != nil {
		p.t.Fatal(err)
	}
	return digests
}

// receipts returns what the spool keeps of its mails, by their sequences.
func (p *receipted) receipts() map[uint64][]byte {
	p.t.Helper()
	p.mailbox("agent:me") // what was queued before is on disk
	kept := map[uint64][]byte{}
	if err := p.View(p.t.Context(), func(s *box.State) {
		id, _ := s.Find(box.SpoolPrefix + "agent:ceo")
		for i := range s.Kept(id, 0) {
			if proof, ok := s.Receipt(id, i.Seq); ok && i.State == box.Done {
				kept[i.Seq] = proof
			}
		}
	}); err != nil {
		p.t.Fatal(err)
	}
	return kept
}

// proved checks that the spool keeps these mails with valid receipts, and no other one.
func (p *receipted) proved(digests map[uint64][32]byte) {
	p.t.Helper()
	kept := p.receipts()
	for seq, digest := range digests {
		r, err := proto.ParseMailReceipt(kept[seq])
		if err == nil {
			err = identity.VerifyMailReceipt(identity.NewVerifier(), &r)
		}
		s := r.Statement
		if err != nil || s.Digest != digest || s.Box != "agent:ceo" || s.Home != p.home.Peer() || s.Origin != originID || s.Mesh != p.mesh || s.Mail.IsZero() || s.Time == 0 || s.Class != proto.Normal || s.Number.Counter == 0 {
			p.t.Errorf("the receipt of %d: %+v, %v", seq, s, err)
		}
	}
	maps.DeleteFunc(kept, func(_ uint64, proof []byte) bool { return len(proof) == 0 })
	if len(kept) != len(digests) {
		p.t.Errorf("%d are kept with a receipt, want %d", len(kept), len(digests))
	}
}

// I21: a mail that wants it is kept with what its home has signed after its fsync, also over a restart
// of both, and one that does not want it costs nothing.
func TestReceiptOfAMail(t *testing.T) {
	p := newReceipted(t)
	d := p.post("a", "no", "b")
	l := p.lane(p.home.Peer())
	m := p.bundle(l)
	a := p.h.take(m, nil)
	if !m.GetReceipt() || len(a.GetSignature()) == 0 {
		t.Fatalf("%v", a)
	}
	p.answer(l, a)
	want := map[uint64][32]byte{1: d[0], 3: d[2]}
	p.proved(want)
	p.restart()
	p.proved(want)
	p.post("no", "none")
	l = p.lane(p.home.Peer())
	m = p.bundle(l)
	if a = p.h.take(m, nil); m.GetReceipt() || len(a.GetSignature()) > 0 {
		t.Errorf("nobody asked: %v", a)
	}
	p.answer(l, a)
	p.proved(want)
	if s := p.spool(); s.Waiting != 0 || len(p.unproven) > 0 {
		t.Errorf("%d wait; %q", s.Waiting, p.unproven)
	}
}

// I21: a home that dies between its fsync and its answer, or whose answer is lost, signs the same mails when
// they come again; an origin that dies before it noted the answer gets another one.
func TestReceiptAfterCrashes(t *testing.T) {
	p := newReceipted(t)
	d := p.post("a", "b")
	l := p.lane(p.home.Peer())
	p.h.take(p.bundle(l), nil)
	p.h.restart()
	got, _ := p.h.next(p.h.read("agent:ceo", 2), 2)
	p.h.settle("agent:ceo", got[0], box.Ack, proto.CodeOK)
	p.h.restart()
	if err := l.Reset(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.h.take(p.bundle(l), nil)
	p.restart()
	more := p.post("c")
	l = p.lane(p.home.Peer())
	a := p.h.take(p.bundle(l), nil)
	p.answer(l, a)
	p.proved(map[uint64][32]byte{1: d[0], 2: d[1], 3: more[0]})
	if i := p.h.info("agent:ceo"); i.Next != 4 {
		t.Errorf("the home took %d mails", i.Next-1)
	}
}

// Of a bundle whose answer comes before that of the one before it, the receipts wait for that; what its
// home refuses has none.
func TestReceiptsWaitForTheMailsBefore(t *testing.T) {
	p := newReceipted(t)
	d := p.post("a", "bad", "b")
	l := p.lane(p.home.Peer())
	var bundles []*proto.Bundle
	for range 3 {
		m, err := l.next(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		bundles = append(bundles, m)
	}
	var answers []*proto.Bundled
	for _, m := range bundles {
		answers = append(answers, p.h.take(m, func(_ string, l *proto.Letter) (proto.Code, string) {
			if string(l.Body) == "bad" {
				return proto.CodeDenied, "no"
			}
			return proto.CodeOK, ""
		}))
	}
	p.answer(l, answers[2])
	p.answer(l, answers[1])
	p.proved(nil)
	p.answer(l, answers[0])
	p.proved(map[uint64][32]byte{1: d[0], 3: d[2]})
}

// A mail whose home signs nothing, or something else, leaves the spool without a receipt and is not
// sent again. What no home signs is an offense, and the event of the node says what it was.
func TestHostileHomesGiveNoReceipt(t *testing.T) {
	other := identity.NewKeys(nil, time.Now())
	for name, tt := range map[string]struct {
		sign    func(p *receipted, list []proto.MailStatement) []byte
		change  func(m *proto.Bundled)
		offense bool
	}{
		"nothing":        {sign: func(*receipted, []proto.MailStatement) []byte { return nil }},
		"another letter": {sign: changed(func(s *proto.MailStatement) { s.Digest[0]++ }), offense: true},
		"another box":    {sign: changed(func(s *proto.MailStatement) { s.Box = "agent:cfo" }), offense: true},
		"another time":   {sign: changed(func(s *proto.MailStatement) { s.Time++ }), offense: true},
		"another origin": {sign: changed(func(s *proto.MailStatement) { s.Origin = proto.PeerID{9} }), offense: true},
		"another mesh":   {sign: changed(func(s *proto.MailStatement) { s.Mesh = proto.MeshID{9} }), offense: true},
		"one of two":     {sign: func(p *receipted, list []proto.MailStatement) []byte { return p.home.SignMail(list[:1]) }, offense: true},
		"another order": {sign: func(p *receipted, list []proto.MailStatement) []byte {
			slices.Reverse(list)
			return p.home.SignMail(list)
		}, offense: true},
		"another node":     {sign: func(_ *receipted, list []proto.MailStatement) []byte { return other.SignMail(list) }, offense: true},
		"a short one":      {sign: func(*receipted, []proto.MailStatement) []byte { return []byte("x") }, offense: true},
		"time told wrong":  {change: func(m *proto.Bundled) { m.Time-- }, offense: true},
		"before all times": {change: func(m *proto.Bundled) { m.Time = -1 }},
	} {
		t.Run(name, func(t *testing.T) {
			p := newReceipted(t)
			if tt.sign != nil {
				p.h.stop()
				p.h.cfg.Sign = func(list []proto.MailStatement) []byte { return tt.sign(p, list) }
				p.h.start()
			}
			p.post("a", "b")
			l := p.lane(p.home.Peer())
			a := p.h.take(p.bundle(l), nil)
			if tt.change != nil {
				tt.change(a)
			}
			if err := l.Answer(t.Context(), a); errors.Is(err, proto.ErrBadMail) != tt.offense || err != nil && !tt.offense {
				t.Errorf("%v", err)
			}
			for range 2 {
				if s, kept := p.spool(), p.receipts(); s.Waiting != 0 || len(kept) != 2 || len(kept[1])+len(kept[2]) > 0 || len(p.unproven) != 1 {
					t.Errorf("%d wait, kept %x, told %q", s.Waiting, kept, p.unproven)
				}
				p.restart()
			}
		})
	}
}

// changed has the last statement changed before it is signed.
func changed(change func(*proto.MailStatement)) func(*receipted, []proto.MailStatement) []byte {
	return func(p *receipted, list []proto.MailStatement) []byte {
		change(&list[len(list)-1])
		return p.home.SignMail(list)
	}
}

// I22: a hostile origin that sends another letter with a number that was taken gets no signature, and no
// answer says anything about the letter.
func TestHomeSignsNoLetterThatItDidNotTake(t *testing.T) {
	p := newReceipted(t)
	p.post("a")
	m := p.bundle(p.lane(p.home.Peer()))
	if a := p.h.take(m, nil); len(a.GetSignature()) == 0 {
		t.Fatalf("%v", a)
	}
	m.Letters = p.letter("another", func(l *proto.Letter) { l.Flags = proto.LetterReceipt })
	for range 2 {
		if a := p.h.take(m, nil); a.GetCode() != proto.CodeOK || len(a.GetSignature()) > 0 {
			t.Errorf("%v", a)
		}
		p.h.restart()
	}
}

// A letter that its home does not remember, here because another one came with its number first, has no
// receipt. The others of its bundle have theirs.
func TestOneForgottenLetterOfABundle(t *testing.T) {
	p := newReceipted(t)
	d := p.post("a", "b", "no", "c")
	l := p.lane(p.home.Peer())
	m := p.bundle(l)
	other, rest := pb.Clone(m).(*proto.Bundle), m.GetLetters()
	other.Letters = nil
	for i := range d {
		var letter []byte
		var err error
		if letter, rest, err = proto.CutLetter(rest); err != nil {
			t.Fatal(err)
		}
		if i == 1 {
			letter = p.letter("another", func(l *proto.Letter) { l.Flags = proto.LetterReceipt })
		}
		other.Letters = append(other.Letters, letter...)
	}
	p.h.take(other, nil)
	a := p.h.take(m, nil)
	if len(a.GetSignature()) == 0 {
		t.Fatalf("nothing is signed: %v", a)
	}
	p.answer(l, a)
	if kept := p.receipts(); len(kept) != 3 || len(kept[2]) > 0 {
		t.Errorf("%x", kept)
	}
	p.proved(map[uint64][32]byte{1: d[0], 4: d[3]})
	if s := p.spool(); s.Waiting != 0 || len(p.unproven) != 1 || !strings.HasPrefix(p.unproven[0], "1 of agent:ceo at true") {
		t.Errorf("%d wait, told %q", s.Waiting, p.unproven)
	}
}

// A mail that its home has, though the mail before it has no answer, ends with its receipt when no
// answer will come any more.
func TestReceiptWithoutTheAnswerBefore(t *testing.T) {
	p := newReceipted(t)
	d := p.post("a", "b")
	l := p.lane(p.home.Peer())
	first, err := l.next(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	second, err := l.next(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	p.h.take(first, nil)
	p.answer(l, p.h.take(second, nil))
	p.gone.Store(true)
	for p.spool().Waiting > 0 {
		time.Sleep(tickEvery)
	}
	p.restart()
	p.proved(map[uint64][32]byte{2: d[1]})
}

// A mail of another node that goes to the new home of its box asks for no receipt any more: its node has
// one of this node. One of this node does.
func TestReceiptsOfAMailThatMoves(t *testing.T) {
	p := newReceipted(t)
	p.post("a")
	p.h.take(p.bundle(p.lane(p.home.Peer())), nil)
	own := p.h.letter("own", func(l *proto.Letter) { l.Flags = proto.LetterReceipt })
	if _, err := p.h.Send(t.Context(), []Item{{Box: "agent:ceo", Letter: own}}, false); err != nil {
		t.Fatal(err)
	}
	p.h.moveOut("agent:ceo")
	m := p.h.bundle(p.h.lane(homeID))
	flags := map[string]proto.LetterFlags{}
	for rest := m.GetLetters(); len(rest) > 0; {
		var letter []byte
		var err error
		if letter, rest, err = proto.CutLetter(rest); err != nil {
			t.Fatal(err)
		}
		l, err := proto.ParseLetter(letter)
		if err != nil {
			t.Fatal(err)
		}
		flags[string(l.Body)] = l.Flags
	}
	if want := map[string]proto.LetterFlags{"a": 0, "own": proto.LetterReceipt}; !maps.Equal(flags, want) {
		t.Errorf("flags %v, want %v", flags, want)
	}
}
