package mail

import (
	"errors"
	"fmt"
	"slices"

	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
)

// ErrUnsigned is why there is no receipt of a mail that its home has.
var ErrUnsigned = errors.New("its node has not signed that: it does not know any more which letter it took, or its version signs nothing")

// An askedMail is a mail of a bundle that wants a receipt.
type askedMail struct {
	place  int // in its bundle
	seq    uint64
	number proto.Seq
	id     proto.MailID
	digest [32]byte
}

// ask notes the mails of a bundle that want receipts.
func (l *Lane) ask(s *shipment) {
	if l.asked == nil {
		l.asked = map[uint64][]askedMail{}
	}
	for number := range l.asked {
		if !l.b.spools.origin.Expects(number) {
			delete(l.asked, number)
		}
	}
	l.asked[s.Number] = s.asked
}

// prove checks what the home has signed with its answer, which is one to expect, and keeps the
// receipts until their mails leave the spool. A mail without one leaves it all the same: the home
// has said on its connection that it has the mail. The error is that of a signature that no home
// gives.
func (l *Lane) prove(t *target, class proto.Class, m *proto.Bundled) error {
	var list []proto.MailStatement
	var seqs, unsigned []uint64
	signs := len(m.GetSignature()) > 0 && m.GetTime() >= 0 && l.b.cfg.Verify != nil
	for _, x := range l.asked[m.GetNumber()] {
		refused := slices.ContainsFunc(m.GetSkipped(), func(s *proto.Skipped) bool { return x.number == proto.Seq{Boot: s.GetBoot(), Counter: s.GetNumber()} })
		switch {
		case x.number.Compare(m.UpTo()) > 0 || refused:
		case !signs || m.IsUnsigned(x.place):
			unsigned = append(unsigned, x.seq)
		default:
			seqs, list = append(seqs, x.seq), append(list, proto.MailStatement{
				Mesh: l.b.cfg.Mesh, Mail: x.id, Home: l.home, Origin: l.b.cfg.Self, Time: m.GetTime(), Class: class, Number: x.number, Digest: x.digest, Box: t.box,
			})
		}
	}
	delete(l.asked, m.GetNumber())
	if t.proofs == nil {
		t.proofs = map[uint64][]byte{}
	}
	if len(unsigned) > 0 {
		l.unproven(t, unsigned, ErrUnsigned)
	}
	if len(list) == 0 {
		return nil
	}
	receipts, err := l.b.cfg.Verify(l.home, list, m.GetSignature())
	if err != nil {
		l.unproven(t, seqs, err)
		return fmt.Errorf("%w: answer to bundle %d of %s: %w", proto.ErrBadMail, m.GetNumber(), l.home, err)
	}
	for i, seq := range seqs {
		t.proofs[seq] = receipts[i].Append(nil)
	}
	return nil
}

// unproven notes mails that the home has, and of which there is no receipt.
func (l *Lane) unproven(t *target, seqs []uint64, why error) {
	for _, seq := range seqs {
		t.proofs[seq] = nil
	}
	l.b.cfg.Logger.Info("a node has mail and gives no receipt of it", "box", t.box, "home", l.home, "mails", len(seqs), "why", why)
	if l.b.cfg.Unproven != nil {
		l.b.cfg.Unproven(t.box, l.home, len(seqs), why)
	}
}

// doneRecords returns the records that end mails of a spool which the home has. Those that want a
// receipt are kept with it.
func (t *target) doneRecords(seqs []uint64) (recs [][]byte) {
	done, taken := seqs, []box.Receipt(nil)
	if len(t.proofs) > 0 {
		done = slices.DeleteFunc(slices.Clone(seqs), func(seq uint64) bool {
			proof, asked := t.proofs[seq]
			if asked {
				taken = append(taken, box.Receipt{Seq: seq, Proof: proof})
				delete(t.proofs, seq)
			}
			return asked
		})
	}
	for part := range slices.Chunk(done, box.MaxSeqs) {
		recs = append(recs, box.EncodeSpoolDone(t.id, part))
	}
	for part := range slices.Chunk(taken, box.MaxReceipts) {
		recs = append(recs, box.EncodeTaken(t.id, part))
	}
	return recs
}
