package inbox

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/proto"
)

// TestLeaseEnd checks what an owner reports about a run: an outcome, or why it gives the
// lease back.
func TestLeaseEnd(t *testing.T) {
	const tooLarge, cutOff = "OUTPUT_TOO_LARGE: more than 4 bytes of output", "cut off after 4 bytes"
	output := []byte("1234")
	tests := []struct {
		name  string
		res   handler.Result
		why   stop
		state proto.TaskState    // 0: the lease is released
		cause proto.ReleaseCause // of a release
		ends  proto.TaskCause    // of an outcome
	}{
		{"success", handler.Result{Outcome: handler.Success, Output: output}, notStopped, succeeded, 0, 0},
		{"success although its lease was lost", handler.Result{Outcome: handler.Success, Output: output}, stopLease, succeeded, 0, 0},
		{"output above its limit", handler.Result{Outcome: handler.Fail, Output: output, Truncated: true, Reason: tooLarge}, notStopped, failed, 0, proto.TaskRejected},
		{"output above its limit, in a file", handler.Result{Outcome: handler.Fail, File: "f", Size: 4, Digest: []byte{5}, Truncated: true, Reason: tooLarge}, notStopped, failed, 0, proto.TaskRejected},
		{"output that is cut", handler.Result{Outcome: handler.Success, Output: output, Truncated: true, Reason: cutOff}, notStopped, succeeded, 0, proto.TaskOutputCut},
		{"output that is cut, in a file", handler.Result{Outcome: handler.Success, File: "f", Size: 4, Digest: []byte{5}, Truncated: true, Reason: cutOff}, notStopped, succeeded, 0, proto.TaskOutputCut},
		{"output that is cut, without a reason", handler.Result{Outcome: handler.Success, Output: output, Truncated: true}, notStopped, succeeded, 0, proto.TaskOutputCut},
		{"no room", handler.Result{Outcome: handler.NoSpace, Reason: "NO_ROOM: full"}, notStopped, 0, proto.CauseCrashed, 0},
		{"no room, without a reason", handler.Result{Outcome: handler.NoSpace}, notStopped, 0, proto.CauseCrashed, 0},
		{"no room when it was cancelled", handler.Result{Outcome: handler.NoSpace}, stopCancel, cancelled, 0, proto.TaskCancelledRunning},
		{"no room when the node stops", handler.Result{Outcome: handler.NoSpace}, stopNode, 0, proto.CauseStopped, 0},
		{"no room when its lease was lost", handler.Result{Outcome: handler.NoSpace}, stopLease, 0, proto.CauseStopped, 0},
		{"no room when its time was over", handler.Result{Outcome: handler.NoSpace}, stopTimeout, 0, proto.CauseTimeout, 0},
		{"failure", handler.Result{Outcome: handler.Retry}, notStopped, 0, proto.CauseFailed, 0},
		{"no program", handler.Result{Outcome: handler.Unready}, notStopped, 0, proto.Unstarted, 0},
		{"a body that does not match its signature", handler.Result{Outcome: unusable, Reason: "damaged"}, notStopped, deadLetter, 0, proto.TaskUnusable},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := leaseEnd(&tt.res, tt.why)
			o := e.Outcome
			if o.GetState() != tt.state || o.GetCause() != tt.ends || e.Cause != tt.cause || (o == nil) != (tt.state == 0) || (e.RetryAfter > 0) != (tt.cause == proto.Unstarted) {
				t.Fatalf("it is %+v", e)
			}
			if reason, said := cmp.Or(o.GetReason(), e.Reason), tt.res.Reason; said != "" && reason != said || (reason != "") != (said != "" || tt.cause != 0) {
				t.Errorf("the reason is %q, that of the handler %q", reason, said)
			}
			size := max(len(tt.res.Output), int(tt.res.Size))
			if o != nil && (o.Truncated != tt.res.Truncated || string(o.Body) != string(tt.res.Output) || o.BodySize != uint64(size) || e.File != tt.res.File || e.File != "" && o.BodyDigest[0] != 5) {
				t.Errorf("the outcome is %+v with the file %q", o, e.File)
			}
		})
	}
}

// grants permits each start and keeps the ends.
type grants struct {
	onReady func()
	ends    []LeaseEnd
	found   []handler.ProbeResult
}

func (g *grants) Ready(context.Context, proto.TaskID, OnCrash) (LeaseStart, bool) {
	g.onReady()
	return LeaseStart{Epoch: proto.Seq{Boot: 1, Counter: 1}, Attempt: 1}, true
}

func (g *grants) Ended(_ context.Context, _ proto.TaskID, e LeaseEnd) {
	withLock(func() { g.ends = append(g.ends, e) })
}

func (g *grants) Probed(_ context.Context, _ proto.TaskID, found handler.ProbeResult, _ *proto.Outcome) {
	withLock(func() { g.found = append(g.found, found) })
}

// soFar returns the ends, and what was found by the probes.
func (g *grants) soFar() (ends []LeaseEnd, found []handler.ProbeResult) {
	withLock(func() { ends, found = slices.Clone(g.ends), slices.Clone(g.found) })
	return ends, found
}

