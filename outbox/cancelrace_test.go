package outbox

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/backlog"
)

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
