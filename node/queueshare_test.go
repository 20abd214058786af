package node

import (
	"bytes"
	"testing"
	"time"

	"github.com/balefire/balefire/bodies"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// A member that sends one task of a queue after another, all with one large body that it
// sent once, is refused when it has used up its share of the large bodies of such tasks.
// The large task of another member is still accepted.
func TestLargeBodiesOfQueuesAreShared(t *testing.T) {
	const places = 20
	floodTest(t, func(c *Config) { c.Limits.QueueBodies = places }, succeed, func(f *flooder, n0 *simNode) {
		if _, err := n0.node.Queues.Set(f.t.Context(), "build", wire.QueueSettings{Home: "here", Paused: new(true)}); err != nil {
			f.t.Fatal(err)
		}
		time.Sleep(time.Minute) // until n1 knows the queue
		from, err := bodies.Open(f.t.TempDir(), bodies.Config{})
		if err != nil {
			f.t.Fatal(err)
		}
		defer from.Close()
		ref, object, err := from.Seal(f.t.Context(), bytes.NewReader(random(f.t, 300_000)), bodies.SealOptions{Suite: bodies.AES})
		if err != nil {
			f.t.Fatal(err)
		}
		task := func() *proto.Envelope {
			return f.envelope(&proto.Content{Class: proto.Normal, Queue: "build", BodySize: uint64(ref.Size), BodyDigest: ref.Digest[:], Object: ref.Proto()}, &object)
		}
		f.reconnect(n0.node)
		f.sendBody(task(), from, ref)
		if u := n0.node.storage.Blobs.Usage(); u.Blobs != 1 {
			f.t.Fatalf("%d bodies are stored, want that of the forger", u.Blobs)
		}
		time.Sleep(2 * time.Minute) // until it no longer counts: its task did not follow
		var frames [][]byte
		for range 2 * places {
			frames = append(frames, f.data(task()))
		}
		f.reconnect(n0.node)
		if n := f.flood(frames...); n != 18 {
			f.t.Errorf("%d large tasks were accepted, want nine tenths of %d", n, places)
		}
		refusals := f.send(f.data(task()))
		if len(refusals) != 1 || refusals[0].GetCode() != proto.CodeFull {
			f.t.Errorf("one more is answered with %v", refusals)
		}
		n1 := f.mesh.nodes[1]
		id := n1.mustSubmit(wire.Request{Target: "queue:build", Kind: "job", Body: random(f.t, 300_000)})
		n1.waitState(id, "ACCEPTED", 2*time.Minute)
	})
}

// sendBody sends the whole body of a task to n0.
func (f *flooder) sendBody(env *proto.Envelope, from *bodies.Store, ref bodies.Ref) {
	f.t.Helper()
	src, err := from.Source(ref.Name.String())
	if err != nil {
		f.t.Fatal(err)
	}
	defer src.Close()
	frames := [][]byte{f.Frame(proto.TypeOffer, &proto.Offer{Type: proto.TypeData, Envelope: env, Manifest: src.Manifest.Append(nil)})}
	for i := range src.Manifest.Chunks() {
		data, path, err := src.Chunk(i, make([]byte, src.Manifest.ChunkSize(i)), nil)
		if err != nil {
			f.t.Fatal(err)
		}
		frames = append(frames, f.Frame(proto.TypeChunk, &proto.Chunk{Index: uint32(i), Data: data, Path: path}))
	}
	f.Send(f.mesh.nodes[0].node.keys.Peer(), proto.StreamChunk, frames...)
	time.Sleep(time.Second) // until n0 has named it
}
