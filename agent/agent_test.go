package agent

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"
)

func TestBuiltins(t *testing.T) {
	tests := []struct {
		name    string
		handler Handler
		body    string
		want    string
	}{
		{"discard says nothing", Discard{}, "hello", ""},
		{"echo says the same", Echo{}, "hello", "hello"},
		{"echo of nothing", Echo{}, "", ""},
		{"hash of nothing", Hash{}, "", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
		{"hash", Hash{}, "hello", "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			res := Call(t.Context(), tt.handler, Run{Body: strings.NewReader(tt.body)})
			if res.Outcome != Success || string(res.Output) != tt.want || res.OutputSize != int64(len(tt.want)) || res.Truncated {
				t.Errorf("result = %+v, want success with %q", res, tt.want)
			}
		})
	}
}

func TestBuiltinsEndWithTheirContext(t *testing.T) {
	for _, h := range []Handler{Discard{}, Echo{}, Hash{}} {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if res := Call(ctx, h, Run{Body: strings.NewReader("x")}); res.Outcome != Cancelled || res.Err == "" {
			t.Errorf("%T: %+v, want cancelled", h, res)
		}
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			time.Sleep(2 * time.Second) // virtual
			if res := Call(ctx, h, Run{Body: strings.NewReader("x")}); res.Outcome != Timeout {
				t.Errorf("%T: %+v, want timeout", h, res)
			}
		})
	}
}

// I9: a body that cannot be read to its end is no body.
func TestBodyThatBreaksOffIsNoSuccess(t *testing.T) {
	broken := errors.New("disk broke")
	for _, h := range []Handler{Discard{}, Echo{}, Hash{}} {
		res := Call(t.Context(), h, Run{Body: io.MultiReader(strings.NewReader("half"), iotest.ErrReader(broken))})
		if res.Outcome != Retry || !strings.Contains(res.Err, "disk broke") {
			t.Errorf("%T: %+v, want retry because the disk broke", h, res)
		}
	}
}

type panicking struct{}

func (panicking) Run(context.Context, Run) Result { panic("boom") }

// S16: poison ends its own run and nothing else.
func TestPanicIsACrash(t *testing.T) {
	res := Call(t.Context(), panicking{}, Run{})
	if res.Outcome != Crashed || !strings.Contains(res.Err, "boom") || !strings.Contains(res.Stderr, "panicking") {
		t.Errorf("result = %+v, want crashed with the stack", res)
	}
	if len(res.Stderr) > MaxStderr {
		t.Errorf("%d bytes of stack, want at most %d", len(res.Stderr), MaxStderr)
	}
}

type greedy struct{}

func (greedy) Run(_ context.Context, r Run) Result {
	r.Progress("half way")
	b, err := io.ReadAll(r.Body)
	return Result{Outcome: Success, Output: b, Err: errorText(err)}
}

func errorText(err error) string {
	if err != nil {
		return err.Error()
	}
	return ""
}

func TestCallMakesTheRunWhole(t *testing.T) {
	if res := Call(t.Context(), greedy{}, Run{}); res.Outcome != Success || res.Err != "" {
		t.Errorf("result = %+v, want success on an empty body", res)
	}
}

func TestOutput(t *testing.T) {
	tests := []struct {
		name      string
		size      int
		max       int64
		dir       bool
		file      bool
		want      int
		truncated bool
	}{
		{"little stays in memory", 100, 0, true, false, 100, false},
		{"the most that stays in memory", MaxInline, 0, true, false, MaxInline, false},
		{"one more byte goes to a file", MaxInline + 1, 0, true, true, MaxInline + 1, false},
		{"exactly the limit", 1 << 20, 1 << 20, true, true, 1 << 20, false},
		{"one byte over the limit", 1<<20 + 1, 1 << 20, true, true, 1 << 20, true},
		{"limit below a write", 100, 10, true, false, 10, true},
		{"no folder, all in memory", MaxInline * 2, 0, false, false, MaxInline * 2, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := ""
			if tt.dir {
				dir = t.TempDir()
			}
			body := bytes.Repeat([]byte("0123456789abcdef"), tt.size/16+1)[:tt.size]
			o := NewOutput(Run{Dir: dir}, OutputConfig{Max: tt.max, Cut: true})
			for rest := body; len(rest) > 0; {
				n := min(len(rest), 1000)
				if m, err := o.Write(rest[:n]); m != n || err != nil {
					t.Fatalf("write = %d, %v", m, err)
				}
				rest = rest[n:]
			}
			var res Result
			o.Into(&res)
			got := res.Output
			if res.OutputFile != "" {
				var err error
				if got, err = os.ReadFile(res.OutputFile); err != nil {
					t.Fatal(err)
				}
			}
			if !bytes.Equal(got, body[:tt.want]) || res.OutputSize != int64(tt.want) {
				t.Errorf("%d bytes kept, size %d, want the first %d", len(got), res.OutputSize, tt.want)
			}
			if (res.OutputFile != "") != tt.file || res.Truncated != tt.truncated {
				t.Errorf("file %q, truncated %v, want %v, %v", res.OutputFile, res.Truncated, tt.file, tt.truncated)
			}
		})
	}
}

