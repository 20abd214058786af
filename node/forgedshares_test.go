package node

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/bodies"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/backlog"
	"github.com/balefire/balefire/transport/transporttest"
	"github.com/balefire/balefire/wire"
)

// A flooder is a hostile member that is allowed to send tasks to n0. It signs and seals
// them correctly, but respects none of the limits of a node.
type flooder struct {
	*transporttest.Forger
	t      *testing.T
	mesh   *simMesh
	sealer *identity.Sealer
	sent   uint64
}

// floodTest runs test with a flooder and two nodes in virtual time: n0, which has the
// given configuration and handler, and n1, which is honest. Both may use the handler.
func floodTest(t *testing.T, change func(*Config), h handler.Handler, test func(f *flooder, n0 *simNode)) {
	synctest.Test(t, func(t *testing.T) {
		link := transporttest.Link{Latency: 10 * time.Millisecond, Mbps: 100, Seed: 1}
		w := newSimMeshWith(t, 2, 1, link, func(s *simNode, cfg *Config) {
			quietMesh(s, cfg)
			cfg.Store.Reserve = 1 // whatever the disk of this machine has left
			if s.place == 0 {
				change(cfg)
			}
		})
		defer w.close()
		f := &flooder{Forger: w.forger("mallory", identity.RoleSend, identity.RoleWork), t: t, mesh: w, sealer: identity.NewSealer(clock.Runtime())}
		defer f.Close()
		spec := inbox.Spec{Kind: "job", Allow: []string{"role:send"}, Handler: h}
		if err := w.nodes[0].node.inbox.Register(spec); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute) // until n0 has counted the keys in its store
		test(f, w.nodes[0])
	})
}

// envelope signs and seals a task for n0. body is the object with its body; nil if the
// content has it.
func (f *flooder) envelope(c *proto.Content, body *bodies.Manifest) *proto.Envelope {
	f.t.Helper()
	f.sent++
	now, to := time.Now(), f.mesh.nodes[0].node.keys
	h := proto.Header{
		What: proto.WhatTask, Mesh: f.Mesh.ID, ID: proto.NewTaskID(now), Origin: f.Peer(), Target: to.Peer(),
		Seq: proto.Seq{Boot: f.Boot, Counter: f.sent}, Created: now.UnixMilli(), NotAfter: now.Add(24 * time.Hour).UnixMilli(),
	}
	c.Kind = "job"
	if body != nil {
		h.SetObject(body.Name(), body.Size)
	} else {
		sum := sha256.Sum256(c.GetBody())
		c.BodySize, c.BodyDigest = uint64(len(c.GetBody())), sum[:]
	}
	plain, err := proto.Encode(nil, c)
	if err != nil {
		f.t.Fatal(err)
	}
	env, _, err := f.sealer.Seal(&h, to.SealingKey(), plain)
	if err != nil {
		f.t.Fatal(err)
	}
	sig, proofs := f.Keys.SignGroup([][32]byte{identity.EnvelopeLeaf(env.GetHeader(), env.GetBody(), h.What)})
	env.Signature, env.Index, env.Path = sig, proofs[0].Index, proofs[0].Path
	return env
}

// frame returns the frame of a task for n0, with bytes behind its envelope that are not
// signed.
func (f *flooder) frame(c *proto.Content, unsigned ...byte) []byte {
	f.t.Helper()
	return f.data(f.envelope(c, nil), unsigned...)
}

// data is frame for a task that is signed and sealed already.
func (f *flooder) data(env *proto.Envelope, unsigned ...byte) []byte {
	f.t.Helper()
	sig := env.GetSignature()
	env.Signature = nil
	payload, err := proto.Encode(nil, env)
	if err != nil {
		f.t.Fatal(err)
	}
	return transporttest.FrameOf(proto.TypeData, append(payload, unsigned...), sig)
}

