package mail

import (
	"fmt"

	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/mail/chain"
	"github.com/balefire/balefire/proto"
)

// Chains are the numbers of the mail that came from other nodes, for the boxes of a ledger.
// The zero value has none.
type Chains struct {
	home chain.Home
}

var _ box.Chains = (*Chains)(nil)

// Check implements [box.Chains].
func (c *Chains) Check(x box.Chain, it box.Numbered) proto.Code {
	v := c.home.Check(chain.Chain(x), chain.Item(it))
	if v == chain.Again {
		return proto.CodeDuplicate
	}
	return v.Code()
}

// Note implements [box.Chains].
func (c *Chains) Note(x box.Chain, it box.Numbered, code proto.Code) {
	if code == proto.CodeOK {
		c.home.Take(chain.Chain(x), chain.Item(it))
		return
	}
	c.home.Skip(chain.Chain(x), chain.Item(it), code)
}

// Refused returns the code with which a mail was refused for good; false if it was not.
func (c *Chains) Refused(x box.Chain, n proto.Seq) (proto.Code, bool) {
	return c.home.Refused(chain.Chain(x), n)
}

// Had reports whether a mail was taken, with CodeOK, or with the code with which it was refused
// for good; also of a box that is gone not long ago.
func (c *Chains) Had(x box.Chain, n proto.Seq) (code proto.Code, had bool) {
	return c.home.Had(chain.Chain(x), n)
}

// Forget implements [box.Chains].
func (c *Chains) Forget(now int64) { c.home.Forget(now) }

// Drop implements [box.Chains].
func (c *Chains) Drop(box string) { c.home.Drop(box) }

// Merge implements [box.Chains]. The error is [chain.ErrNotes].
func (c *Chains) Merge(name string, notes []byte) error {
	h, err := chain.Decode(notes)
	if err != nil {
		return err
	}
	if names := h.Boxes(); len(names) != 1 {
		return fmt.Errorf("%w: of %d boxes", chain.ErrNotes, len(names))
	} else if names[0] != name {
		h.Rename(names[0], name)
	}
	if v := c.home.Merge(name, h); v != chain.Next {
		return fmt.Errorf("%w: more than this home may keep", chain.ErrNotes)
	}
	return nil
}

// Rename implements [box.Chains].
func (c *Chains) Rename(from, to string) { c.home.Rename(from, to) }

// Save implements [box.Chains].
func (c *Chains) Save() []byte { return c.home.Encode() }

// Load implements [box.Chains]. The error is chain.ErrNotes.
func (c *Chains) Load(b []byte) error {
	home, err := chain.Decode(b)
	if err != nil {
		return err
	}
	c.home = *home
	return nil
}
