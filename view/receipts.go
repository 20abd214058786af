package view

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// Result returns the result of a task. The caller must close it.
func (v *Views) Result(ctx context.Context, ref string) (io.ReadCloser, wire.Task, error) {
	id, role, rec, err := v.Find(ctx, ref)
	if err != nil {
		return nil, wire.Task{}, err
	}
	t := v.View(id, role, rec)
	switch {
	case role == wire.RoleOwner:
		return nil, t, fmt.Errorf("%w: the result of %s is at its home: run this on %s", wire.ErrRefused, id, t.Peer)
	case !rec.GetState().Terminal():
		return nil, t, fmt.Errorf("%w: task %s is %s and has no result yet", wire.ErrRefused, id, t.State)
	}
	body, err := v.Local.Result(rec)
	if err != nil {
		return nil, t, err
	}
	return body, t, nil
}

// Receipts returns the receipts of a task, each verified here and with everything that
// another party needs to verify it.
func (v *Views) Receipts(ctx context.Context, ref string) ([]wire.Receipt, error) {
	id, role, rec, err := v.Find(ctx, ref)
	if err != nil {
		return nil, err
	}
	out := []wire.Receipt{}
	proofs := rec.GetReceipts()
	if role == wire.RoleHome {
		proofs = append([]*proto.Receipt{v.storedReceipt(id, rec)}, proofs...)
	}
	for _, rc := range proofs {
		raw, err := proto.Encode(nil, rc)
		if err != nil {
			return nil, err
		}
		var problem *wire.Note
		s, err := identity.VerifyReceipt(v.verifier, rc)
		if err != nil { // returned with its problem
			problem = &wire.Note{Code: wire.ReceiptUnsigned}
			if s, err = proto.ParseStatement(rc.GetStatement()); err != nil {
				problem = &wire.Note{Code: wire.ReceiptUnreadable, NoteArgs: wire.NoteArgs{Detail: err.Error()}}
			}
		}
		out = append(out, v.receipt(s, base64.StdEncoding.EncodeToString(raw), problem))
	}
	return out, nil
}

// storedReceipt states that a task is, or was, durable at this home. Its original proof
// is the signature of the task, which is deleted with its body, so the home signs the
// statement again on request.
func (v *Views) storedReceipt(id proto.TaskID, rec *proto.Record) *proto.Receipt {
	s := proto.Statement{
		Fact: proto.FactStored, State: proto.Pending, Mesh: v.Mesh, Task: id,
		Node: v.Self.Peer, Time: rec.GetCreatedMs(), Epoch: rec.Seq(),
	}
	return v.Keys.Receipts([][]byte{s.Append(nil)})[0]
}

func (v *Views) receipt(s proto.Statement, proof string, problem *wire.Note) wire.Receipt {
	name, id := v.Book.Identify(s.Node[:])
	r := wire.Receipt{
		Fact: s.Fact.String(), Node: name, NodeID: id, Time: proto.Time(s.Time), Epoch: s.Epoch.String(),
		Attempt: s.Attempt, Proof: proof, Verified: problem == nil, Problem: problem,
	}
	if s.State != 0 {
		r.State = s.State.Name()
	}
	if s.Algorithm == 1 {
		r.Digest = "sha256:" + hex.EncodeToString(s.Digest[:])
	}
	return r
}
