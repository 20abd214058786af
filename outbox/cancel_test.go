package outbox

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/backlog"
)

func (h *home) cancel(id proto.TaskID, hard bool, want proto.TaskState) {
	h.t.Helper()
	if got, err := h.Cancel(h.t.Context(), id, hard, "enough"); err != nil || got != want {
		h.t.Fatalf("cancel: %v, %v, want %v", got.Name(), err, want.Name())
	}
}

func (g *target) cancelRequests() []*proto.Cancel {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.cancels
}

// S34: a task that was never sent is stopped here, at once, and stays stopped.
func TestCancelUnsentTask(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, h *home) {
		g := newTarget(t)
		id := h.submit(g.peer(), day, nil)
		h.cancel(id, false, cancelled)
		h.crash()
		h.want(id, cancelled)
		defer h.connect(g)()
		time.Sleep(time.Minute)
		if taken, _ := g.count(); taken != 0 || len(g.cancelRequests()) != 0 {
			t.Errorf("%d sent, %d cancellations", taken, len(g.cancelRequests()))
		}
		if state, err := h.Cancel(t.Context(), id, false, ""); !errors.Is(err, ErrEnded) || state != cancelled {
			t.Errorf("once more: %v, %v", state.Name(), err)
		}
		if _, err := h.Cancel(t.Context(), proto.TaskID{1}, false, ""); !errors.Is(err, ErrNotFound) {
			t.Errorf("no such task: %v", err)
		}
		if r, _ := h.Get(id); r.Cause != proto.TaskCancelledUnsent || r.Reason != "enough" {
			t.Errorf("because of %v: %q", r.Cause, r.Reason)
		}
	})
}

// S34: the owner of a task is asked until it has answered, over crashes; only its
// result ends the task.
func TestCancelTaskAtItsOwner(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, h *home) {
		g := newTarget(t)
		id := h.submit(g.peer(), day, nil)
		cut := h.connect(g)
		synctest.Wait()
		cut()
		h.cancel(id, false, accepted)
		h.crash()
		g.respondWith(proto.CodeBusy)
		cut = h.connect(g)
		time.Sleep(10 * time.Second)
		g.respondWith(0)
		time.Sleep(time.Minute)
		if w := g.cancelRequests(); len(w) != 1 || w[0].Hard || w[0].Reason != "enough" || proto.TaskID(w[0].Task) != id {
			t.Fatalf("cancellations %v", w)
		}
		h.want(id, accepted)
		h.cancel(id, true, accepted)
		synctest.Wait()
		if w := g.cancelRequests(); len(w) != 2 || !w[1].Hard {
			t.Fatalf("cancellations %v", w)
		}
		if v := h.Commit(t.Context(), g.peer(), []ResultIn{g.result(h, id, cancelled, "")}); v[0].Code != 0 {
			t.Errorf("answer %+v", v[0])
		}
		h.want(id, cancelled)
		cut()
		if st := h.Stats(); st.Live != 0 {
			t.Errorf("%d entries left", st.Live)
		}
	})
}

// A cancellation that is still on its way when the task ends is dropped with it.
func TestCancelTooLate(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, h *home) {
		g := newTarget(t)
		id := h.submit(g.peer(), day, nil)
		cut := h.connect(g)
		synctest.Wait()
		cut()
		h.cancel(id, false, accepted)
		h.cancel(id, true, accepted)
		if st := h.Stats(); st.Live != 2 {
			t.Errorf("%d entries, want the task and one cancellation", st.Live)
		}
		if v := h.Commit(t.Context(), g.peer(), []ResultIn{g.result(h, id, success, "")}); v[0].Code != 0 || v[0].State != success {
			t.Errorf("answer %+v", v[0])
		}
		if st := h.Stats(); st.Live != 0 {
			t.Errorf("%d entries left", st.Live)
		}
	})
}

