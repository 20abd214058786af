package node

import (
	"testing"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/outbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/backlog"
	"github.com/balefire/balefire/transport/transporttest"
	"github.com/balefire/balefire/wire"
)

// A duplicate of a task in custody is answered as such even after the task's time is
// over: otherwise its home would get EXPIRED for a task that has run (I3).
func TestDuplicateIsRecognizedAfterExpiry(t *testing.T) {
	a, b := pair(t, nil)
	if err := b.Handlers.Add(t.Context(), allow("sum", wire.TypeSHA256)); err != nil {
		t.Fatal(err)
	}
	b.halt()
	m := clock.NewManual(time.Now())
	b.cfg.Clock = m.Clock()
	later, err := New(b.cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer later.Close()
	msg := a.task(t, later, time.Minute)
	for i, want := range []proto.Code{0, proto.CodeDuplicate} {
		ans, err := receiver{later}.Receive(t.Context(), a.keys.Peer(), []*proto.Message{msg})
		if err != nil {
			t.Fatal(err)
		}
		got := proto.Code(0)
		if len(ans.Refusals) > 0 {
			got = ans.Refusals[0].Code
		}
		if got != want {
			t.Errorf("delivery %d: %s, want %s", i+1, got.Name(), want.Name())
		}
		m.Advance(time.Hour)
	}
}

// task makes the frame of a small task for a peer.
func (l *testNode) task(t *testing.T, to *Node, ttl time.Duration) *proto.Message {
	t.Helper()
	now := l.Node.cfg.Clock.Now()
	d := &outbox.Draft{Header: proto.Header{
		What: proto.WhatTask, Mesh: l.mesh.ID, ID: proto.NewTaskID(now), Origin: l.keys.Peer(), Target: to.keys.Peer(),
		Seq: l.outbox.NextSeq(to.keys.Peer()), Created: now.UnixMilli(), NotAfter: now.Add(ttl).UnixMilli(),
	}}
	plain, err := proto.Encode(nil, &proto.Content{Kind: "sum", Class: proto.Normal})
	if err != nil {
		t.Fatal(err)
	}
	return l.frame(t, to, d, plain, proto.TypeData)
}

// What a frame contains outside of the signed part takes no space here: a task has the
// same size with it as without.
func TestPaddingIsNotStored(t *testing.T) {
	a, b := pair(t, nil)
	if err := b.Handlers.Add(t.Context(), allow("sum", wire.TypeSHA256)); err != nil {
		t.Fatal(err)
	}
	b.halt() // nothing runs
	stopped, err := New(b.cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer stopped.Close()
	for _, padding := range []int{0, 60_000} {
		m := a.task(t, stopped, time.Minute)
		m.Payload = append(m.Payload, transporttest.Padding(padding)...)
		ans, err := receiver{stopped}.Receive(t.Context(), a.keys.Peer(), []*proto.Message{m})
		if err != nil || len(ans.Refusals) > 0 {
			t.Fatalf("%v, %v", ans, err)
		}
	}
	found, _, err := stopped.inbox.List(backlog.Span{}, 10, nil)
	if err != nil || len(found) != 2 {
		t.Fatalf("%d tasks, %v", len(found), err)
	}
	for _, l := range found {
		if l.Size > 2000 {
			t.Errorf("a task without a body takes %d bytes", l.Size)
		}
	}
}
