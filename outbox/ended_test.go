package outbox

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// cutPower loses every write from now on. crash must follow.
func (h *home) cutPower() {
	h.crashed.Store(true)
	h.disk = h.disk.Reopen()
}

// flow returns what the tests recorded in Flows under the name, empty if nothing.
func (h *home) flow(name string) string {
	h.t.Helper()
	val, err := h.store.Get(store.Flows, []byte(name))
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		h.t.Fatal(err)
	}
	return string(val)
}

// onDisk lists what is on disk of ended tasks, and what the hook recorded.
func (h *home) onDisk() string {
	h.t.Helper()
	var out strings.Builder
	for _, bk := range []store.Bucket{store.Done, store.DeadLetters, store.Flows} {
		pairs, err := h.disk.Scan(bk, nil, nil, store.MaxScan)
		if err != nil {
			h.t.Fatal(err)
		}
		for _, p := range pairs {
			fmt.Fprintf(&out, "%v %x %x\n", bk, p.Key, p.Val)
		}
	}
	return out.String()
}

// A hook stands for a subsystem that records in Flows how its tasks end.
type hook struct {
	ruin atomic.Pointer[func(*store.Batch)] // called for the next end alone; nil: nothing
}

func (k *hook) ended(id proto.TaskID, r *proto.Record, b *store.Batch) {
	b.Put(store.Flows, id[:], []byte(r.State.Name()))
	if ruin := k.ruin.Swap(nil); ruin != nil {
		(*ruin)(b)
	}
}

// A way is a way for a task to end: after start it is live, or has ended by time alone,
// and end makes it end. If the end could not be written, end is called again.
type way struct {
	name  string
	cfg   Config
	start func(h *home, g *target) proto.TaskID
	end   func(h *home, g *target, id proto.TaskID)
	want  proto.TaskState
	again bool // it has ended before, by time alone
}

// startedAs submits a task that lives for ttl and waits until its target has accepted
// it, and then until wait is over.
func startedAs(ttl, wait time.Duration) func(*home, *target) proto.TaskID {
	return func(h *home, g *target) proto.TaskID {
		id := h.submit(g.peer(), ttl, nil)
		cut := h.connect(g)
		time.Sleep(time.Second + wait)
		cut()
		return id
	}
}

func unsent(h *home, g *target) proto.TaskID { return h.submit(g.peer(), time.Hour, nil) }

// endsAs ends a task with its result.
func endsAs(state proto.TaskState) func(*home, *target, proto.TaskID) {
	return func(h *home, g *target, id proto.TaskID) {
		h.Commit(h.t.Context(), g.peer(), []ResultIn{g.result(h, id, state, "out")})
	}
}

// endsRefused ends a task by the answer of its target.
func endsRefused(code proto.Code) func(*home, *target, proto.TaskID) {
	return func(h *home, g *target, _ proto.TaskID) {
		g.respondWith(code)
		cut := h.connect(g)
		time.Sleep(2 * inTransitMax)
		cut()
	}
}

func after(wait time.Duration) func(*home, *target, proto.TaskID) {
	return func(*home, *target, proto.TaskID) { time.Sleep(wait) }
}

func ways() []way {
	short := Config{RunLimit: time.Minute}
	return []way{
		{name: "success", start: startedAs(day, 0), end: endsAs(success), want: success},
		{name: "failure", start: startedAs(day, 0), end: endsAs(failed), want: failed},
		{name: "refused", start: unsent, end: endsRefused(proto.CodeDenied), want: dead},
		{name: "out of attempts", cfg: Config{MaxAttempts: 1}, start: unsent, end: endsRefused(proto.CodeInternal), want: dead},
		{name: "expired, never sent", start: unsent, end: after(time.Hour + 2*time.Minute), want: expired},
		{name: "expired, no result", cfg: short, start: startedAs(time.Hour, 0), end: after(time.Hour + 10*time.Minute), want: expired},
		{name: "indeterminate", cfg: short, start: indeterminate, end: after(time.Hour + 10*time.Minute), want: dead},
		{name: "cancelled before it was sent", start: unsent, end: func(h *home, _ *target, id proto.TaskID) {
			h.Cancel(h.t.Context(), id, false, "enough")
		}, want: cancelled},
		{name: "cancelled by its owner", start: startedAs(day, 0), end: func(h *home, g *target, id proto.TaskID) {
			h.Cancel(h.t.Context(), id, false, "enough")
			endsAs(cancelled)(h, g, id)
		}, want: cancelled},
		{name: "cancelled, then refused", start: cancelledPending, end: endsRefused(proto.CodeBusy), want: cancelled},
		{name: "moved to another queue", start: unsent, end: func(h *home, _ *target, id proto.TaskID) {
			h.CancelInto(h.t.Context(), id, "night", "moved")
		}, want: cancelled},
		{name: "late success", cfg: short, start: startedAs(time.Hour, time.Hour+10*time.Minute), end: endsAs(success), want: success, again: true},
		{name: "late failure", cfg: short, start: startedAs(time.Hour, time.Hour+10*time.Minute), end: endsAs(failed), want: failed, again: true},
	}
}