// send sends frames to n0 on a task stream, and returns the refusals in the first answer.
func (f *flooder) send(frames ...[]byte) []*proto.Refusal {
	f.t.Helper()
	n0 := f.mesh.nodes[0].node
	f.reconnect(n0)
	m, err := f.Ask(n0.keys.Peer(), proto.StreamTask, frames...)
	ack := new(proto.Ack)
	if err == nil {
		err = proto.Decode(m.GetPayload(), ack)
	}
	if err != nil || m.GetType() != proto.TypeAck || ack.GetUpTo() == 0 {
		f.t.Fatalf("the answer is %v, %v", m, err)
	}
	return ack.GetRefusals()
}

// reconnect replaces its connection to n0, which may be about to close it because it
// acknowledges no result. n0 may dial it at the same moment, and then closes one of the two.
func (f *flooder) reconnect(n0 *Node) {
	f.t.Helper()
	var err error
	for range 10 {
		f.Disconnect(n0.keys.Peer())
		if err = f.TryConnect(n0.keys.Peer(), n0.net.Addrs()); err == nil {
			return
		}
		time.Sleep(time.Second)
	}
	f.t.Fatal(err)
}

// flood sends frames to n0 on a task stream, and returns how many of the flooder's tasks
// are then in the inbox.
func (f *flooder) flood(frames ...[]byte) int {
	f.t.Helper()
	n0 := f.mesh.nodes[0].node
	f.Send(n0.keys.Peer(), proto.StreamTask, frames...)
	return len(f.accepted(n0))
}

// accepted returns the tasks of the flooder in the inbox of n0.
func (f *flooder) accepted(n0 *Node) []backlog.Listed {
	f.t.Helper()
	self := f.Peer()
	found, next, err := n0.inbox.List(backlog.Span{}, 1000, func(_ proto.TaskID, r *proto.Record) bool { return string(r.GetPeer()) == string(self[:]) })
	if err != nil || !next.IsZero() {
		f.t.Fatalf("the inbox has more than %d tasks, %v", len(found), err)
	}
	return found
}

// halfSend offers a body of somewhat more than 1 MiB to n0 and sends all of its chunks
// but the last, which is small. It returns the answer to the offer: with a code, no chunk
// was sent.
func (f *flooder) halfSend(from *bodies.Store) *proto.OfferReply {
	f.t.Helper()
	ref, object, err := from.Seal(f.t.Context(), bytes.NewReader(random(f.t, 1<<20+1000)), bodies.SealOptions{Suite: bodies.AES})
	if err != nil {
		f.t.Fatal(err)
	}
	src, err := from.Source(ref.Name.String())
	if err != nil {
		f.t.Fatal(err)
	}
	defer src.Close()
	env := f.envelope(&proto.Content{Class: proto.Normal, BodySize: uint64(ref.Size), BodyDigest: ref.Digest[:], Object: ref.Proto()}, &object)
	frames := [][]byte{f.Frame(proto.TypeOffer, &proto.Offer{Type: proto.TypeData, Envelope: env, Manifest: object.Append(nil)})}
	for i := range object.Chunks() - 1 {
		data, path, err := src.Chunk(i, make([]byte, object.ChunkSize(i)), nil)
		if err != nil {
			f.t.Fatal(err)
		}
		frames = append(frames, f.Frame(proto.TypeChunk, &proto.Chunk{Index: uint32(i), Data: data, Path: path}))
	}
	reply := f.offer(frames[0])
	if reply.GetCode() == proto.CodeOK {
		f.Send(f.mesh.nodes[0].node.keys.Peer(), proto.StreamChunk, frames...)
	}
	return reply
}

// offer sends an offer of a body to n0, closes the stream, and returns the answer.
func (f *flooder) offer(frame []byte) *proto.OfferReply {
	f.t.Helper()
	reply := new(proto.OfferReply)
	m, err := f.Ask(f.mesh.nodes[0].node.keys.Peer(), proto.StreamChunk, frame)
	if err == nil {
		err = proto.Decode(m.GetPayload(), reply)
	}
	if err != nil {
		f.t.Fatalf("the answer is %v, %v", m, err)
	}
	time.Sleep(time.Second) // until n0 has ended the stream
	return reply
}

