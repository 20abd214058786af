package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/proto"
)

func TestExitCodes(t *testing.T) {
	tests := []struct {
		code int
		want handler.Outcome
	}{
		{0, handler.Success}, {1, handler.Retry}, {2, handler.Retry}, {64, handler.Retry}, {ExitFail, handler.Fail},
		{66, handler.Retry}, {ExitRetry, handler.Retry}, {126, handler.Retry}, {127, handler.Retry}, {137, handler.Retry}, {255, handler.Retry},
	}
	for _, tt := range tests {
		t.Run(strconv.Itoa(tt.code), func(t *testing.T) {
			res := run(t, Config{Exec: program(t, "exit", strconv.Itoa(tt.code))}, &handler.Run{})
			if res.Outcome != tt.want || res.Code != tt.code {
				t.Errorf("result = %v, code %d, want %v, %d", res.Outcome, res.Code, tt.want, tt.code)
			}
			if string(res.Output) != "said before the end" || res.Stderr != "why it ended" {
				t.Errorf("output %q, stderr %q are not what it wrote", res.Output, res.Stderr)
			}
			if (res.Reason == "") != (tt.want == handler.Success) {
				t.Errorf("err = %q", res.Reason)
			}
		})
	}
}

func TestDeathBySignalIsACrash(t *testing.T) {
	res := run(t, Config{Exec: program(t, "die")}, &handler.Run{})
	if runtime.GOOS != "windows" && (res.Outcome != handler.Crashed || res.Code != -1) {
		t.Errorf("result = %+v, want crashed by a signal", res)
	}
}

func TestBodyArrives(t *testing.T) {
	long := strings.Repeat("0123456789abcdef", 1<<16) // 1 MiB: more than a pipe holds
	for name, body := range map[string]string{"empty": "", "short": "hello\x00world\n", "long": long} {
		t.Run(name, func(t *testing.T) {
			for how, cfg := range map[string]Config{
				"stdin": {Exec: program(t, "cat")},
				"file":  {Exec: program(t, "catfile"), PassBody: PassFile},
				"word":  {Exec: program(t, "catfile", "{body}"), PassBody: PassFile},
			} {
				res := run(t, cfg, &handler.Run{Body: iotest.HalfReader(strings.NewReader(body)), Dir: t.TempDir()})
				got := res.Output
				if res.File != "" {
					var err error
					if got, err = os.ReadFile(res.File); err != nil {
						t.Fatal(err)
					}
				}
				if res.Outcome != handler.Success || string(got) != body || res.Size != int64(len(body)) {
					t.Errorf("%s: %v, %d bytes (%d), want %d: %s %s", how, res.Outcome, len(got), res.Size, len(body), res.Reason, res.Stderr)
				}
			}
		})
	}
}

