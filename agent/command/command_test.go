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

	"github.com/balefire/balefire/agent"
)

func TestExitCodes(t *testing.T) {
	tests := []struct {
		code int
		want agent.Outcome
	}{
		{0, agent.Success}, {1, agent.Retry}, {2, agent.Retry}, {64, agent.Retry}, {ExitFail, agent.Fail},
		{66, agent.Retry}, {ExitRetry, agent.Retry}, {126, agent.Retry}, {127, agent.Retry}, {137, agent.Retry}, {255, agent.Retry},
	}
	for _, tt := range tests {
		t.Run(strconv.Itoa(tt.code), func(t *testing.T) {
			res := run(t, Config{Exec: program(t, "exit", strconv.Itoa(tt.code))}, agent.Run{})
			if res.Outcome != tt.want || res.Code != tt.code {
				t.Errorf("result = %v, code %d, want %v, %d", res.Outcome, res.Code, tt.want, tt.code)
			}
			if string(res.Output) != "said before the end" || res.Stderr != "why it ended" {
				t.Errorf("output %q, stderr %q are not what it said", res.Output, res.Stderr)
			}
			if (res.Err == "") != (tt.want == agent.Success) {
				t.Errorf("err = %q", res.Err)
			}
		})
	}
}

func TestDeathBySignalIsACrash(t *testing.T) {
	res := run(t, Config{Exec: program(t, "die")}, agent.Run{})
	if runtime.GOOS != "windows" && (res.Outcome != agent.Crashed || res.Code != -1 || !strings.Contains(res.Err, "killed")) {
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
				res := run(t, cfg, agent.Run{Body: iotest.HalfReader(strings.NewReader(body)), Dir: t.TempDir()})
				got := res.Output
				if res.OutputFile != "" {
					var err error
					if got, err = os.ReadFile(res.OutputFile); err != nil {
						t.Fatal(err)
					}
				}
				if res.Outcome != agent.Success || string(got) != body || res.OutputSize != int64(len(body)) {
					t.Errorf("%s: %v, %d bytes (%d), want %d: %s %s", how, res.Outcome, len(got), res.OutputSize, len(body), res.Err, res.Stderr)
				}
			}
		})
	}
}

