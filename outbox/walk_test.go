package outbox

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/backlog"
)

const day = 24 * time.Hour

// respondWith makes a target answer every message with a refusal.
func (g *target) respondWith(code proto.Code) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.respond = func(*proto.Message) *proto.Refusal { return &proto.Refusal{Code: code, Detail: "because"} }
	if code == 0 {
		g.respond = nil
	}
}

func (g *target) setDropAcks(deaf bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dropAcks = deaf
}

// The effect of each refusal on a task; Why shows it.
func TestRefusedTask(t *testing.T) {
	tests := []struct {
		code proto.Code
		want proto.TaskState
	}{
		{proto.CodeNoHandler, pending}, {proto.CodeCannotStart, pending}, {proto.CodeClock, pending}, {proto.CodeFull, pending}, {proto.CodeBusy, pending},
		{proto.CodeDraining, pending}, {proto.CodeBadKey, pending},
		{proto.CodeUnknownVersion, pending}, {proto.Code(77), pending},
		{proto.CodeExpired, pending}, {proto.CodeDenied, dead}, {proto.CodeBadSignature, dead},
		{proto.CodeTooLarge, dead}, {proto.CodeBadForm, dead}, {proto.CodeDuplicate, accepted},
	}
	for _, tt := range tests {
		t.Run(tt.code.Name(), func(t *testing.T) {
			inBubble(t, Config{}, func(t *testing.T, h *home) {
				g := newTarget(t)
				g.respondWith(tt.code)
				id := h.submit(g.peer(), day, nil)
				before := h.store.Counters().Ops
				defer h.connect(g)()
				time.Sleep(time.Hour)
				h.want(id, tt.want)
				why, err := h.Why(id)
				if err != nil || why.Attempts != 0 {
					t.Errorf("why = %+v, %v", why, err)
				}
				if tt.want != pending {
					if m := h.Mark(g.peer()); m.Counter != 1 {
						t.Errorf("mark = %v: the task has ended and is not settled", m)
					}
					return
				}
				if why.Code != tt.code || why.Detail != "because" || !why.Linked || h.tries(id) < 10 || why.Next <= 0 {
					t.Errorf("why = %+v", why)
				}
				if ops := h.store.Counters().Ops - before; ops != 1 { // the link
					t.Errorf("%d operations for %d refusals that spend nothing", ops, h.tries(id))
				}
				g.respondWith(0)
				time.Sleep(10 * time.Minute)
				h.want(id, accepted)
			})
		})
	}
}

// A task that fails ten times at its target is not sent again; the reason is kept.
func TestInternalSpendsAttempts(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, h *home) {
		g := newTarget(t)
		g.respondWith(proto.CodeInternal)
		id := h.submit(g.peer(), day, nil)
		cut := h.connect(g)
		time.Sleep(4 * time.Second)
		cut()
		synctest.Wait() // for an attempt that was being counted
		r, _ := h.Get(id)
		spent := r.Attempts
		if spent < 2 || r.State != pending {
			t.Errorf("after 4 s: %v, %d attempts", r.State.Name(), spent)
		}
		h.crash()
		if r, _ = h.Get(id); r.Attempts != spent {
			t.Errorf("%d attempts after a crash, want %d", r.Attempts, spent)
		}
		defer h.connect(g)()
		time.Sleep(2 * time.Hour)
		r, _ = h.Get(id)
		if r.State != dead || r.Status != StatusNew || r.Cause != proto.TaskRefused || r.Code != proto.CodeInternal || r.Reason != "because" {
			t.Errorf("after all attempts: %v, %q, %v", r.State.Name(), r.Status, r)
		}
		list, _, err := h.DeadLetters(Query{}, backlog.Span{}, 10)
		if err != nil || len(list) != 1 || list[0].ID != id {
			t.Errorf("dead letters: %v, %v", list, err)
		}
	})
}

