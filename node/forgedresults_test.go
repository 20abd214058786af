package node

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/bodies"
	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/wire"
)

// offerResult offers a result of this size for a task that n0 has sent to the flooder, and sends
// nothing of it. It returns the answer to the offer.
func (f *flooder) offerResult(id proto.TaskID, size int64) *proto.OfferReply {
	f.t.Helper()
	n0 := f.mesh.nodes[0].node
	rec, err := n0.outbox.Get(id)
	if err != nil {
		f.t.Fatal(err)
	}
	object := bodies.Manifest{Size: size, Chunk: proto.ChunkSize, Root: [32]byte(sha256sum(id[:]))}
	plainSize, err := proto.PlainSize(size)
	if err != nil {
		f.t.Fatal(err)
	}
	h := proto.Header{
		What: proto.WhatResult, Mesh: f.Mesh.ID, ID: id, Origin: f.Peer(), Target: n0.keys.Peer(), Seq: rec.Seq(),
		Created: time.Now().UnixMilli(), NotAfter: time.Now().Add(time.Hour).UnixMilli(),
	}
	h.SetObject(object.Name(), object.Size)
	plain, err := proto.Encode(nil, &proto.Outcome{State: proto.Success, BodySize: uint64(plainSize), BodyDigest: make([]byte, 32)})
	if err != nil {
		f.t.Fatal(err)
	}
	env, _, err := f.sealer.Seal(&h, n0.keys.SealingKey(), plain)
	if err != nil {
		f.t.Fatal(err)
	}
	sig, proofs := f.Keys.SignGroup([][32]byte{identity.EnvelopeLeaf(env.GetHeader(), env.GetBody(), h.What)})
	env.Signature, env.Index, env.Path = sig, proofs[0].Index, proofs[0].Path
	return f.offer(f.Frame(proto.TypeOffer, &proto.Offer{Type: proto.TypeResult, Envelope: env, Manifest: object.Append(nil)}))
}

// A member that offers one huge result after another and sends none of them is refused when it
// has used up its share of the disk. The large result of another member still arrives (I13).
func TestForgedResultsLeaveSpaceForOthers(t *testing.T) {
	const large = 300_000
	floodTest(t, func(c *Config) { c.Store.MaxBlob = 1 << 40 }, succeed, func(f *flooder, n0 *simNode) {
		n1 := f.mesh.nodes[1].node
		file, content := filepath.Join(f.t.TempDir(), "output"), random(f.t, large)
		if err := os.WriteFile(file, content, 0o600); err != nil {
			f.t.Fatal(err)
		}
		output := handler.Func(func(context.Context, *handler.Run) *handler.Result {
			return &handler.Result{Outcome: handler.Success, File: file, Size: large, Digest: sha256sum(content)}
		})
		if err := n1.inbox.Register(inbox.Spec{Kind: "big", Allow: []string{"role:send"}, Handler: output}); err != nil {
			f.t.Fatal(err)
		}
		free, _, err := store.DiskSpace(n0.dir)()
		if err != nil {
			f.t.Fatal(err)
		}
		size := min(free/5*2, proto.MaxChunks*proto.ChunkSize/2)
		most := 9 * int(free/size) // so many would be more than the share, whatever else this disk gets
		taken, reply := 0, new(proto.OfferReply)
		for ; taken <= most; taken++ {
			x, err := n0.node.Submit(f.t.Context(), wire.Request{Target: f.Peer().String(), Kind: "job"})
			if err != nil {
				f.t.Fatal(err)
			}
			id, err := proto.ParseTaskID(x.ID)
			if err != nil {
				f.t.Fatal(err)
			}
			if reply = f.offerResult(id, size); reply.GetCode() != proto.CodeOK {
				break
			}
		}
		if reply.GetCode() != proto.CodeFull || !strings.Contains(reply.GetDetail(), "your share") || taken < 6 {
			f.t.Errorf("after %d results of %d bytes, with %d free, the answer is %s %q", taken, size, free, reply.GetCode().Name(), reply.GetDetail())
		}
		if u := n0.node.storage.Blobs.Usage(); u.Parts != taken {
			f.t.Errorf("%d parts are stored of %d results", u.Parts, taken)
		}
		ctx, cancel := context.WithTimeout(f.t.Context(), time.Minute)
		defer cancel()
		x, err := n0.node.Submit(ctx, wire.Request{Target: "n1", Kind: "big"})
		if err != nil {
			f.t.Fatal(err)
		}
		if task, err := n0.node.Views.Wait(ctx, x.ID); err != nil || task.State != "SUCCESS" || task.ResultSize != large {
			f.t.Errorf("the task of an honest member is %s with %d bytes: %v", task.State, task.ResultSize, err)
		}
	})
}
