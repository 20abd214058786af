package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/backlog"
)

// testBodies keeps bodies in memory.
type testBodies struct {
	mu         sync.Mutex
	inl        map[string][]byte
	sent       []string
	fails      int // number of sends that fail first
	no         *proto.Refusal
	wrappedKey string // for any other the peer answers BAD_KEY
}

// A refusedBody is the peer's refusal of an offer.
type refusedBody struct{ no *proto.Refusal }

func (e refusedBody) Error() string           { return "the peer refuses: " + e.no.Detail }
func (e refusedBody) Refusal() *proto.Refusal { return e.no }

func (b *testBodies) Load(name string) ([]byte, error) {
	if body, ok := b.inl[name]; ok {
		return body, nil
	}
	return nil, errors.New("no such blob")
}

func (b *testBodies) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.sent)
}

func (b *testBodies) Send(_ context.Context, _ proto.PeerID, o *proto.Offer, name string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fails > 0 {
		b.fails--
		return errors.New("the line is bad")
	}
	if b.no != nil {
		return refusedBody{b.no}
	}
	if b.wrappedKey != "" && string(o.Envelope.Slot) != b.wrappedKey {
		return refusedBody{&proto.Refusal{Code: proto.CodeBadKey}}
	}
	b.sent = append(b.sent, fmt.Sprint(o.Type, " ", name))
	return nil
}

// blobDraft makes a task whose sealed body is a blob.
func (h *home) blobDraft(to proto.PeerID, blob string, body []byte, streamed bool) *Draft {
	d := h.draft(to, day, func(r *proto.Record) { r.BodyBlob = blob })
	if streamed {
		d.Header.SetObject([32]byte{1}, proto.SealedSize(1<<20))
		body = nil
	}
	d.Envelope = &proto.Envelope{Header: d.Header.Append(nil)}
	d.Leaf = identity.EnvelopeLeaf(d.Envelope.Header, body, proto.WhatTask)
	return d
}

func (h *home) mustSubmit(drafts ...*Draft) {
	h.t.Helper()
	_, errs := h.SubmitMany(h.t.Context(), drafts)
	if err := errors.Join(errs...); err != nil {
		h.t.Fatal(err)
	}
}

// A body in a blob is sent in the frame; a streamed one is sent before it, again if
// the target reports that it does not have it, and without delaying others.
func TestLargeBodies(t *testing.T) {
	bodies := &testBodies{inl: map[string][]byte{"inline": []byte("from the blob")}, fails: 3}
	inBubble(t, Config{Bodies: bodies}, func(t *testing.T, h *home) {
		g := newTarget(t)
		asked := map[string]int{}
		g.respond = func(m *proto.Message) *proto.Refusal {
			if asked[m.Id]++; asked[m.Id] == 1 && m.Id != "" && bodies.count() > 0 {
				return &proto.Refusal{Code: proto.CodeNeedBody}
			}
			return nil
		}
		var drafts []*Draft
		for i := range 30 {
			drafts = append(drafts, h.blobDraft(g.peer(), fmt.Sprint("stream-", i), nil, true))
		}
		inline := h.blobDraft(g.peer(), "inline", []byte("from the blob"), false)
		missing := h.blobDraft(g.peer(), "gone", []byte("lost"), false)
		h.mustSubmit(append(drafts, inline, missing)...)
		defer h.connect(g)()
		synctest.Wait()
		h.want(inline.Header.ID, accepted)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		for i, d := range drafts {
			if n := asked[d.Header.ID.String()]; n < 2 {
				t.Errorf("body %d: its task was sent %d times", i, n)
			}
			h.want(d.Header.ID, accepted)
			if n := len(slices.DeleteFunc(slices.Clone(bodies.sent), func(s string) bool { return s != fmt.Sprint("DATA stream-", i) })); n != 2 {
				t.Errorf("body %d was sent %d times", i, n)
			}
		}
		h.want(missing.Header.ID, pending)
		if why, _ := h.Why(missing.Header.ID); why.Detail == "" || h.tries(missing.Header.ID) == 0 {
			t.Errorf("why = %+v", why)
		}
	})
}

