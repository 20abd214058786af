package outbox

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/backlog"
	"github.com/balefire/balefire/store/mem"
)

const (
	pending   = proto.Pending
	sent      = proto.Sent
	accepted  = proto.Accepted
	running   = proto.Running
	success   = proto.Success
	failed    = proto.Failed
	dead      = proto.DeadLetter
	cancelled = proto.Cancelled
	expired   = proto.Expired
)

var testMesh = proto.MeshID{1, 2, 3}

// A home is an outbox over a store in memory, inside a synctest bubble.
type home struct {
	*Outbox
	t     *testing.T
	keys  *identity.Keys
	disk  *mem.Engine
	store *store.Store
	cfg   Config
	time  clock.Clock // default: that of the bubble
	stop  func()

	crashed atomic.Bool
	space   func() (free, total int64, err error)
}

// inBubble runs f with a home in virtual time.
func inBubble(t *testing.T, cfg Config, f func(t *testing.T, h *home)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := newHome(t, cfg)
		h.start()
		defer func() { h.stop() }()
		f(t, h)
	})
}

func newHome(t *testing.T, cfg Config) *home {
	h := &home{t: t, keys: identity.NewKeys(nil, time.Now()), disk: mem.New(), cfg: cfg}
	h.cfg.Mesh = testMesh
	return h
}

// start opens the outbox and runs it.
func (h *home) start() {
	h.t.Helper()
	if h.cfg.Clock = h.time; h.time.IsZero() {
		h.cfg.Clock = clock.Runtime()
	}
	s, err := store.Open(h.disk, store.Config{Clock: h.cfg.Clock, SweepEvery: -1, CompactEvery: -1, Space: h.space})
	if err != nil {
		h.t.Fatal(err)
	}
	h.store = s
	o, err := Open(s, h.keys, h.cfg)
	if err != nil {
		h.t.Fatal(err)
	}
	h.Outbox = o
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- o.Run(ctx) }()
	h.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil && !h.crashed.Load() {
			h.t.Errorf("run: %v", err)
		}
		s.Close()
	})
}

// tries returns how many deliveries of a task have failed since the outbox was opened.
func (h *home) tries(id proto.TaskID) int { return h.deliveries.get(backlog.TaskKey(id)).tries }

// crash stops the outbox as a power cut does, losing everything in memory, and opens
// it again. Links must have been cut, unless the test is about that.
func (h *home) crash() {
	h.t.Helper()
	h.crashed.Store(true)
	h.disk = h.disk.Reopen() // writes of the old one are lost
	h.stop()
	h.crashed.Store(false)
	h.start()
}

// draft makes a task for target that ends after ttl.
func (h *home) draft(target proto.PeerID, ttl time.Duration, set func(*proto.Record)) *Draft {
	now := time.Now()
	d := &Draft{Header: proto.Header{
		What: proto.WhatTask, Suite: 1, Mesh: testMesh, ID: proto.NewTaskID(now), Origin: h.keys.Peer(), Target: target,
		Seq: h.NextSeq(target), Created: now.UnixMilli(), NotAfter: now.Add(ttl).UnixMilli(),
	}, Record: &proto.Record{Kind: "test", Class: proto.Normal}}
	if set != nil {
		set(d.Record)
	}
	d.Envelope = &proto.Envelope{Header: d.Header.Append(nil), Body: []byte("sealed"), Slot: []byte("slot")}
	d.Leaf = identity.EnvelopeLeaf(d.Envelope.Header, d.Envelope.Body, proto.WhatTask)
	return d
}

// resultDraft makes the result of a task of another home.
func (h *home) resultDraft(home proto.PeerID, blob string) *Draft {
	d := h.draft(home, day, func(r *proto.Record) { r.BodyBlob = blob })
	h.DropSeq(home, d.Header.Seq)
	d.Header.What = proto.WhatResult
	d.Header.Seq = proto.Seq{Boot: 77, Counter: 5} // of the task, at its home
	d.Envelope.Header = d.Header.Append(nil)
	d.Leaf = identity.EnvelopeLeaf(d.Envelope.Header, d.Envelope.Body, proto.WhatResult)
	return d
}

// submit makes a task and returns its id.
func (h *home) submit(target proto.PeerID, ttl time.Duration, set func(*proto.Record)) proto.TaskID {
	h.t.Helper()
	d := h.draft(target, ttl, set)
	if existing, err := h.Submit(h.t.Context(), d, nil); err != nil || existing != nil {
		h.t.Fatalf("submit: %v, %v", existing, err)
	}
	return d.Header.ID
}

// deadLetter returns a dead letter with its envelope, or ErrNotFound.
func (h *home) deadLetter(id proto.TaskID) (*proto.Stored, error) {
	if _, set, err := h.backlog.Get(backlog.TaskKey(id)); err != nil || set != backlog.Dead {
		return nil, cmp.Or(err, ErrNotFound)
	}
	return h.backlog.Stored(backlog.TaskKey(id))
}

