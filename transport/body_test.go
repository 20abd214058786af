package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/balefire/balefire/bodies"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/admit"
)

// A bodyStore stores objects, as a node does. It can be made to fail.
type bodyStore struct {
	dir *bodies.Store

	mu       sync.Mutex
	breakAt  int // the sink fails before this chunk, once; 0: never
	refuse   *proto.OfferReply
	offers   int
	maxAhead int // maximum chunks added but not synced
	open     int
	most     int // maximum sinks open at once
	hold     chan struct{}
	ended    chan bool // receives the argument of each End
}

func newBodyStore(t testing.TB) *bodyStore {
	t.Helper()
	return &bodyStore{dir: openBodies(t)}
}

func openBodies(t testing.TB) *bodies.Store {
	t.Helper()
	d, err := bodies.Open(t.TempDir(), bodies.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func (s *bodyStore) Offer(_ context.Context, _ proto.PeerID, o *proto.Offer, object *bodies.Manifest) (BodySink, *proto.OfferReply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.offers++
	if s.refuse != nil {
		return nil, s.refuse
	}
	in, err := s.dir.Receive(*object, bodies.Terms{})
	switch {
	case errors.Is(err, bodies.ErrExists):
		return nil, &proto.OfferReply{}
	case err != nil:
		return nil, &proto.OfferReply{Code: proto.CodeInternal, Detail: err.Error()}
	}
	s.open++
	s.most = max(s.most, s.open)
	return &bodyStoreSink{s, in, 0}, &proto.OfferReply{Have: in.Have()}
}

type bodyStoreSink struct {
	*bodyStore
	in    *bodies.Incoming
	ahead int
}

var errBroken = errors.New("the sink broke")

func (s *bodyStoreSink) Put(i int, chunk, path []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hold != nil {
		s.mu.Unlock()
		<-s.hold
		s.mu.Lock()
	}
	if s.breakAt > 0 && i >= s.breakAt {
		s.breakAt = 0
		return errBroken
	}
	s.ahead++
	s.maxAhead = max(s.maxAhead, s.ahead)
	return s.in.Put(i, chunk, path)
}

func (s *bodyStoreSink) Sync() error {
	s.ahead = 0
	return s.in.Sync()
}

func (s *bodyStoreSink) End(whole bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open--
	if s.ended != nil {
		s.ended <- whole
	}
	if whole {
		return s.in.Commit()
	}
	return errors.Join(s.in.Sync(), s.in.Close())
}

// A testBody is a sealed body to be sent.
type testBody struct {
	*bodies.Source
	offer *proto.Offer
	ref   bodies.Ref
	plain []byte
}

// newBody seals size random bytes.
func newBody(t testing.TB, id byte, size int) *testBody {
	t.Helper()
	b := &testBody{plain: make([]byte, size)}
	r := rand.NewChaCha8([32]byte{id})
	r.Read(b.plain)
	dir := openBodies(t)
	var m bodies.Manifest
	var err error
	if b.ref, m, err = dir.Seal(t.Context(), bytes.NewReader(b.plain), bodies.SealOptions{Suite: bodies.AES}); err != nil {
		t.Fatal(err)
	}
	if b.Source, err = dir.Source(b.ref.Name.String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	h := proto.Header{What: proto.WhatTask, Suite: 1, ID: proto.TaskID{id}, Created: 1, NotAfter: 2}
	h.SetObject(m.Name(), m.Size)
	b.offer = &proto.Offer{Envelope: &proto.Envelope{Header: h.Append(nil)}, Type: proto.TypeData, Manifest: m.Append(nil)}
	return b
}

func withBodies(s *bodyStore) func(*testNode, *Config) {
	return func(_ *testNode, cfg *Config) { cfg.Bodies = s }
}

// kept returns how many chunks of a body are durable; 0 while it is received.
func (s *bodyStore) kept(t testing.TB, b *testBody) int {
	t.Helper()
	in, err := s.dir.Receive(b.Manifest, bodies.Terms{})
	switch {
	case errors.Is(err, bodies.ErrExists):
		return b.Manifest.Chunks()
	case err != nil:
		return 0
	}
	defer in.Close()
	return in.Durable()
}

func (s *bodyStore) check(t *testing.T, b *testBody) {
	t.Helper()
	r, err := s.dir.Open(&b.ref)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, b.plain) {
		t.Errorf("the body arrived changed: %d bytes of %d, %v", len(got), len(b.plain), err)
	}
}

func TestBodyCrosses(t *testing.T) {
	for _, size := range []int{0, 1, 1000, proto.ChunkSize, proto.ChunkSize + 1, 9<<20 + 17} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			s := newBodyStore(t)
			a, b := start(t, 1, nil), start(t, 2, withBodies(s))
			link(t, a, b)
			body := newBody(t, 1, size)
			for _, want := range []bool{true, false} { // the second time everything is there
				source := &trackingSource{BodySource: body, at: body.Manifest.Chunks()}
				if err := a.SendBody(t.Context(), b.Peer(), body.offer, source); err != nil {
					t.Fatal(err)
				}
				if source.begun != want {
					t.Errorf("chunks were sent: %v, want %v", source.begun, want)
				}
			}
			s.check(t, body)
			if s.maxAhead > syncChunks {
				t.Errorf("%d chunks were not durable", s.maxAhead)
			}
		})
	}
}

