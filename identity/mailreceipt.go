package identity

import (
	"fmt"

	"github.com/balefire/balefire/proto"
)

// SignMail returns the signature of the home of a box over 1 to proto.MaxGroup statements, in the
// order of their mails.
func (k *Keys) SignMail(statements []proto.MailStatement) []byte {
	t := newTree(mailLeaves(statements))
	return signRoot(k.private, t.Root())
}

// MailReceipts checks the signature of a home and returns one receipt per statement. The statements
// are not on the wire: who sent the mail knows what the home must have stated.
func (v *Verifier) MailReceipts(home proto.PeerID, statements []proto.MailStatement, sig []byte) ([]proto.MailReceipt, error) {
	if len(statements) < 1 || len(statements) > proto.MaxGroup {
		return nil, fmt.Errorf("receipts of mail: %w: %d statements", ErrProof, len(statements))
	}
	t := newTree(mailLeaves(statements))
	if err := v.verifyRoot(home, t.Root(), sig); err != nil {
		return nil, fmt.Errorf("receipts of mail from %s: %w", home.Short(), err)
	}
	receipts := make([]proto.MailReceipt, len(statements))
	for i, p := range proofsOf(t) {
		receipts[i] = proto.MailReceipt{Statement: statements[i], Index: uint16(p.Index), Path: p.Path, Signature: [64]byte(sig)}
	}
	return receipts, nil
}

// VerifyMailReceipt checks the signature of the node that a receipt names as the home. It needs no
// network and no store. The caller must know whether that node was a member.
func VerifyMailReceipt(v *Verifier, r *proto.MailReceipt) error {
	leaf := mailLeaf(&r.Statement)
	if err := v.Verify(r.Statement.Home, leaf, Proof{Index: uint32(r.Index), Path: r.Path}, r.Signature[:]); err != nil {
		return fmt.Errorf("receipt of %s: %w", r.Statement.Home.Short(), err)
	}
	return nil
}

func mailLeaves(statements []proto.MailStatement) [][32]byte {
	leaves := make([][32]byte, len(statements))
	for i := range statements {
		leaves[i] = mailLeaf(&statements[i])
	}
	return leaves
}

func mailLeaf(s *proto.MailStatement) [32]byte { return leafOf(domainMail, s.Append(nil)) }
