package node

import (
	"crypto/sha256"
	"testing"
	"time"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/outbox"
	"github.com/balefire/balefire/proto"
)

func sha256sum(b []byte) []byte { s := sha256.Sum256(b); return s[:] }

// openForged hands l a result of a task as if `from` had sent it.
func (l *live) openForged(t *testing.T, from *live, id proto.TaskID, out *proto.Outcome) {
	t.Helper()
	d := &outbox.Draft{Header: proto.Header{
		What: proto.WhatResult, Mesh: l.mesh.ID, ID: id, Origin: from.keys.Peer(), Target: l.keys.Peer(),
		Seq: proto.Seq{Boot: 1, Counter: 1}, Created: time.Now().UnixMilli(), NotAfter: time.Now().Add(time.Hour).UnixMilli(),
	}}
	plain, err := proto.Encode(nil, out)
	if err != nil {
		t.Fatal(err)
	}
	key, _ := from.book.KeyRecord(l.keys.Peer())
	env, _, err := from.sealer.Seal(&d.Header, key, plain)
	if err != nil {
		t.Fatal(err)
	}
	leaf := identity.EnvelopeLeaf(env.Header, env.Body, proto.WhatResult)
	sig, proofs := from.keys.SignGroup([][32]byte{leaf})
	env.Index, env.Path = proofs[0].Index, proofs[0].Path
	payload, err := proto.Encode(nil, env)
	if err != nil {
		t.Fatal(err)
	}
	m := &proto.Message{Type: proto.MessageType_RESULT, Payload: payload, Signature: sig}
	if _, err := l.Receive(t.Context(), from.keys.Peer(), []*proto.Message{m}); err != nil {
		t.Fatal(err)
	}
}
