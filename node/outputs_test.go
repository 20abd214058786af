package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/balefire/balefire/wire"
)

// Output beyond its limit fails the task at once with that reason, also at home; with
// on_overflow cut the task succeeds with truncated output.
func TestTooLargeOutput(t *testing.T) {
	a, b := pair(t, nil)
	for kind, overflow := range map[string]string{"strict": "", "head": "cut"} {
		if err := b.Handlers.Add(t.Context(), wire.HandlerSpec{Kind: kind, Exec: []string{"head", "-c", "3000000", "/dev/zero"}, Allow: []string{"peer:a"}, MaxOutput: 1 << 20, OnOverflow: overflow}); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		kind, state, reason string
		max                 int64
		size                uint64
	}{
		{"strict", "FAILED", "OUTPUT_TOO_LARGE: more than 1048576 bytes of output (max_output", 0, 1 << 20},
		{"strict", "FAILED", "OUTPUT_TOO_LARGE: more than 5000 bytes of output (max_result", 5000, 5000},
		{"head", "SUCCESS", "cut off after 1048576 bytes", 0, 1 << 20},
	} {
		task := a.waitEnd(t, a.submit(t, wire.Request{Target: "b", Kind: tt.kind, MaxResult: tt.max}), tt.state)
		if !strings.Contains(task.Reason, tt.reason) || !task.Truncated || task.ResultSize != tt.size || len(task.History) != 1 {
			t.Errorf("%s %d: %q, truncated %v, %d bytes, %d attempts", tt.kind, tt.max, task.Reason, task.Truncated, task.ResultSize, len(task.History))
		}
		reported := false
		for _, e := range task.Events {
			reported = reported || e.State == tt.state && strings.Contains(e.Cause, tt.reason[:20])
		}
		if !reported {
			t.Errorf("no event contains %q: %+v", tt.reason, task.Events)
		}
	}
}

// A kind whose program is missing is not offered, and its tasks wait at home; when the
// program is there they run without having used up an attempt.
func TestKindWithoutProgramIsNotOffered(t *testing.T) {
	a, b := pair(t, nil)
	program := filepath.Join(t.TempDir(), "prog")
	if err := b.Handlers.Add(t.Context(), wire.HandlerSpec{Kind: "late", Exec: []string{program}, Allow: []string{"peer:a"}, MaxAttempts: 1}); err != nil {
		t.Fatal(err)
	}
	if kinds := b.kinds(); len(kinds) != 0 {
		t.Errorf("%v are offered", kinds)
	}
	id := a.submit(t, wire.Request{Target: "b", Kind: "late"})
	var why wire.Blocker
	eventually(t, func() bool {
		why, _ = a.Explainer.Why(t.Context(), id)
		return strings.Contains(why.Cause.Detail, "cannot be started")
	}, func() string { return fmt.Sprintf("why: %+v", why.Cause) })
	if why.Cause.Code != wire.NoteRefusedProgram || why.Cause.Peer != "b" {
		t.Errorf("the cause is %+v", why.Cause)
	}
	if err := os.WriteFile(program, []byte("#!/bin/sh\necho here\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	b.Handlers.Check()
	if task := a.waitEnd(t, id, "SUCCESS"); task.Attempts != 1 || len(task.History) != 1 {
		t.Errorf("%d attempts, history %+v", task.Attempts, task.History)
	}
	if kinds := b.kinds(); len(kinds) != 1 {
		t.Errorf("%v are offered", kinds)
	}
}
