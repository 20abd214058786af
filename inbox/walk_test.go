package inbox

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// TestWalk follows a task from its arrival to its result.
func TestWalk(t *testing.T) {
	var got string
	s, spec := scripted(func(_ context.Context, r *handler.Run) *handler.Result {
		b, _ := io.ReadAll(r.Body)
		got = string(b)
		return &handler.Result{Outcome: handler.Success, Output: []byte("done"), ContentType: "text/plain"}
	})
	inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
		a := f.task()
		f.accept(0, a)
		if rec := f.record(a); rec.State != accepted || rec.Seq() != a.Header.Seq {
			t.Fatalf("record after accept: %v", rec)
		}
		f.run()
		wait(time.Second)
		o := f.expect(a, succeeded)
		if got != "body" || string(o.Body) != "done" || o.BodySize != 4 || o.ContentType != "text/plain" {
			t.Errorf("handler saw %q, outcome is %v", got, o)
		}
		if n := s.starts(a.Header.ID); n != 1 {
			t.Errorf("%d starts", n)
		}
		done := f.results.of(a.Header.ID)[0]
		if done.Origin != home || done.Seq != a.Header.Seq || len(done.Statements) != 2 {
			t.Fatalf("the result is %+v", done)
		}
		if st := done.Statements; st[0].Fact != proto.FactStarted || st[1].Fact != proto.FactDone || st[1].State != succeeded || st[1].Attempt != 1 || st[1].Epoch != a.Header.Seq {
			t.Errorf("statements are %+v", st)
		}
		var steps []string
		for _, e := range o.Events {
			steps = append(steps, e.State.Name())
		}
		if got := strings.Join(steps, " "); got != "ACCEPTED RUNNING SUCCESS" {
			t.Errorf("events tell %q", got)
		}
	})
}

// TestRetriesThenDead checks that a failing handler is retried as often as allowed, with
// growing delays, and that the outcome lists each attempt (I11).
func TestRetriesThenDead(t *testing.T) {
	var at []time.Time
	_, spec := scripted(func(context.Context, *handler.Run) *handler.Result {
		at = append(at, time.Now())
		return &handler.Result{Outcome: handler.Retry, Code: 75, Reason: "not yet", Stderr: strings.Repeat("x", 5000) + "the end"}
	})
	inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
		a := f.task()
		f.accept(0, a)
		f.run()
		wait(time.Minute)
		o := f.expect(a, deadLetter)
		if len(at) != 3 || at[1].Sub(at[0]) < time.Second || at[2].Sub(at[1]) < 2*time.Second || at[2].Sub(at[0]) > 5*time.Second {
			t.Errorf("starts at %v", at)
		}
		if len(o.Attempts) != 3 || o.Attempts[2].Error != "not yet" || o.Attempts[2].ExitCode != 75 || o.ExitCode != 75 {
			t.Errorf("attempts are %v", o.Attempts)
		}
		if len(o.Stderr) != proto.MaxStderr || !strings.HasSuffix(o.Stderr, "the end") {
			t.Errorf("stderr has %d bytes", len(o.Stderr))
		}
	})
}

func TestEndsWithoutRetry(t *testing.T) {
	tests := []struct {
		name string
		f    func(context.Context, *handler.Run) *handler.Result
		set  func(*Spec)
		want proto.TaskState
	}{
		{"a permanent failure", func(context.Context, *handler.Run) *handler.Result {
			return &handler.Result{Outcome: handler.Fail, Code: 65}
		}, nil, failed},
		{"a panic", func(context.Context, *handler.Run) *handler.Result { panic("boom") }, func(s *Spec) { s.MaxAttempts = 1 }, deadLetter},
		{"nothing returned", func(context.Context, *handler.Run) *handler.Result { return nil }, func(s *Spec) { s.MaxAttempts = 1 }, deadLetter},
		{"out of time", func(ctx context.Context, _ *handler.Run) *handler.Result {
			<-ctx.Done()
			return &handler.Result{Outcome: handler.Cancelled}
		}, func(s *Spec) { s.MaxAttempts, s.Timeout = 1, time.Second }, timedOut},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, spec := scripted(tt.f)
			spec.Handler = handlerFunc(tt.f)
			if tt.set != nil {
				tt.set(&spec)
			}
			inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
				a := f.task()
				f.accept(0, a)
				f.run()
				wait(5 * time.Second)
				f.expect(a, tt.want)
			})
		})
	}
}