// honestTasks submits tasks for n0 at n1. All must succeed in time.
func (f *flooder) honestTasks(within time.Duration, what string, requests ...wire.Request) {
	f.t.Helper()
	n1 := f.mesh.nodes[1].node
	ctx, cancel := context.WithTimeout(f.t.Context(), within)
	defer cancel()
	for i := range requests {
		requests[i].Target, requests[i].Kind = "n0", "job"
	}
	got, errs := n1.SubmitMany(ctx, requests)
	for i, s := range got {
		if errs[i] != nil {
			f.t.Fatal(errs[i])
		}
		if task, err := n1.Views.Wait(ctx, s.ID); err != nil || task.State != "SUCCESS" {
			why, _ := n1.Explainer.Why(f.t.Context(), s.ID)
			f.t.Errorf("%s of an honest member is %s after %s: %v; %+v", what, task.State, within, err, why.Cause)
		}
	}
}

// A minuteHandler needs a minute for each task, and counts those that run by origin.
type minuteHandler struct {
	mu      sync.Mutex
	running map[proto.PeerID]int
}

// Run waits.
func (h *minuteHandler) Run(ctx context.Context, r *handler.Run) *handler.Result {
	h.add(r.Origin, 1)
	defer h.add(r.Origin, -1)
	select {
	case <-ctx.Done():
		return &handler.Result{Outcome: handler.Cancelled}
	case <-time.After(time.Minute):
		return &handler.Result{Outcome: handler.Success}
	}
}

// add adds to the running tasks of an origin and returns how many they are.
func (h *minuteHandler) add(origin proto.PeerID, n int) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.running == nil {
		h.running = map[proto.PeerID]int{}
	}
	h.running[origin] += n
	return h.running[origin]
}

// succeed is a handler whose tasks succeed at once.
var succeed = handler.Func(func(context.Context, *handler.Run) *handler.Result { return &handler.Result{Outcome: handler.Success} })

// A member that offers one body after another and never sends the last chunk is refused
// when it has used up its share of the space for bodies. The large task of another member
// is still accepted and run.
func TestHalfSentBodiesLeaveSpaceForOthers(t *testing.T) {
	const space = 7<<20 + 200<<10 // seven of its bodies would leave too little for the honest one
	floodTest(t, func(c *Config) { c.Store.MaxBlobs = space }, succeed, func(f *flooder, n0 *simNode) {
		from, err := bodies.Open(f.t.TempDir(), bodies.Config{})
		if err != nil {
			f.t.Fatal(err)
		}
		defer from.Close()
		var reply *proto.OfferReply
		sent := 0
		for ; sent < 20; sent++ {
			if reply = f.halfSend(from); reply.GetCode() != proto.CodeOK {
				break
			}
		}
		if reply.GetCode() != proto.CodeFull {
			f.t.Errorf("after %d bodies the answer is %s %q", sent, reply.GetCode().Name(), reply.GetDetail())
		}
		if u := n0.node.storage.Blobs.Usage(); u.Parts != sent || u.Bytes < int64(sent)<<20 {
			f.t.Errorf("%d parts with %d bytes are stored of %d bodies", u.Parts, u.Bytes, sent)
		}
		f.honestTasks(time.Minute, "a body", wire.Request{Body: random(f.t, 300_000)})
	})
}