// A task that may have arrived is not reported as cancelled: first the task is sent
// again, then its owner is asked to stop it.
func TestCancelPossiblySentTask(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, h *home) {
		g := newTarget(t)
		g.setDropAcks(true)
		id := h.submit(g.peer(), day, nil)
		cut := h.connect(g)
		time.Sleep(time.Second)
		h.cancel(id, false, pending)
		cut()
		h.cancel(id, false, pending)
		g.setDropAcks(false)
		defer h.connect(g)()
		time.Sleep(5 * time.Second)
		h.want(id, accepted)
		if w := g.cancelRequests(); len(w) != 1 {
			t.Errorf("%d cancellations", len(w))
		}
	})
}

// A refusal proves that the target does not have the task: a task to be cancelled
// ends then. Shortly after a broken link it does not prove that yet.
func TestCancelRefusedTask(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, h *home) {
		g := newTarget(t)
		g.setDropAcks(true)
		id := h.submit(g.peer(), day, nil)
		h.connect(g)()
		broken := h.connect(g)
		time.Sleep(time.Second)
		broken()
		h.cancel(id, false, pending)
		g.setDropAcks(false)
		g.respondWith(proto.CodeBusy)
		defer h.connect(g)()
		time.Sleep(30 * time.Second)
		h.want(id, pending)
		time.Sleep(5 * time.Minute)
		h.want(id, cancelled)
	})
}

// A cancellation that the owner refuses is dropped; the task continues.
func TestCancelRefusedByOwner(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, h *home) {
		g := newTarget(t)
		id := h.submit(g.peer(), day, nil)
		defer h.connect(g)()
		synctest.Wait()
		g.respondWith(proto.CodeStale)
		h.cancel(id, false, accepted)
		synctest.Wait()
		h.want(id, accepted)
		if _, ok := h.backlog.Peek(backlog.Key{ID: id, Part: backlog.PartCancel}); ok {
			t.Error("the cancellation is still there")
		}
		if r, _ := h.Get(id); !r.Cancel {
			t.Error("the record does not show the cancellation")
		}
	})
}

// A hard cancellation follows while the soft one is on its way: both arrive.
func TestHardCancelAfterSoftCancel(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, h *home) {
		g := newTarget(t)
		d := h.draft(g.peer(), day, nil)
		h.mustSubmit(d)
		cut := h.connect(g)
		synctest.Wait()
		cut()
		h.cancel(d.Header.ID, false, accepted)
		w := &fakeLink{g: g, frames: make(chan []*proto.Message, 16), acks: make(chan *proto.Ack, 1)}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- h.Serve(ctx, w) }()
		<-w.frames // the soft cancellation
		h.cancel(d.Header.ID, true, accepted)
		w.acks <- &proto.Ack{From: 1, UpTo: 1}
		var req proto.Cancel
		if err := proto.Decode((<-w.frames)[0].Payload, &req); err != nil || !req.Hard {
			t.Errorf("then came %v, %v", &req, err)
		}
		w.acks <- &proto.Ack{From: 2, UpTo: 2}
		synctest.Wait()
		cancel()
		<-done
		if st := h.Stats(); st.Live != 1 {
			t.Errorf("%d entries, want the task alone", st.Live)
		}
	})
}

// A hard cancellation is sent also if the answer to the soft one before it is being written.
func TestHardCancelWhileTheSoftOneIsAnswered(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, h *home) {
		g := newTarget(t)
		id := h.submit(g.peer(), day, nil)
		cut := h.connect(g)
		synctest.Wait()
		cut()
		h.cancel(id, false, accepted)
		answer, err := h.backlog.Prepare(backlog.Edit{Key: backlog.Key{ID: id, Part: backlog.PartCancel}}, func(*proto.Record) backlog.Action { return backlog.Drop })
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			_, err := h.Cancel(t.Context(), id, true, "now")
			done <- err
		}()
		synctest.Wait() // it waits for the entry
		var b store.Batch
		answer.AddTo(&b)
		if err := h.store.Apply(t.Context(), &b); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		defer h.connect(g)()
		time.Sleep(time.Minute)
		if got := g.cancelRequests(); len(got) != 1 || !got[0].Hard {
			t.Errorf("its owner was sent %v", got)
		}
	})
}