// A result without room uses the room that its own end needs: it is dropped, and the task
// ends without it (I13). It is not run again (I6), and the file is removed.
func TestResultWithoutRoomIsGivenUp(t *testing.T) {
	path := filepath.Join(t.TempDir(), "result")
	s, spec := scripted(func(context.Context, *handler.Run) *handler.Result {
		return &handler.Result{Outcome: handler.Success, File: path, Size: 1000, Digest: make([]byte, 32)}
	})
	if err := os.WriteFile(path, make([]byte, 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
		f.results.noRoom = true
		a := f.task(withKey("k"))
		f.accept(0, a)
		f.run()
		wait(12 * time.Second)
		if why := f.in.Unwritten(a.Header.ID); !strings.Contains(why, "no room") || f.results.count() != 0 {
			t.Errorf("after 12 s %q is in the way, %d results", why, f.results.count())
		}
		wait(time.Second)
		o := f.expect(a, failed)
		if o.Cause != proto.TaskResultLost || !o.Truncated || s.starts(a.Header.ID) != 1 {
			t.Errorf("%v, truncated %v, %d starts", o.Cause, o.Truncated, s.starts(a.Header.ID))
		}
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("the file is still there: %v", err)
		}
	})
}

// The file with the output of a run that does not end its task is removed, also when a
// cancel ends the task at that moment.
func TestOutputOfAFailedAttemptIsRemoved(t *testing.T) {
	for _, want := range []proto.TaskState{succeeded, cancelled} {
		t.Run(want.Name(), func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "result")
			_, spec := scripted(func(_ context.Context, r *handler.Run) *handler.Result {
				if r.Attempt > 1 {
					return &handler.Result{Outcome: handler.Success, Output: []byte("small")}
				}
				if err := os.WriteFile(path, make([]byte, 1000), 0o600); err != nil {
					t.Error(err)
				}
				return &handler.Result{Outcome: handler.Retry, File: path, Size: 1000, Digest: make([]byte, 32)}
			})
			inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
				a := f.task()
				f.in.cfg.Fail = func(point string) error {
					if point == PointFinish && want == cancelled {
						f.mustCancel(a, false, 0)
					}
					return nil
				}
				f.accept(0, a)
				f.run()
				wait(5 * time.Second)
				f.expect(a, want)
				if _, err := os.Stat(path); !os.IsNotExist(err) {
					t.Errorf("the file is still there: %v", err)
				}
			})
		})
	}
}

// A kind whose handler cannot be started behaves as if it had none: it accepts nothing, and
// tasks in custody wait without spending an attempt (S30).
func TestASuspendedKindAcceptsNothing(t *testing.T) {
	s, spec := scripted(succeed)
	inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
		a, b := f.task(), f.task()
		f.accept(0, a)
		if !f.in.Suspend(spec.Kind, "program gone") || f.in.Suspend(spec.Kind, "program gone") {
			t.Error("Suspend does not report changes")
		}
		if v := f.accept(proto.CodeCannotStart, b); v[0].Detail != "program gone" {
			t.Errorf("refused with %q", v[0].Detail)
		}
		if code := f.in.Leasable(&Leased{Kind: spec.Kind, Origin: home}); code != proto.CodeNoHandler {
			t.Errorf("a grant is answered with %v", code)
		}
		f.run()
		wait(time.Minute)
		if s.starts(a.Header.ID) != 0 {
			t.Error("it was started")
		}
		f.in.Suspend(spec.Kind, "")
		wait(time.Second)
		if o := f.expect(a, succeeded); len(o.Attempts) != 1 {
			t.Errorf("%d attempts", len(o.Attempts))
		}
	})
}

