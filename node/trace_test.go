package node

import (
	"io"
	"strings"
	"testing"
)

// What is no traceparent is replaced by a fresh one: it would break the trace of the
// handler, and a program is given it.
func TestTraceContextIsValid(t *testing.T) {
	good := []string{
		"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00",
		"cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-09-what.is.to.come",
	}
	bad := []string{
		"", "x", "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01", "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
		"00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01", "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more", "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01.more",
		"cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-\x00", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0g",
		"00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-" + strings.Repeat("a", 100),
	}
	for _, s := range good {
		if got := traceOf(s); got != s {
			t.Errorf("traceOf(%q) = %q, want it as it is", s, got)
		}
	}
	seen := map[string]bool{}
	for _, s := range bad {
		got := traceOf(s)
		if !validTrace(got) || seen[got] || !strings.HasSuffix(got, "-01") {
			t.Errorf("traceOf(%q) = %q, want a fresh sampled one", s, got)
		}
		seen[got] = true
	}
}

// A task that its caller gave no trace context has one of its own, its program is
// given it, and a redrive goes on with it.
func TestEveryTaskHasATrace(t *testing.T) {
	a, b := pair(t, nil)
	if err := b.AddHandler(t.Context(), HandlerSpec{Kind: "run", Exec: []string{"sh", "-c", `printf %s "$TRACEPARENT"; test "$BALEFIRE_IDEMPOTENCY_KEY"`}, Allow: []string{"peer:a"}, MaxAttempts: 1}); err != nil {
		t.Fatal(err)
	}
	given := "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
	for _, trace := range []string{"", given} {
		id := a.submit(t, Request{Target: "b", Kind: "run", Trace: trace})
		failed := a.ended(t, id, "DEAD_LETTER")
		if !validTrace(failed.Trace) || trace != "" && failed.Trace != trace {
			t.Errorf("given %q, the task has %q", trace, failed.Trace)
		}
		s, err := a.Retry(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if again := a.ended(t, s.ID, "DEAD_LETTER"); again.Trace != failed.Trace {
			t.Errorf("the redrive has the trace %q, its first %q", again.Trace, failed.Trace)
		}
		id = a.submit(t, Request{Target: "b", Kind: "run", Trace: trace, Key: "key" + trace})
		done := a.ended(t, id, "SUCCESS")
		r, _, err := a.Result(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if err != nil || string(got) != done.Trace {
			t.Errorf("the program was given %q, %v; the task has %q", got, err, done.Trace)
		}
		if s, err := a.Submit(t.Context(), Request{Target: "b", Kind: "run", Key: "key" + trace}); err != nil || !s.Known {
			t.Errorf("the key again: %+v, %v; a fresh trace makes it no other request", s, err)
		}
	}
}