// A hard cancellation after a soft one is one batch: a crash leaves both the task and what is
// sent to its owner hard, or neither.
func TestHardCancelIsOneBatch(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, h *home) {
		g := newTarget(t)
		id := h.submit(g.peer(), day, nil)
		cut := h.connect(g)
		synctest.Wait()
		cut()
		h.cancel(id, false, accepted)
		before := h.store.Counters().Batches
		h.cancel(id, true, accepted)
		if n := h.store.Counters().Batches - before; n != 1 {
			t.Errorf("it took %d batches", n)
		}
		h.crash()
		defer h.connect(g)()
		time.Sleep(time.Minute)
		if got := g.cancelRequests(); len(got) != 1 || !got[0].Hard {
			t.Errorf("after a crash its owner was sent %v", got)
		}
	})
}

// I11: a task that fails while it is asked to stop, to move to another queue, is a
// dead letter like any other, also once it is redriven.
func TestFailureOfAMovingTask(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, h *home) {
		g := newTarget(t)
		id := h.submit(g.peer(), day, nil)
		defer h.connect(g)()
		synctest.Wait()
		if _, err := h.CancelInto(t.Context(), id, "night", "moved"); err != nil {
			t.Fatal(err)
		}
		if v := h.Commit(t.Context(), g.peer(), []ResultIn{g.result(h, id, proto.Failed, "")}); v[0].Code != 0 {
			t.Fatalf("answer %+v", v[0])
		}
		for _, status := range []string{StatusNew, StatusRedriven} {
			l, _, err := h.DeadLetters(Query{}, backlog.Span{}, 9)
			if err != nil || len(l) != 1 || l[0].ID != id || l[0].Record.Status != status {
				t.Fatalf("dead letters %v, %v, want one that is %s", l, err, status)
			}
			if err := h.MarkRedriven(t.Context(), id, proto.TaskID{1}); err != nil {
				t.Fatal(err)
			}
		}
		if n, err := h.PurgeDead(t.Context(), Query{}, false); n != 1 || err != nil {
			t.Errorf("purged %d, %v", n, err)
		}
	})
}

// A task that was to move, expired, and was stopped after all by then keeps its content until
// its successor exists; once the move is forgotten it ends as any cancelled task.
func TestMovingTaskIsCancelledAfterItExpired(t *testing.T) {
	for _, forgotten := range []bool{false, true} {
		t.Run(fmt.Sprintf("forgotten %v", forgotten), func(t *testing.T) {
			inBubble(t, Config{RunLimit: time.Minute}, func(t *testing.T, h *home) {
				g := newTarget(t)
				defer h.connect(g)()
				id := h.submit(g.peer(), time.Hour, nil)
				synctest.Wait()
				if _, err := h.CancelInto(t.Context(), id, "night", "moved"); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Hour + 10*time.Minute)
				h.want(id, expired)
				if forgotten {
					if err := h.ForgetMove(t.Context(), id); err != nil {
						t.Fatal(err)
					}
				}
				if v := h.Commit(t.Context(), g.peer(), []ResultIn{g.result(h, id, cancelled, "")}); v[0].Code != 0 {
					t.Fatalf("answer %+v", v[0])
				}
				h.want(id, cancelled)
				if r, _ := h.Get(id); (r.MovesTo == "") != forgotten {
					t.Errorf("it moves to %q", r.MovesTo)
				}
				if _, err := h.deadLetter(id); (err != nil) != forgotten {
					t.Errorf("its content: %v", err)
				}
				if err := h.MarkRedriven(t.Context(), id, proto.TaskID{1}); err != nil {
					t.Fatal(err)
				}
				if l, _, err := h.DeadLetters(Query{}, backlog.Span{}, 9); err != nil || len(l) != 0 {
					t.Errorf("dead letters %v, %v", l, err)
				}
			})
		})
	}
}
