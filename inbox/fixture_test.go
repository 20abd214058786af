package inbox

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/mem"
)

var (
	home  = proto.PeerID{1}
	other = proto.PeerID{2}
	self  = proto.PeerID{9}
)

// A fixture is an inbox with a store in memory and an outbox that takes results. It runs in
// a synctest bubble, or outside of one without Run.
type fixture struct {
	t       testing.TB
	cfg     Config
	parts   Parts
	queues  Custodian
	specs   []Spec
	engine  *mem.Engine
	store   *store.Store
	in      *Inbox
	results *results
	bodies  *bodies
	counter uint64 // sequence counter

	cancel context.CancelFunc
	done   chan error
}

// inBubble runs test in virtual time with a fixture whose inbox is open and not running.
func inBubble(t *testing.T, cfg Config, specs []Spec, test func(*fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, cfg, specs...)
		defer f.close()
		test(f)
	})
}

func newFixture(t testing.TB, cfg Config, specs ...Spec) *fixture {
	f := &fixture{t: t, cfg: cfg, specs: specs, engine: mem.New(), bodies: &bodies{files: map[string][]byte{}, pins: map[string]int{}}}
	f.cfg.Self = self
	if f.cfg.Clock.IsZero() {
		f.cfg.Clock = clock.Runtime()
	}
	if f.cfg.Rand == nil {
		f.cfg.Rand = func() float64 { return 0 }
	}
	f.results = &results{outcomes: map[proto.TaskID][]*Finished{}}
	f.parts = Parts{
		Members: members{home: {"home", []string{"send"}}, other: {"other", []string{"send"}}},
		Opener:  opener{}, Results: f.results, Bodies: f.bodies, Files: f.bodies,
	}
	f.open()
	return f
}

func (f *fixture) open() {
	f.t.Helper()
	s, err := store.Open(f.engine, store.Config{Clock: f.cfg.Clock, SweepEvery: -1, CompactEvery: -1})
	if err != nil {
		f.t.Fatal(err)
	}
	f.store, f.results.store = s, s
	if f.in, err = Open(s, f.parts, f.cfg); err != nil {
		f.t.Fatal(err)
	}
	if f.queues != nil {
		f.in.Keep(KeeperQueue, f.queues)
	}
	for _, spec := range f.specs {
		if err := f.in.Register(spec); err != nil {
			f.t.Fatal(err)
		}
	}
}

// run starts the inbox.
func (f *fixture) run() {
	ctx, cancel := context.WithCancel(context.Background())
	f.cancel, f.done = cancel, make(chan error, 1)
	in, done := f.in, f.done
	go func() { done <- in.Run(ctx) }()
}

// stop stops the inbox and returns the result of Run.
func (f *fixture) stop() error {
	if f.cancel == nil {
		return nil
	}
	f.cancel()
	f.cancel = nil
	return <-f.done
}

func (f *fixture) close() {
	f.stop()
	f.store.Close()
}

// restart stops gracefully and opens again.
func (f *fixture) restart() {
	f.t.Helper()
	if err := f.stop(); err != nil {
		f.t.Fatalf("Run: %v", err)
	}
	f.crash()
}

// crash cuts the power and opens what was on disk. Running handlers notice only that they
// can no longer write.
func (f *fixture) crash() {
	f.t.Helper()
	next := f.engine.Reopen()
	if f.cancel != nil {
		f.cancel()
		f.cancel = nil
		<-f.done
	}
	f.store.Close()
	f.engine = next
	f.cfg.BootID[0]++
	f.open()
}

// task returns an arrival of kind "work" from home; change may alter it before its digest
// is computed.
func (f *fixture) task(change ...func(*Arrival)) Arrival {
	f.counter++
	now := f.cfg.Clock.Now()
	a := Arrival{
		Header: proto.Header{
			What: proto.WhatTask, Suite: 1, ID: proto.NewTaskID(now), Origin: home, Target: self,
			Seq:     proto.Seq{Boot: 1, Counter: f.counter},
			Created: now.UnixMilli(), NotAfter: now.Add(time.Hour).UnixMilli(),
		},
		Content: &proto.Content{Kind: "work", Class: proto.Normal, Body: []byte("body")},
	}
	for _, f := range change {
		f(&a)
	}
	return seal(f.t, a)
}

