package outbox

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/backlog"
)

// resealing seals tasks again as a node does, for targets that read no body.
func resealing(st *proto.Stored) (*Draft, func(), error) {
	h, err := proto.ParseHeader(st.GetEnvelope().GetHeader())
	if err != nil {
		return nil, nil, err
	}
	h.Seq, h.Created, h.NotAfter = st.Record.Seq(), st.Record.CreatedMs, st.Record.NotAfterMs
	d := &Draft{Header: h, Record: &proto.Record{}, Envelope: &proto.Envelope{Header: h.Append(nil), Body: []byte("sealed"), Slot: []byte("slot")}}
	d.Leaf = identity.EnvelopeLeaf(d.Envelope.Header, d.Envelope.Body, h.What)
	return d, func() {}, nil
}

// I20: a task that its target no longer knows is sent again, with a sequence above
// the settled mark, even after a crash; one with mode at_most_once is INDETERMINATE
// until a late result, a person or its expiry ends it.
func TestTaskUnknownToItsTarget(t *testing.T) {
	const indeterminate = proto.Indeterminate
	once := func(r *proto.Record) { r.Mode = proto.AtMostOnce }
	inBubble(t, Config{Reseal: resealing}, func(t *testing.T, h *home) {
		g := newTarget(t)
		cut := h.connect(g)
		twice := h.submit(g.peer(), day, nil)
		late, ended, over := h.submit(g.peer(), day, once), h.submit(g.peer(), day, once), h.submit(g.peer(), day, once)
		queued := h.submit(g.peer(), day, func(r *proto.Record) { r.Target = "queue:q" }) // whose home it is
		time.Sleep(time.Minute)
		all := []proto.TaskID{twice, queued, late, ended, over}
		if ids, err := h.Awaited(g.peer()); err != nil || len(ids) != len(all) {
			t.Fatalf("awaited: %v, %v", ids, err)
		}
		cut()
		stranger := newTarget(t)
		for _, id := range all {
			if counted, err := h.HandleUnknown(t.Context(), stranger.peer(), id); counted || err != nil {
				t.Fatalf("the report of another node counts: %v", err)
			}
			if counted, err := h.HandleUnknown(t.Context(), g.peer(), id); !counted || err != nil {
				t.Fatalf("forgotten: %v, %v", counted, err)
			}
			if counted, err := h.HandleUnknown(t.Context(), g.peer(), id); counted || err != nil {
				t.Fatalf("forgotten a second time: %v, %v", counted, err)
			}
		}
		h.crash()
		h.want(twice, pending)
		h.want(late, indeterminate)
		h.want(queued, pending)
		g.mu.Lock()
		delete(g.tasks, twice)
		delete(g.tasks, queued)
		g.mu.Unlock()
		defer h.connect(g)()
		time.Sleep(time.Minute)
		h.want(twice, accepted)
		h.want(queued, accepted)
		if r, _ := h.Get(twice); r.Seq() != g.tasks[twice].Seq || len(r.Events) < 4 || r.Events[len(r.Events)-2].Cause != proto.TaskForgotten {
			t.Errorf("record %+v", r)
		}
		if v := h.Commit(t.Context(), g.peer(), []ResultIn{g.result(h, late, success, "late")}); v[0].Code != 0 {
			t.Errorf("the late result: %+v", v)
		}
		h.want(late, success)
		if state, err := h.Cancel(t.Context(), ended, false, "looked after"); err != nil || state != cancelled {
			t.Errorf("a person ends it: %v, %v", state, err)
		}
		if r, _ := h.Get(ended); r.Cause != proto.TaskCancelledLost {
			t.Errorf("it was sent, and ends with %s", r.Cause.Name())
		}
		time.Sleep(day + 25*time.Hour)
		h.want(over, dead)
	})
}

