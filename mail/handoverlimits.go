package mail

import (
	"fmt"

	"github.com/balefire/balefire/fair"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/mail/chain"
	"github.com/balefire/balefire/proto"
)

// What comes with the copy of a box is the word of its old home, and takes no more of this node than
// that may have.
const (
	maxCopies = 64               // boxes that come from other homes at once, or wait to be served
	maxParts  = int64(128) << 20 // bytes of what these have besides their mails, and of the numbers of chains of those that came

	// maxUnknown is how many bytes of numbers of chains a copy may have of nodes that were never a
	// member, as far as is known: of some thousand invented ones nothing would ever be forgotten.
	maxUnknown = 16 << 10
)

// roomForCopy is why there can be no copy of one more box of a home.
func (b *Broker) roomForCopy(name string, home proto.PeerID) error {
	all, held := 0, 0
	for other, k := range *b.boxes.Load() {
		if k.handover.IsCopy() && other != name {
			if all++; k.handover.Peer == home {
				held++
			}
		}
	}
	if all >= maxCopies || !fair.Within(held, all, maxCopies) {
		return &RefusedError{proto.CodeBusy, fmt.Sprintf("%d boxes are on their way here, %d of them from that node", all, held)}
	}
	return nil
}

// chargeParts adds a piece to what the copies of this start have besides their mails. The error is
// that they, with the numbers of those that are served, have too much, or those of one home its share.
func (b *Broker) chargeParts(id box.BoxID, home proto.PeerID, p *Piece) error {
	var size, all, held int64
	for _, rec := range p.Records {
		size += box.PartSize(rec)
	}
	for other, n := range b.incoming.parts {
		switch s, _ := b.state.Settings(other); {
		case !s.Handover.IsCopy(): // it is gone, or served
			delete(b.incoming.parts, other)
			delete(b.incoming.unknown, other)
			b.chargeServed()
			continue
		case s.Handover.Peer == home:
			held += n
		}
		all += n
	}
	for peer, n := range b.incoming.notes {
		if all += n; peer == home {
			held += n
		}
	}
	if size > 0 && (all+size > maxParts || !fair.Within(held, all, maxParts)) {
		return &RefusedError{proto.CodeFull, "what boxes that are on their way here have besides their mail, and those that came have of numbers, is too much"}
	}
	b.incoming.parts[id] += size
	return nil
}

// copiedOrigin returns the node that a mail of a copy came from, as the old home says; zero is this one.
// Mail of this node is as if it had been sent here. One that never was a member, as far as is known,
// is not noted: the mail is that of the old home.
func (b *Broker) copiedOrigin(p, home proto.PeerID) proto.PeerID {
	switch {
	case p == b.cfg.Self:
		return proto.PeerID{}
	case b.cfg.Known != nil && !b.cfg.Known(p):
		return home
	}
	return p
}

// chargeServed looks how much the numbers of chains take of boxes that came, by the homes that they
// came from: those are forgotten late, and what the mail of others has added is little.
func (b *Broker) chargeServed() {
	b.incoming.notes = map[proto.PeerID]int64{}
	for name, size := range b.chains.home.Sizes() {
		id, _ := b.state.Find(name)
		if s, _ := b.state.Settings(id); s.Handover.Stage == box.Came {
			b.incoming.notes[s.Handover.Peer] += size * box.NotesMemory
		}
	}
}

// hasNotes reports whether a record of a copy has numbers of chains.
func hasNotes(rec []byte) bool {
	_, ok := box.NotesOf(rec)
	return ok
}

// credible returns a record of a copy without times of chains that no home has noted: with them, mail
// of a node would be refused, or its numbers kept, for good. Of nodes that are not known it has only what
// there is room for, since one may become known that sends its mail again. Nil: nothing is left.
func (b *Broker) credible(now box.Now, id box.BoxID, rec []byte) []byte {
	notes, ok := box.NotesOf(rec)
	if !ok {
		return rec
	}
	h, err := chain.Decode(notes)
	if err != nil {
		return rec // the copy refuses it
	}
	skew := proto.Skew.Milliseconds()
	h.Cut(now.Wall+skew, now.Wall+proto.MaxTTL.Milliseconds()+2*skew)
	h.Retain(func(origin proto.PeerID, size int) bool {
		if origin == b.cfg.Self || b.cfg.Known == nil || b.cfg.Known(origin) {
			return true
		}
		fits := b.incoming.unknown[id]+size <= maxUnknown
		if fits {
			b.incoming.unknown[id] += size
		}
		return fits
	})
	if len(h.Boxes()) == 0 {
		return nil
	}
	return box.EncodeChains(h.Encode())
}
