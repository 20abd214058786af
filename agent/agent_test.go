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

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/proto"
)

func TestBuiltins(t *testing.T) {
	tests := []struct {
		name    string
		handler handler.Handler
		body    string
		want    string
	}{
		{"discard returns nothing", Discard{}, "hello", ""},
		{"echo returns its input", Echo{}, "hello", "hello"},
		{"echo of nothing", Echo{}, "", ""},
		{"hash of nothing", Hash{}, "", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
		{"hash", Hash{}, "hello", "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			res := handler.Call(t.Context(), tt.handler, &handler.Run{Body: strings.NewReader(tt.body)})
			if res.Outcome != handler.Success || string(res.Output) != tt.want || res.Size != int64(len(tt.want)) || res.Truncated {
				t.Errorf("result = %+v, want success with %q", res, tt.want)
			}
		})
	}
}

func TestBuiltinsStopWithTheirContext(t *testing.T) {
	for _, h := range []handler.Handler{Discard{}, Echo{}, Hash{}} {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if res := handler.Call(ctx, h, &handler.Run{Body: strings.NewReader("x")}); res.Outcome != handler.Cancelled || res.Reason == "" {
			t.Errorf("%T: %+v, want cancelled", h, res)
		}
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			time.Sleep(2 * time.Second) // virtual
			if res := handler.Call(ctx, h, &handler.Run{Body: strings.NewReader("x")}); res.Outcome != handler.Timeout {
				t.Errorf("%T: %+v, want timeout", h, res)
			}
		})
	}
}

// I9: a body that cannot be read completely is not used.
func TestTruncatedBodyIsNotASuccess(t *testing.T) {
	broken := errors.New("disk broke")
	for _, h := range []handler.Handler{Discard{}, Echo{}, Hash{}} {
		res := handler.Call(t.Context(), h, &handler.Run{Body: io.MultiReader(strings.NewReader("half"), iotest.ErrReader(broken))})
		if res.Outcome != handler.Retry || !strings.Contains(res.Reason, "disk broke") {
			t.Errorf("%T: %+v, want retry because the disk broke", h, res)
		}
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
		{"a short output stays in memory", 100, 0, true, false, 100, false},
		{"the most that stays in memory", proto.MaxInlineBody, 0, true, false, proto.MaxInlineBody, false},
		{"one more byte goes to a file", proto.MaxInlineBody + 1, 0, true, true, proto.MaxInlineBody + 1, false},
		{"exactly the limit", 1 << 20, 1 << 20, true, true, 1 << 20, false},
		{"one byte over the limit", 1<<20 + 1, 1 << 20, true, true, 1 << 20, true},
		{"limit below a write", 100, 10, true, false, 10, true},
		{"no folder, all in memory", proto.MaxInlineBody * 2, 0, false, false, proto.MaxInlineBody * 2, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := ""
			if tt.dir {
				dir = t.TempDir()
			}
			body := bytes.Repeat([]byte("0123456789abcdef"), tt.size/16+1)[:tt.size]
			o := NewOutput(&handler.Run{Dir: dir}, OutputConfig{Max: tt.max, Cut: true})
			for rest := body; len(rest) > 0; {
				n := min(len(rest), 1000)
				if m, err := o.Write(rest[:n]); m != n || err != nil {
					t.Fatalf("write = %d, %v", m, err)
				}
				rest = rest[n:]
			}
			var res handler.Result
			o.Into(&res)
			got := res.Output
			if res.File != "" {
				var err error
				if got, err = os.ReadFile(res.File); err != nil {
					t.Fatal(err)
				}
			}
			if !bytes.Equal(got, body[:tt.want]) || res.Size != int64(tt.want) {
				t.Errorf("%d bytes kept, size %d, want the first %d", len(got), res.Size, tt.want)
			}
			if (res.File != "") != tt.file || res.Truncated != tt.truncated {
				t.Errorf("file %q, truncated %v, want %v, %v", res.File, res.Truncated, tt.file, tt.truncated)
			}
		})
	}
}