// S02 and S03: at its limit the outbox refuses with advice, and accepts new work again
// once the link is back and it has drained.
func TestFullWhileOffline(t *testing.T) {
	inBubble(t, Config{MaxPending: 3}, func(t *testing.T, h *home) {
		g := newTarget(t)
		var ids []proto.TaskID
		for range 3 {
			ids = append(ids, h.submit(g.peer(), day, nil))
		}
		_, err := h.Submit(t.Context(), h.draft(g.peer(), day, nil), nil)
		if full, ok := errors.AsType[*backlog.FullError](err); !ok || !errors.Is(err, ErrFull) || full.Count != 3 {
			t.Fatalf("fourth task: %v", err)
		}
		if n := outstanding(&h.seqs, g.peer()); n != 3 {
			t.Errorf("%d sequences outstanding, want 3: the refused task's is given back", n)
		}
		defer h.connect(g)()
		synctest.Wait()
		var results []ResultIn
		for _, id := range ids {
			h.want(id, accepted)
			results = append(results, g.result(h, id, success, "out"))
		}
		h.Commit(t.Context(), g.peer(), results)
		h.submit(g.peer(), day, nil)
	})
}

// S04: acknowledgements are lost for ten minutes, then arrive: one task at the target,
// no attempt spent.
func TestLostAcks(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, h *home) {
		g := newTarget(t)
		g.setDropAcks(true)
		var ids []proto.TaskID
		for range 20 {
			ids = append(ids, h.submit(g.peer(), day, nil))
		}
		for range 20 { // the transport gives a silent link up after 30 s
			cut := h.connect(g)
			time.Sleep(29 * time.Second)
			h.want(ids[0], sent)
			cut()
			time.Sleep(time.Second)
			h.want(ids[0], pending)
		}
		g.setDropAcks(false)
		defer h.connect(g)()
		time.Sleep(2 * time.Second)
		for _, id := range ids {
			h.want(id, accepted)
			if r, _ := h.Get(id); r.Attempts != 0 {
				t.Errorf("%d attempts spent on lost acknowledgements", r.Attempts)
			}
		}
		if taken, again := g.count(); taken != 20 || again < 20 {
			t.Errorf("%d taken, %d came again", taken, again)
		}
	})
}

// I3: a task that was never sent ends at not_after, and is never sent later.
func TestExpiryOfUnsentTask(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, h *home) {
		g := newTarget(t)
		id := h.submit(g.peer(), time.Hour, nil)
		h.crash()
		time.Sleep(time.Hour - 2*time.Second)
		h.want(id, pending)
		time.Sleep(4 * time.Second)
		h.want(id, expired)
		defer h.connect(g)()
		time.Sleep(time.Second)
		if taken, _ := g.count(); taken != 0 {
			t.Error("an expired task was sent")
		}
		if r, _ := h.Get(id); r.Cause != proto.TaskExpired || r.Status != StatusNew {
			t.Errorf("because of %v, status %q", r.Cause, r.Status)
		}
	})
}

// I14: the target's report that a task has expired ends it only once it has expired
// by the home's own clock, too.
func TestTargetAloneCannotExpireATask(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, h *home) {
		g := newTarget(t)
		g.respondWith(proto.CodeExpired)
		id := h.submit(g.peer(), time.Hour, nil)
		defer h.connect(g)()
		time.Sleep(time.Hour - proto.Skew - time.Minute)
		h.want(id, pending)
		time.Sleep(proto.Skew)
		h.RetryNow(g.peer(), proto.CodeExpired)
		time.Sleep(time.Minute)
		h.want(id, expired)
	})
}

