package outbox

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/mem"
)

// An ackingLink is a link that accepts everything at once.
type ackingLink struct {
	keys *identity.Keys
	acks chan *proto.Ack
	n    uint64
}

func (m *ackingLink) Peer() proto.PeerID { return m.keys.Peer() }

func (m *ackingLink) Answers(ctx context.Context) (*proto.Ack, error) {
	select {
	case a := <-m.acks:
		return a, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (m *ackingLink) Send(ctx context.Context, msgs []*proto.Message) error {
	ack := &proto.Ack{From: m.n + 1, Time: time.Now().UnixMilli()}
	var statements [][]byte
	for _, msg := range msgs {
		if msg.Type != proto.TypeData {
			continue
		}
		m.n++
		id, err := proto.ParseTaskID(msg.Id)
		if err != nil {
			return err
		}
		var env proto.Envelope
		if err := proto.Decode(msg.Payload, &env); err != nil {
			return err
		}
		h, err := proto.ParseHeader(env.Header)
		if err != nil {
			return err
		}
		s := AcceptedStatement(testMesh, id, m.Peer(), h.Seq, ack.Time)
		statements = append(statements, s.Append(nil))
	}
	if len(statements) == 0 {
		return nil
	}
	ack.UpTo, ack.Signature = m.n, m.keys.SignAck(statements)
	select {
	case m.acks <- ack:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// BenchmarkAccepted measures what a task of 1 KiB costs at its home from submit to
// accepted, with 256 in flight: signing, both writes, the frame and its answer. It
// includes the link, which decodes each frame and signs each answer.
func BenchmarkAccepted(b *testing.B) {
	s, err := store.Open(mem.New(), store.Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	keys := identity.NewKeys(nil, time.Now())
	window := make(chan struct{}, 256)
	o, err := Open(s, keys, Config{Mesh: testMesh, MaxPending: 1 << 30, MaxBytes: 1 << 40, Changed: func(_ proto.TaskID, r *proto.Record) {
		if r.State == accepted {
			<-window
		}
	}})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	var wg sync.WaitGroup
	wg.Go(func() { o.Run(ctx) })
	m := &ackingLink{keys: identity.NewKeys(nil, time.Now()), acks: make(chan *proto.Ack, 16)}
	wg.Go(func() { o.Serve(ctx, m) })
	body := make([]byte, 1<<10)
	b.ReportAllocs()
	b.ResetTimer()
	var callers sync.WaitGroup
	tasks := make(chan struct{}, 1024)
	for range 64 {
		callers.Go(func() {
			for range tasks {
				window <- struct{}{}
				now := time.Now()
				d := &Draft{Header: proto.Header{
					What: proto.WhatTask, Suite: 1, ID: proto.NewTaskID(now), Origin: keys.Peer(), Target: m.Peer(),
					Seq: o.NextSeq(m.Peer()), Created: now.UnixMilli(), NotAfter: now.Add(time.Hour).UnixMilli(),
				}, Record: &proto.Record{Kind: "bench", Class: proto.Normal}}
				d.Envelope = &proto.Envelope{Header: d.Header.Append(nil), Body: body, Slot: body[:100]}
				d.Leaf = identity.EnvelopeLeaf(d.Envelope.Header, body, proto.WhatTask)
				if _, err := o.Submit(ctx, d, nil); err != nil {
					b.Error(err)
				}
			}
		})
	}
	for range b.N {
		tasks <- struct{}{}
	}
	close(tasks)
	callers.Wait()
	for range cap(window) {
		window <- struct{}{}
	}
	b.StopTimer()
	cancel()
	wg.Wait()
}