// Bodies that take little time each are not refused because there are many.
func TestManyBodiesInARow(t *testing.T) {
	s := newBodyStore(t)
	a, b := start(t, 1, nil), start(t, 2, withBodies(s))
	link(t, a, b)
	body := newBody(t, 1, 1000)
	for i := range 150 { // more streams than members may otherwise open at once
		eventually(t, "the body before has ended", func() bool {
			err := a.SendBody(t.Context(), b.Peer(), body.offer, body)
			if refused, ok := errors.AsType[*CodeError](err); ok && refused.Code == proto.CodeBusy {
				return false
			}
			if err != nil {
				t.Fatalf("body %d: %v", i, err)
			}
			return true
		})
	}
}

// TestBodyResumesAtEveryChunk interrupts a transfer after each chunk and resumes it on
// the same connection (S12).
func TestBodyResumesAtEveryChunk(t *testing.T) {
	s := newBodyStore(t)
	a, b := start(t, 1, nil), start(t, 2, withBodies(s))
	link(t, a, b)
	const chunks = 9
	body := newBody(t, 1, chunks*proto.ChunkSize+5)
	c := a.peers.best(b.Peer())
	send := func(attempt int) error {
		source := &trackingSource{BodySource: body, at: chunks + 2}
		err := a.SendBody(t.Context(), b.Peer(), body.offer, source)
		if source.first != attempt {
			t.Errorf("attempt %d begins with chunk %d", attempt, source.first)
		}
		return err
	}
	for i := range chunks {
		s.mu.Lock()
		s.breakAt = i + 1
		s.mu.Unlock()
		err := send(i)
		refused, ok := errors.AsType[*CodeError](err)
		if !ok || refused.Code != proto.CodeInternal {
			t.Fatalf("a broken sink: %v", err)
		}
	}
	if err := send(chunks); err != nil {
		t.Fatal(err)
	}
	if a.peers.best(b.Peer()) != c {
		t.Error("the transfers needed another connection")
	}
	s.check(t, body)
}

// TestBodyResumesAfterRestart stops one side, then the other, during a transfer (S12).
func TestBodyResumesAfterRestart(t *testing.T) {
	s := newBodyStore(t)
	body := newBody(t, 1, 24<<20)
	chunks := body.Manifest.Chunks()
	for round := range 3 {
		a, b := start(t, 1, nil), start(t, 2, withBodies(s))
		link(t, a, b)
		stop := []*testNode{a, b}[round%2]
		source := &trackingSource{BodySource: body, at: (round + 1) * chunks / 4, reached: func() {
			stop.stop() // before the next chunk is read
		}}
		if round == 2 {
			source.at = chunks + 1
		}
		err := a.SendBody(t.Context(), b.Peer(), body.offer, source)
		if round < 2 && err == nil {
			t.Fatalf("round %d: the body came through a stopped node", round)
		}
		if round == 2 && err != nil {
			t.Fatal(err)
		}
		if round > 0 && source.first == 0 {
			t.Errorf("round %d: sent from the beginning again", round)
		}
		a.stop()
		b.stop()
		if round < 2 {
			eventually(t, "a part is durable", func() bool { return s.kept(t, body) > 0 })
		}
	}
	s.check(t, body)
}

// trackingSource reports when a chunk of the body is read.
type trackingSource struct {
	BodySource
	at      int
	reached func()
	once    sync.Once
	begun   bool
	first   int
}

func (w *trackingSource) Chunk(i int, dst, path []byte) ([]byte, []byte, error) {
	if !w.begun {
		w.begun, w.first = true, i
	}
	if i >= w.at {
		w.once.Do(w.reached)
	}
	return w.BodySource.Chunk(i, dst, path)
}