// The refusal of a streamed body counts as one of its task: a final one ends the
// task, after a transient one it waits (I20).
func TestRefusedBody(t *testing.T) {
	tests := []struct {
		code proto.Code
		want proto.TaskState
	}{
		{proto.CodeExpired, pending}, {proto.CodeDenied, dead}, {proto.CodeTooLarge, dead},
		{proto.CodeDuplicate, accepted}, {proto.CodeFull, pending}, {proto.CodeNeedBody, pending},
	}
	for _, tt := range tests {
		t.Run(tt.code.Name(), func(t *testing.T) {
			bodies := &testBodies{no: &proto.Refusal{Code: tt.code, Detail: "because"}}
			inBubble(t, Config{Bodies: bodies}, func(t *testing.T, h *home) {
				g := newTarget(t)
				d := h.blobDraft(g.peer(), "stream", nil, true)
				h.mustSubmit(d)
				defer h.connect(g)()
				time.Sleep(10 * time.Minute)
				h.want(d.Header.ID, tt.want)
				if why, err := h.Why(d.Header.ID); tt.want == pending && (err != nil || h.tries(d.Header.ID) < 2) {
					t.Errorf("why = %+v, %v: it is tried again", why, err)
				}
			})
		})
	}
}

func rewrapSlot(st *proto.Stored) (*proto.Envelope, error) {
	e := st.Envelope
	return &proto.Envelope{Header: e.Header, Body: e.Body, Slot: []byte("new"), Path: e.Path, Index: e.Index, Signature: e.Signature}, nil
}

// BAD_KEY of an offered body: the next offer has the new wrapped key, too.
func TestBadKeyOfABodyIsRewrapped(t *testing.T) {
	bodies := &testBodies{wrappedKey: "new"}
	inBubble(t, Config{Bodies: bodies, Rewrap: rewrapSlot}, func(t *testing.T, h *home) {
		g := newTarget(t)
		d := h.blobDraft(g.peer(), "stream", nil, true)
		h.mustSubmit(d)
		defer h.connect(g)()
		time.Sleep(5 * time.Second)
		h.want(d.Header.ID, accepted)
	})
}

// BAD_KEY: the key is wrapped again, and the task is sent with it.
func TestBadKeyIsRewrapped(t *testing.T) {
	cfg := Config{Rewrap: rewrapSlot}
	inBubble(t, cfg, func(t *testing.T, h *home) {
		g := newTarget(t)
		g.respond = func(m *proto.Message) *proto.Refusal {
			var env proto.Envelope
			if err := proto.Decode(m.Payload, &env); err != nil || string(env.Slot) != "new" {
				return &proto.Refusal{Code: proto.CodeBadKey}
			}
			return nil
		}
		id := h.submit(g.peer(), day, nil)
		defer h.connect(g)()
		time.Sleep(3 * time.Second)
		h.want(id, accepted)
	})
}