// I3: a result that comes to a task which its home ended by its clock alone ends it,
// unless the task was redriven since, or another node sends it.
func TestResultAfterExpiry(t *testing.T) {
	failed := proto.Failed
	tests := []struct {
		name    string
		state   proto.TaskState // of the result
		redrive bool
		foreign bool
		want    proto.TaskState
		code    proto.Code
	}{
		{"success", success, false, false, success, 0},
		{"a failure", failed, false, false, failed, 0},
		{"a second word that its time was over", expired, false, false, expired, 0},
		{"of a redriven task", success, true, false, expired, proto.CodeStale},
		{"of another node", success, false, true, expired, proto.CodeStale},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, Config{RunLimit: time.Minute}, func(t *testing.T, h *home) {
				g := newTarget(t)
				defer h.connect(g)()
				id := h.submit(g.peer(), time.Hour, func(r *proto.Record) { r.OnDead = "block"; r.OrderingKey = "lane" })
				behind := h.submit(g.peer(), day, func(r *proto.Record) { r.OnDead = "block"; r.OrderingKey = "lane" })
				time.Sleep(time.Hour + 10*time.Minute)
				h.want(id, expired)
				h.want(behind, pending)
				if tt.redrive {
					if err := h.MarkRedriven(t.Context(), id, proto.NewTaskID(time.Now())); err != nil {
						t.Fatal(err)
					}
				}
				from := g.peer()
				if tt.foreign {
					from = newTarget(t).peer()
				}
				for range 2 {
					v := h.Commit(t.Context(), from, []ResultIn{g.result(h, id, tt.state, "late")})
					if v[0].Code != tt.code || v[0].State != tt.want {
						t.Errorf("answer %+v", v[0])
					}
				}
				time.Sleep(time.Minute)
				h.want(id, tt.want)
				if r, _ := h.Get(id); (string(r.Result) == "late") != (tt.code == 0) || (len(r.Orphans) > 0) != (tt.code != 0) {
					t.Errorf("record %v", r)
				}
				if free := tt.want == success || tt.redrive; free != (h.state(behind) == accepted) {
					t.Errorf("the task behind it is %v", h.state(behind).Name())
				}
			})
		})
	}
}

// A late result that is larger than its task accepts ends it as a dead letter, as one in time
// does: its body was dropped when it arrived.
func TestLateResultThatIsTooLarge(t *testing.T) {
	inBubble(t, Config{RunLimit: time.Minute}, func(t *testing.T, h *home) {
		g := newTarget(t)
		defer h.connect(g)()
		id := h.submit(g.peer(), time.Hour, func(r *proto.Record) { r.Options = &proto.TaskOptions{MaxResult: 10} })
		time.Sleep(time.Hour + 10*time.Minute)
		h.want(id, expired)
		in := g.result(h, id, success, "")
		in.Outcome.BodySize = 11
		results := []ResultIn{in}
		if a := h.Commit(t.Context(), g.peer(), results)[0]; a.Code != 0 || a.State != dead || !results[0].TooLarge {
			t.Errorf("answered %+v, too large: %v", a, results[0].TooLarge)
		}
		if r, _ := h.Get(id); r.State != dead || r.Cause != proto.TaskResultTooLarge {
			t.Errorf("the task is %s, %s", r.State.Name(), r.Cause.Name())
		}
	})
}

