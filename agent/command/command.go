// Package command runs a program of this machine as a handler. The program and its
// fixed arguments come from this node's configuration; a task adds nothing to them
// unless the configuration allows it. There is no shell in between, and when Run
// returns no process of the run is left.
//
//	argv   Exec… [task args, if AllowArgs]
//	stdin  the body, or nothing and BALEFIRE_BODY_FILE (PassFile; a fixed argument {body} becomes its path)
//	env    the allowed names, and
//	       BALEFIRE_TASK_ID _ATTEMPT _EPOCH _IDEMPOTENCY_KEY _KIND _ORIGIN _CONTENT_TYPE _RUN _NODE, TRACEPARENT
//	exit   0 success · 65 permanent failure · 75 retry · other: retry, an attempt spent · killed by a signal: crashed
//	stdout the output; a program that exceeds its limit is stopped, unless CutOutput keeps the beginning
//	stderr its last 4 KiB are kept
//
// To stop a run: SIGTERM to every process of the run, after Grace SIGKILL, then
// wait until all have exited. Processes that the program leaves behind
// when it ends are stopped in the same way. The processes of a run are its
// session and, on Linux, also those that left it but carry its BALEFIRE_RUN in
// their environment; a process that leaves the session and wipes its
// environment is not found. On Windows they are a job object.
package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/balefire/balefire/agent"
	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/proto"
)

// Pass sets how the program receives the body.
type Pass int

// The ways of passing a body.
const (
	PassStdin Pass = iota // on standard input
	PassFile              // as a file in the run's folder
)

// Config sets which program is run and what a task may pass to it. Only Exec is
// required; the zero value of each other field means its default.
type Config struct {
	Exec       []string      // the program, absolute or found on PATH, and its fixed arguments
	AllowArgs  bool          // append the task's arguments; default: a task with arguments is refused
	AllowFlags bool          // let these begin with '-'; default: a task with such an argument is refused
	PassBody   Pass          // default PassStdin
	Timeout    time.Duration // of one run; default 10 min, negative: none
	Grace      time.Duration // between SIGTERM and SIGKILL; default 5s
	MaxOutput  int64         // bytes of output kept; default 10 MiB
	CutOutput  bool          // output beyond it is dropped; default: the program is stopped and the run fails permanently
	Env        []string      // NAME: passed on from the node; NAME=VALUE: set; default see DefaultEnv
	Dir        string        // working directory; default the run's own folder
	RunAs      string        // USER[:GROUP] that the program runs as; default the node's own. See [MayRunAs]
	Node       string        // BALEFIRE_NODE, by which Reap finds processes left behind by a killed node

	onStart func(pid int) // tests: called when the program has started
}

func (c Config) withDefaults() Config {
	c.Timeout = cmp.Or(c.Timeout, 10*time.Minute)
	c.Grace = cmp.Or(c.Grace, 5*time.Second)
	if c.Env == nil {
		c.Env = DefaultEnv()
	}
	return c
}

// The errors to test for.
var (
	// ErrArgs and ErrEnv refuse a task's request. No retry changes that.
	ErrArgs = errors.New("command: arguments refused")
	ErrEnv  = errors.New("command: environment refused")
	// ErrProgram means that this node cannot run the handler's program. Its operator
	// can change that.
	ErrProgram = errors.New("command: program cannot be run")
)

// Exit codes with a meaning, as in sysexits.h.
const (
	ExitFail  = 65 // EX_DATAERR: never try again
	ExitRetry = 75 // EX_TEMPFAIL: try again
)

// A Handler runs one program for each run. It is safe for concurrent use.
type Handler struct {
	cfg Config
}

var _ interface {
	handler.Handler
	handler.Prober
	handler.Admitter
} = (*Handler)(nil)

// New checks cfg and returns the handler. It runs nothing, and the program
// need not be installed yet.
func New(cfg Config) (*Handler, error) {
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("command handler: %w", err)
	}
	cfg = cfg.withDefaults()
	cfg.Exec, cfg.Env = slices.Clone(cfg.Exec), slices.Clone(cfg.Env)
	return &Handler{cfg: cfg}, nil
}

// Run implements [handler.Handler].
func (h *Handler) Run(ctx context.Context, r *handler.Run) *handler.Result {
	err := h.Admit(r.Content)
	for name, value := range r.Env {
		if bad := checkText(value); bad != nil {
			err = fmt.Errorf("%w: %s: %w", ErrEnv, name, bad)
		}
	}
	if err != nil {
		return &handler.Result{Outcome: handler.Fail, Code: -1, Reason: err.Error()}
	}
	if h.cfg.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, h.cfg.Timeout)
		defer cancel()
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	j, err := h.job(ctx, r)
	if err != nil {
		if ctx.Err() != nil { // while its body was written
			err = nil
		}
		return exitInfo{cause: context.Cause(ctx)}.result(err)
	}
	out := agent.NewOutput(r, agent.OutputConfig{Max: h.cfg.MaxOutput, Cut: h.cfg.CutOutput, Stop: stop})
	diag := &tail{max: proto.MaxStderr}
	j.stdout, j.stderr = out, diag
	end, err := j.run(ctx)
	res := end.result(err)
	out.Into(res)
	res.Stderr = diag.String()
	return res
}

// job builds what is to be started for r. It returns early when ctx ends.
func (h *Handler) job(ctx context.Context, r *handler.Run) (*job, error) {
	program, err := find(h.cfg.Exec[0])
	if err != nil {
		return nil, err
	}
	j := &job{
		argv: slices.Concat([]string{program}, h.cfg.Exec[1:], r.Content.GetArgs()), marker: newMarker(),
		grace: h.cfg.Grace, kill: r.Kill, onStart: h.cfg.onStart,
	}
	own, err := h.runAsUser(j, r.Dir)
	if err != nil {
		return nil, err
	}
	j.dir = cmp.Or(h.cfg.Dir, own)
	extra := map[string]string{"BALEFIRE_RUN": j.marker}
	if h.cfg.PassBody == PassFile {
		path, err := saveBody(ctx, r, own, j.account)
		if err != nil {
			return nil, err
		}
		extra["BALEFIRE_BODY_FILE"] = path
		for i := range h.cfg.Exec[1:] {
			if j.argv[i+1] == "{body}" {
				j.argv[i+1] = path
			}
		}
	} else {
		j.stdin = r.Body
	}
	j.env = h.environ(r, extra, j.account)
	return j, nil
}

// runAsUser sets the account of j, and returns the folder in that of the run which is for
// the program: nobody else may read it.
func (h *Handler) runAsUser(j *job, run string) (own string, err error) {
	if h.cfg.RunAs == "" {
		return run, nil
	}
	if j.account, err = accountOf(h.cfg.RunAs); err != nil || run == "" { // a probe has no folder
		return run, err
	}
	return j.account.makeFolder(run)
}

// Find returns an error, with what to do, if the program called name is not there now.
func Find(name string) error {
	_, err := find(name)
	return err
}

// find returns the path of the program called name.
func find(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%w: %w: install it or correct the handler's exec", ErrProgram, err)
	}
	return path, refuseBatch(path, runtime.GOOS)
}

// refuseBatch refuses what Windows would hand to cmd.exe, which reads words in
// its own way: no quoting is safe there.
func refuseBatch(path, goos string) error {
	ext := strings.ToLower(filepath.Ext(strings.TrimRight(path, ". ")))
	if goos == "windows" && (ext == ".bat" || ext == ".cmd") {
		return fmt.Errorf("%w: %s is a batch file: name an .exe", ErrProgram, path)
	}
	return nil
}
