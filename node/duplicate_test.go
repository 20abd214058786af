package node

import (
	"bytes"
	"testing"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/outbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/backlog"
	"github.com/balefire/balefire/transport/transporttest"
	"github.com/balefire/balefire/wire"
)

// A duplicate of a task in custody is answered as such, whatever its envelope would be refused
// for by now: its home would take another answer as proof that the task is not here, call it
// expired or cancelled, and sign it again (I3).
func TestDuplicateIsRecognized(t *testing.T) {
	for _, tt := range []struct {
		name   string
		ttl    time.Duration
		refuse proto.Code // of a task that is not here
		change func(*testing.T, *clock.Manual, *Node)
	}{
		{"after its time", time.Minute, proto.CodeExpired, func(_ *testing.T, m *clock.Manual, _ *Node) { m.Advance(time.Hour) }},
		{"after its time, by a clock that is doubted", time.Minute, proto.CodeBusy, func(_ *testing.T, m *clock.Manual, _ *Node) {
			m.Advance(time.Hour)
			m.SetWall(m.Clock().Now().Add(10 * 24 * time.Hour))
		}},
		{"from the future", time.Hour, proto.CodeClock, func(_ *testing.T, m *clock.Manual, _ *Node) {
			m.SetWall(m.Clock().Now().Add(-proto.Skew + time.Minute))
		}},
		{"sealed to a key that is too old", time.Hour, proto.CodeBadKey, func(t *testing.T, m *clock.Manual, n *Node) {
			if err := n.keys.Rotate(0, m.Clock().Now().Add(-proto.MaxTTL-3*proto.Skew)); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, b := pair(t, nil)
			if err := b.Handlers.Add(t.Context(), allow("sum", wire.TypeSHA256)); err != nil {
				t.Fatal(err)
			}
			b.halt()
			m := clock.NewManual(time.Now().Add(-proto.Skew + time.Minute))
			b.cfg.Clock = m.Clock()
			later, err := New(b.cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer later.Close()
			deliver := func(msg *proto.Message, want proto.Code) {
				t.Helper()
				ans, err := receiver{later}.Receive(t.Context(), a.keys.Peer(), []*proto.Message{{Type: msg.Type, Payload: bytes.Clone(msg.Payload), Signature: msg.Signature}})
				if err != nil {
					t.Fatal(err)
				}
				got := proto.CodeOK
				if len(ans.Refusals) > 0 {
					got = ans.Refusals[0].Code
				}
				if got != want {
					t.Errorf("answered with %s, want %s", got.Name(), want.Name())
				}
			}
			if err := later.keys.Rotate(0, m.Clock().Now().Add(-proto.MaxTTL-4*proto.Skew)); err != nil { // an old one
				t.Fatal(err)
			}
			here, unknown := a.task(t, later, tt.ttl), a.task(t, later, tt.ttl)
			deliver(here, proto.CodeOK)
			tt.change(t, m, later)
			deliver(unknown, tt.refuse)
			deliver(here, proto.CodeDuplicate)
		})
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