// TestGrantedTaskIsDenied narrows the allow list of a handler while a granted task waits for
// a slot, and when its home has permitted the start: nothing starts (I17).
func TestGrantedTaskIsDenied(t *testing.T) {
	for _, tt := range []struct {
		name          string
		queued, ready string // the allow list from then on
		allowed       bool
	}{
		{"allowed", "*", "*", true},
		{"while it waits", "peer:other", "peer:other", false},
		{"at its start", "*", "peer:other", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, spec := scripted(succeed)
			inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
				allow := func(rule string) {
					spec.Allow = []string{rule}
					if err := f.in.Register(spec); err != nil {
						t.Error(err)
					}
				}
				g := &grants{onReady: func() { allow(tt.ready) }}
				f.in.Connect(g)
				a := f.task()
				f.in.Lease(Leased{ID: a.Header.ID, Kind: "work", Origin: home, Home: other, Envelope: a.Envelope})
				allow(tt.queued)
				f.run()
				wait(time.Second)
				ends, _ := g.soFar()
				if len(ends) != 1 || (ends[0].Outcome.GetState() == succeeded) != tt.allowed || (s.starts(a.Header.ID) == 1) != tt.allowed {
					t.Fatalf("%d starts, ends %+v", s.starts(a.Header.ID), ends)
				}
				if e := ends[0]; !tt.allowed && e.Cause != proto.Unstarted {
					t.Errorf("the end is %+v", e)
				}
			})
		})
	}
}

// I17: the same for a task that was sent to this node, when its start is on disk: it ends as a
// dead letter and has spent no attempt.
func TestTaskIsDeniedAtItsStart(t *testing.T) {
	s, spec := scripted(succeed)
	spec.OnCrash = OnCrashPark // its start is on disk first
	var f *fixture
	cfg := Config{Fail: func(point string) error {
		if point == PointStarted && spec.Allow[0] == "*" {
			spec.Allow = []string{"peer:other"}
			return f.in.Register(spec)
		}
		return nil
	}}
	inBubble(t, cfg, []Spec{spec}, func(x *fixture) {
		f = x
		a := f.task()
		f.accept(0, a)
		f.run()
		wait(time.Minute)
		if o := f.expect(a, deadLetter); o.Cause != proto.TaskNotAllowed || s.starts(a.Header.ID) != 0 {
			t.Errorf("because of %v, %d starts", o.Cause, s.starts(a.Header.ID))
		}
	})
}

// TestLeasesThatWaitTooLong checks which leases an owner with two slots gives back: of each
// queue it keeps two, those that run and then the oldest, and of those that have waited for
// longer than a second the rest; after a minute all but one with a large body.
func TestLeasesThatWaitTooLong(t *testing.T) {
	s, spec := scripted(func(ctx context.Context, _ *handler.Run) *handler.Result {
		<-ctx.Done()
		return &handler.Result{Outcome: handler.Retry}
	})
	inBubble(t, Config{Slots: 2}, []Spec{spec}, func(f *fixture) {
		f.in.Connect(&grants{onReady: func() {}})
		f.run()
		lease := func(queue string, n int) (ids []proto.TaskID) {
			for range n {
				a := f.task()
				f.in.Lease(Leased{ID: a.Header.ID, Queue: queue, Kind: "work", Origin: home, Home: other, Envelope: a.Envelope})
				ids = append(ids, a.Header.ID)
			}
			synctest.Wait()
			return ids
		}
		running := lease("a", 2)
		for _, id := range running {
			if s.starts(id) != 1 {
				t.Fatal("it has not started")
			}
		}
		more, others := lease("a", 3), lease("b", 4)
		a := f.task()
		f.in.Lease(Leased{ID: a.Header.ID, Queue: "a", Kind: "work", Origin: home, Home: other, Envelope: a.Envelope, Interrupted: new(LeaseStart)})
		large := f.task()
		f.in.Lease(Leased{ID: large.Header.ID, Queue: "c", Kind: "work", Origin: home, Home: other, Envelope: large.Envelope, Body: "file"})
		if wait(time.Second); len(f.in.Overdue()) != 0 {
			t.Errorf("after a second it gives %d back", len(f.in.Overdue()))
		}
		wait(time.Millisecond)
		lease("a", 1)
		if got, want := f.in.Overdue(), slices.Concat(more, others[2:]); !slices.Equal(got, want) {
			t.Errorf("it gives back %v, want %v", got, want)
		}
		f.in.StopLease(more[0], false, false)
		if got, want := f.in.Overdue(), slices.Concat(more[1:], others[2:]); !slices.Equal(got, want) {
			t.Errorf("then it gives back %v, want %v", got, want)
		}
		for _, id := range slices.Concat(more, others[2:]) {
			f.in.StopLease(id, false, false)
		}
		if wait(time.Minute - 2*time.Second); slices.ContainsFunc(f.in.Overdue(), func(id proto.TaskID) bool { return slices.Contains(others, id) }) {
			t.Error("after a minute it gives back what fits into the slots")
		}
		wait(2 * time.Second)
		if got := f.in.Overdue(); !slices.Contains(got, others[0]) || !slices.Contains(got, others[1]) || slices.Contains(got, large.Header.ID) {
			t.Errorf("then it gives back %v, want %v and not %v", got, others[:2], large.Header.ID)
		}
	})
}