// I3: a task that may be running at its target does not expire before its run must be
// over, even if only the disk records that it may have been sent.
func TestExpiryOfPossiblySentTask(t *testing.T) {
	for _, crash := range []string{"", "while linked", "after the link"} {
		t.Run("crash "+crash, func(t *testing.T) {
			inBubble(t, Config{}, func(t *testing.T, h *home) {
				g := newTarget(t)
				g.setDropAcks(true)
				id := h.submit(g.peer(), time.Hour, nil)
				cut := h.connect(g)
				time.Sleep(time.Second)
				if crash == "while linked" {
					h.crash()
				}
				cut()
				later := h.submit(g.peer(), time.Hour, nil) // never sent
				if crash == "after the link" {
					h.crash()
				}
				time.Sleep(time.Hour + 2*time.Second)
				h.want(id, pending)
				h.want(later, expired)
				if at, ok := h.backlog.NextExpiry(); !ok || time.Until(at) < 23*time.Hour {
					t.Errorf("it is looked at again at %v", at)
				}
				time.Sleep(day)
				h.want(id, pending)
				time.Sleep(proto.Skew)
				h.want(id, expired)
				// A later result of the target counts, once.
				for i, want := range []struct {
					body string
					code proto.Code
				}{{"late", 0}, {"late", 0}, {"other", proto.CodeStale}} {
					v := h.Commit(t.Context(), g.peer(), []ResultIn{g.result(h, id, success, want.body)})
					if v[0].Code != want.code || v[0].State != success {
						t.Errorf("answer %d: %+v", i, v[0])
					}
				}
				h.crash()
				if r, _ := h.Get(id); len(r.Orphans) != 1 || r.State != success || string(r.Result) != "late" || r.Status != "" {
					t.Errorf("record %v", r)
				}
				if list, _, err := h.DeadLetters(Query{}, backlog.Span{}, 10); err != nil || len(list) != 1 || list[0].ID != later {
					t.Errorf("dead letters %v, %v", list, err)
				}
			})
		})
	}
}

// I1: whatever the step, completed ones survive a crash.
func TestCrashAtEveryStep(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, h *home) {
		g := newTarget(t)
		id := h.submit(g.peer(), day, nil)
		boot := h.Boot()
		h.crash()
		if h.Boot() <= boot {
			t.Errorf("boot went from %d to %d", boot, h.Boot())
		}
		h.want(id, pending)
		cut := h.connect(g)
		synctest.Wait()
		cut()
		h.want(id, accepted)
		h.crash()
		h.want(id, accepted)
		cut = h.connect(g)
		time.Sleep(time.Second)
		cut()
		if taken, again := g.count(); taken != 1 || again != 0 {
			t.Errorf("%d taken, %d again: an accepted task was sent once more", taken, again)
		}
		s := proto.Statement{Fact: proto.FactStarted, Mesh: testMesh, Task: id, Node: g.peer(), Epoch: g.tasks[id].Seq, Attempt: 1}
		h.Started(t.Context(), g.peer(), g.keys.Receipts([][]byte{s.Append(nil)}))
		h.want(id, running)
		h.crash()
		h.want(id, running)
		res := []ResultIn{g.result(h, id, failed, "out")}
		if v := h.Commit(t.Context(), g.peer(), res); v[0].Code != 0 {
			t.Errorf("answer %+v", v[0])
		}
		h.crash()
		h.want(id, failed)
		if v := h.Commit(t.Context(), g.peer(), res); v[0].Code != 0 || v[0].State != failed {
			t.Errorf("the same again after a crash: %+v", v[0])
		}
		if r, _ := h.Get(id); len(r.Receipts) != 2 || r.ResultSize != 3 || len(r.History) != 1 {
			t.Errorf("record %v", r)
		}
		if st, err := h.deadLetter(id); err != nil || string(st.Envelope.Body) != "sealed" || len(st.Key) != 32 {
			t.Errorf("dead letter %v, %v", st, err)
		}
	})
}

// A result that arrives before the acknowledgement was written counts, and the
// acknowledgement then has no effect.
func TestResultOvertakesTheAck(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, h *home) {
		g := newTarget(t)
		g.setDropAcks(true)
		id := h.submit(g.peer(), day, nil)
		cut := h.connect(g)
		time.Sleep(time.Second)
		if v := h.Commit(t.Context(), g.peer(), []ResultIn{g.result(h, id, success, "out")}); v[0].Code != 0 {
			t.Fatalf("answer %+v", v[0])
		}
		cut()
		g.setDropAcks(false)
		defer h.connect(g)()
		time.Sleep(time.Hour)
		h.want(id, success)
		if _, again := g.count(); again != 0 {
			t.Error("an ended task was sent again")
		}
		if m := h.Mark(g.peer()); m.Counter != 1 {
			t.Errorf("mark = %v", m)
		}
	})
}

