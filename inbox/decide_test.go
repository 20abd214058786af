package inbox

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/proto"
)

const (
	accepted   = proto.Accepted
	running    = proto.Running
	retrying   = proto.Retrying
	succeeded  = proto.Success
	failed     = proto.Failed
	timedOut   = proto.Timeout
	deadLetter = proto.DeadLetter
	cancelled  = proto.Cancelled
	expired    = proto.Expired
)

// TestVerdict checks the answers of Accept (I8, I12, I17, S04, S18, S30).
func TestVerdict(t *testing.T) {
	good := acceptInput{seq: proto.Seq{Boot: 5, Counter: 7}, notAfter: 1000, wallTime: wallTime{now: 900}, handled: true, allowed: true}
	with := func(f func(*acceptInput)) acceptInput { input := good; f(&input); return input }
	tests := []struct {
		name string
		s    acceptInput
		want proto.Code
	}{
		{"a new task", good, 0},
		{"the same again", with(func(input *acceptInput) { input.idStatus = idDuplicate }), 0},
		{"the same again although settled", with(func(input *acceptInput) { input.idStatus = idDuplicate; input.watermark = input.seq }), 0},
		{"the same again after its handler went", with(func(input *acceptInput) { input.idStatus, input.handled = idDuplicate, false }), 0},
		{"the same again while stopping", with(func(input *acceptInput) { input.idStatus, input.stopping = idDuplicate, true }), 0},
		{"another with its id", with(func(input *acceptInput) { input.idStatus = idConflict }), proto.CodeBusy},
		{"cancelled before it arrived", with(func(input *acceptInput) { input.idStatus, input.handled, input.full = idCancelled, false, true }), 0},
		{"cancelled before it arrived, without its body", with(func(input *acceptInput) { input.idStatus, input.noBody = idCancelled, true }), proto.CodeNeedBody},
		{"cancelled before it arrived, and settled", with(func(input *acceptInput) { input.idStatus, input.watermark = idCancelled, input.seq }), proto.CodeDuplicate},
		{"settled", with(func(input *acceptInput) { input.watermark = input.seq }), proto.CodeDuplicate},
		{"settled by a later boot", with(func(input *acceptInput) { input.watermark = proto.Seq{Boot: 6} }), proto.CodeDuplicate},
		{"one above the mark", with(func(input *acceptInput) { input.watermark = proto.Seq{Boot: 5, Counter: 6} }), 0},
		{"its last millisecond", with(func(input *acceptInput) { input.now = 1000 }), 0},
		{"past its time", with(func(input *acceptInput) { input.now = 1001 }), proto.CodeExpired},
		{"past its time by a doubted clock", with(func(input *acceptInput) { input.now, input.doubted = 1001, true }), proto.CodeBusy},
		{"stopping", with(func(input *acceptInput) { input.stopping = true }), proto.CodeDraining},
		{"no handler", with(func(input *acceptInput) { input.handled = false }), proto.CodeNoHandler},
		{"its handler cannot be started", with(func(input *acceptInput) { input.absent = "no program" }), proto.CodeCannotStart},
		{"not allowed", with(func(input *acceptInput) { input.allowed = false }), proto.CodeDenied},
		{"too large", with(func(input *acceptInput) { input.tooLarge = true }), proto.CodeTooLarge},
		{"refused by its handler", with(func(input *acceptInput) { input.refused = "no arguments" }), proto.CodeDenied},
		{"more content besides its stream than a record holds", with(func(input *acceptInput) { input.oversize = true }), proto.CodeTooLarge},
		{"body not here", with(func(input *acceptInput) { input.noBody = true }), proto.CodeNeedBody},
		{"no room for another id", with(func(input *acceptInput) { input.full = true }), proto.CodeBusy},
		{"a copy when there is no room", with(func(input *acceptInput) { input.full, input.idStatus = true, idDuplicate }), 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v := tt.s.verdict()
			if v.Code != tt.want {
				t.Errorf("code = %s, want %s", v.Code.Name(), tt.want.Name())
			}
			if (v.Code != 0) != (v.Detail != "") {
				t.Errorf("code %s with detail %q: a refusal has a code and a detail", v.Code.Name(), v.Detail)
			}
		})
	}
}