// A result is kept until its home has answered; the end of the task here and its
// result are one atomic step.
func TestResultsReachTheirHome(t *testing.T) {
	inBubble(t, Config{ResultFor: time.Hour}, func(t *testing.T, h *home) {
		g := newTarget(t)
		g.respondWith(proto.CodeInternal)
		also := func(b *store.Batch) { b.Put(store.Inbox, []byte("task"), []byte("done")) }
		d := h.resultDraft(g.peer(), "")
		if err := h.PutResult(t.Context(), d, also); err != nil {
			t.Fatal(err)
		}
		conflict := func(b *store.Batch) { b.RequireAbsent(store.Inbox, []byte("task")) }
		if err := h.PutResult(t.Context(), h.resultDraft(g.peer(), ""), conflict); !errors.Is(err, store.ErrConflict) {
			t.Errorf("a step that does not hold: %v", err)
		}
		cut := h.connect(g)
		time.Sleep(time.Hour)
		cut()
		h.crash()
		if st := h.Stats(); st.Live != 1 || st.Dead != 0 {
			t.Fatalf("stats %+v: a result spends no attempts", st)
		}
		if n := h.Waiting(g.peer()); n != 1 || len(h.backlog.Groups()) != 1 {
			t.Errorf("%d wait", n)
		}
		g.respondWith(0)
		cut = h.connect(g)
		synctest.Wait()
		if got := g.received(); len(got) != 1 || got[0] != d.Header.ID {
			t.Errorf("results %v", got)
		}
		if st := h.Stats(); st.Live != 0 {
			t.Errorf("a committed result is still here: %+v", st)
		}
		for _, code := range []proto.Code{proto.CodeStale, proto.CodeDuplicate} {
			g.respond = func(*proto.Message) *proto.Refusal {
				return &proto.Refusal{Code: code, State: proto.Cancelled}
			}
			if err := h.PutResult(t.Context(), h.resultDraft(g.peer(), ""), nil); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if st := h.Stats(); st.Live != 0 || st.Dead != 0 {
				t.Errorf("after %v: %+v", code.Name(), st)
			}
		}
		g.respondWith(proto.CodeBadForm)
		if err := h.PutResult(t.Context(), h.resultDraft(g.peer(), ""), nil); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if st := h.Stats(); st.Live != 0 || st.Dead != 1 {
			t.Errorf("a result that its home never accepts: %+v", st)
		}
		cut()
		if err := h.PutResult(t.Context(), h.resultDraft(g.peer(), ""), nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(day + 2*time.Hour)
		if st := h.Stats(); st.Live != 0 || st.Dead != 2 {
			t.Errorf("a result that was not accepted in time: %+v", st)
		}
	})
}

// The link of a peer that acknowledges frames that were not sent, or signs other
// statements, is closed, and no task counts as accepted (I8, S54).
func TestBadAcks(t *testing.T) {
	statement := func(g *target, d *Draft) []byte {
		s := AcceptedStatement(testMesh, d.Header.ID, g.peer(), d.Header.Seq, 5)
		return s.Append(nil)
	}
	tests := []struct {
		name string
		ack  func(g *target, d *Draft) *proto.Ack
	}{
		{"of a frame never sent", func(*target, *Draft) *proto.Ack { return &proto.Ack{From: 1, UpTo: 2} }},
		{"of all frames ever", func(*target, *Draft) *proto.Ack { return &proto.Ack{From: 1, UpTo: 1 << 63} }},
		{"with a gap", func(*target, *Draft) *proto.Ack { return &proto.Ack{From: 2, UpTo: 2} }},
		{"without a signature", func(*target, *Draft) *proto.Ack { return &proto.Ack{From: 1, UpTo: 1, Time: 5} }},
		{"signed for another time", func(g *target, d *Draft) *proto.Ack {
			return &proto.Ack{From: 1, UpTo: 1, Time: 6, Signature: g.keys.SignAck([][]byte{statement(g, d)})}
		}},
		{"signed by another", func(g *target, d *Draft) *proto.Ack {
			return &proto.Ack{From: 1, UpTo: 1, Time: 5, Signature: newTarget(g.t).keys.SignAck([][]byte{statement(g, d)})}
		}},
		{"with a refusal of another frame", func(*target, *Draft) *proto.Ack {
			return &proto.Ack{From: 1, UpTo: 1, Refusals: []*proto.Refusal{{Number: 2, Code: proto.CodeDenied}}}
		}},
		{"with a refusal that is none", func(*target, *Draft) *proto.Ack {
			return &proto.Ack{From: 1, UpTo: 1, Refusals: []*proto.Refusal{{Number: 1}}}
		}},
		{"with a frame refused twice", func(*target, *Draft) *proto.Ack {
			return &proto.Ack{From: 1, UpTo: 1, Refusals: []*proto.Refusal{{Number: 1, Code: proto.CodeBusy}, {Number: 1, Code: proto.CodeDenied}}}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, Config{}, func(t *testing.T, h *home) {
				g := newTarget(t)
				d := h.draft(g.peer(), day, nil)
				h.mustSubmit(d)
				w := &fakeLink{g: g, frames: make(chan []*proto.Message, 16), acks: make(chan *proto.Ack, 1)}
				done := make(chan error, 1)
				go func() { done <- h.Serve(t.Context(), w) }()
				<-w.frames
				w.acks <- tt.ack(g, d)
				if err := <-done; !errors.Is(err, ErrBadAck) {
					t.Errorf("serve: %v", err)
				}
				h.want(d.Header.ID, pending)
				if h.links.up(g.peer()) {
					t.Error("the link counts as up")
				}
				defer h.connect(g)()
				time.Sleep(3 * time.Second)
				h.want(d.Header.ID, accepted)
			})
		})
	}
}

