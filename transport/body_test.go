package transport

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/blob"
	"github.com/balefire/balefire/transport/admit"
)

// A bodyStore stores streamed bodies in files, as a node does, and records the durable
// offset. It can be made to fail.
type bodyStore struct {
	dir *blob.Dir

	mu       sync.Mutex
	durable  map[string]int64
	breakAt  int64 // the sink fails after this byte, once; 0: never
	refuse   *proto.OfferReply
	offers   int
	maxAhead int64 // maximum bytes written but not synced
	open     int
	most     int // maximum sinks open at once
	hold     chan struct{}
	ended    chan bool // receives the argument of each End
}

func newBodyStore(t testing.TB) *bodyStore {
	t.Helper()
	d, err := blob.Open(t.TempDir(), blob.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return &bodyStore{dir: d, durable: make(map[string]int64)}
}

func nameOf(o *proto.Offer) string {
	sum := sha256.Sum256(o.GetEnvelope().GetHeader())
	return fmt.Sprintf("%x", sum[:8])
}

func (s *bodyStore) Offer(_ context.Context, _ proto.PeerID, o *proto.Offer) (BodySink, *proto.OfferReply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.offers++
	if s.refuse != nil {
		return nil, s.refuse
	}
	_, size, _, _ := bodyOf(o)
	name := nameOf(o)
	if s.durable[name] == size {
		return nil, &proto.OfferReply{Offset: uint64(size)}
	}
	w, err := s.dir.Resume(name)
	if err == nil {
		err = w.Truncate(s.durable[name])
	}
	if err != nil {
		return nil, &proto.OfferReply{Code: proto.CodeInternal, Detail: err.Error()}
	}
	s.open++
	s.most = max(s.most, s.open)
	return &bodyStoreSink{s, w, name}, &proto.OfferReply{Offset: uint64(s.durable[name])}
}

type bodyStoreSink struct {
	*bodyStore
	w    *blob.Writer
	name string
}

var errBroken = errors.New("the sink broke")

func (s *bodyStoreSink) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hold != nil {
		s.mu.Unlock()
		<-s.hold
		s.mu.Lock()
	}
	if s.breakAt > 0 && s.w.Offset()+int64(len(p)) > s.breakAt {
		s.breakAt = 0
		return 0, errBroken
	}
	n, err := s.w.Write(p)
	s.maxAhead = max(s.maxAhead, s.w.Offset()-s.durable[s.name])
	return n, err
}

func (s *bodyStoreSink) Sync() (int64, error) {
	if err := s.w.Sync(); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.durable[s.name] = s.w.Offset()
	return s.w.Offset(), nil
}

func (s *bodyStoreSink) End(whole bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open--
	if s.ended != nil {
		s.ended <- whole
	}
	if whole {
		return s.w.Commit()
	}
	return s.w.Close()
}

// offerOf returns an offer of a sealed body of size bytes.
func offerOf(id byte, size int64) *proto.Offer {
	h := proto.Header{What: proto.WhatTask, Suite: 1, ID: proto.TaskID{id}, Created: 1, NotAfter: 2}
	h.SetStream(uint64(size), proto.MaxChunk)
	return &proto.Offer{Envelope: &proto.Envelope{Header: h.Append(nil)}, Type: proto.TypeData}
}

func randomBody(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{7})
	r.Read(b)
	return b
}

func withBodies(s *bodyStore) func(*testNode, *Config) {
	return func(_ *testNode, cfg *Config) { cfg.Bodies = s }
}

// kept returns how many bytes of a body are durable.
func (s *bodyStore) kept(o *proto.Offer) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.durable[nameOf(o)]
}

func (s *bodyStore) check(t *testing.T, o *proto.Offer, want []byte) {
	t.Helper()
	b, err := s.dir.Open(nameOf(o))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if got, err := io.ReadAll(b); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the body arrived changed: %d bytes of %d, %v", len(got), len(want), err)
	}
}