// A task that was to be cancelled is not sent again when its target no longer knows it, also
// if that has acknowledged the cancellation. One that is cancelled before it is sent again was
// sent before.
func TestCancelledTaskUnknownToItsTarget(t *testing.T) {
	inBubble(t, Config{Reseal: resealing}, func(t *testing.T, h *home) {
		g := newTarget(t)
		cut := h.connect(g)
		before, after := h.submit(g.peer(), day, nil), h.submit(g.peer(), day, nil)
		time.Sleep(time.Minute)
		h.cancel(before, false, accepted)
		time.Sleep(time.Minute)
		cut()
		for _, id := range []proto.TaskID{before, after} {
			if counted, err := h.HandleUnknown(t.Context(), g.peer(), id); !counted || err != nil {
				t.Fatalf("forgotten: %v, %v", counted, err)
			}
		}
		h.cancel(after, false, cancelled)
		g.mu.Lock()
		clear(g.tasks)
		g.mu.Unlock()
		defer h.connect(g)()
		time.Sleep(time.Minute)
		for _, id := range []proto.TaskID{before, after} {
			if r, err := h.Get(id); err != nil || r.State != cancelled || r.Cause != proto.TaskCancelledLost {
				t.Errorf("it is %s, %s, %v", r.GetState().Name(), r.GetCause().Name(), err)
			}
		}
		if len(g.tasks) != 0 {
			t.Errorf("%d of them were sent again", len(g.tasks))
		}
	})
}

// A target that accepts and forgets a task again and again does not fill its
// record: the task can still end.
func TestTaskForgottenAgainAndAgain(t *testing.T) {
	inBubble(t, Config{Reseal: resealing}, func(t *testing.T, h *home) {
		g := newTarget(t)
		defer h.connect(g)()
		id := h.submit(g.peer(), day, nil)
		for range 400 {
			synctest.Wait()
			h.want(id, accepted)
			g.mu.Lock()
			delete(g.tasks, id)
			g.mu.Unlock()
			if counted, err := h.HandleUnknown(t.Context(), g.peer(), id); !counted || err != nil {
				t.Fatalf("forgotten: %v, %v", counted, err)
			}
		}
		synctest.Wait()
		if r, _ := h.Get(id); len(r.Receipts) != 1 {
			t.Errorf("%d receipts, want that of the last acceptance", len(r.Receipts))
		}
		h.cancel(id, false, accepted)
		if v := h.Commit(t.Context(), g.peer(), []ResultIn{g.result(h, id, cancelled, "")}); v[0].Code != 0 {
			t.Errorf("answer %+v", v[0])
		}
		h.want(id, cancelled)
	})
}

// A task whose acceptance could not be written is sent again, and counts as
// possibly sent until then.
func TestAnswerThatCannotBeWritten(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, h *home) {
		g := newTarget(t)
		id := h.submit(g.peer(), day, nil)
		reason := func(s string) {
			t.Helper()
			edit := []backlog.Edit{{Key: backlog.TaskKey(id)}}
			if err := h.backlog.Change(t.Context(), edit, func(_ int, r *proto.Record) backlog.Action {
				r.Reason = s
				return backlog.Write
			})[0]; err != nil {
				t.Fatal(err)
			}
		}
		r, _ := h.Get(id)
		reason(strings.Repeat("x", 64<<10-proto.Size(r)-100))
		cut := h.connect(g)
		time.Sleep(time.Second)
		cut()
		if w, _ := h.Why(id); w.Place != "waiting" || !strings.Contains(w.Detail, "recorded") {
			t.Errorf("it is %+v", w)
		}
		reason("")
		h.cancel(id, false, pending) // not cancelled: the target has it
		defer h.connect(g)()
		time.Sleep(time.Minute)
		h.want(id, accepted)
	})
}

// I10: a task that its target has forgotten keeps its place before the later tasks
// with its ordering key, over a restart.
func TestForgottenTaskKeepsItsPlace(t *testing.T) {
	inBubble(t, Config{Reseal: resealing}, func(t *testing.T, h *home) {
		x, y := newTarget(t), newTarget(t)
		inLane := func(r *proto.Record) { r.OrderingKey = "k" }
		first := h.submit(x.peer(), day, inLane)
		second := h.submit(y.peer(), day, inLane)
		for range 2 {
			cut := h.connect(x)
			synctest.Wait()
			h.want(first, accepted)
			cut()
			delete(x.tasks, first)
			if counted, err := h.HandleUnknown(t.Context(), x.peer(), first); !counted || err != nil {
				t.Fatalf("forgotten: %v, %v", counted, err)
			}
			h.crash()
			if w, _ := h.Why(second); w.Behind != first {
				t.Fatalf("the second is %+v", w)
			}
		}
		defer h.connect(y)()
		time.Sleep(time.Minute)
		h.want(second, pending)
	})
}
