package mail

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/mail/chain"
	"github.com/balefire/balefire/proto"
)

// TestChains checks that the rule of package chain decides for the boxes.
func TestChains(t *testing.T) {
	c, x := new(Chains), box.Chain{Origin: proto.PeerID{1}, Box: "agent:ceo", Class: proto.High}
	n := func(boot, counter uint64) proto.Seq { return proto.Seq{Boot: boot, Counter: counter} }
	for _, tt := range []struct {
		name         string
		number, prev proto.Seq
		want         proto.Code
		refuse       proto.Code // what becomes of it
	}{
		{"the first", n(1, 1), proto.Seq{}, proto.CodeOK, proto.CodeOK},
		{"again", n(1, 1), proto.Seq{}, proto.CodeDuplicate, 0},
		{"one is missing", n(1, 3), n(1, 2), proto.CodeBusy, 0},
		{"one that is refused", n(1, 2), n(1, 1), proto.CodeOK, proto.CodeDenied},
		{"refused before", n(1, 2), n(1, 1), proto.CodeDuplicate, 0},
		{"the next one", n(1, 3), n(1, 2), proto.CodeOK, proto.CodeOK},
		{"no number", proto.Seq{}, proto.Seq{}, proto.CodeBadForm, 0},
	} {
		it := box.Numbered{N: tt.number, Prev: tt.prev, NotAfter: 1000}
		code := c.Check(x, it)
		if code != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, code, tt.want)
		}
		if code == proto.CodeOK {
			c.Note(x, it, tt.refuse)
		}
	}
	if code, ok := c.Refused(x, n(1, 2)); !ok || code != proto.CodeDenied {
		t.Errorf("refused with %v, %v", code, ok)
	}
	saved, again := c.Save(), new(Chains)
	if err := again.Load(saved); err != nil || !bytes.Equal(again.Save(), saved) {
		t.Errorf("loaded %x: %v", again.Save(), err)
	}
	if err := again.Load(saved[:len(saved)-1]); !errors.Is(err, chain.ErrNotes) {
		t.Errorf("half of it: %v", err)
	}
	c.Forget(1 << 50)
	if code := c.Check(x, box.Numbered{N: n(1, 1), NotAfter: 1000}); code != proto.CodeExpired {
		t.Errorf("one of a boot that was forgotten: %v", code)
	}
}

// The chains of a box that is removed stay, because its name may come back, but not those of
// one that had it once.
func TestChainsOfARemovedBox(t *testing.T) {
	now := time.Now()
	letter, err := proto.AppendLetter(nil, &proto.Letter{Class: proto.Normal, ID: proto.NewMailID(now), Created: now.UnixMilli(), NotAfter: now.Add(time.Hour).UnixMilli()})
	if err != nil {
		t.Fatal(err)
	}
	for once, want := range map[bool]proto.Code{false: proto.CodeDuplicate, true: proto.CodeOK} {
		var c Chains
		s := box.New(&c)
		peer := proto.PeerID{1}
		for _, rec := range [][]byte{
			box.EncodeBox(1, &box.BoxSettings{Name: "agent:x", Kind: box.Mailbox, Once: once}), box.EncodePeer(1, peer),
			box.AppendMail(nil, &box.Mail{Box: 1, At: now.UnixMilli(), Origin: 1, Chain: proto.Normal, Number: proto.Seq{Boot: 1, Counter: 1}, Letter: letter}),
			box.EncodeRemoveBox(1),
		} {
			var out box.Output
			if err := s.Apply(1, rec, &out); err != nil {
				t.Fatal(err)
			}
			for _, r := range out.Results {
				if r.Code != proto.CodeOK {
					t.Fatalf("%+v", r)
				}
			}
		}
		it := box.Numbered{N: proto.Seq{Boot: 1, Counter: 1}, NotAfter: now.Add(time.Hour).UnixMilli()}
		if got := c.Check(box.Chain{Origin: peer, Box: "agent:x", Class: proto.Normal}, it); got != want {
			t.Errorf("once %v: its mail is %v, want %v", once, got, want)
		}
	}
}
