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

// receiveForged delivers a result of a task to l as if from had sent it.
func (l *testNode) receiveForged(t *testing.T, from *testNode, id proto.TaskID, out *proto.Outcome) {
	t.Helper()
	d := &outbox.Draft{Header: proto.Header{
		What: proto.WhatResult, Mesh: l.mesh.ID, ID: id, Origin: from.keys.Peer(), Target: l.keys.Peer(),
		Seq: proto.Seq{Boot: 1, Counter: 1}, Created: time.Now().UnixMilli(), NotAfter: time.Now().Add(time.Hour).UnixMilli(),
	}}
	plain, err := proto.Encode(nil, out)
	if err != nil {
		t.Fatal(err)
	}
	m := from.frame(t, l.Node, d, plain, proto.TypeResult)
	if _, err := (receiver{l.Node}).Receive(t.Context(), from.keys.Peer(), []*proto.Message{m}); err != nil {
		t.Fatal(err)
	}
}

// frame seals and signs what l sends to a peer.
func (l *testNode) frame(t *testing.T, to *Node, d *outbox.Draft, plain []byte, kind proto.MessageType) *proto.Message {
	t.Helper()
	env, _, err := l.sealer.Seal(&d.Header, to.keys.SealingKey(), plain)
	if err != nil {
		t.Fatal(err)
	}
	leaf := identity.EnvelopeLeaf(env.Header, env.Body, d.Header.What)
	sig, proofs := l.keys.SignGroup([][32]byte{leaf})
	env.Index, env.Path = proofs[0].Index, proofs[0].Path
	payload, err := proto.Encode(nil, env)
	if err != nil {
		t.Fatal(err)
	}
	return &proto.Message{Type: kind, Payload: payload, Signature: sig}
}
