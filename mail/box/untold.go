package box

import (
	"encoding/binary"

	"github.com/balefire/balefire/proto"
)

// EncodeTold returns a TOLD record: the senders of these mails of a mailbox know that they
// are done. There are at most MaxSeqs.
func EncodeTold(box BoxID, seqs []uint64) []byte {
	return finish(appendSeqs(appendHead(nil, head{typ: TypeTold, box: box}), seqs), 0)
}

// Untold returns at most limit of the mails that are done and whose senders want to know that. Each
// comes again until a TOLD record is applied. Its record is needed until then.
func (s *State) Untold(limit int) (list []Kept) {
	if s.untold == 0 {
		return nil
	}
	for _, id := range s.Boxes() {
		b := s.boxes[id]
		for seq, m := b.untold.next(0); m != nil && len(list) < limit; seq, m = b.untold.next(seq + 1) {
			list = append(list, Kept{id, seq, m.place, m.length(), m.bytes()})
		}
	}
	return list
}

// leaveUntold notes a mail that is done and whose sender is to be told.
func (s *State) leaveUntold(b *box, seq uint64, m mail) {
	m.key, m.subject = 0, 0
	b.untold.insert(seq, m)
	s.untold++
}

// applyTold forgets mails whose senders were told.
func (s *State) applyTold(h head, seqs []uint64) {
	b := s.boxes[h.box]
	if b == nil {
		return
	}
	for _, seq := range seqs {
		if b.untold.get(seq) != nil {
			b.untold.remove(seq)
			s.untold--
		}
	}
}

// tellLast lets the senders be told at once of what is done in a box that is removed.
func (s *State) tellLast(b *box, out *Output) {
	for seq, m := b.untold.next(0); m != nil; seq, m = b.untold.next(seq + 1) {
		out.Bounces = append(out.Bounces, End{Box: b.id, Seq: seq, Place: m.place, Length: m.length(), State: Done})
	}
	s.untold -= b.untold.count
}

// asksToTell reports whether the sender of a letter, which was parsed, wants to know when it is
// done.
func asksToTell(letter []byte) bool {
	return proto.LetterFlags(binary.BigEndian.Uint16(letter[2:]))&proto.LetterTellEnd != 0
}
