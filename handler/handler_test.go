package handler

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/balefire/balefire/proto"
)

type panicking struct{}

func (panicking) Run(context.Context, *Run) *Result { panic("boom") }

// S16: a poison task ends only its own run.
func TestPanicIsACrash(t *testing.T) {
	res := Call(t.Context(), panicking{}, &Run{})
	if res.Outcome != Crashed || !strings.Contains(res.Reason, "boom") || !strings.Contains(res.Stderr, "panicking") {
		t.Errorf("result = %+v, want crashed with the stack", res)
	}
	if len(res.Stderr) > proto.MaxStderr {
		t.Errorf("%d bytes of stack, want at most %d", len(res.Stderr), proto.MaxStderr)
	}
}

type greedy struct{}

func (greedy) Run(_ context.Context, r *Run) *Result {
	b, err := io.ReadAll(r.Body)
	return &Result{Outcome: Success, Output: b, Reason: errorText(err)}
}

func errorText(err error) string {
	if err != nil {
		return err.Error()
	}
	return ""
}

func TestCallMakesTheRunWhole(t *testing.T) {
	if res := Call(t.Context(), greedy{}, &Run{}); res.Outcome != Success || res.Reason != "" {
		t.Errorf("result = %+v, want success on an empty body", res)
	}
}

func TestNilResultIsACrash(t *testing.T) {
	res := Call(t.Context(), Func(func(context.Context, *Run) *Result { return nil }), new(Run))
	if res == nil || res.Outcome != Crashed || res.Reason == "" {
		t.Errorf("result = %+v, want crashed with a reason", res)
	}
}

func TestStopped(t *testing.T) {
	for cause, want := range map[error]Outcome{
		ErrTimeout: Timeout, context.DeadlineExceeded: Timeout, ErrCancelled: Cancelled, ErrStopping: Cancelled, ErrLeaseLost: Cancelled,
	} {
		if got := Stopped(cause); got != want {
			t.Errorf("%v: %v, want %v", cause, got, want)
		}
	}
}

// A run is identified by its idempotency key, or else by its task id.
func TestKey(t *testing.T) {
	r := &Run{ID: proto.TaskID{7}}
	if got := r.Key(); got != r.ID.String() {
		t.Errorf("key %q, want the id of the task", got)
	}
	r.Content = &proto.Content{IdempotencyKey: "k"}
	if got := r.Key(); got != "k" {
		t.Errorf("key %q, want k", got)
	}
}