// TestResultIsTriedAgain checks that a success is neither lost nor run again when its
// result cannot be written at first (I6).
func TestResultIsTriedAgain(t *testing.T) {
	s, spec := scripted(succeed)
	inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
		f.results.fail(errors.New("no key record of the origin"))
		a := f.task(withKey("k"))
		f.accept(0, a)
		f.run()
		wait(time.Second)
		if f.results.count() != 0 || f.results.tries < 2 {
			t.Fatalf("%d tries, %d results", f.results.tries, f.results.count())
		}
		f.results.fail(nil)
		wait(time.Minute)
		o := f.expect(a, succeeded)
		if s.starts(a.Header.ID) != 1 || len(o.Attempts) != 1 {
			t.Errorf("%d starts, attempts %v", s.starts(a.Header.ID), o.Attempts)
		}
	})
}

// TestStuckResultsBlockNoOtherTask checks I20 when the results of many tasks cannot be
// written for long: others run, end and are cancelled meanwhile.
func TestStuckResultsBlockNoOtherTask(t *testing.T) {
	_, spec := scripted(succeed)
	stuck := spec
	stuck.Kind = "stuck"
	inBubble(t, Config{}, []Spec{spec, stuck}, func(f *fixture) {
		f.results.stuck = "stuck"
		var as []Arrival
		for range 612 {
			as = append(as, f.task(withKind("stuck"), withClass(proto.Critical)))
		}
		f.accept(0, as...)
		f.run()
		wait(10 * time.Second)
		a := f.task()
		f.accept(0, a)
		wait(10 * time.Second)
		f.expect(a, succeeded)
		f.results.mu.Lock()
		f.results.stuck = ""
		f.results.mu.Unlock()
		wait(time.Minute)
		for _, x := range as {
			f.expect(x, succeeded)
		}
	})
}

// TestStuckOutputsAreBounded checks that tasks whose large results cannot be written are not
// started without end: their outputs are in memory.
func TestStuckOutputsAreBounded(t *testing.T) {
	var starts int
	output := make([]byte, proto.MaxInlineBody)
	_, spec := scripted(func(context.Context, *handler.Run) *handler.Result {
		withLock(func() { starts++ })
		return &handler.Result{Outcome: handler.Success, Output: output}
	})
	inBubble(t, Config{Slots: 4}, []Spec{spec}, func(f *fixture) {
		f.results.fail(errors.New("no inode is left"))
		var as []Arrival
		for range 400 {
			as = append(as, f.task())
		}
		f.accept(0, as...)
		f.run()
		wait(time.Minute)
		if least := maxStalledBytes / proto.MaxInlineBody; starts < least || starts > least+minUnwritten {
			t.Errorf("%d were started, want %d and some", starts, least)
		}
		f.results.fail(nil)
		wait(10 * time.Minute)
		for _, a := range as {
			f.expect(a, succeeded)
		}
	})
}

// TestLongOutputIsCut checks that a task ends even if its handler returns more than fits
// into a frame.
func TestLongOutputIsCut(t *testing.T) {
	_, spec := scripted(func(context.Context, *handler.Run) *handler.Result {
		return &handler.Result{Outcome: handler.Success, Output: make([]byte, proto.MaxInlineBody+1)}
	})
	inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
		a := f.task()
		f.accept(0, a)
		f.run()
		wait(time.Second)
		if o := f.expect(a, succeeded); len(o.Body) != proto.MaxInlineBody || !o.Truncated || o.BodySize != proto.MaxInlineBody {
			t.Errorf("%d bytes, truncated %v", len(o.Body), o.Truncated)
		}
	})
}

// TestIntegrity checks I9: the handler sees no byte of a body whose digest is not the
// signed one.
func TestIntegrity(t *testing.T) {
	stream := func(a *Arrival) {
		a.Content.BodySize = 5
		a.Content.BodyDigest = []byte("not the digest of what comes.32b")
		withStream(5)(a)
	}
	for _, tt := range []struct {
		name   string
		change func(*Arrival)
	}{
		{"inline, other bytes", nil},
		{"streamed, other bytes", stream},
		{"streamed, another length", func(a *Arrival) { stream(a); a.Content.BodySize = 6 }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, spec := scripted(succeed)
			inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
				a := f.task()
				if tt.change == nil {
					a.Content.BodyDigest[0] ^= 1
					a.Envelope.Body, _ = proto.Encode(nil, a.Content)
				} else {
					a = f.task(tt.change)
					f.bodies.add(a.Header.ObjectFile(), []byte("other"))
				}
				a.Key[0] = 1
				f.accept(0, a)
				f.run()
				wait(time.Minute)
				o := f.expect(a, deadLetter)
				if s.starts(a.Header.ID) != 0 || o.Cause != proto.TaskUnusable {
					t.Errorf("%d starts, %v: %s", s.starts(a.Header.ID), o.Cause, o.Reason)
				}
			})
		})
	}
}