func TestBodyRefusals(t *testing.T) {
	s := newBodyStore(t)
	a, b := start(t, 1, nil), start(t, 2, withBodies(s))
	link(t, a, b)
	body, other := newBody(t, 1, 100), newBody(t, 2, 2*proto.ChunkSize)
	send := func(o *proto.Offer, src BodySource) error { return a.SendBody(t.Context(), b.Peer(), o, src) }
	s.refuse = &proto.OfferReply{Code: proto.CodeFull, Detail: "no room"}
	err := send(body.offer, body)
	if r, ok := errors.AsType[*CodeError](err); !ok || r.Code != proto.CodeFull || r.Detail != "no room" {
		t.Errorf("refused: %v", err)
	}
	if err := send(&proto.Offer{Envelope: body.offer.Envelope, Manifest: other.offer.Manifest}, other); !errors.Is(err, bodies.ErrManifest) {
		t.Errorf("a body with the manifest of another one was sent: %v", err)
	}
	if err := send(&proto.Offer{Envelope: &proto.Envelope{Header: []byte("x")}}, body); !errors.Is(err, proto.ErrBadHeader) {
		t.Errorf("no header: %v", err)
	}
	if err := a.SendBody(t.Context(), newTestKeys(9).Peer(), body.offer, body); !errors.Is(err, ErrNotConnected) {
		t.Errorf("no one there: %v", err)
	}
	s.refuse = nil
	if err := send(other.offer, shortSource{other}); err == nil {
		t.Error("an incomplete body was accepted")
	}
	if s.dir.Has(other.ref.Name.String()) {
		t.Error("an incomplete body has a name")
	}
}

// An object in smaller chunks than a node makes is refused before anybody looks for it.
func TestOfferOfSmallChunks(t *testing.T) {
	for _, chunk := range []int{1 << 10, proto.ChunkSize - 1, proto.ChunkSize} {
		object := bodies.Manifest{Size: 1000, Chunk: chunk}
		h := proto.Header{What: proto.WhatTask, Suite: 1, ID: proto.TaskID{1}, Created: 1, NotAfter: 2}
		h.SetObject(object.Name(), object.Size)
		o := &proto.Offer{Envelope: &proto.Envelope{Header: h.Append(nil)}, Type: proto.TypeData, Manifest: object.Append(nil)}
		if _, _, err := bodyOf(o); errors.Is(err, bodies.ErrManifest) != (chunk < proto.ChunkSize) {
			t.Errorf("an offer of chunks of %d bytes: %v", chunk, err)
		}
	}
}

// A shortSource has the first chunk alone.
type shortSource struct{ BodySource }

func (s shortSource) Chunk(i int, dst, path []byte) ([]byte, []byte, error) {
	if i > 0 {
		return nil, nil, io.ErrUnexpectedEOF
	}
	return s.BodySource.Chunk(i, dst, path)
}