func TestProgramNeedNotReadItsBody(t *testing.T) {
	res := run(t, Config{Exec: program(t, "exit", "0")}, agent.Run{Body: io.LimitReader(zeros{}, 64<<20)})
	if res.Outcome != agent.Success {
		t.Errorf("result = %+v, want success", res)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// I9: a body that breaks off is never taken for a whole one.
func TestBrokenBodyHasNoEnd(t *testing.T) {
	m := newRendezvous(t)
	broken := errors.New("disk broke")
	results := make(chan agent.Result, 1)
	h := handler(t, Config{Exec: program(t, "consumed", m.addr())})
	rest, breakOff := io.Pipe()
	go func() {
		results <- agent.Call(t.Context(), h, agent.Run{Body: io.MultiReader(strings.NewReader("half"), rest)})
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
	if res := <-results; res.Outcome != agent.Retry || !strings.Contains(res.Err, "disk broke") {
		t.Errorf("result = %+v, want retry because the disk broke", res)
	}
	res := run(t, Config{Exec: program(t, "catfile"), PassBody: PassFile}, agent.Run{Body: iotest.ErrReader(broken), Dir: t.TempDir()})
	if res.Outcome != agent.Retry || !strings.Contains(res.Err, "disk broke") {
		t.Errorf("as a file: %+v, want retry because the disk broke", res)
	}
}

func TestLongOutputIsCutAndMarked(t *testing.T) {
	dir := t.TempDir()
	cfg := Config{Exec: program(t, "spew", "3000000", "stdout"), MaxOutput: 1 << 20, CutOutput: true}
	res := run(t, cfg, agent.Run{Dir: dir})
	info, err := os.Stat(res.OutputFile)
	if err != nil {
		t.Fatal(err)
	}
	if res.Outcome != agent.Success || !res.Truncated || info.Size() != 1<<20 || filepath.Dir(res.OutputFile) != dir {
		t.Errorf("%v, truncated %v, %d bytes in %s; want success with the first MiB in the run's folder", res.Outcome, res.Truncated, info.Size(), res.OutputFile)
	}
	res = run(t, Config{Exec: program(t, "spew", "100000", "stderr")}, agent.Run{})
	if len(res.Stderr) != agent.MaxStderr || !strings.HasSuffix(res.Stderr, "0123456789abcdef") {
		t.Errorf("%d bytes of stderr, want the last %d", len(res.Stderr), agent.MaxStderr)
	}
}

// A program that writes without end is stopped at its limit, and fails for good. What it
// wrote is kept.
func TestEndlessOutputIsStopped(t *testing.T) {
	dir := t.TempDir()
	res := run(t, Config{Exec: program(t, "spew", strconv.Itoa(1<<50), "stdout")}, agent.Run{Dir: dir, MaxOutput: 1 << 20})
	info, err := os.Stat(res.OutputFile)
	if err != nil {
		t.Fatal(err)
	}
	if res.Outcome != agent.Fail || !res.Truncated || info.Size() != 1<<20 || !strings.Contains(res.Err, "OUTPUT_TOO_LARGE") {
		t.Errorf("%v, truncated %v, %d bytes, %q; want fail with the first MiB", res.Outcome, res.Truncated, info.Size(), res.Err)
	}
}

func TestEnvironmentIsWhatIsListed(t *testing.T) {
	t.Setenv("BALEFIRE_TEST_SECRET", "must not be seen")
	t.Setenv("TEST_PASSED_ON", "yes")
	cfg := Config{
		Exec: program(t, "env"), Env: []string{"TEST_PASSED_ON", "TEST_MISSING", "FIXED=a=b", "OVER=config"},
		TaskEnv: []string{"WISH", "OVER"}, Node: "laptop",
	}
	res := run(t, cfg, agent.Run{
		ID: "0198", Attempt: 2, Epoch: "4.1", Kind: "k", Origin: "peer", IdempotencyKey: "key $(id)\n", Traceparent: "00-ab-cd-01",
		ContentType: "text/plain", Env: map[string]string{"WISH": "$HOME; id", "OVER": "task"},
	})
	var got map[string]string
	if err := json.Unmarshal(res.Output, &got); err != nil {
		t.Fatal(err, res)
	}
	want := map[string]string{
		"BALEFIRE_TASK_ID": "0198", "BALEFIRE_ATTEMPT": "2", "BALEFIRE_EPOCH": "4.1", "BALEFIRE_KIND": "k", "BALEFIRE_ORIGIN": "peer",
		"BALEFIRE_IDEMPOTENCY_KEY": "key $(id)\n", "TRACEPARENT": "00-ab-cd-01", "BALEFIRE_CONTENT_TYPE": "text/plain",
		"BALEFIRE_NODE": "laptop", "WISH": "$HOME; id", "OVER": "task", "TEST_PASSED_ON": "yes", "FIXED": "a=b",
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
		res := run(t, Config{Exec: program(t, "where"), Dir: tt.configured}, agent.Run{Dir: run1})
		if string(res.Output) != tt.want {
			t.Errorf("worked in %q, want %q", res.Output, tt.want)
		}
	}
	res := run(t, Config{Exec: program(t, "where"), Dir: filepath.Join(own, "missing")}, agent.Run{})
	if res.Outcome != agent.Unready || res.Err == "" {
		t.Errorf("result = %+v, want unready: the folder is missing", res)
	}
}

func TestMissingProgram(t *testing.T) {
	for _, name := range []string{"balefire-no-such-program", filepath.Join(t.TempDir(), "nothing")} {
		res := run(t, Config{Exec: []string{name}}, agent.Run{})
		if res.Outcome != agent.Unready || res.Code != -1 || !strings.Contains(res.Err, "install it") {
			t.Errorf("result = %+v, want unready with advice", res)
		}
	}
}

// S16: what this machine lacks to start a program spends no attempt of the task.
// What the task itself brought does.
func TestRunsThatNeverBegan(t *testing.T) {
	tests := []struct {
		name string
		err  error
		want agent.Outcome
	}{
		{"file descriptors of the process", os.NewSyscallError("pipe2", syscall.EMFILE), agent.Unready},
		{"file descriptors of the system", fmt.Errorf("start: %w", syscall.ENFILE), agent.Unready},
		{"processes", &os.PathError{Op: "fork/exec", Path: "/bin/true", Err: syscall.EAGAIN}, agent.Unready},
		{"memory", &os.PathError{Op: "fork/exec", Path: "/bin/true", Err: syscall.ENOMEM}, agent.Unready},
		{"room for the body's file", fmt.Errorf("save body: %w", syscall.ENOSPC), agent.Unready},
		{"the program", fmt.Errorf("%w: install it", ErrProgram), agent.Unready},
		{"the program's interpreter", &os.PathError{Op: "fork/exec", Path: "/opt/x", Err: syscall.ENOENT}, agent.Unready},
		{"words that are too many for the system", &os.PathError{Op: "fork/exec", Path: "/bin/true", Err: syscall.E2BIG}, agent.Retry},
		{"a body that cannot be read", fmt.Errorf("save body: %w: disk broke", errBody), agent.Retry},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			res := exitInfo{}.result(tt.err)
			if res.Outcome != tt.want || res.Code != -1 || res.Err == "" {
				t.Errorf("result = %+v, want %v with a reason", res, tt.want)
			}
		})
	}
}

func TestStoppedOutcomes(t *testing.T) {
	cfg := Config{Exec: program(t, "wait", ""), Timeout: 50 * time.Millisecond}
	if res := run(t, cfg, agent.Run{}); res.Outcome != agent.Timeout {
		t.Errorf("handler's timeout: %+v, want timeout", res)
	}
	cfg.Timeout = 0
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if res := agent.Call(ctx, handler(t, cfg), agent.Run{}); res.Outcome != agent.Timeout {
		t.Errorf("caller's deadline: %+v, want timeout", res)
	}
	ctx, cancel = context.WithCancel(t.Context())
	cfg.OnStart = func(int) { cancel() }
	if res := agent.Call(ctx, handler(t, cfg), agent.Run{}); res.Outcome != agent.Cancelled {
		t.Errorf("cancel: %+v, want cancelled", res)
	}
	started := false
	cfg.OnStart = func(int) { started = true }
	if res := agent.Call(ctx, handler(t, cfg), agent.Run{}); res.Outcome != agent.Cancelled || started {
		t.Errorf("cancelled before: %+v, started %v, want cancelled and not started", res, started)
	}
}

func TestProbe(t *testing.T) {
	h := handler(t, Config{Exec: program(t, "probe")})
	for key, want := range map[string]agent.ProbeResult{
		"0": agent.Done, "10": agent.NotDone, "1": agent.Unknown, "65": agent.Unknown, "137": agent.Unknown,
		"": agent.Unknown, "-1": agent.Unknown, "--help": agent.Unknown, "a\x00": agent.Unknown, "/c": agent.Unknown,
	} {
		if got := h.Probe(t.Context(), key); got != want {
			t.Errorf("probe of %q = %v, want %v", key, got, want)
		}
	}
	if got := handler(t, Config{Exec: []string{"balefire-no-such-program"}}).Probe(t.Context(), "0"); got != agent.Unknown {
		t.Errorf("without a program = %v, want unknown", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got := h.Probe(ctx, "0"); got != agent.Unknown {
		t.Errorf("cancelled = %v, want unknown", got)
	}
}

func TestManyRunsAtOnce(t *testing.T) {
	h := handler(t, Config{Exec: program(t, "cat")})
	const n = 24
	results := make(chan bool, n)
	for i := range n {
		go func() {
			body := bytes.Repeat([]byte{byte(i)}, 1000)
			res := agent.Call(t.Context(), h, agent.Run{Body: bytes.NewReader(body)})
			results <- res.Outcome == agent.Success && bytes.Equal(res.Output, body)
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
	h := handler(t, Config{Exec: words})
	words[3] = "65"
	if res := agent.Call(t.Context(), h, agent.Run{}); res.Outcome != agent.Success {
		t.Errorf("result = %+v, want what was configured", res)
	}
	if !slices.Equal(h.cfg.Env, DefaultEnv()) {
		t.Errorf("env = %v, want the default", h.cfg.Env)
	}
}

func BenchmarkRun(b *testing.B) {
	h := handler(b, Config{Exec: []string{"true"}})
	for b.Loop() {
		if res := agent.Call(b.Context(), h, agent.Run{}); res.Outcome != agent.Success {
			b.Fatal(res)
		}
	}
}