// TestNext checks the decisions about due tasks (I6, I17, S16, S30).
func TestNext(t *testing.T) {
	tests := []struct {
		name  string
		p     startInput
		want  action
		state proto.TaskState
	}{
		{"runs", startInput{handled: true, allowed: true}, actionRun, 0},
		{"no handler any more", startInput{}, actionSkip, 0},
		{"grant withdrawn", startInput{handled: true}, actionEnd, deadLetter},
		{"past its time", startInput{now: 1001, handled: true, allowed: true}, actionEnd, expired},
		{"past its time, but not by its home", startInput{now: 1001, deadline: 1001, handled: true, allowed: true}, actionRun, 0},
		{"past its time by a doubted clock", startInput{now: 1001, doubted: true, handled: true, allowed: true}, actionSkip, 0},
		{"found running without a handler, past its time by a doubted clock", startInput{record: &proto.Record{State: running}, now: 1001, doubted: true}, actionSkip, 0},
		{"past its time without a handler", startInput{now: 1001}, actionEnd, expired},
		{"its last millisecond", startInput{now: 1000, handled: true, allowed: true}, actionRun, 0},
		{"cancelled", startInput{record: &proto.Record{Cancel: true}, handled: true, allowed: true}, actionEnd, cancelled},
		{"cancelled without a handler", startInput{record: &proto.Record{Cancel: true}}, actionEnd, cancelled},
		{"its key has succeeded", startInput{handled: true, allowed: true, keyDone: true}, actionEndAsFirst, 0},
		{"its key runs", startInput{handled: true, allowed: true, keyBusy: true}, actionWait, 0},
		{"found running", startInput{record: &proto.Record{State: running}, handled: true, allowed: true}, actionRecover, 0},
		{"found running, denied now", startInput{record: &proto.Record{State: running}, handled: true}, actionRecover, 0},
		{"found running without a handler", startInput{record: &proto.Record{State: running}}, actionSkip, 0},
		{"found running without a handler, past its time", startInput{record: &proto.Record{State: running}, now: 1001}, actionEnd, deadLetter},
		{"interrupted twice, another such runs", startInput{record: &proto.Record{Abandons: 2}, handled: true, allowed: true, quarantineBusy: true}, actionWait, 0},
		{"interrupted once, a suspect runs", startInput{record: &proto.Record{Abandons: 1}, handled: true, allowed: true, quarantineBusy: true}, actionRun, 0},
		{"never interrupted, a suspect runs", startInput{handled: true, allowed: true, quarantineBusy: true}, actionRun, 0},
		{"interrupted twice, alone", startInput{record: &proto.Record{Abandons: 2}, handled: true, allowed: true}, actionRun, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.p.record == nil {
				tt.p.record = &proto.Record{}
			}
			tt.p.record.NotAfterMs = 1000
			got, end := tt.p.next()
			if got != tt.want || end.state != tt.state {
				t.Errorf("turn %d, %s; want %d, %s", got, end.state.Name(), tt.want, tt.state.Name())
			}
			if got == actionEnd && end.cause == 0 {
				t.Error("an end without a cause (I11)")
			}
		})
	}
}

// TestAfter checks the transitions after a run (I6, I11, S32).
func TestAfter(t *testing.T) {
	once := proto.AtMostOnce
	tests := []struct {
		name     string
		attempts uint32
		mode     proto.Mode
		end      handler.Outcome
		why      stop
		want     proto.TaskState
		spent    bool
	}{
		{"success", 0, 0, handler.Success, notStopped, succeeded, true},
		{"success although told to stop", 0, 0, handler.Success, stopCancel, succeeded, true},
		{"success at the last moment", 2, 0, handler.Success, stopTimeout, succeeded, true},
		{"no for good", 0, 0, handler.Fail, notStopped, failed, true},
		{"failure", 0, 0, handler.Retry, notStopped, retrying, true},
		{"death", 1, 0, handler.Crashed, notStopped, retrying, true},
		{"last failure", 2, 0, handler.Retry, notStopped, deadLetter, true},
		{"more failures than allowed", 7, 0, handler.Retry, notStopped, deadLetter, true},
		{"timeout", 0, 0, handler.Cancelled, stopTimeout, retrying, true},
		{"last timeout", 2, 0, handler.Cancelled, stopTimeout, timedOut, true},
		{"a kill that looks like a no", 0, 0, handler.Fail, stopTimeout, retrying, true},
		{"cancelled", 0, 0, handler.Cancelled, stopCancel, cancelled, true},
		{"cancelled and died of it", 2, 0, handler.Crashed, stopCancel, cancelled, true},
		{"node stops", 2, 0, handler.Cancelled, stopNode, accepted, false},
		{"node stops and the handler dies of it", 2, 0, handler.Crashed, stopNode, accepted, false},
		{"ended without being told to", 0, 0, handler.Cancelled, notStopped, retrying, true},
		{"a body that does not match its signature", 0, 0, unusable, notStopped, deadLetter, false},
		{"once: no room for its output", 0, once, handler.NoSpace, stopCancel, cancelled, true},
		{"no room for its output, and the node stops", 0, 0, handler.NoSpace, stopNode, accepted, false},
		{"once: failure", 0, once, handler.Retry, notStopped, deadLetter, true},
		{"once: timeout", 0, once, handler.Cancelled, stopTimeout, timedOut, true},
		{"once: node stops", 0, once, handler.Cancelled, stopNode, deadLetter, true},
	}
	l := limits{maxAttempts: 3, maxAbandons: 10}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := l.after(&proto.Record{Attempts: tt.attempts, Mode: tt.mode}, &handler.Result{Outcome: tt.end, Reason: reasonFor(tt.end)}, tt.why, 0.5)
			if got.state != tt.want || got.spent != tt.spent || got.abandoned {
				t.Errorf("got %s, spent %v; want %s, %v", got.state.Name(), got.spent, tt.want.Name(), tt.spent)
			}
			if (got.wait > 0) != (got.state == retrying) {
				t.Errorf("%s waits %s", got.state.Name(), got.wait)
			}
			if got.state != succeeded && got.cause == 0 {
				t.Error("no cause (I11)")
			}
		})
	}
}

