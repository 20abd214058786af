package mail

import (
	"bytes"
	"errors"
	"testing"

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