// TestWaitingLeasesAreBounded checks how many granted tasks of a queue may wait: 64 more than
// there are slots, whatever waits of another queue, and how many of all queues.
func TestWaitingLeasesAreBounded(t *testing.T) {
	_, spec := scripted(succeed)
	inBubble(t, Config{Slots: 2}, []Spec{spec}, func(f *fixture) {
		fill := func(queue string, body int) (n int) {
			for ; ; n++ {
				l := Leased{ID: f.task().Header.ID, Queue: queue, Kind: "work", Origin: home, Home: other, Envelope: &proto.Envelope{Body: make([]byte, body)}}
				if code := f.in.Leasable(&l); code != proto.CodeOK {
					if code != proto.CodeBusy {
						t.Errorf("number %d of %s is answered with %v", n+1, queue, code)
					}
					return n
				}
				f.in.Lease(l)
			}
		}
		for i := range 8 {
			if n := fill(fmt.Sprint("queue", i), 0); n != 66 {
				t.Errorf("%d tasks of queue %d wait", n, i)
			}
		}
		if n := fill("one more", 0); n != 0 {
			t.Errorf("%d tasks wait when eight queues have as many as they may", n)
		}
		f.in.leases.waiting = nil
		if n := fill("a", 512<<10) + fill("b", 512<<10); n != 64 {
			t.Errorf("%d tasks of 512 KiB wait", n)
		}
	})
}

// TestLeasesAndTasksTakeTurns lets more leases and more tasks that were sent to this node wait
// than there are slots, which become free one after the other: each has every second slot.
func TestLeasesAndTasksTakeTurns(t *testing.T) {
	for _, leases := range []int{100, 5} {
		var order []bool // whether a lease started
		granted := map[proto.TaskID]bool{}
		delay := time.Millisecond
		_, spec := scripted(func(_ context.Context, r *handler.Run) *handler.Result {
			var d time.Duration
			withLock(func() { order, delay = append(order, granted[r.ID]), delay+time.Millisecond; d = delay })
			time.Sleep(d)
			return &handler.Result{Outcome: handler.Success}
		})
		inBubble(t, Config{Slots: 2}, []Spec{spec}, func(f *fixture) {
			f.in.Connect(&grants{onReady: func() {}})
			for range leases {
				a := f.task()
				granted[a.Header.ID] = true
				f.in.Lease(Leased{ID: a.Header.ID, Kind: "work", Origin: home, Home: other, Envelope: a.Envelope})
			}
			for range 100 - leases {
				f.accept(0, f.task())
			}
			f.accept(0, f.task(), f.task(), f.task(), f.task(), f.task())
			f.run()
			wait(time.Hour)
			first := map[bool]int{}
			for _, lease := range order[:10] {
				first[lease]++
			}
			if len(order) != 105 || first[true] < 4 || first[false] < 4 {
				t.Errorf("%d leases: %d starts, of the first ten %d under leases and %d others", leases, len(order), first[true], first[false])
			}
		})
	}
}

// A granted task that is told to stop before its handler is called is given back as one that did
// not start, also if its home has permitted the start meanwhile: the start may belong to the next
// grant of a task whose lease was lost while it waited for its slot, and counts against nobody.
func TestGrantedTaskThatIsStoppedBeforeItsStart(t *testing.T) {
	s, spec := scripted(succeed)
	inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
		a := f.task()
		id := a.Header.ID
		g := &grants{onReady: func() { f.in.StopLease(id, false, false) }}
		f.in.Connect(g)
		f.run()
		f.in.Lease(Leased{ID: id, Kind: "work", Origin: home, Home: other, Mode: proto.AtMostOnce, Envelope: a.Envelope})
		wait(time.Second)
		if ends, _ := g.soFar(); len(ends) != 1 || ends[0].Cause != proto.Unstarted || ends[0].Outcome != nil || s.starts(id) != 0 {
			t.Errorf("%d starts, ended as %+v", s.starts(id), ends)
		}
	})
}

// The running tasks may be listed while a granted task gets the number of its start, which its
// home permits only after it has its slot: the race detector reports nothing.
func TestRunningTasksAreListedAtAGrantedStart(t *testing.T) {
	_, spec := scripted(succeed)
	inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
		f.in.Connect(&grants{onReady: func() { time.Sleep(time.Second) }})
		f.run()
		a := f.task()
		f.in.Lease(Leased{ID: a.Header.ID, Queue: "a", Kind: "work", Origin: home, Home: other, Envelope: a.Envelope})
		for range 40 {
			f.in.Running()
			time.Sleep(50 * time.Millisecond)
		}
	})
}
