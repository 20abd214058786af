package node

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/balefire/balefire/bodies"
	"github.com/balefire/balefire/outbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/backlog"
	"github.com/balefire/balefire/transfer"
	"github.com/balefire/balefire/wire"
)

// An offer of a body that is here already takes no custody of its task: its home, which has
// sent only the body so far, counts the task as never sent (I3).
func TestOfferTakesNoCustody(t *testing.T) {
	a, b := pair(t, nil)
	if err := b.Handlers.Add(t.Context(), allow("sum", wire.TypeSHA256)); err != nil {
		t.Fatal(err)
	}
	body := random(t, 300_000)
	ref, object, err := b.storage.Blobs.Seal(t.Context(), bytes.NewReader(body), bodies.SealOptions{Suite: bodies.AES})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	d := &outbox.Draft{Header: proto.Header{
		What: proto.WhatTask, Mesh: a.mesh.ID, ID: proto.NewTaskID(now), Origin: a.keys.Peer(), Target: b.keys.Peer(),
		Seq: a.outbox.NextSeq(b.keys.Peer()), Created: now.UnixMilli(), NotAfter: now.Add(time.Hour).UnixMilli(),
	}}
	d.Header.SetObject(object.Name(), object.Size)
	plain, err := proto.Encode(nil, &proto.Content{Kind: "sum", Class: proto.Normal, BodySize: uint64(ref.Size), BodyDigest: ref.Digest[:], Object: ref.Proto()})
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
	if sink != nil || reply.GetCode() != proto.CodeOK {
		t.Errorf("a body that is here is answered with %v", reply)
	}
	if rec, err := b.inbox.Get(d.Header.ID); !errors.Is(err, backlog.ErrNotFound) {
		t.Errorf("after the offer the task is %s here: %v", rec.GetState().Name(), err)
	}
	if ans, err := (receiver{b.Node}).Receive(t.Context(), a.keys.Peer(), []*proto.Message{m}); err != nil || len(ans.Refusals) > 0 {
		t.Errorf("the task itself is answered with %v: %v", ans.Refusals, err)
	}
	if _, err := b.inbox.Get(d.Header.ID); err != nil {
		t.Errorf("after it was accepted: %v", err)
	}
}
