package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// The outputs of all runs together stay above the reserve, with space left for the
// sealed copy that the end of each task creates (I13).
func TestOutputsShareSpaceAboveReserve(t *testing.T) {
	disk := struct{ free, reserve int64 }{free: 1000, reserve: 200}
	o := newOutputLimiter(func() (int64, int64, bool) { return disk.free, disk.reserve, true })
	write := func(s *runOutput, n int64) bool {
		if !s.Reserve(n) {
			return false
		}
		disk.free -= n
		s.Settle(n, n)
		return true
	}
	a, b := o.newOutput(), o.newOutput()
	total := int64(0)
	for i := 0; ; i++ {
		if !write([]*runOutput{a, b}[i%2], 10) {
			break
		}
		total += 10
	}
	if total != 400 || disk.free-total < disk.reserve {
		t.Fatalf("%d bytes were written, %d are free: want half of the 800 above the reserve", total, disk.free)
	}
	path := filepath.Join(t.TempDir(), "out")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	a.handOver(path)
	a.release()
	if write(b, 10) {
		t.Error("output that waits to be sealed no longer counts")
	}
	if err := os.Remove(path); err != nil { // sealed: 200 bytes in a blob instead
		t.Fatal(err)
	}
	b.release() // its folder is removed
	disk.free += 200
	if !write(b, 300) || write(b, 10) {
		t.Errorf("%d bytes are free, the reserve is %d: want space for exactly 300, twice", disk.free, disk.reserve)
	}
	b.release()
	disk.free += 300
	if o.written != 0 || o.taken != 0 || len(o.files) != 0 {
		t.Errorf("%d written, %d taken, files %v; want nothing left", o.written, o.taken, o.files)
	}
}

// A task that was stopped for lack of space restarts when there is space for everything
// that it may write.
func TestStarvedTaskWaitsForSpace(t *testing.T) {
	free := int64(1000)
	o := newOutputLimiter(func() (int64, int64, bool) { return free, 200, true })
	id, other := proto.TaskID{1}, proto.TaskID{2}
	if err := o.mustWait(id, 1e6); err != nil {
		t.Errorf("a task that was never stopped waits: %v", err)
	}
	o.noteStarved(id)
	if err := o.mustWait(id, 401); err == nil || !strings.Contains(err.Error(), "401 bytes") {
		t.Errorf("waits = %v, want a reason", err)
	}
	if err := o.mustWait(other, 1e6); err != nil {
		t.Errorf("another task waits: %v", err)
	}
	free = 1002
	if err := o.mustWait(id, 401); err != nil {
		t.Errorf("with space for it: %v", err)
	}
	if err := o.mustWait(id, 1e6); err != nil {
		t.Errorf("still waiting after its restart: %v", err)
	}
}

// Output beyond its limit fails the task at once with that reason, also at home; with
// on_overflow cut the task succeeds with truncated output.
func TestTooLargeOutput(t *testing.T) {
	a, b := pair(t, nil)
	for kind, overflow := range map[string]string{"strict": "", "head": "cut"} {
		if err := b.AddHandler(t.Context(), wire.HandlerSpec{Kind: kind, Exec: []string{"head", "-c", "3000000", "/dev/zero"}, Allow: []string{"peer:a"}, MaxOutput: 1 << 20, OnOverflow: overflow}); err != nil {
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
	if err := b.AddHandler(t.Context(), wire.HandlerSpec{Kind: "late", Exec: []string{program}, Allow: []string{"peer:a"}, MaxAttempts: 1}); err != nil {
		t.Fatal(err)
	}
	if kinds := b.kinds(); len(kinds) != 0 {
		t.Errorf("%v are offered", kinds)
	}
	id := a.submit(t, wire.Request{Target: "b", Kind: "late"})
	var why wire.Blocker
	eventually(t, func() bool {
		why, _ = a.Why(t.Context(), id)
		return strings.Contains(why.Cause, "cannot be started")
	}, func() string { return "why: " + why.Cause })
	if !strings.Contains(why.Fix, "install the program on b") {
		t.Errorf("the fix is %q", why.Fix)
	}
	if err := os.WriteFile(program, []byte("#!/bin/sh\necho here\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	b.checkPrograms()
	if task := a.waitEnd(t, id, "SUCCESS"); task.Attempts != 1 || len(task.History) != 1 {
		t.Errorf("%d attempts, history %+v", task.Attempts, task.History)
	}
	if kinds := b.kinds(); len(kinds) != 1 {
		t.Errorf("%v are offered", kinds)
	}
}