// seal sets the envelope of an arrival, which is not encrypted, and its digest.
func seal(t testing.TB, a Arrival) Arrival {
	if !a.Header.Streamed() {
		a.Content.BodySize = uint64(len(a.Content.Body))
		sum := sha256.Sum256(a.Content.Body)
		a.Content.BodyDigest = sum[:]
	}
	body, err := proto.Encode(nil, a.Content)
	if err != nil {
		t.Fatal(err)
	}
	a.Envelope = &proto.Envelope{Header: a.Header.Append(nil), Body: body}
	a.Digest = sha256.Sum256(append(a.Header.Append(nil), body...))
	return a
}

func withKey(k string) func(*Arrival)        { return func(a *Arrival) { a.Content.IdempotencyKey = k } }
func withOrder(k string) func(*Arrival)      { return func(a *Arrival) { a.Content.OrderingKey = k } }
func withKind(k string) func(*Arrival)       { return func(a *Arrival) { a.Content.Kind = k } }
func withClass(c proto.Class) func(*Arrival) { return func(a *Arrival) { a.Content.Class = c } }
func withBody(b string) func(*Arrival)       { return func(a *Arrival) { a.Content.Body = []byte(b) } }
func withMode(m proto.Mode) func(*Arrival)   { return func(a *Arrival) { a.Content.Mode = m } }
func withTTL(d time.Duration) func(*Arrival) {
	return func(a *Arrival) { a.Header.NotAfter = a.Header.Created + d.Milliseconds() }
}

// accept delivers arrivals and fails the test unless each gets the code.
func (f *fixture) accept(code proto.Code, as ...Arrival) []Verdict {
	f.t.Helper()
	vs := f.in.Accept(context.Background(), as)
	for i, v := range vs {
		if v.Code != code {
			f.t.Fatalf("arrival %d of %d: %s %q, want %s", i, len(as), v.Code.Name(), v.Detail, code.Name())
		}
	}
	return vs
}

// outcome returns the outcome of a task at its origin, and fails the test unless it ended
// exactly once (I3).
func (f *fixture) outcome(a Arrival) *proto.Outcome {
	f.t.Helper()
	fs := f.results.of(a.Header.ID)
	if len(fs) != 1 {
		f.t.Fatalf("task ended %d times, want once", len(fs))
	}
	return fs[0].Outcome
}

func (f *fixture) expect(a Arrival, want proto.TaskState) *proto.Outcome {
	f.t.Helper()
	o := f.outcome(a)
	if o.State != want {
		f.t.Fatalf("task ended %s (%s %s), want %s", o.State.Name(), o.Cause.Name(), o.Reason, want.Name())
	}
	if want != succeeded && o.Cause == 0 {
		f.t.Errorf("%s without a cause (I11)", want.Name())
	}
	return o
}

// record returns the inbox's record of a task.
func (f *fixture) record(a Arrival) *proto.Record {
	f.t.Helper()
	rec, err := f.in.Get(a.Header.ID)
	if err != nil {
		f.t.Fatal(err)
	}
	return rec
}

// opener opens what seal created.
type opener struct{}

func (opener) Content(st *proto.Stored) (*proto.Content, error) {
	c := new(proto.Content)
	return c, proto.Decode(st.Envelope.Body, c)
}

// results is the outbox of the fixture: each result is durable together with what the inbox
// adds.
type results struct {
	mu       sync.Mutex
	store    *store.Store
	outcomes map[proto.TaskID][]*Finished
	order    []proto.TaskID
	refuse   error  // error of the next calls
	stuck    string // results of this kind are refused
	noRoom   bool   // for results in files
	tries    int
	during   func() // called before a result is written; may be nil
}

func (o *results) PutResult(ctx context.Context, f *Finished, also func(*store.Batch)) error {
	o.mu.Lock()
	o.tries++
	err, s, during := o.refuse, o.store, o.during
	if o.stuck != "" && f.Kind == o.stuck {
		err = errors.New("stuck")
	}
	if o.noRoom && f.File != "" {
		err = fmt.Errorf("seal: %w", ErrNoRoom)
	}
	o.mu.Unlock()
	if err != nil {
		return err
	}
	if _, err = proto.Encode(nil, f.Outcome); err != nil {
		return err
	}
	if during != nil {
		during()
	}
	var b store.Batch
	b.Put(store.PendingTasks, append(f.ID[:len(f.ID):len(f.ID)], 'r'), nil)
	also(&b)
	b.After(func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.outcomes[f.ID] = append(o.outcomes[f.ID], f)
		o.order = append(o.order, f.ID)
	})
	return s.Apply(ctx, &b)
}

