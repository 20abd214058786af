package inbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"testing"
	"time"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/idempotency"
)

// oneQueue admits every task.
type oneQueue struct{}

func (oneQueue) Admit(*Arrival) Verdict            { return Verdict{} }
func (oneQueue) Taken(proto.TaskID, *proto.Record) {}
func (oneQueue) Cancel(context.Context, proto.TaskID, bool) (Verdict, bool, error) {
	return Verdict{}, true, nil
}

// A refusal returns the outbox's answer to a result; nil: it is accepted.
type refusal func() error

// always refuses each time.
func always(err error) refusal { return func() error { return err } }

// endQueued ends a queued task with a result while the outbox refuses each result with this
// body, any for "". It returns how long others waited behind it.
func endQueued(t *testing.T, refuse refusal, body string, check func(f *fixture, a Arrival)) (took time.Duration) {
	t.Helper()
	inBubble(t, Config{}, nil, func(f *fixture) {
		f.queues = oneQueue{}
		f.restart()
		f.run()
		a := f.task(func(a *Arrival) { a.Content.Queue = "q" })
		f.accept(0, a)
		f.in.parts.Results = refusingResults{f.results, refuse, body}
		began := f.cfg.Clock.Now()
		written := false
		o := &proto.Outcome{State: proto.Success, Body: []byte("made")}
		if err := f.in.EndKept(f.t.Context(), a.Header.ID, o, func(*store.Batch) { written = true }); err != nil || !written {
			t.Errorf("it has not ended: %v", err)
		}
		took = f.cfg.Clock.Now().Sub(began)
		check(f, a)
	})
	return took
}

type refusingResults struct {
	*results
	refuse refusal
	body   string
}

func (o refusingResults) PutResult(ctx context.Context, f *Finished, also func(*store.Batch)) error {
	if o.body == "" || string(f.Outcome.GetBody()) == o.body {
		if err := o.refuse(); err != nil {
			return err
		}
	}
	return o.results.PutResult(ctx, f, also)
}

// A task whose origin is gone does not delay those behind it.
func TestAQueueDoesNotWaitForAnOriginThatIsGone(t *testing.T) {
	took := endQueued(t, always(fmt.Errorf("%w: it was removed", ErrNoOrigin)), "", func(f *fixture, a Arrival) {
		if n := f.results.count(); n != 0 {
			t.Errorf("%d results went out", n)
		}
	})
	if took > 0 {
		t.Errorf("the queue was blocked for %v", took)
	}
}

// A result that is lost at the home is reported to the origin as lost: the task does not
// just fall silent.
func TestALostResultIsReported(t *testing.T) {
	took := endQueued(t, always(errors.New("the body of the result is gone")), "made", func(f *fixture, a Arrival) {
		if o := f.expect(a, proto.DeadLetter); len(o.Body) != 0 {
			t.Errorf("with the result %q", o.Body)
		}
	})
	if took > time.Second {
		t.Errorf("the queue was blocked for %v", took)
	}
}

// A result that cannot be read because too many files are open is not lost: its end waits.
func TestAResultWaitsForAFile(t *testing.T) {
	waitsFor(t, &fs.PathError{Op: "open", Path: "result", Err: syscall.EMFILE})
}

// A result for which the disk of the home has no room is not lost: its end waits (I13).
func TestAResultWaitsForRoom(t *testing.T) {
	waitsFor(t, fmt.Errorf("seal: %w", ErrNoRoom))
}

// A stop of the node ends the wait for room. It says so: the caller must not take it for a
// failure of the store.
func TestAStopEndsTheWaitForRoom(t *testing.T) {
	inBubble(t, Config{}, nil, func(f *fixture) {
		f.queues = oneQueue{}
		f.restart()
		f.run()
		a := f.task(func(a *Arrival) { a.Content.Queue = "q" })
		f.accept(0, a)
		f.in.parts.Results = refusingResults{f.results, always(ErrNoRoom), ""}
		ended := make(chan error)
		go func() {
			ended <- f.in.EndKept(f.t.Context(), a.Header.ID, &proto.Outcome{State: proto.Success}, func(*store.Batch) {})
		}()
		time.Sleep(time.Minute)
		f.in.slots.halt()
		if err := <-ended; !errors.Is(err, handler.ErrStopping) || !errors.Is(err, ErrNoRoom) {
			t.Errorf("it ends with %v", err)
		}
	})
}

// waitsFor expects that the end of a queued task waits while its result is refused with err.
func waitsFor(t *testing.T, err error) {
	t.Helper()
	left := 5
	refuse := refusal(func() error {
		if left--; left < 0 {
			return nil
		}
		return err
	})
	took := endQueued(t, refuse, "", func(f *fixture, a Arrival) {
		if o := f.expect(a, proto.Success); string(o.Body) != "made" {
			t.Errorf("with the result %q", o.Body)
		}
	})
	if want := 15*firstRetry + fileRetry; took != want {
		t.Errorf("it took %v, want %v", took, want)
	}
}

// A task whose result the outbox never accepts still ends: all others wait behind it.
func TestAResultThatTheOutboxRejects(t *testing.T) {
	took := endQueued(t, always(errors.New("it takes nothing")), "", func(f *fixture, a Arrival) {
		if rec, err := f.in.Get(a.Header.ID); err != nil || !rec.State.Terminal() {
			t.Errorf("it is %v, %v", rec, err)
		}
	})
	if took > time.Second {
		t.Errorf("the queue was blocked for %v", took)
	}
}

// A queued task uses no place for its idempotency key: no success of the key is kept at the
// home, so the place would not be given back.
func TestAKeyInAQueueTakesNoPlace(t *testing.T) {
	inBubble(t, Config{Keys: idempotency.Limits{Max: 2}}, nil, func(f *fixture) {
		f.queues = oneQueue{}
		f.restart()
		f.run()
		keyed := func(n int) Arrival {
			return f.task(withKey(fmt.Sprint("key ", n)), func(a *Arrival) { a.Content.Queue = "q" })
		}
		for n := range 3 {
			a := keyed(n)
			f.accept(0, a)
			o := &proto.Outcome{State: proto.Success}
			if err := f.in.EndKept(f.t.Context(), a.Header.ID, o, func(*store.Batch) {}); err != nil {
				t.Fatal(err)
			}
		}
		f.accept(0, keyed(3), keyed(4), keyed(5))
		f.restart()
		if f.in.keys.Full() {
			t.Error("after a restart those that wait take up places")
		}
		f.accept(0, keyed(6))
	})
}