// Only a result of the owner with the epoch counts; any other is recorded and
// answered STALE (I3, I4, S23).
func TestResultsFromOtherPeers(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, h *home) {
		g := newTarget(t)
		id := h.submit(g.peer(), day, nil)
		defer h.connect(g)()
		synctest.Wait()
		good := g.result(h, id, success, "out")
		bad := good
		bad.Seq.Counter++
		unknown := good
		unknown.ID = proto.NewTaskID(time.Now())
		for name, v := range map[string][]ResultAnswer{
			"another peer":  h.Commit(t.Context(), proto.PeerID{9}, []ResultIn{good}),
			"another epoch": h.Commit(t.Context(), g.peer(), []ResultIn{bad}),
			"another task":  h.Commit(t.Context(), g.peer(), []ResultIn{unknown}),
		} {
			if v[0].Code != proto.CodeStale {
				t.Errorf("%s: %+v", name, v[0])
			}
		}
		h.want(id, accepted)
		for range 100 { // bounded, whatever is sent (S54)
			bad.Seq.Counter++
			h.Commit(t.Context(), g.peer(), []ResultIn{bad})
		}
		if r, _ := h.Get(id); len(r.Orphans) != 4 || len(r.Events) > proto.MaxEvents {
			t.Errorf("%d orphans, want 4; %d events", len(r.Orphans), len(r.Events))
		}
		v := h.Commit(t.Context(), g.peer(), []ResultIn{good, g.result(h, id, success, "other")})
		if v[0].Code != 0 || v[1].Code != proto.CodeStale {
			t.Errorf("two results of one task: %+v", v)
		}
		if r, _ := h.Get(id); string(r.Result) != "out" {
			t.Errorf("result %q", r.Result)
		}
		big := g.result(h, h.submit(g.peer(), day, nil), success, strings.Repeat("x", proto.MaxInlineRecord+1))
		synctest.Wait()
		big.Seq = g.tasks[big.ID].Seq
		if v := h.Commit(t.Context(), g.peer(), []ResultIn{big}); v[0].Code != proto.CodeNeedBody {
			t.Errorf("a large result without a blob: %+v", v[0])
		}
		big.Blob = "result-1"
		if v := h.Commit(t.Context(), g.peer(), []ResultIn{big}); v[0].Code != 0 {
			t.Errorf("a large result with a blob: %+v", v[0])
		}
		var blobs []string
		if err := h.Blobs(func(name string) { blobs = append(blobs, name) }); err != nil || len(blobs) != 1 || blobs[0] != "result-1" {
			t.Errorf("blobs %v, %v", blobs, err)
		}
	})
}

// A task with a due time is sent at that time, and one with a busy ordering key after
// the previous one has ended (I10).
func TestDueTimesAndOrderingKeys(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, h *home) {
		g := newTarget(t)
		defer h.connect(g)()
		at := time.Now().Add(time.Hour)
		timed := h.submit(g.peer(), day, func(r *proto.Record) { r.DueMs = at.UnixMilli() })
		inLane := func(r *proto.Record) { r.OrderingKey = "k" }
		first, second := h.submit(g.peer(), day, inLane), h.submit(g.peer(), day, inLane)
		time.Sleep(59 * time.Minute)
		h.want(timed, pending)
		h.want(first, accepted)
		h.want(second, pending)
		if why, _ := h.Why(second); why.Place != "behind" || why.Behind != first {
			t.Errorf("why = %+v", why)
		}
		h.Commit(t.Context(), g.peer(), []ResultIn{g.result(h, first, failed, "")})
		time.Sleep(2 * time.Minute)
		h.want(timed, accepted)
		h.want(second, accepted)
	})
}