func TestProgramNeedNotReadItsBody(t *testing.T) {
	res := run(t, Config{Exec: program(t, "exit", "0")}, &handler.Run{Body: io.LimitReader(zeros{}, 64<<20)})
	if res.Outcome != handler.Success {
		t.Errorf("result = %+v, want success", res)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// I9: a body cut short is never taken for a complete one.
func TestBrokenBodyIsNotEOF(t *testing.T) {
	m := newRendezvous(t)
	broken := errors.New("disk broke")
	results := make(chan *handler.Result, 1)
	h := newHandler(t, Config{Exec: program(t, "consumed", m.addr())})
	rest, breakOff := io.Pipe()
	go func() {
		results <- handler.Call(t.Context(), h, &handler.Run{Body: io.MultiReader(strings.NewReader("half"), rest)})
	}()
	guest := m.await(t, 1)[0]
	if err := breakOff.CloseWithError(broken); err != nil {
		t.Fatal(err)
	}
	outputDone, err := io.ReadAll(guest.conn)
	if err != nil && !strings.Contains(err.Error(), "reset") {
		t.Error(err)
	}
	if len(outputDone) > 0 {
		t.Errorf("the program saw its input end: %q", outputDone)
	}
	if res := <-results; res.Outcome != handler.Retry || !strings.Contains(res.Reason, "disk broke") {
		t.Errorf("result = %+v, want retry because the disk broke", res)
	}
	res := run(t, Config{Exec: program(t, "catfile"), PassBody: PassFile}, &handler.Run{Body: iotest.ErrReader(broken), Dir: t.TempDir()})
	if res.Outcome != handler.Retry || !strings.Contains(res.Reason, "disk broke") {
		t.Errorf("as a file: %+v, want retry because the disk broke", res)
	}
}

func TestLongOutputIsCutAndMarked(t *testing.T) {
	dir := t.TempDir()
	cfg := Config{Exec: program(t, "spew", "3000000", "stdout"), MaxOutput: 1 << 20, CutOutput: true}
	res := run(t, cfg, &handler.Run{Dir: dir})
	info, err := os.Stat(res.File)
	if err != nil {
		t.Fatal(err)
	}
	if res.Outcome != handler.Success || !res.Truncated || info.Size() != 1<<20 || filepath.Dir(res.File) != dir {
		t.Errorf("%v, truncated %v, %d bytes in %s; want success with the first MiB in the run's folder", res.Outcome, res.Truncated, info.Size(), res.File)
	}
	res = run(t, Config{Exec: program(t, "spew", "100000", "stderr")}, &handler.Run{})
	if len(res.Stderr) != proto.MaxStderr || !strings.HasSuffix(res.Stderr, "0123456789abcdef") {
		t.Errorf("%d bytes of stderr, want the last %d", len(res.Stderr), proto.MaxStderr)
	}
}

// A program that writes without end is stopped at its limit and fails permanently. Its
// output up to the limit is kept.
func TestEndlessOutputIsStopped(t *testing.T) {
	dir := t.TempDir()
	res := run(t, Config{Exec: program(t, "spew", strconv.Itoa(1<<50), "stdout")}, &handler.Run{Dir: dir, MaxOutput: 1 << 20})
	info, err := os.Stat(res.File)
	if err != nil {
		t.Fatal(err)
	}
	if res.Outcome != handler.Fail || !res.Truncated || info.Size() != 1<<20 {
		t.Errorf("%v, truncated %v, %d bytes, %q; want fail with the first MiB", res.Outcome, res.Truncated, info.Size(), res.Reason)
	}
}

var testTask = proto.TaskID{0: 1, 15: 0x98}

func TestEnvironmentIsWhatIsListed(t *testing.T) {
	t.Setenv("BALEFIRE_TEST_SECRET", "must not be seen")
	t.Setenv("TEST_PASSED_ON", "yes")
	cfg := Config{
		Exec: program(t, "env"), Env: []string{"TEST_PASSED_ON", "TEST_MISSING", "FIXED=a=b", "OVER=config"},
		Node: "laptop",
	}
	res := run(t, cfg, &handler.Run{
		ID: testTask, Attempt: 2, Epoch: proto.Seq{Boot: 4, Counter: 1}, Origin: proto.PeerID{1},
		Content: &proto.Content{Kind: "k", IdempotencyKey: "key $(id)\n", Traceparent: "00-ab-cd-01", ContentType: "text/plain"},
	})
	var got map[string]string
	if err := json.Unmarshal(res.Output, &got); err != nil {
		t.Fatal(err, res)
	}
	want := map[string]string{
		"BALEFIRE_TASK_ID": testTask.String(), "BALEFIRE_ATTEMPT": "2", "BALEFIRE_EPOCH": "4.1", "BALEFIRE_KIND": "k", "BALEFIRE_ORIGIN": proto.PeerID{1}.String(),
		"BALEFIRE_IDEMPOTENCY_KEY": "key $(id)\n", "TRACEPARENT": "00-ab-cd-01", "BALEFIRE_CONTENT_TYPE": "text/plain",
		"BALEFIRE_NODE": "laptop", "OVER": "config", "TEST_PASSED_ON": "yes", "FIXED": "a=b",
	}
	if len(got["BALEFIRE_RUN"]) != 32 {
		t.Errorf("BALEFIRE_RUN = %q, want 32 hex digits", got["BALEFIRE_RUN"])
	}
	delete(got, "BALEFIRE_RUN")
	delete(got, "SYSTEMROOT") // Windows adds it
	for name, value := range want {
		if got[name] != value {
			t.Errorf("%s = %q, want %q", name, got[name], value)
		}
		delete(got, name)
	}
	if len(got) > 0 {
		t.Errorf("the program also saw %v", got)
	}
}

func TestWorkingDirectory(t *testing.T) {
	own, run1 := t.TempDir(), t.TempDir()
	for _, tt := range []struct{ configured, want string }{{"", run1}, {own, own}} {
		res := run(t, Config{Exec: program(t, "where"), Dir: tt.configured}, &handler.Run{Dir: run1})
		if string(res.Output) != tt.want {
			t.Errorf("worked in %q, want %q", res.Output, tt.want)
		}
	}
	res := run(t, Config{Exec: program(t, "where"), Dir: filepath.Join(own, "missing")}, &handler.Run{})
	if res.Outcome != handler.Unready || res.Reason == "" {
		t.Errorf("result = %+v, want unready: the folder is missing", res)
	}
}

func TestMissingProgram(t *testing.T) {
	for _, name := range []string{"balefire-no-such-program", filepath.Join(t.TempDir(), "nothing")} {
		res := run(t, Config{Exec: []string{name}}, &handler.Run{})
		if res.Outcome != handler.Unready || res.Code != -1 || res.Reason == "" {
			t.Errorf("result = %+v, want unready with a reason", res)
		}
	}
}

// S16: a start that fails because of this machine does not use up an attempt of the task.
// One that fails because of the task does.
func TestRunsThatNeverStarted(t *testing.T) {
	tests := []struct {
		name string
		err  error
		want handler.Outcome
	}{
		{"file descriptors of the process", os.NewSyscallError("pipe2", syscall.EMFILE), handler.Unready},
		{"file descriptors of the system", fmt.Errorf("start: %w", syscall.ENFILE), handler.Unready},
		{"processes", &os.PathError{Op: "fork/exec", Path: "/bin/true", Err: syscall.EAGAIN}, handler.Unready},
		{"memory", &os.PathError{Op: "fork/exec", Path: "/bin/true", Err: syscall.ENOMEM}, handler.Unready},
		{"room for the body's file", fmt.Errorf("save body: %w", syscall.ENOSPC), handler.Unready},
		{"the program", fmt.Errorf("%w: install it", ErrProgram), handler.Unready},
		{"the program's interpreter", &os.PathError{Op: "fork/exec", Path: "/opt/x", Err: syscall.ENOENT}, handler.Unready},
		{"words that are too many for the system", &os.PathError{Op: "fork/exec", Path: "/bin/true", Err: syscall.E2BIG}, handler.Retry},
		{"a body that cannot be read", fmt.Errorf("save body: %w: disk broke", errBody), handler.Retry},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			res := exitInfo{}.result(tt.err)
			if res.Outcome != tt.want || res.Code != -1 || res.Reason == "" {
				t.Errorf("result = %+v, want %v with a reason", res, tt.want)
			}
		})
	}
}