// A run whose output cannot be written does not succeed, and the cause is reported.
func TestOutputThatCannotBeKept(t *testing.T) {
	res := handler.Call(t.Context(), Echo{}, &handler.Run{Body: bytes.NewReader(make([]byte, proto.MaxInlineBody*2)), Dir: t.TempDir() + "/missing"})
	if res.Outcome != handler.Retry || !res.Truncated || res.Reason == "" {
		t.Errorf("result = %v %v %q, want retry, truncated, and why", res.Outcome, res.Truncated, res.Reason)
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

// Output beyond its limit stops a run permanently; output without disk space stops it for
// a retry. The lower of the two limits applies.
func TestOutputBeyondItsLimit(t *testing.T) {
	tests := []struct {
		name    string
		size    int
		max     int64
		task    int64
		cut     bool
		room    int64
		outcome handler.Outcome
		kept    int64
		says    string
	}{
		{"within both limits", 1000, 1000, 1000, false, 0, handler.Success, 1000, ""},
		{"beyond the handler's", 1001, 1000, 5000, false, 0, handler.Fail, 1000, "OUTPUT_TOO_LARGE: more than 1000 bytes of output (max_output of the handler)"},
		{"beyond the task's", 1001, 5000, 1000, false, 0, handler.Fail, 1000, "OUTPUT_TOO_LARGE: more than 1000 bytes of output (max_result of the task)"},
		{"beyond it, when a truncated output is enough", 1001, 1000, 0, true, 0, handler.Success, 1000, "cut off after 1000 bytes (max_output"},
		{"a file within the disk space", 3 * proto.MaxInlineBody, 0, 0, false, 3 * proto.MaxInlineBody, handler.Success, 3 * proto.MaxInlineBody, ""},
		{"no space for a file", 3 * proto.MaxInlineBody, 0, 0, false, 2 * proto.MaxInlineBody, handler.NoSpace, 2 * proto.MaxInlineBody, "NO_ROOM"},
		{"no space, when a truncated output is enough", 3 * proto.MaxInlineBody, 0, 0, true, 2 * proto.MaxInlineBody, handler.NoSpace, 2 * proto.MaxInlineBody, "NO_ROOM"},
		{"output in memory takes no disk space", proto.MaxInlineBody, 0, 0, false, 1, handler.Success, proto.MaxInlineBody, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := &handler.Run{Dir: t.TempDir(), MaxOutput: tt.task}
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
			res := handler.Result{Outcome: handler.Success}
			o.Into(&res)
			fatal := tt.outcome != handler.Success
			if res.Outcome != tt.outcome || res.Size != tt.kept || !strings.Contains(res.Reason, tt.says) || (tt.says == "") != (res.Reason == "") || (stopped == 1) != fatal {
				t.Errorf("%v, %d bytes, %q, stopped %d times; want %v, %d, %q", res.Outcome, res.Size, res.Reason, stopped, tt.outcome, tt.kept, tt.says)
			}
			if res.Truncated != (tt.says != "") || rm.taken != 0 {
				t.Errorf("truncated %v, %d reserved bytes are neither written nor released", res.Truncated, rm.taken)
			}
		})
	}
	o := NewOutput(&handler.Run{}, OutputConfig{Max: 1})
	if _, err := o.Write([]byte("ab")); err != nil {
		t.Fatal(err)
	}
	res := handler.Result{Outcome: handler.Fail, Reason: "exit code 65"}
	if o.Into(&res); res.Outcome != handler.Fail || res.Reason != "exit code 65" || !res.Truncated {
		t.Errorf("%+v, want the program's own failure", res)
	}
}

func TestWords(t *testing.T) {
	var none handler.Outcome
	if none == handler.Success || none.String() != "none" || handler.Crashed.String() != "crashed" || handler.Outcome(99).String() != "outcome(99)" {
		t.Error("outcomes have wrong names")
	}
	var v handler.ProbeResult
	if v.String() != "unknown" || handler.Done.String() != "done" || handler.NotDone.String() != "not done" {
		t.Error("probe results have wrong names")
	}
}