// A member that sends one idempotency key after another is refused when it has used up its
// share of the keys that are remembered. The keys of another member are still accepted.
func TestForgedKeysLeaveRoomForOthers(t *testing.T) {
	floodTest(t, func(c *Config) { c.Limits.MaxKeys, c.Limits.Slots = 100, 100 }, new(minuteHandler), func(f *flooder, _ *simNode) {
		withKey := func(i int) []byte {
			return f.frame(&proto.Content{Class: proto.Normal, IdempotencyKey: fmt.Sprint("key ", i)})
		}
		var frames [][]byte
		for i := range 150 {
			frames = append(frames, withKey(i))
		}
		if n := f.flood(frames...); n != 90 {
			f.t.Errorf("%d tasks with keys were accepted, want nine tenths of the 100 that are remembered", n)
		}
		time.Sleep(2 * time.Minute) // until all have ended: their keys still count
		refusals := f.send(withKey(1000))
		if len(refusals) != 1 || refusals[0].GetCode() != proto.CodeBusy {
			f.t.Errorf("one more key is answered with %v", refusals)
		}
		if refusals := f.send(f.frame(&proto.Content{Class: proto.Normal})); len(refusals) != 0 {
			f.t.Errorf("a task without a key is answered with %v", refusals)
		}
		f.honestTasks(2*time.Minute, "a key", wire.Request{Key: "monday"}, wire.Request{Key: "tuesday"}, wire.Request{Key: "friday"})
	})
}

// A member with many urgent tasks has all slots while it is alone. As soon as another
// member has a task, however low its class, one slot is for that, and within a class they
// take turns.
func TestForgedUrgentTasksLeaveSlotsForOthers(t *testing.T) {
	const slots = 4
	h := new(minuteHandler)
	floodTest(t, func(c *Config) { c.Limits.Slots = slots }, h, func(f *flooder, _ *simNode) {
		var frames [][]byte
		for range 80 {
			frames = append(frames, f.frame(&proto.Content{Class: proto.Critical}))
		}
		if n := f.flood(frames...); n != len(frames) {
			f.t.Errorf("%d of %d tasks were accepted", n, len(frames))
		}
		time.Sleep(30 * time.Second)
		if n := h.add(f.Peer(), 0); n != slots {
			f.t.Errorf("alone it has %d of %d slots", n, slots)
		}
		critical, low := wire.Request{Class: proto.Critical.Name()}, wire.Request{Class: proto.Low.Name()}
		// Slots are free within a minute, and then each minute: one is for a low task, where the
		// classes alone give it one of ten starts, and two are for urgent tasks.
		f.honestTasks(5*time.Minute, "a low task", low, low, low)
		f.honestTasks(210*time.Second, "an urgent task", critical, critical, critical, critical)
		if n := h.add(f.Peer(), 0); n == 0 {
			f.t.Error("the flood is over: the test shows nothing")
		}
	})
}

// What a member sends behind the signed part of an envelope is not stored, while its task
// waits, runs or has ended.
func TestForgedPaddingIsNotStored(t *testing.T) {
	const tasks, padding = 12, 60_000
	h := new(minuteHandler)
	floodTest(t, func(c *Config) { c.Limits.Slots = 4 }, h, func(f *flooder, n0 *simNode) {
		before := n0.engine.Stats().LiveBytes
		var frames [][]byte
		for range tasks {
			frames = append(frames, f.frame(&proto.Content{Class: proto.Normal}, transporttest.Padding(padding)...))
		}
		if n := f.flood(frames...); n != tasks {
			f.t.Errorf("%d of %d tasks were accepted", n, tasks)
		}
		check := func(when string) {
			f.t.Helper()
			if more := n0.engine.Stats().LiveBytes - before; more > tasks*padding/10 {
				f.t.Errorf("%s: %d bytes more are stored, of %d tasks with %d bytes of padding", when, more, tasks, padding)
			}
			for _, l := range f.accepted(n0.node) {
				if l.Size > 2000 {
					f.t.Errorf("%s: a task without a body takes %d bytes", when, l.Size)
				}
			}
		}
		check("while they wait")
		time.Sleep(90 * time.Second)
		check("while some run")
		time.Sleep(2 * time.Minute)
		check("at the end")
	})
}