func TestStoppedOutcomes(t *testing.T) {
	cfg := Config{Exec: program(t, "wait", ""), Timeout: 50 * time.Millisecond}
	if res := run(t, cfg, &handler.Run{}); res.Outcome != handler.Timeout {
		t.Errorf("handler's timeout: %+v, want timeout", res)
	}
	cfg.Timeout = 0
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if res := handler.Call(ctx, newHandler(t, cfg), &handler.Run{}); res.Outcome != handler.Timeout {
		t.Errorf("caller's deadline: %+v, want timeout", res)
	}
	ctx, cancel = context.WithCancel(t.Context())
	cfg.onStart = func(int) { cancel() }
	if res := handler.Call(ctx, newHandler(t, cfg), &handler.Run{}); res.Outcome != handler.Cancelled {
		t.Errorf("cancel: %+v, want cancelled", res)
	}
	started := false
	cfg.onStart = func(int) { started = true }
	if res := handler.Call(ctx, newHandler(t, cfg), &handler.Run{}); res.Outcome != handler.Cancelled || started {
		t.Errorf("cancelled before: %+v, started %v, want cancelled and not started", res, started)
	}
}

func TestProbe(t *testing.T) {
	h := newHandler(t, Config{Exec: program(t, "probe")})
	for key, want := range map[string]handler.ProbeResult{
		"0": handler.Done, "10": handler.NotDone, "1": handler.Unknown, "65": handler.Unknown, "137": handler.Unknown,
		"": handler.Unknown, "-1": handler.Unknown, "--help": handler.Unknown, "a\x00": handler.Unknown, "/c": handler.Unknown,
	} {
		if got := h.Probe(t.Context(), keyed(key)); got != want {
			t.Errorf("probe of %q = %v, want %v", key, got, want)
		}
	}
	if got := newHandler(t, Config{Exec: []string{"balefire-no-such-program"}}).Probe(t.Context(), keyed("0")); got != handler.NotAsked {
		t.Errorf("without a program = %v, want not asked", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got := h.Probe(ctx, keyed("0")); got != handler.Unknown {
		t.Errorf("cancelled = %v, want unknown", got)
	}
}

func TestManyRunsAtOnce(t *testing.T) {
	h := newHandler(t, Config{Exec: program(t, "cat")})
	const n = 24
	results := make(chan bool, n)
	for i := range n {
		go func() {
			body := bytes.Repeat([]byte{byte(i)}, 1000)
			res := handler.Call(t.Context(), h, &handler.Run{Body: bytes.NewReader(body)})
			results <- res.Outcome == handler.Success && bytes.Equal(res.Output, body)
		}()
	}
	for range n {
		if !<-results {
			t.Error("a run got another one's output")
		}
	}
}

func TestConfigIsCopied(t *testing.T) {
	words := program(t, "exit", "0")
	h := newHandler(t, Config{Exec: words})
	words[3] = "65"
	if res := handler.Call(t.Context(), h, &handler.Run{}); res.Outcome != handler.Success {
		t.Errorf("result = %+v, want the configured output", res)
	}
	if !slices.Equal(h.cfg.Env, DefaultEnv()) {
		t.Errorf("env = %v, want the default", h.cfg.Env)
	}
}

func BenchmarkRun(b *testing.B) {
	h := newHandler(b, Config{Exec: []string{"true"}})
	for b.Loop() {
		if res := handler.Call(b.Context(), h, &handler.Run{}); res.Outcome != handler.Success {
			b.Fatal(res)
		}
	}
}

// keyed is a run whose task has an idempotency key.
func keyed(key string) *handler.Run {
	return &handler.Run{Content: &proto.Content{IdempotencyKey: key}}
}