// TestLargeBodies follows a body that is too large for a record, and a streamed
// one: both wait in files, which are gone when the task has ended.
func TestLargeBodies(t *testing.T) {
	big := strings.Repeat("0123456789", 2000)
	var got []string
	_, spec := scripted(func(_ context.Context, r *handler.Run) *handler.Result {
		b, err := io.ReadAll(r.Body)
		withLock(func() { got = append(got, string(b)) })
		return &handler.Result{Outcome: handler.Success, Reason: errText(err)}
	})
	inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
		offloaded := f.task(withBody(big))
		streamed := f.task(withBody(big), func(a *Arrival) {
			*a = seal(t, *a)
			withStream(len(big))(a)
		})
		f.accept(0, offloaded)
		f.accept(proto.CodeNeedBody, streamed)
		f.bodies.add(streamed.Header.ObjectFile(), []byte(big))
		f.accept(0, streamed)
		f.bodies.add("o-else", nil)
		if left := f.sweep(); len(left) != 2 || !slices.Contains(left, streamed.Header.ObjectFile()) || !f.in.Holds(streamed.Header.ID) {
			t.Errorf("the bodies of live tasks are %v", left)
		}
		f.restart()
		f.run()
		wait(time.Second)
		f.expect(offloaded, succeeded)
		f.expect(streamed, succeeded)
		if len(got) != 2 || got[0] != big || got[1] != big {
			t.Errorf("handlers saw %d bodies", len(got))
		}
		if left := f.sweep(); len(left) != 0 || f.in.Holds(offloaded.Header.ID) {
			t.Errorf("%d files left", len(left))
		}
	})
}

// A body that cannot be read because too many files are open spends no attempt: nothing
// was started.
func TestABodyWaitsForAFile(t *testing.T) {
	big := strings.Repeat("0123456789", 2000)
	s, spec := scripted(succeed)
	spec.MaxAttempts = 1
	inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
		offloaded := f.task(withBody(big))
		f.accept(0, offloaded)
		f.bodies.busy = 5
		f.run()
		wait(time.Hour / 2)
		f.expect(offloaded, succeeded)
		if n := s.starts(offloaded.Header.ID); n != 1 {
			t.Errorf("%d starts of the handler", n)
		}
	})
}

func errText(err error) string {
	if err != nil {
		return err.Error()
	}
	return ""
}

// TestContentOfAStreamedTaskIsBounded checks that a task is refused, whether sent or handed
// over, if its record could outgrow the store.
func TestContentOfAStreamedTaskIsBounded(t *testing.T) {
	_, spec := scripted(func(context.Context, *handler.Run) *handler.Result { return &handler.Result{Outcome: handler.Success} })
	inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
		for args, want := range map[int]proto.Code{MaxStreamContent - 1<<10: 0, MaxStreamContent + 1: proto.CodeTooLarge, 60_000: proto.CodeTooLarge} {
			a := f.task(func(a *Arrival) {
				a.Content.Args = []string{strings.Repeat("a", args)}
				*a = seal(t, *a)
				withStream(9)(a)
			})
			f.bodies.add(a.Header.ObjectFile(), []byte("123456789"))
			moved := a
			moved.Header.ID[0]++
			ad, err := f.in.Adopt(&moved)
			if (want == 0) != (err == nil) || err != nil && !errors.Is(err, store.ErrTooLarge) {
				t.Errorf("%d bytes, handed over: %v", args, err)
			}
			if err == nil {
				ad.Drop()
			}
			f.accept(want, a)
		}
	})
}