func TestWait(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, h *home) {
		g := newTarget(t)
		id := h.submit(g.peer(), day, nil)
		done := make(chan *proto.Record)
		go func() {
			r, err := h.WaitState(t.Context(), id, func(r *proto.Record) bool { return r.State == accepted })
			if err != nil {
				t.Error(err)
			}
			done <- r
			r, err = h.Wait(t.Context(), id)
			if err != nil {
				t.Error(err)
			}
			done <- r
		}()
		defer h.connect(g)()
		if r := <-done; r.State != accepted {
			t.Errorf("waited for %v", r.State.Name())
		}
		h.Commit(t.Context(), g.peer(), []ResultIn{g.result(h, id, success, "")})
		if r := <-done; r.State != success {
			t.Errorf("waited for %v", r.State.Name())
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		other := h.submit(g.peer(), day, nil)
		if r, err := h.Wait(ctx, other); !errors.Is(err, context.DeadlineExceeded) || r.State != accepted {
			t.Errorf("wait until the deadline: %v, %v", r, err)
		}
		if _, err := h.Wait(t.Context(), proto.TaskID{1}); !errors.Is(err, ErrNotFound) {
			t.Errorf("wait for no task: %v", err)
		}
		if len(h.watches.all) != 0 {
			t.Errorf("%d watches left", len(h.watches.all))
		}
	})
}

// A submit to a stopped outbox fails and leaves nothing behind.
func TestSubmitAfterStop(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, h *home) {
		g := newTarget(t)
		h.stop()
		if _, err := h.Submit(t.Context(), h.draft(g.peer(), day, nil), nil); !errors.Is(err, ErrClosed) {
			t.Errorf("submit after the end: %v", err)
		}
		if n := outstanding(&h.seqs, g.peer()); n != 0 {
			t.Errorf("%d sequences outstanding", n)
		}
		h.disk = h.disk.Reopen()
		h.start()
	})
}

// A stop answers every caller: accepted tasks are durable, the others refused (S32).
func TestSubmitDuringStop(t *testing.T) {
	for range 20 {
		inBubble(t, Config{}, func(t *testing.T, h *home) {
			g := newTarget(t)
			var stored atomic.Int64
			var callers sync.WaitGroup
			for range 50 {
				callers.Go(func() {
					switch _, err := h.Submit(t.Context(), h.draft(g.peer(), day, nil), nil); {
					case err == nil:
						stored.Add(1)
					case !errors.Is(err, ErrClosed):
						t.Error(err)
					}
				})
			}
			h.stop()
			callers.Wait()
			h.disk = h.disk.Reopen()
			h.start()
			if n := h.Stats().Live; int64(n) != stored.Load() {
				t.Errorf("%d tasks on disk, %d were told so", n, stored.Load())
			}
		})
	}
}

// S47: below the disk reserve new tasks are refused; live tasks still end.
func TestDiskBelowItsReserve(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, h *home) {
		g := newTarget(t)
		var free atomic.Int64
		free.Store(1 << 40)
		h.stop()
		h.disk = h.disk.Reopen()
		h.space = func() (int64, int64, error) { return free.Load(), 1 << 40, nil }
		h.start()
		id := h.submit(g.peer(), day, nil)
		free.Store(0)
		time.Sleep(5 * time.Second) // the space is looked at every two, the first time at most four after the start
		if _, err := h.Submit(t.Context(), h.draft(g.peer(), day, nil), nil); !errors.Is(err, store.ErrFull) {
			t.Errorf("submit on a full disk: %v", err)
		}
		defer h.connect(g)()
		synctest.Wait()
		h.want(id, accepted)
		if v := h.Commit(t.Context(), g.peer(), []ResultIn{g.result(h, id, success, "")}); v[0].Code != 0 {
			t.Errorf("result on a full disk: %+v", v[0])
		}
		if err := h.PutResult(t.Context(), h.resultDraft(g.peer(), ""), nil); err != nil {
			t.Errorf("a result of ours on a full disk: %v", err)
		}
		free.Store(1 << 40)
		time.Sleep(5 * time.Second)
		h.submit(g.peer(), day, nil)
	})
}