// indeterminate submits a task that its target has forgotten.
func indeterminate(h *home, g *target) proto.TaskID {
	id := h.submit(g.peer(), time.Hour, func(r *proto.Record) { r.Mode = proto.AtMostOnce })
	cut := h.connect(g)
	synctest.Wait()
	cut()
	if forgotten, err := h.HandleUnknown(h.t.Context(), g.peer(), id); err != nil || !forgotten {
		h.t.Fatalf("forgotten: %v, %v", forgotten, err)
	}
	return id
}

// cancelledPending submits a task that is to be cancelled and may have arrived.
func cancelledPending(h *home, g *target) proto.TaskID {
	g.setDropAcks(true)
	id := h.submit(g.peer(), day, nil)
	cut := h.connect(g)
	time.Sleep(time.Second)
	h.cancel(id, false, pending)
	cut()
	g.setDropAcks(false)
	time.Sleep(inTransitMax)
	return id
}

// However a task ends, the record of the hook is on disk with the end or not at all:
// after a power cut before the batch, after a refusal of the batch, and after a power
// cut behind it.
func TestEndedIsInTheBatchOfTheEnd(t *testing.T) {
	for _, w := range ways() {
		for _, fault := range []string{"power cut before", "refused", "none"} {
			t.Run(w.name+", fault: "+fault, func(t *testing.T) {
				var k hook
				cfg := w.cfg
				cfg.Ended = k.ended
				inBubble(t, cfg, func(t *testing.T, h *home) { testEnd(t, h, &k, w, fault) })
			})
		}
	}
}

func testEnd(t *testing.T, h *home, k *hook, w way, fault string) {
	g := newTarget(t)
	id := w.start(h, g)
	synctest.Wait()
	if got := h.flow(string(id[:])); (got != "") != w.again {
		t.Fatalf("before its end: recorded %q", got)
	}
	before := h.onDisk()
	ruin := func(*store.Batch) {}
	switch fault {
	case "power cut before":
		ruin = func(*store.Batch) { h.cutPower() }
	case "refused":
		ruin = func(b *store.Batch) {
			b.Put(store.Flows, nil, nil) // a bad key
			b.After(func() { t.Error("a refused batch was written") })
		}
	}
	k.ruin.Store(&ruin)
	w.end(h, g, id)
	synctest.Wait()
	if k.ruin.Load() != nil {
		t.Fatal("the hook was not called: nothing is tested")
	}
	if fault != "none" {
		if fault == "power cut before" {
			if now := h.onDisk(); now != before {
				t.Errorf("on disk after the power cut:\n%swant:\n%s", now, before)
			}
			h.crash()
		}
		w.end(h, g, id)
		synctest.Wait()
	}
	h.crash()
	h.want(id, w.want)
	if got := h.flow(string(id[:])); got != w.want.Name() {
		t.Errorf("recorded %q, want %q", got, w.want.Name())
	}
}

// Results that ran here end too, and are no tasks of this home. A redrive is no end.
func TestEndedIsForTasksAlone(t *testing.T) {
	var calls recorder[proto.TaskID]
	cfg := Config{ResultFor: time.Hour, Ended: func(id proto.TaskID, _ *proto.Record, _ *store.Batch) { calls.add(id) }}
	inBubble(t, cfg, func(t *testing.T, h *home) {
		d := h.resultDraft(newTarget(t).peer(), "")
		if err := h.PutResult(t.Context(), d, nil); err != nil {
			t.Fatal(err)
		}
		id := h.submit(newTarget(t).peer(), time.Hour, nil)
		time.Sleep(day + time.Hour + time.Minute)
		h.want(id, expired)
		if h.HasPendingResult(d.Header.ID) {
			t.Fatal("the result has not ended: nothing is tested")
		}
		if err := h.MarkRedriven(t.Context(), id, proto.TaskID{1}); err != nil {
			t.Fatal(err)
		}
		if got := calls.list(); len(got) != 1 || got[0] != id {
			t.Errorf("called for %v, want %v once", got, id)
		}
	})
}