// I6: a run without room for its output is an abandon: it spends no attempt, and is repeated
// only so often.
func TestNoRoomIsAnAbandon(t *testing.T) {
	l := limits{maxAttempts: 1, maxAbandons: 3}
	for _, tt := range []struct {
		abandons uint32
		mode     proto.Mode
		want     proto.TaskState
	}{{0, 0, retrying}, {1, 0, retrying}, {2, 0, deadLetter}, {0, proto.AtMostOnce, deadLetter}} {
		got := l.after(&proto.Record{Abandons: tt.abandons, Mode: tt.mode}, &handler.Result{Outcome: handler.NoSpace, Reason: "NO_ROOM"}, notStopped, 0.5)
		if got.state != tt.want || got.spent || !got.abandoned || (got.wait > 0) != (tt.want == retrying) || !strings.Contains(got.reason, "NO_ROOM") {
			t.Errorf("%+v after %d abandons: want %s", got, tt.abandons, tt.want.Name())
		}
	}
	got := l.after(&proto.Record{}, &handler.Result{Outcome: handler.Success, Truncated: true, Reason: "cut off after 5 bytes"}, notStopped, 0)
	if got.state != succeeded || got.cause != proto.TaskOutputCut || got.reason != "cut off after 5 bytes" {
		t.Errorf("%+v, want a success with the reason that it is truncated", got)
	}
}

// TestRecovered checks the transitions after a crash (I7, S16).
func TestRecovered(t *testing.T) {
	once := proto.AtMostOnce
	tests := []struct {
		name     string
		mode     proto.Mode
		policy   OnCrash
		probe    handler.ProbeResult
		abandons uint32
		want     proto.TaskState
	}{
		{"retry", 0, OnCrashRetry, handler.Unknown, 0, retrying},
		{"retry, ninth death", 0, OnCrashRetry, handler.Unknown, 8, retrying},
		{"retry, tenth death", 0, OnCrashRetry, handler.Unknown, 9, deadLetter},
		{"probe: done", 0, OnCrashProbe, handler.Done, 9, succeeded},
		{"probe: not done", 0, OnCrashProbe, handler.NotDone, 0, retrying},
		{"probe: not done, tenth death", 0, OnCrashProbe, handler.NotDone, 9, deadLetter},
		{"probe: unknown", 0, OnCrashProbe, handler.Unknown, 0, deadLetter},
		{"park", 0, OnCrashPark, handler.Unknown, 0, deadLetter},
		{"park does not ask", 0, OnCrashPark, handler.NotDone, 0, deadLetter},
		{"once", once, OnCrashRetry, handler.Unknown, 0, deadLetter},
		{"once does not probe its way to a second start", once, OnCrashProbe, handler.NotDone, 0, deadLetter},
	}
	l := limits{maxAttempts: 3, maxAbandons: 10}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := l.afterCrash(&proto.Record{Mode: tt.mode, Abandons: tt.abandons}, tt.policy, tt.probe, 0)
			if got.state != tt.want || !got.abandoned || got.spent {
				t.Errorf("got %+v, want %s, an abandon and no attempt", got, tt.want.Name())
			}
			if got.state == deadLetter && got.cause == 0 {
				t.Error("no cause (I11)")
			}
		})
	}
}

func TestBackoff(t *testing.T) {
	for n, want := range map[uint32]time.Duration{1: time.Second, 2: 2 * time.Second, 6: 32 * time.Second, 7: time.Minute, 40: time.Minute} {
		if got := backoff(n, 0); got != want {
			t.Errorf("backoff(%d) = %s, want %s", n, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		n, r := rapid.Uint32Min(1).Draw(t, "n"), rapid.Float64Range(0, 0.999).Draw(t, "r")
		if d := backoff(n, r); d < time.Second || d > time.Minute*3/2 {
			t.Fatalf("backoff(%d, %v) = %s", n, r, d)
		}
		if backoff(n, r) < backoff(n, 0) {
			t.Fatal("jitter shortens the wait")
		}
	})
}

func TestExpiredReasonNamesTheLastFailure(t *testing.T) {
	for want, r := range map[string]*proto.Record{
		"disk on fire": {Attempts: 1, Cause: proto.TaskFailed, Reason: "disk on fire"}, "crashed": {Abandons: 1, Cause: proto.TaskCrashed}, "": {},
	} {
		input := startInput{record: r, now: 1, handled: true, allowed: true}
		if _, end := input.next(); end.cause != proto.TaskTooLate || end.reason != want {
			t.Errorf("it ends as %+v, want %q", end, want)
		}
	}
}

func reasonFor(e handler.Outcome) string {
	if e == unusable {
		return "damaged"
	}
	return ""
}