func (h *home) state(id proto.TaskID) proto.TaskState {
	h.t.Helper()
	r, err := h.Get(id)
	if err != nil {
		h.t.Fatal(err)
	}
	return r.State
}

func (h *home) want(id proto.TaskID, want proto.TaskState) {
	h.t.Helper()
	if got := h.state(id); got != want {
		h.t.Errorf("task is %v, want %v", got.Name(), want.Name())
	}
}

// A target stands for the node at the other end: it keeps what it accepts and
// checks what every target relies on.
type target struct {
	t    *testing.T
	keys *identity.Keys
	// respond answers a message; nil accepts everything.
	respond func(m *proto.Message) *proto.Refusal

	mu       sync.Mutex
	tasks    map[proto.TaskID]proto.Header
	taken    int // tasks accepted for the first time
	again    int // tasks that came again
	cancels  []*proto.Cancel
	results  []proto.TaskID
	mark     proto.Seq
	dropAcks bool // acknowledgements are lost
	verifier *identity.Verifier
}

func newTarget(t *testing.T) *target {
	return &target{t: t, keys: identity.NewKeys(nil, time.Now()), tasks: map[proto.TaskID]proto.Header{}, verifier: identity.NewVerifier()}
}

func (g *target) peer() proto.PeerID { return g.keys.Peer() }

// A fakeLink is a link to a target.
type fakeLink struct {
	g      *target
	frames chan []*proto.Message
	acks   chan *proto.Ack
	n      uint64
	silent bool
}

var errLinkCut = errors.New("the wire is cut")

func (w *fakeLink) Peer() proto.PeerID { return w.g.peer() }

