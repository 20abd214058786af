package node

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/bodies"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/transporttest"
	"github.com/balefire/balefire/wire"
)

// A result larger than its task allows is refused: nothing of it is stored, and the task
// becomes a dead letter with that reason, which an event and a log line report.
func TestResultLargerThanMaxResultIsRefused(t *testing.T) {
	a, _, logs := loggedPair(t)
	f := a.forger("mallory", "send", "work")
	outcomeOf := func(body int) *proto.Outcome {
		b := make([]byte, body)
		return &proto.Outcome{State: proto.Success, Body: b, BodySize: uint64(body), BodyDigest: sha256sum(b)}
	}
	streamed := func(size uint64) *proto.Outcome {
		return &proto.Outcome{State: proto.Success, BodySize: size, BodyDigest: make([]byte, 32)}
	}
	for name, tt := range map[string]struct {
		max     int64
		outcome *proto.Outcome
		stream  int64 // bytes; 0: none
		state   string
	}{
		"exactly the limit":                   {5000, outcomeOf(5000), 0, "SUCCESS"},
		"one byte more":                       {5000, outcomeOf(5001), 0, "DEAD_LETTER"},
		"small":                               {50, outcomeOf(51), 0, "DEAD_LETTER"},
		"a stream":                            {5000, streamed(1 << 30), 1 << 30, "DEAD_LETTER"},
		"a stream with a smaller stated size": {5000, streamed(7), 1 << 30, "DEAD_LETTER"},
	} {
		t.Run(name, func(t *testing.T) {
			stored := a.storage.Blobs.Usage().Blobs
			id := a.submit(t, wire.Request{Target: "mallory", Kind: "k", MaxResult: tt.max})
			task, _ := proto.ParseTaskID(id)
			rec, err := a.outbox.Get(task)
			if err != nil {
				t.Fatal(err)
			}
			h := proto.Header{
				What: proto.WhatResult, Mesh: a.mesh.ID, ID: task, Origin: f.Peer(), Target: a.keys.Peer(), Seq: rec.Seq(),
				Created: time.Now().UnixMilli(), NotAfter: time.Now().Add(time.Hour).UnixMilli(),
			}
			var object bodies.Manifest
			if tt.stream > 0 {
				object = bodies.Manifest{Size: proto.SealedSize(tt.stream), Chunk: proto.ChunkSize, Root: [32]byte(sha256sum(task[:]))}
				h.SetObject(object.Name(), object.Size)
			}
			plain, err := proto.Encode(nil, tt.outcome)
			if err != nil {
				t.Fatal(err)
			}
			env, _, err := identity.NewSealer(clock.System()).Seal(&h, a.keys.SealingKey(), plain)
			if err != nil {
				t.Fatal(err)
			}
			sig, proofs := f.Keys.SignGroup([][32]byte{identity.EnvelopeLeaf(env.Header, env.Body, h.What)})
			env.Index, env.Path = proofs[0].Index, proofs[0].Path
			if tt.stream > 0 {
				env.Signature = sig
				m, err := f.Ask(a.keys.Peer(), proto.StreamChunk, f.Frame(proto.TypeOffer, &proto.Offer{Type: proto.TypeResult, Envelope: env, Manifest: object.Append(nil)}))
				reply := new(proto.OfferReply)
				if err == nil {
					err = proto.DecodeKnown(m.GetPayload(), reply)
				}
				if err != nil || reply.GetCode() != proto.CodeOK || len(reply.GetHave()) > 0 {
					t.Errorf("its body is requested (%v): %v", reply.GetCode(), err)
				}
				env.Signature = nil
			}
			payload, err := proto.Encode(nil, env)
			if err != nil {
				t.Fatal(err)
			}
			f.Send(a.keys.Peer(), proto.StreamTask, transporttest.FrameOf(proto.TypeResult, payload, sig))
			got := a.waitEnd(t, id, tt.state)
			if tt.state == "SUCCESS" {
				return
			}
			if got.Cause != "result_too_large" || got.ResultSize != 0 {
				t.Errorf("cause %q, %d bytes are stored", got.Cause, got.ResultSize)
			}
			if u := a.storage.Blobs.Usage(); u.Blobs > stored || u.Parts > 0 {
				t.Errorf("%d files and %d parts are stored", u.Blobs, u.Parts)
			}
			wantTooLarge(t, a, logs["a"], id)
		})
	}
}

// wantTooLarge waits until an event and a log line of n report that the result of a task was too
// large: they come after the end of the task.
func wantTooLarge(t *testing.T, n *testNode, log *logBuffer, id string) {
	t.Helper()
	reported := func(e wire.NodeEvent) bool {
		return e.Kind == wire.EventResultTooLarge && e.Fields["task"] == id
	}
	logged := func(line string) bool {
		return strings.Contains(line, "a result is larger than its task accepts") && strings.Contains(line, id)
	}
	eventually(t, func() bool {
		return slices.ContainsFunc(n.Events.Read(t.Context(), 0, 1000, 0).Items, reported)
	}, func() string { return "no event reports it" })
	eventually(t, func() bool {
		return slices.ContainsFunc(strings.Split(log.String(), "\n"), logged)
	}, func() string { return "no log line reports it" })
}