func (o *results) of(id proto.TaskID) []*Finished {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.outcomes[id]
}
func (o *results) count() int     { o.mu.Lock(); defer o.mu.Unlock(); return len(o.outcomes) }
func (o *results) fail(err error) { o.mu.Lock(); defer o.mu.Unlock(); o.refuse = err }

// bodies stores files and streamed bodies in memory.
type bodies struct {
	mu    sync.Mutex
	files map[string][]byte
	pins  map[string]int
	busy  int // of the next reads, which fail because too many files are open
}

func (b *bodies) Put(p []byte) (string, error) {
	sum := sha256.Sum256(p)
	name := fmt.Sprintf("s-%x", sum)
	b.add(name, p)
	b.Pin(name)
	return name, nil
}

func (b *bodies) add(name string, p []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.files[name] = bytes.Clone(p)
}

func (b *bodies) Get(name string) ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.busy--; b.busy >= 0 {
		return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.EMFILE}
	}
	p, ok := b.files[name]
	if !ok {
		return nil, errors.New("no such file")
	}
	return p, nil
}

func (b *bodies) Drop(string) {}

func (b *bodies) Pin(name string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, ok := b.files[name]
	if ok {
		b.pins[name]++
	}
	return ok
}

func (b *bodies) Release(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.pins[name]--; b.pins[name] < 0 {
		panic("released twice: " + name)
	}
}

func (b *bodies) Open(c *proto.Content) (io.ReadCloser, error) {
	p, err := b.Get(proto.ObjectFile([32]byte(c.GetObject().GetName())))
	return io.NopCloser(bytes.NewReader(p)), err
}

// sweep removes the files that are neither pinned nor in a record, and returns those that
// stay.
func (f *fixture) sweep() (left []string) {
	f.t.Helper()
	used := map[string]bool{}
	if err := f.in.Blobs(func(name string, origin proto.PeerID) { used[name] = origin == home }); err != nil {
		f.t.Fatal(err)
	}
	f.bodies.mu.Lock()
	defer f.bodies.mu.Unlock()
	for name := range f.bodies.files {
		if !used[name] && f.bodies.pins[name] == 0 {
			delete(f.bodies.files, name)
		} else {
			left = append(left, name)
		}
	}
	return left
}

// withStream makes the body of an arrival a stream of size bytes.
func withStream(size int) func(*Arrival) {
	return func(a *Arrival) {
		name := sha256.Sum256(a.Header.ID[:])
		a.Content.Body, a.Content.Object = nil, &proto.BodyRef{Name: name[:], Key: make([]byte, 32), Suite: 1}
		a.Header.SetObject(name, proto.SealedSize(int64(size)))
	}
}

// A script is a handler that records its starts and runs a function.
type script struct {
	mu    sync.Mutex
	runs  []handler.Run
	wins  map[proto.TaskID]int // successful runs
	f     func(ctx context.Context, r *handler.Run) *handler.Result
	probe func(r *handler.Run) handler.ProbeResult
}

func (s *script) Run(ctx context.Context, r *handler.Run) *handler.Result {
	s.mu.Lock()
	s.runs = append(s.runs, *r)
	f := s.f
	s.mu.Unlock()
	res := f(ctx, r)
	if res.Outcome == handler.Success {
		s.mu.Lock()
		if s.wins == nil {
			s.wins = map[proto.TaskID]int{}
		}
		s.wins[r.ID]++
		s.mu.Unlock()
	}
	return res
}

func (s *script) Probe(_ context.Context, r *handler.Run) handler.ProbeResult {
	var probe func(*handler.Run) handler.ProbeResult
	withLock(func() { probe = s.probe })
	return probe(r)
}

func (s *script) starts(id proto.TaskID) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.runs {
		if r.ID == id {
			n++
		}
	}
	return n
}

// scripted returns a handler that runs f, and a spec of kind "work" for it that allows
// every member.
func scripted(f func(ctx context.Context, r *handler.Run) *handler.Result) (*script, Spec) {
	s := &script{f: f}
	return s, Spec{Kind: "work", Handler: s, Allow: []string{"*"}, OnCrash: OnCrashRetry}
}

// withLock runs f under the lock for state that handlers of a test share.
func withLock(f func()) { shared.Lock(); defer shared.Unlock(); f() }

var shared sync.Mutex

// wait advances the virtual time.
func wait(d time.Duration) { time.Sleep(d); synctest.Wait() }
