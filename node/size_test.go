package node

import (
	"testing"
	"time"

	"github.com/balefire/balefire/bodies"
	"github.com/balefire/balefire/outbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transfer"
	"github.com/balefire/balefire/wire"
)

// A task cannot get more bytes past its handler's limit than it declares.
func TestStreamHasTheSizeOfItsTask(t *testing.T) {
	a, b := pair(t, nil)
	s := allow("sum", wire.TypeSHA256)
	s.MaxBody = 1000
	if err := b.Handlers.Add(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	for declared, want := range map[uint64]proto.Code{1 << 30: proto.CodeTooLarge, 10: proto.CodeBadForm} {
		now := time.Now()
		d := &outbox.Draft{Header: proto.Header{
			What: proto.WhatTask, Mesh: a.mesh.ID, ID: proto.NewTaskID(now), Origin: a.keys.Peer(), Target: b.keys.Peer(),
			Seq: a.outbox.NextSeq(b.keys.Peer()), Created: now.UnixMilli(), NotAfter: now.Add(time.Hour).UnixMilli(),
		}}
		object := bodies.Manifest{Size: proto.SealedSize(1 << 30), Chunk: proto.ChunkSize}
		name := object.Name()
		d.Header.SetObject(name, object.Size)
		plain, err := proto.Encode(nil, &proto.Content{Kind: "sum", Class: proto.Normal, BodySize: declared, BodyDigest: sha256sum(nil), Object: &proto.BodyRef{Name: name[:], Key: make([]byte, 32), Suite: 1}})
		if err != nil {
			t.Fatal(err)
		}
		m := a.frame(t, b.Node, d, plain, proto.TypeData)
		env := new(proto.Envelope)
		if err := proto.Decode(m.Payload, env); err != nil {
			t.Fatal(err)
		}
		env.Signature = m.Signature
		sink, reply := transfer.Receiver{Transfers: b.Node.transfers}.Offer(t.Context(), a.keys.Peer(), &proto.Offer{Type: m.Type, Envelope: env}, &object)
		if sink != nil || reply.GetCode() != want {
			t.Errorf("1 GiB declared as %d bytes: %v, want %v", declared, reply, want.Name())
		}
		if sink != nil {
			sink.End(false)
		}
	}
}