// S13, at the home: a critical task waits only for what is already in flight.
func TestUrgentGoesFirst(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, h *home) {
		g := newTarget(t)
		var drafts []*Draft
		for range 1000 {
			drafts = append(drafts, h.draft(g.peer(), day, nil))
		}
		drafts = append(drafts, h.draft(g.peer(), day, func(r *proto.Record) { r.Class = proto.Critical }))
		h.mustSubmit(drafts...)
		w := &fakeLink{g: g, frames: make(chan []*proto.Message), acks: make(chan *proto.Ack)}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- h.Serve(ctx, w) }()
		first := <-w.frames
		urgent := drafts[1000].Header.ID.String()
		if len(first) > maxSendBatch || first[0].Id != urgent {
			t.Errorf("%d frames at first, the first is %s", len(first), first[0].Id)
		}
		cancel()
		<-done
	})
}

// A flapping link leaves nothing behind, and waiting tasks are spread when it comes
// back (S06, S46).
func TestFlappingLink(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, h *home) {
		g := newTarget(t)
		for range 6 {
			var drafts []*Draft
			for range 500 {
				drafts = append(drafts, h.draft(g.peer(), day, nil))
			}
			cut := h.connect(g)
			h.mustSubmit(drafts...)
			cut()
		}
		defer h.connect(g)()
		time.Sleep(2 * time.Second) // S07
		if st := h.Stats(); st.ByState[accepted] != 3000 {
			t.Errorf("%v", st.ByState)
		}
		if taken, _ := g.count(); taken != 3000 {
			t.Errorf("%d taken", taken)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if m := h.Mark(g.peer()); g.mark != m || m.Counter != 3000 {
			t.Errorf("mark %v at the target, %v here", g.mark, m)
		}
		if len(h.deliveries.all) != 0 || len(h.submitted.all) != 0 || len(h.seqs.targets) != 0 { // I15
			t.Errorf("left: %d delivery states, %d cached, %d targets", len(h.deliveries.all), len(h.submitted.all), len(h.seqs.targets))
		}
	})
}

// A task whose result overtook the acknowledgement leaves nothing behind when the link then
// breaks, and neither does one that ended before a refusal of it arrived.
func TestTaskThatEndsInFlightLeavesNothing(t *testing.T) {
	for _, refusal := range []*proto.Refusal{nil, {Code: proto.CodeBusy}} {
		inBubble(t, Config{}, func(t *testing.T, h *home) {
			g := newTarget(t)
			w := &fakeLink{g: g, frames: make(chan []*proto.Message), acks: make(chan *proto.Ack)}
			done := make(chan error, 1)
			go func() { done <- h.Serve(t.Context(), w) }()
			id := h.submit(g.peer(), day, nil)
			g.receive(w, <-w.frames)
			if v := h.Commit(t.Context(), g.peer(), []ResultIn{g.result(h, id, success, "")}); v[0].Code != 0 {
				t.Fatal(v)
			}
			h.want(id, success)
			if refusal != nil {
				refusal.Number = 1
				w.acks <- &proto.Ack{From: 1, UpTo: 1, Refusals: []*proto.Refusal{refusal}}
				synctest.Wait()
			}
			close(w.acks)
			if err := <-done; !errors.Is(err, errLinkCut) {
				t.Error(err)
			}
			if n := len(h.deliveries.all); n != 0 { // I15
				t.Errorf("%d delivery states are left", n)
			}
		})
	}
}

