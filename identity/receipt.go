package identity

import (
	"fmt"

	"github.com/balefire/balefire/proto"
)

// SignAck returns the signature of an Ack over its statements, in the order of
// their frames, 1 to proto.MaxGroup of them.
func (k *Keys) SignAck(statements [][]byte) []byte {
	t := newTree(statementLeaves(statements))
	return signRoot(k.private, t.Root())
}

// AckReceipts checks the signature of an Ack from node and returns one receipt
// per statement. The statements are not on the wire: the receiver of the Ack
// knows them and encodes them itself.
func (v *Verifier) AckReceipts(node proto.PeerID, statements [][]byte, sig []byte) ([]*proto.Receipt, error) {
	if len(statements) < 1 || len(statements) > proto.MaxGroup {
		return nil, fmt.Errorf("receipts of an ack: %w: %d statements", ErrProof, len(statements))
	}
	t := newTree(statementLeaves(statements))
	if err := v.verifyRoot(node, t.Root(), sig); err != nil {
		return nil, fmt.Errorf("receipts of an ack from %s: %w", node.Short(), err)
	}
	return receiptsOf(statements, proofsOf(t), sig), nil
}

// Receipts signs several statements at once, 1 to proto.MaxGroup, with one
// signature.
func (k *Keys) Receipts(statements [][]byte) []*proto.Receipt {
	sig, proofs := k.SignGroup(statementLeaves(statements))
	return receiptsOf(statements, proofs, sig)
}

func receiptsOf(statements [][]byte, proofs []Proof, sig []byte) []*proto.Receipt {
	receipts := make([]*proto.Receipt, len(statements))
	for i, p := range proofs {
		receipts[i] = &proto.Receipt{Statement: statements[i], Path: p.Path, Index: p.Index, Signature: sig}
	}
	return receipts
}

// VerifyReceipt returns the statement of a receipt after checking the signature
// of the node that it names. It needs no network and no store. The caller must
// know whether that node was a member.
func VerifyReceipt(v *Verifier, r *proto.Receipt) (proto.Statement, error) {
	s, err := proto.ParseStatement(r.GetStatement())
	if err != nil {
		return proto.Statement{}, fmt.Errorf("receipt: %w", err)
	}
	proof := Proof{Index: r.GetIndex(), Path: r.GetPath()}
	if err := v.Verify(s.Node, StatementLeaf(r.GetStatement()), proof, r.GetSignature()); err != nil {
		return proto.Statement{}, fmt.Errorf("receipt of %s: %w", s.Node.Short(), err)
	}
	return s, nil
}

func statementLeaves(statements [][]byte) [][32]byte {
	leaves := make([][32]byte, len(statements))
	for i, s := range statements {
		leaves[i] = StatementLeaf(s)
	}
	return leaves
}