func TestBodyCrosses(t *testing.T) {
	for _, size := range []int{1, 1000, proto.MaxChunk, proto.MaxChunk + 1, 9<<20 + 17} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			s := newBodyStore(t)
			a, b := start(t, 1, nil), start(t, 2, withBodies(s))
			link(t, a, b)
			body, o := randomBody(size), offerOf(1, int64(size))
			for range 2 { // the second time everything is there
				if err := a.SendBody(t.Context(), b.Peer(), o, bytes.NewReader(body), int64(size)); err != nil {
					t.Fatal(err)
				}
			}
			s.check(t, o, body)
			if s.maxAhead > syncBytes+proto.MaxChunk {
				t.Errorf("%d bytes were not durable", s.maxAhead)
			}
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
	size := int64(chunks*proto.MaxChunk + 5)
	body, o := randomBody(int(size)), offerOf(1, size)
	for i := range int64(chunks) {
		s.mu.Lock()
		s.breakAt = (i+1)*proto.MaxChunk + 1
		s.mu.Unlock()
		err := a.SendBody(t.Context(), b.Peer(), o, bytes.NewReader(body), size)
		refused, ok := errors.AsType[*CodeError](err)
		if !ok || refused.Code != proto.CodeInternal {
			t.Fatalf("a broken sink: %v", err)
		}
	}
	if err := a.SendBody(t.Context(), b.Peer(), o, bytes.NewReader(body), size); err != nil {
		t.Fatal(err)
	}
	s.check(t, o, body)
}

// TestBodyResumesAfterRestart stops one side, then the other, during a transfer (S12).
func TestBodyResumesAfterRestart(t *testing.T) {
	s := newBodyStore(t)
	size := int64(24 << 20)
	body, o := randomBody(int(size)), offerOf(1, size)
	for round := range 3 {
		a, b := start(t, 1, nil), start(t, 2, withBodies(s))
		link(t, a, b)
		stop := []*testNode{a, b}[round%2]
		source := &trackingReader{ReaderAt: bytes.NewReader(body), at: int64(round+1) * size / 4, reached: func() {
			eventually(t, "a part is durable", func() bool { return s.kept(o) > 0 })
			stop.stop() // before the next byte is read
		}}
		if round == 2 {
			source.at = size + 1
		}
		err := a.SendBody(t.Context(), b.Peer(), o, source, size)
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
	}
	s.check(t, o, body)
}

// trackingReader reports when a byte of the body is read.
type trackingReader struct {
	io.ReaderAt
	at      int64
	reached func()
	once    sync.Once
	begun   bool
	first   int64
}

func (w *trackingReader) ReadAt(p []byte, off int64) (int, error) {
	if !w.begun {
		w.begun, w.first = true, off
	}
	if off >= w.at {
		w.once.Do(w.reached)
	}
	return w.ReaderAt.ReadAt(p, off)
}

func TestBodyRefusals(t *testing.T) {
	s := newBodyStore(t)
	a, b := start(t, 1, nil), start(t, 2, withBodies(s))
	link(t, a, b)
	send := func(o *proto.Offer, size int64) error {
		return a.SendBody(t.Context(), b.Peer(), o, bytes.NewReader(make([]byte, size)), size)
	}
	s.refuse = &proto.OfferReply{Code: proto.CodeFull, Detail: "no room"}
	err := send(offerOf(1, 100), 100)
	if r, ok := errors.AsType[*CodeError](err); !ok || r.Code != proto.CodeFull || r.Detail != "no room" {
		t.Errorf("refused: %v", err)
	}
	if err := send(offerOf(1, 100), 99); err == nil {
		t.Error("a body with a wrong size was sent")
	}
	if err := send(&proto.Offer{Envelope: &proto.Envelope{Header: []byte("x")}}, 1); !errors.Is(err, proto.ErrBadHeader) {
		t.Errorf("no header: %v", err)
	}
	if err := a.SendBody(t.Context(), newTestKeys(9).Peer(), offerOf(1, 1), bytes.NewReader(nil), 1); !errors.Is(err, ErrNotConnected) {
		t.Errorf("no one there: %v", err)
	}
	s.refuse = nil
	o := offerOf(2, 1<<20)
	short := io.NewSectionReader(bytes.NewReader(make([]byte, 1<<20)), 0, 1<<19)
	if err := a.SendBody(t.Context(), b.Peer(), o, short, 1<<20); err == nil {
		t.Error("an incomplete body was accepted")
	}
	if ok, _ := s.dir.Has(nameOf(o)); ok {
		t.Error("an incomplete body has a name")
	}
}