func TestListAndPurge(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, h *home) {
		g := newTarget(t)
		defer h.connect(g)()
		var ids []proto.TaskID
		for i := range 9 {
			ids = append(ids, h.submit(g.peer(), day, func(r *proto.Record) { r.Kind = fmt.Sprint("kind-", i%3) }))
			time.Sleep(time.Millisecond) // the resolution of an id
		}
		synctest.Wait()
		var results []ResultIn
		for i, id := range ids[:6] {
			results = append(results, g.result(h, id, []proto.TaskState{success, failed}[i%2], ""))
		}
		h.Commit(t.Context(), g.peer(), results)
		list := func(q Query) (ids []proto.TaskID) {
			for span := (backlog.Span{}); ; {
				page, next, err := h.List(q, span, 2)
				if err != nil {
					t.Fatal(err)
				}
				for _, l := range page {
					ids = append(ids, l.ID)
				}
				if span.From = next; next.IsZero() {
					return ids
				}
			}
		}
		for name, tt := range map[string]struct {
			q    Query
			want int
		}{
			"all":      {Query{}, 9},
			"a state":  {Query{States: []proto.TaskState{accepted}}, 3},
			"states":   {Query{States: []proto.TaskState{success, failed}}, 6},
			"a kind":   {Query{Kind: "kind-1"}, 3},
			"a peer":   {Query{Peer: g.peer()}, 9},
			"no peer":  {Query{Peer: proto.PeerID{9}}, 0},
			"a class":  {Query{Class: proto.Low}, 0},
			"too late": {Query{Before: time.Now().Add(-time.Hour)}, 0},
			"a match":  {Query{Match: func(id proto.TaskID, _ *proto.Record) bool { return id == ids[8] }}, 1},
		} {
			if got := list(tt.q); len(got) != tt.want {
				t.Errorf("%s: %d, want %d", name, len(got), tt.want)
			}
		}
		newest := list(Query{})
		slices.Reverse(newest)
		if !slices.Equal(newest, ids) { // including ended ones
			t.Errorf("listed %v, want the newest first of %v", newest, ids)
		}
		letter := ids[1]
		if st, err := h.deadLetter(letter); err != nil || st.Record.Status != StatusNew {
			t.Errorf("dead letter %v, %v", st, err)
		}
		if err := h.MarkRedriven(t.Context(), letter, ids[8]); err != nil {
			t.Error(err)
		}
		if r, _ := h.Get(letter); r.Status != StatusRedriven || r.RedrivenAs != ids[8].String() {
			t.Errorf("redriven: %v", r)
		}
		if _, err := h.deadLetter(ids[0]); !errors.Is(err, ErrNotFound) {
			t.Errorf("a finished task is a dead letter: %v", err)
		}
		if n, err := h.PurgeDead(t.Context(), Query{}, true); n != 3 || err != nil {
			t.Errorf("dry run: %d, %v", n, err)
		}
		if n, err := h.PurgeDead(t.Context(), Query{Match: func(id proto.TaskID, _ *proto.Record) bool { return id == letter }}, false); n != 1 || err != nil {
			t.Errorf("purge: %d, %v", n, err)
		}
		if n, err := h.PurgeDone(t.Context(), Query{}, false); n != 3 || err != nil {
			t.Errorf("purge done: %d, %v", n, err)
		}
		if st := h.Stats(); st.Live != 3 || st.Done != 0 || st.Dead != 2 {
			t.Errorf("stats %+v", st)
		}
	})
}

// S17: dead letters beyond the bounds are archived automatically.
func TestRunArchivesDeadLetters(t *testing.T) {
	archived := 0
	cfg := Config{Retention: Retention{MaxDead: 10, Archive: func(_ context.Context, list []backlog.Archived) error { archived += len(list); return nil }}}
	inBubble(t, cfg, func(t *testing.T, h *home) {
		g := newTarget(t)
		g.respondWith(proto.CodeDenied)
		defer h.connect(g)()
		var drafts []*Draft
		for range 1000 {
			drafts = append(drafts, h.draft(g.peer(), day, nil))
		}
		h.mustSubmit(drafts...)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if st := h.Stats(); st.Dead != 10 || archived != 990 {
			t.Errorf("%d dead letters, %d archived", st.Dead, archived)
		}
	})
}

// A sender that has the answer of a task before its submitter changes no record that the
// submitter still uses.
func TestRecordIsTheSubmittersUntilItIsAnswered(t *testing.T) {
	cached := new(submitted)
	rec := new(proto.Record)
	sent := sentEntry{item: backlog.Item{Version: 3}, rec: rec, cached: cached}
	if ed := sent.edit(); ed.Record != nil || ed.Version != 3 {
		t.Errorf("before: %v", ed)
	}
	cached.answered.Store(true)
	if ed := sent.edit(); ed.Record != rec {
		t.Errorf("after: %v", ed)
	}
	if sent.cached = nil; sent.edit().Record != rec {
		t.Error("a record that was read back is not used")
	}
}
