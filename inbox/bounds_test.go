package inbox

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// A file whose record could not be written is not left behind (I13).
func TestRefusedArrivalLeavesNoFile(t *testing.T) {
	_, spec := scripted(func(context.Context, *handler.Run) *handler.Result { return &handler.Result{Outcome: handler.Success} })
	inBubble(t, Config{MaxTasks: 1}, []Spec{spec}, func(f *fixture) {
		big := withBody(strings.Repeat("x", 20_000))
		kept := f.task(big)
		f.accept(0, kept)
		f.accept(proto.CodeFull, f.task(withBody(strings.Repeat("y", 20_000))))
		if left := f.sweep(); len(left) != 1 {
			t.Errorf("%d files are kept, want the body of the accepted task alone", len(left))
		}
		if rec, err := f.in.Get(kept.Header.ID); err != nil || !f.bodies.Pin(rec.BodyBlob) {
			t.Error("the body of an accepted task is gone")
		}
	})
}

// Cancels of tasks that never existed affect only their sender.
func TestCancelsOfUnknownTasksAreBounded(t *testing.T) {
	_, spec := scripted(func(context.Context, *handler.Run) *handler.Result { return &handler.Result{Outcome: handler.Success} })
	inBubble(t, Config{MaxKept: 2000}, []Spec{spec}, func(f *fixture) {
		codes := map[string]int{}
		for range 3000 {
			codes[f.in.Cancel(f.t.Context(), other, proto.NewTaskID(f.cfg.Clock.Now()), false).Code.Name()]++
		}
		if codes["BUSY"] == 0 {
			t.Errorf("verdicts %v", codes)
		}
		f.accept(0, f.task())
	})
}

// A cancel whose stream breaks while the end is written either ends the task or does not:
// no handler starts after that (I6).
func TestCancelWhoseStreamBreaksEndsOnce(t *testing.T) {
	h, spec := scripted(func(context.Context, *handler.Run) *handler.Result { return &handler.Result{Outcome: handler.Success} })
	inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
		a := f.task()
		f.accept(0, a)
		f.in.Unregister("work") // the task waits
		ctx, cancel := context.WithCancel(f.t.Context())
		f.in.parts.Results = breakingResults{f.results, cancel}
		f.run()
		v := f.in.Cancel(ctx, home, a.Header.ID, false)
		if err := f.in.Register(spec); err != nil {
			f.t.Fatal(err)
		}
		wait(time.Minute)
		if n := h.starts(a.Header.ID); n != 0 {
			f.t.Errorf("%d starts after %+v", n, v)
		}
		f.expect(a, proto.Cancelled)
	})
}

// breakingResults writes results even though the caller is gone, as the outbox does.
type breakingResults struct {
	*results
	cancel func()
}

func (b breakingResults) PutResult(ctx context.Context, f *Finished, also func(*store.Batch)) error {
	b.cancel()
	done := make(chan error, 1)
	go func() {
		time.Sleep(100 * time.Millisecond)
		done <- b.results.PutResult(context.WithoutCancel(ctx), f, also)
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", store.ErrUnknown, ctx.Err())
	}
}

func TestSlotsAreOfCores(t *testing.T) {
	want := Config{}.withDefaults().Slots
	if want < 4 {
		t.Fatalf("%d slots by default", want)
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(64)) // as a node does, and another may be opened after that
	if got := (Config{}).withDefaults().Slots; got != want {
		t.Errorf("%d slots once the Go runtime had more places, %d before", got, want)
	}
}
