package outbox

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/backlog"
)

// S48: a task whose newest record cannot be read may have run: it is not sent again, and a late
// result, a person or its time ends it.
func TestDamagedRecordOfATask(t *testing.T) {
	for name, tt := range map[string]struct {
		end  func(t *testing.T, h *home, g *target, id proto.TaskID)
		want proto.TaskState
	}{
		"a result": {func(t *testing.T, h *home, g *target, id proto.TaskID) {
			if v := h.Commit(t.Context(), g.peer(), []ResultIn{g.result(h, id, success, "")}); v[0].Code != 0 {
				t.Errorf("answer %+v", v[0])
			}
		}, success},
		"a person": {func(_ *testing.T, h *home, _ *target, id proto.TaskID) { h.cancel(id, false, cancelled) }, cancelled},
		"its time": {func(*testing.T, *home, *target, proto.TaskID) { time.Sleep(3 * day) }, proto.DeadLetter},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, Config{}, func(t *testing.T, h *home) {
				g := newTarget(t)
				id := h.submit(g.peer(), day, nil)
				cut := h.connect(g)
				synctest.Wait()
				cut()
				h.want(id, accepted)
				var b store.Batch
				b.Put(store.PendingTasks, append(append(id[:], byte(backlog.PartTask)), 1), []byte{0xff, 0xff, 0xff})
				if err := h.store.Apply(t.Context(), &b); err != nil {
					t.Fatal(err)
				}
				h.crash()
				defer h.connect(g)()
				time.Sleep(time.Minute)
				h.want(id, proto.Indeterminate)
				if w, err := h.Why(id); err != nil || w.Cause != proto.TaskRecordDamaged || w.Peer != g.peer() {
					t.Errorf("%+v, %v", w, err)
				}
				if taken, _ := g.count(); taken != 1 {
					t.Errorf("sent %d times", taken)
				}
				tt.end(t, h, g, id)
				h.want(id, tt.want)
				h.crash()
				h.want(id, tt.want)
			})
		})
	}
}