// Output that cannot be written is no success, and the cause is told.
func TestOutputThatCannotBeKept(t *testing.T) {
	res := Call(t.Context(), Echo{}, Run{Body: bytes.NewReader(make([]byte, MaxInline*2)), Dir: t.TempDir() + "/missing"})
	if res.Outcome != Retry || !res.Truncated || !strings.Contains(res.Err, "keep output") {
		t.Errorf("result = %v %v %q, want retry, truncated, and why", res.Outcome, res.Truncated, res.Err)
	}
}

// A fakeQuota of so many bytes.
type fakeQuota struct{ left, taken int64 }

func (r *fakeQuota) Reserve(n int64) bool {
	if r.left < n {
		return false
	}
	r.left, r.taken = r.left-n, r.taken+n
	return true
}

func (r *fakeQuota) Settle(taken, _ int64) { r.taken -= taken }

// What a run writes beyond its limit stops it, for good; what finds no room on the disk
// stops it, to be made once more. The lower of the two limits counts.
func TestOutputBeyondItsLimit(t *testing.T) {
	tests := []struct {
		name    string
		size    int
		max     int64
		task    int64
		cut     bool
		room    int64
		outcome Outcome
		kept    int64
		says    string
	}{
		{"within both limits", 1000, 1000, 1000, false, 0, Success, 1000, ""},
		{"beyond the handler's", 1001, 1000, 5000, false, 0, Fail, 1000, "OUTPUT_TOO_LARGE: more than 1000 bytes of output (max_output of the handler)"},
		{"beyond the task's", 1001, 5000, 1000, false, 0, Fail, 1000, "OUTPUT_TOO_LARGE: more than 1000 bytes of output (max_result of the task)"},
		{"beyond it, and the beginning is enough", 1001, 1000, 0, true, 0, Success, 1000, "cut off after 1000 bytes (max_output"},
		{"a file within the room", 3 * MaxInline, 0, 0, false, 3 * MaxInline, Success, 3 * MaxInline, ""},
		{"no room for a file", 3 * MaxInline, 0, 0, false, 2 * MaxInline, NoSpace, 2 * MaxInline, "NO_ROOM"},
		{"no room, and the beginning would be enough", 3 * MaxInline, 0, 0, true, 2 * MaxInline, NoSpace, 2 * MaxInline, "NO_ROOM"},
		{"memory takes no room", MaxInline, 0, 0, false, 1, Success, MaxInline, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := Run{Dir: t.TempDir(), MaxOutput: tt.task}
			rm := &fakeQuota{left: tt.room}
			if tt.room > 0 {
				r.Quota = rm
			}
			stopped := 0
			o := NewOutput(r, OutputConfig{Max: tt.max, Cut: tt.cut, Stop: func(error) { stopped++ }})
			for range tt.size {
				if n, err := o.Write([]byte{'x'}); n != 1 || err != nil {
					t.Fatal(n, err)
				}
			}
			res := Result{Outcome: Success}
			o.Into(&res)
			fatal := tt.outcome != Success
			if res.Outcome != tt.outcome || res.OutputSize != tt.kept || !strings.Contains(res.Err, tt.says) || (tt.says == "") != (res.Err == "") || (stopped == 1) != fatal {
				t.Errorf("%v, %d bytes, %q, stopped %d times; want %v, %d, %q", res.Outcome, res.OutputSize, res.Err, stopped, tt.outcome, tt.kept, tt.says)
			}
			if res.Truncated != (tt.says != "") || rm.taken != 0 {
				t.Errorf("truncated %v, %d bytes of room are neither written nor given back", res.Truncated, rm.taken)
			}
		})
	}
	o := NewOutput(Run{}, OutputConfig{Max: 1})
	if _, err := o.Write([]byte("ab")); err != nil {
		t.Fatal(err)
	}
	res := Result{Outcome: Fail, Err: "exit code 65"}
	if o.Into(&res); res.Outcome != Fail || res.Err != "exit code 65" || !res.Truncated {
		t.Errorf("%+v, want the program's own no to stand", res)
	}
}

func TestWords(t *testing.T) {
	var none Outcome
	if none == Success || none.String() != "none" || Crashed.String() != "crashed" || Outcome(99).String() != "outcome(99)" {
		t.Error("outcomes are not named right")
	}
	var v ProbeResult
	if v.String() != "unknown" || Done.String() != "done" || NotDone.String() != "not done" {
		t.Error("verdicts are not named right")
	}
}