func (w *fakeLink) Send(ctx context.Context, msgs []*proto.Message) error {
	for _, m := range msgs {
		m.Payload = bytes.Clone(m.Payload)
	}
	select {
	case w.frames <- msgs:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (w *fakeLink) Answers(ctx context.Context) (*proto.Ack, error) {
	select {
	case a, ok := <-w.acks:
		if !ok {
			return nil, errLinkCut
		}
		return a, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// connect serves the target until the returned function cuts the link.
func (h *home) connect(g *target) (cut func()) {
	ctx, cancel := context.WithCancel(context.Background())
	w := &fakeLink{g: g, frames: make(chan []*proto.Message, 16), acks: make(chan *proto.Ack, 16)}
	var wg sync.WaitGroup
	o := h.Outbox
	wg.Go(func() { g.run(ctx, w) })
	wg.Go(func() {
		if err := o.Serve(ctx, w); ctx.Err() == nil && !h.crashed.Load() {
			g.t.Errorf("serve: %v", err)
		}
	})
	return sync.OnceFunc(func() { cancel(); wg.Wait() })
}

func (g *target) run(ctx context.Context, w *fakeLink) {
	for {
		select {
		case msgs := <-w.frames:
			if ack := g.receive(w, msgs); ack != nil {
				select {
				case w.acks <- ack:
				case <-ctx.Done():
					return
				}
			}
		case <-ctx.Done():
			return
		}
	}
}

// receive takes a group of frames and answers it.
func (g *target) receive(w *fakeLink, msgs []*proto.Message) *proto.Ack {
	g.mu.Lock()
	defer g.mu.Unlock()
	ack := &proto.Ack{From: w.n + 1, Time: time.Now().UnixMilli()}
	var statements [][]byte
	for _, m := range msgs {
		if m.Type == proto.TypeMark {
			g.marked(m)
			continue
		}
		w.n++
		refusal := g.take(m, &statements, ack.Time)
		if refusal != nil {
			refusal.Number = w.n
			ack.Refusals = append(ack.Refusals, refusal)
		}
	}
	ack.UpTo = w.n
	w.silent = w.silent || g.dropAcks // a stream that lost a message is lost
	if ack.UpTo < ack.From || w.silent {
		return nil
	}
	if len(statements) > 0 {
		ack.Signature = g.keys.SignAck(statements)
	}
	return ack
}

func (g *target) marked(m *proto.Message) {
	var mark proto.Mark
	if err := proto.Decode(m.Payload, &mark); err != nil {
		g.t.Error(err)
	}
	next := proto.Seq{Boot: mark.Boot, Counter: mark.Counter}
	if next.Compare(g.mark) < 0 {
		g.t.Errorf("the mark went back from %v to %v", g.mark, next)
	}
	g.mark = next
}

func (g *target) take(m *proto.Message, statements *[][]byte, now int64) *proto.Refusal {
	if g.respond != nil {
		if r := g.respond(m); r != nil {
			return r
		}
	}
	if m.Type == proto.TypeCancel {
		c := new(proto.Cancel)
		if err := proto.Decode(m.Payload, c); err != nil {
			g.t.Error(err)
		}
		if _, known := g.tasks[proto.TaskID(c.Task)]; !known {
			g.t.Error("asked to stop a task before it was sent")
		}
		g.cancels = append(g.cancels, c)
		return nil
	}
	var env proto.Envelope
	if err := proto.Decode(m.Payload, &env); err != nil {
		g.t.Error(err)
	}
	h, err := proto.ParseHeader(env.Header)
	if err != nil {
		g.t.Error(err)
	}
	what := byte(proto.WhatTask)
	if m.Type == proto.TypeResult {
		what = proto.WhatResult
	}
	leaf := identity.EnvelopeLeaf(env.Header, env.Body, what)
	if err := g.verifier.Verify(h.Origin, leaf, identity.Proof{Index: env.Index, Path: env.Path}, m.Signature); err != nil {
		g.t.Errorf("signature of %v: %v", h.ID, err)
	}
	if what == proto.WhatResult {
		g.results = append(g.results, h.ID)
		return nil
	}
	if _, known := g.tasks[h.ID]; known {
		g.again++
	} else if h.Seq.Compare(g.mark) <= 0 {
		g.t.Errorf("task of %v came after the mark %v", h.Seq, g.mark) // I12
	} else {
		g.tasks[h.ID] = h
		g.taken++
	}
	s := AcceptedStatement(testMesh, h.ID, g.peer(), h.Seq, now)
	*statements = append(*statements, s.Append(nil))
	return nil
}

// received returns the results that it accepted.
func (g *target) received() []proto.TaskID {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.results)
}

func (g *target) count() (taken, again int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.taken, g.again
}

// has reports whether the target took the task.
func (g *target) has(id proto.TaskID) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, ok := g.tasks[id]
	return ok
}

// result is what the target says about a task in the end.
func (g *target) result(h *home, id proto.TaskID, state proto.TaskState, body string) ResultIn {
	g.mu.Lock()
	defer g.mu.Unlock()
	sum := sha256.Sum256([]byte(body))
	return ResultIn{ID: id, Seq: g.tasks[id].Seq, Outcome: &proto.Outcome{
		State: state, Body: []byte(body), BodySize: uint64(len(body)), BodyDigest: sum[:],
		Attempts: []*proto.Attempt{{Number: 1}},
	}}
}

// A task goes from submit to its result, with the receipts that prove it, and
// costs one operation at submit and one when it is accepted.
func TestTaskWalksToItsResult(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, h *home) {
		g := newTarget(t)
		id := h.submit(g.peer(), time.Hour, nil)
		h.want(id, pending)
		defer h.connect(g)()
		synctest.Wait()
		h.want(id, accepted)
		r, _ := h.Get(id)
		if len(r.Receipts) != 1 {
			t.Fatalf("%d receipts, want one", len(r.Receipts))
		}
		s, err := identity.VerifyReceipt(identity.NewVerifier(), r.Receipts[0])
		if err != nil || s.Fact != proto.FactAccepted || s.Task != id || s.Node != g.peer() {
			t.Errorf("receipt = %+v, %v", s, err)
		}
		v := h.Commit(t.Context(), g.peer(), []ResultIn{g.result(h, id, success, "out")})
		if v[0].Code != 0 || v[0].State != success {
			t.Errorf("answer = %+v", v[0])
		}
		if r, _ = h.Get(id); r.State != success || string(r.Result) != "out" || r.EndedMs == 0 {
			t.Errorf("record = %v", r)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if seq := g.tasks[id].Seq; g.mark != seq {
			t.Errorf("mark = %v, want %v", g.mark, seq)
		}
	})
}

// Write budget: one operation a task when it is submitted, one when it is
// accepted, and no read in either commit.
func TestWriteBudget(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, h *home) {
		g := newTarget(t)
		defer h.connect(g)()
		synctest.Wait()
		const n = 1000
		before := h.store.Counters()
		drafts := make([]*Draft, n)
		for i := range drafts {
			drafts[i] = h.draft(g.peer(), time.Hour, nil)
		}
		_, errs := h.SubmitMany(t.Context(), drafts)
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := h.Stats().ByState[accepted]; got != n {
			t.Fatalf("%d accepted, want %d", got, n)
		}
		after := h.store.Counters()
		if ops := after.Ops - before.Ops; ops != 2*n {
			t.Errorf("%d operations for %d tasks, want two each", ops, n)
		}
		if reads := after.Reads - before.Reads; reads != 0 {
			t.Errorf("%d reads inside commits, want none", reads)
		}
		t.Logf("%d tasks in %d groups", n, after.Groups-before.Groups)
	})
}