// TestTwoBodiesAtOnce checks the bound on concurrent bodies to a peer.
func TestTwoBodiesAtOnce(t *testing.T) {
	s := newBodyStore(t)
	s.hold = make(chan struct{})
	a, b := start(t, 1, nil), start(t, 2, withBodies(s))
	link(t, a, b)
	var wg sync.WaitGroup
	for i := range byte(5) {
		body := newBody(t, i, 3<<20)
		wg.Go(func() {
			if err := a.SendBody(t.Context(), b.Peer(), body.offer, body); err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, "two bodies are received at once", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.open >= maxBodies
	})
	close(s.hold)
	wg.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.offers != 5 || s.most != maxBodies {
		t.Errorf("%d offers, %d at once; want 5, %d at once", s.offers, s.most, maxBodies)
	}
}

// TestBadChunks is the bad-input family "chunks": each is a protocol violation and leaves
// nothing behind.
func TestBadChunks(t *testing.T) {
	body := newBody(t, 1, 3*proto.ChunkSize+9)
	piece := func(i int) *proto.Chunk {
		chunk, path, err := body.Chunk(i, make([]byte, proto.MaxChunk), nil)
		if err != nil {
			t.Fatal(err)
		}
		return &proto.Chunk{Index: uint32(i), Data: bytes.Clone(chunk), Path: path}
	}
	good, last := piece(1), piece(3)
	tests := []struct {
		name  string
		chunk *proto.Chunk
	}{
		{"one that is there", piece(0)},
		{"empty", &proto.Chunk{Index: 1, Path: good.Path}},
		{"beyond the end", &proto.Chunk{Index: 4, Data: good.Data, Path: good.Path}},
		{"far beyond the end", &proto.Chunk{Index: 1<<32 - 1, Data: good.Data, Path: good.Path}},
		{"at another place", &proto.Chunk{Index: 2, Data: good.Data, Path: good.Path}},
		{"wrong data", &proto.Chunk{Index: 1, Data: last.Data, Path: good.Path}},
		{"wrong path", &proto.Chunk{Index: 1, Data: good.Data, Path: last.Path}},
		{"no path", &proto.Chunk{Index: 1, Data: good.Data}},
		{"too long", &proto.Chunk{Index: 1, Data: append(bytes.Clone(good.Data), 1), Path: good.Path}},
	}
	s := openBodies(t)
	in, err := s.Receive(body.Manifest, bodies.Terms{})
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	i := &incoming{sink: &bodyStoreSink{&bodyStore{dir: s}, in, 0}, object: &body.Manifest, have: []byte{1}, at: 1}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := i.add(tt.chunk); !errors.Is(err, ErrProtocol) {
				t.Errorf("add = %v, want %v", err, ErrProtocol)
			}
			if i.at != 1 || !bytes.Equal(i.have, []byte{1}) || countBits(in.Have()) > 0 {
				t.Errorf("%d chunks are counted, %b noted, %b stored", i.at, i.have, in.Have())
			}
		})
	}
	for _, c := range []*proto.Chunk{last, good} { // in any order
		if err := i.add(c); err != nil {
			t.Errorf("chunk %d: %v", c.Index, err)
		}
	}
	if err := i.add(last); err == nil {
		t.Error("a chunk was accepted twice")
	}
}

// What the other side says it has is checked.
func TestBadHave(t *testing.T) {
	for _, have := range [][]byte{{}, {0, 0}, {0xff}, {0x20}, {0x1f}} {
		if err := checkHave(have, 5); !errors.Is(err, ErrProtocol) {
			t.Errorf("%x of 5 chunks: %v", have, err)
		}
	}
	if err := checkHave([]byte{0x0f}, 5); err != nil {
		t.Error(err)
	}
}

// TestStalledBodyIsAborted checks that a sender that stalls during a transfer does not
// hold a slot and an open file forever (S54).
func TestStalledBodyIsAborted(t *testing.T) {
	s := newBodyStore(t)
	s.ended = make(chan bool, 1)
	a := start(t, 1, nil)
	b := start(t, 2, func(_ *testNode, cfg *Config) {
		cfg.Bodies = s
		cfg.Timing.Frame = 500 * time.Millisecond // also of the hello, which must arrive
	})
	link(t, a, b)
	unblock, done := make(chan struct{}), make(chan error, 1)
	body := newBody(t, 1, 1<<20)
	source := &trackingSource{BodySource: body, at: 1, reached: func() { <-unblock }}
	go func() { done <- a.SendBody(t.Context(), b.Peer(), body.offer, source) }()
	if whole := <-s.ended; whole {
		t.Error("a stalled body is complete")
	}
	close(unblock)
	if err := <-done; err == nil {
		t.Error("a stalled body arrived")
	}
}

// TestBodyOverBrokenLinks cuts the connection twenty times during a transfer, which
// continues each time with what was not acknowledged (S12).
func TestBodyOverBrokenLinks(t *testing.T) {
	s := newBodyStore(t)
	a := start(t, 1, nil)
	b := start(t, 2, func(_ *testNode, cfg *Config) {
		cfg.Bodies, cfg.Limits.Conns = s, admit.Rate{PerSecond: 1000, Burst: 1000}
	})
	const every, want = 3, 20 // chunks between two cuts; cuts
	body := newBody(t, 1, (want+1)*every*proto.ChunkSize)
	cuts := 0
	for sent := false; !sent; {
		for a.Dial(t.Context(), b.Peer(), b.Addrs()) != nil && t.Context().Err() == nil {
			// the old connection was about to close
		}
		before := cuts
		source := &trackingSource{BodySource: body, at: (cuts + 1) * every, reached: func() {
			if cuts < want {
				cuts++
				a.Disconnect(b.Peer())
			}
		}}
		sent = a.SendBody(t.Context(), b.Peer(), body.offer, source) == nil
		if source.begun && source.first < before*every-bodyWindow {
			t.Errorf("after %d cuts it continues with chunk %d", before, source.first)
		}
	}
	if cuts != want {
		t.Errorf("the connection was cut %d times, want %d", cuts, want)
	}
	s.check(t, body)
}
