package identity

import (
	"bytes"
	"errors"
	"testing"

	"github.com/balefire/balefire/proto"
)

func mailStatements(k *Keys, n int) []proto.MailStatement {
	list := make([]proto.MailStatement, n)
	for i := range list {
		list[i] = proto.MailStatement{Mail: proto.MailID{0: 1, 15: byte(i)}, Home: k.Peer(), Origin: proto.PeerID{1}, Time: today.UnixMilli(), Box: "agent:ceo"}
	}
	return list
}

// One signature gives each mail a receipt that is verified alone, of its statement by its home.
func TestMailReceipts(t *testing.T) {
	home, stranger := NewKeys(nil, today), NewKeys(nil, today)
	for _, n := range []int{1, 2, 3, 100, proto.MaxGroup} {
		said := mailStatements(home, n)
		sig := home.SignMail(said)
		list, err := NewVerifier().MailReceipts(home.Peer(), said, sig)
		if err != nil || len(list) != n {
			t.Fatal(len(list), err)
		}
		for i := range list[:min(n, 20)] {
			r, err := proto.ParseMailReceipt(list[i].Append(nil))
			if err != nil || r.Statement != said[i] {
				t.Fatalf("receipt %d of %d: %+v, %v", i, n, r, err)
			}
			if err := VerifyMailReceipt(NewVerifier(), &r); err != nil {
				t.Errorf("receipt %d of %d: %v", i, n, err)
			}
		}
		if _, err := NewVerifier().MailReceipts(stranger.Peer(), said, sig); !errors.Is(err, ErrSignature) {
			t.Errorf("in another node's name: %v", err)
		}
		for what, change := range map[string]func(*proto.MailStatement){
			"another box":    func(s *proto.MailStatement) { s.Box = "agent:cfo" },
			"another time":   func(s *proto.MailStatement) { s.Time++ },
			"another letter": func(s *proto.MailStatement) { s.Digest[0]++ },
			"another mail":   func(s *proto.MailStatement) { s.Mail[7]++ },
			"another origin": func(s *proto.MailStatement) { s.Origin[0]++ },
			"another number": func(s *proto.MailStatement) { s.Class, s.Number = proto.High, proto.Seq{Boot: 1, Counter: 1} },
			"another mesh":   func(s *proto.MailStatement) { s.Mesh[0]++ },
		} {
			other := mailStatements(home, n)
			change(&other[n-1])
			if _, err := NewVerifier().MailReceipts(home.Peer(), other, sig); !errors.Is(err, ErrSignature) {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
	for _, n := range []int{0, proto.MaxGroup + 1} {
		if _, err := NewVerifier().MailReceipts(home.Peer(), mailStatements(home, n), nil); !errors.Is(err, ErrProof) {
			t.Errorf("%d statements: %v", n, err)
		}
	}
}

// A receipt with a changed bit is refused, and so is one that was signed for something else.
func TestChangedMailReceiptsAreRefused(t *testing.T) {
	home := NewKeys(nil, today)
	said := mailStatements(home, 3)
	list, err := NewVerifier().MailReceipts(home.Peer(), said, home.SignMail(said))
	if err != nil {
		t.Fatal(err)
	}
	raw := list[1].Append(nil)
	for i := range raw {
		b := bytes.Clone(raw)
		b[i] ^= 1 << (i % 8)
		r, err := proto.ParseMailReceipt(b)
		if err == nil {
			err = VerifyMailReceipt(NewVerifier(), &r)
		}
		if err == nil {
			t.Errorf("accepted with byte %d changed", i)
		}
	}
	one := proto.MailReceipt{Statement: said[0]}
	sig, _ := home.SignGroup([][32]byte{StatementLeaf(said[0].Append(nil))})
	one.Signature = [64]byte(sig)
	if err := VerifyMailReceipt(NewVerifier(), &one); !errors.Is(err, ErrSignature) {
		t.Errorf("a signature of another domain: %v", err)
	}
}