// TestTwoBodiesAtOnce checks the bound on concurrent bodies to a peer.
func TestTwoBodiesAtOnce(t *testing.T) {
	s := newBodyStore(t)
	s.hold = make(chan struct{})
	a, b := start(t, 1, nil), start(t, 2, withBodies(s))
	link(t, a, b)
	var wg sync.WaitGroup
	for i := range byte(5) {
		wg.Go(func() {
			if err := a.SendBody(t.Context(), b.Peer(), offerOf(i, 3<<20), bytes.NewReader(make([]byte, 3<<20)), 3<<20); err != nil {
				t.Error(err)
			}
		})
	}
	close(s.hold)
	wg.Wait()
	if s.offers != 5 || s.most > maxBodies {
		t.Errorf("%d offers, %d at once; want 5, at most %d", s.offers, s.most, maxBodies)
	}
}

// TestBadChunks is the bad-input family "chunks": each is refused with a code, costs the
// stream and leaves nothing behind.
func TestBadChunks(t *testing.T) {
	sum := func(b []byte) []byte { s := sha256.Sum256(b); return s[:] }
	good := []byte("0123456789")
	tests := []struct {
		name  string
		chunk *proto.Chunk
	}{
		{"gap", &proto.Chunk{Offset: 5, Data: good, Sha256: sum(good)}},
		{"empty", &proto.Chunk{Sha256: sum(nil)}},
		{"beyond the end", &proto.Chunk{Data: make([]byte, 101), Sha256: sum(make([]byte, 101))}},
		{"wrong hash", &proto.Chunk{Data: good, Sha256: sum([]byte("x"))}},
		{"no hash", &proto.Chunk{Data: good}},
		{"offset beyond 63 bits", &proto.Chunk{Offset: 1 << 63, Data: good, Sha256: sum(good)}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := checkChunk(tt.chunk, 0, 100); !errors.Is(err, ErrProtocol) {
				t.Errorf("checkChunk = %v, want %v", err, ErrProtocol)
			}
		})
	}
	if err := checkChunk(&proto.Chunk{Offset: 90, Data: good, Sha256: sum(good)}, 90, 100); err != nil {
		t.Errorf("the last chunk: %v", err)
	}
	if err := checkChunk(&proto.Chunk{Offset: 80, Data: good, Sha256: sum(good)}, 90, 100); err == nil {
		t.Error("a chunk was accepted twice")
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
		cfg.Timing.Frame = 50 * time.Millisecond
	})
	link(t, a, b)
	unblock, done := make(chan struct{}), make(chan error, 1)
	source := &trackingReader{ReaderAt: bytes.NewReader(make([]byte, 1<<20)), at: proto.MaxChunk, reached: func() { <-unblock }}
	go func() { done <- a.SendBody(t.Context(), b.Peer(), offerOf(1, 1<<20), source, 1<<20) }()
	if whole := <-s.ended; whole {
		t.Error("a stalled body is complete")
	}
	close(unblock)
	if err := <-done; err == nil {
		t.Error("a stalled body arrived")
	}
}

// TestBodyOverBrokenLinks cuts the connection twenty times during a transfer (S12).
func TestBodyOverBrokenLinks(t *testing.T) {
	s := newBodyStore(t)
	a := start(t, 1, nil)
	b := start(t, 2, func(_ *testNode, cfg *Config) {
		cfg.Bodies, cfg.Limits.Conns = s, admit.Rate{PerSecond: 1000, Burst: 1000}
	})
	const cuts = 20
	size := int64(cuts * 3 * proto.MaxChunk)
	body, o := randomBody(int(size)), offerOf(1, size)
	tries := 0
	for sent := false; !sent; tries++ {
		for a.Dial(t.Context(), b.Peer(), b.Addrs()) != nil && t.Context().Err() == nil {
			// the old connection was about to close
		}
		source := &trackingReader{ReaderAt: bytes.NewReader(body), at: int64(tries+1) * size / cuts, reached: func() { a.Disconnect(b.Peer()) }}
		sent = a.SendBody(t.Context(), b.Peer(), o, source, size) == nil
	}
	if tries < cuts/2 {
		t.Errorf("%d attempts: the connection was not cut", tries)
	}
	s.check(t, o, body)
}
