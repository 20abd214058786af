package node

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/balefire/balefire/agent"
	"github.com/balefire/balefire/agent/command"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/store/journal"
)

// A worker runs an agent's handler for tasks of one kind: it gives each run a folder,
// records commands in the audit log and hands over large results as files.
type worker struct {
	node  *Node
	spec  HandlerSpec
	agent agent.Handler
	argv0 []string // the fixed words of a command; nil for a built-in type
	files bool     // a run needs a folder
}

// spec turns a handler's description into what the inbox registers.
func (n *Node) spec(s HandlerSpec) (inbox.Spec, error) {
	if err := s.Validate(); err != nil {
		return inbox.Spec{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	timeout, err := s.timeout()
	if err != nil {
		return inbox.Spec{}, err
	}
	if timeout == 0 {
		timeout = -1
	}
	out := inbox.Spec{
		Kind: s.Kind, Allow: allowed(s.Allow), Profile: inbox.Profile(s.Profile), Concurrency: s.Concurrency,
		MaxAttempts: s.MaxAttempts, MaxRetries: s.MaxRetries, SharedLanes: s.Lanes == LanesShared, OnCrash: inbox.OnCrash(s.OnCrash), Timeout: timeout, MaxBody: uint64(s.MaxBody),
	}
	w := worker{node: n, spec: s, files: true}
	switch cmp.Or(s.Type, TypeCommand) {
	case TypeDiscard:
		w.agent, w.files = agent.Discard{}, false
	case TypeEcho:
		w.agent = agent.Echo{MaxOutput: s.MaxOutput, CutOutput: s.OnOverflow == overflowCut}
	case TypeSHA256:
		w.agent, w.files = agent.Hash{}, false
	default:
		return n.commandSpec(out, w)
	}
	out.Handler, out.OnCrash = w, inbox.OnCrash(cmp.Or(s.OnCrash, string(inbox.OnCrashRetry)))
	return out, nil
}

func (n *Node) commandSpec(out inbox.Spec, w worker) (inbox.Spec, error) {
	s := w.spec
	cfg := command.Config{
		Exec: s.Exec, AllowArgs: s.Args, AllowFlags: s.AllowFlags, Env: s.Env, Dir: s.Dir, RunAs: s.RunAs,
		Timeout: -1, MaxOutput: s.MaxOutput, CutOutput: s.OnOverflow == overflowCut, Node: n.keys.Peer().String(),
	}
	if s.Body == "file" {
		cfg.PassBody = command.PassFile
	}
	h, err := command.New(cfg)
	if err != nil {
		return out, fmt.Errorf("%w: handler %s: %w", ErrInvalid, s.Kind, err)
	}
	w.agent, w.argv0 = h, s.Exec
	out.Handler = w
	if out.OnCrash == inbox.OnCrashProbe {
		out.Handler = prober{w, h}
	}
	return out, nil
}

// Run starts the agent once and returns when none of its processes run anymore.
func (w worker) Run(ctx context.Context, r *inbox.Run) *inbox.Result {
	dir, output := "", w.node.handlers.outputs.newOutput()
	defer output.release()
	if err := w.node.handlers.outputs.mustWait(r.ID, w.maxOutput(r)); err != nil {
		return &inbox.Result{Outcome: inbox.Unready, ExitCode: -1, Reason: err.Error()}
	}
	if w.files {
		var err error
		if dir, err = w.node.runFolder(r, w.spec.RunAs != ""); err != nil {
			return &inbox.Result{Outcome: inbox.Unready, ExitCode: -1, Reason: err.Error()}
		}
		defer func() {
			if err := command.RemoveAll(dir); err != nil {
				w.node.log.Warn("the folder of a run could not be removed; it stays until the next start", "task", r.ID.String(), "err", err)
			}
		}()
	}
	in := w.input(r, dir)
	in.Quota = output
	if err := w.audit(ctx, "command.start", in, nil); err != nil {
		return &inbox.Result{Outcome: inbox.Unready, ExitCode: -1, Reason: fmt.Sprintf("the audit log could not be written, so nothing was started: %v", err)}
	}
	res := agent.Call(ctx, w.agent, in)
	if err := w.audit(context.WithoutCancel(ctx), "command.end", in, &res); err != nil {
		w.node.log.Error("the end of a command could not be written to the audit log", "task", in.ID, "err", err)
	}
	if res.Outcome == agent.NoSpace {
		w.node.handlers.outputs.noteStarved(r.ID)
	}
	return w.node.runResult(r, output, res)
}

// maxOutput is how many bytes a run may write: the limit of the handler or of the
// task, whichever is smaller.
func (w worker) maxOutput(r *inbox.Run) int64 {
	limit := cmp.Or(w.spec.MaxOutput, agent.DefaultMaxOutput)
	if task := taskLimit(r); task > 0 {
		return min(limit, task)
	}
	return limit
}

func taskLimit(r *inbox.Run) int64 {
	return int64(min(r.Content.GetMaxResult(), math.MaxInt64))
}

func (w worker) input(r *inbox.Run, dir string) agent.Run {
	return agent.Run{
		ID: r.ID.String(), Attempt: int(r.Attempt), Epoch: fmt.Sprintf("%d.%d", r.Epoch.Boot, r.Epoch.Counter),
		Kind: r.Content.GetKind(), Origin: r.Origin.String(), IdempotencyKey: r.Content.GetIdempotencyKey(),
		Traceparent: r.Content.GetTraceparent(), ContentType: r.Content.GetContentType(), Args: r.Content.GetArgs(),
		Body: r.Body, BodySize: r.BodySize, Dir: dir, Kill: r.Kill, MaxOutput: taskLimit(r),
	}
}

// audit records the start or the end of a command. A built-in handler runs no program,
// so nothing is recorded.
func (w worker) audit(ctx context.Context, action string, in agent.Run, res *agent.Result) error {
	if w.argv0 == nil {
		return nil
	}
	argv := append(append([]string{}, w.argv0...), in.Args...)
	e := journal.Entry{
		Boot: w.node.outbox.Boot(), Actor: in.Origin, Action: action, Task: in.ID, Attempt: in.Attempt, Epoch: in.Epoch,
		ArgvHash: journal.HashArgv(argv), Argv: journal.Redact(argv, len(w.argv0)), Detail: map[string]string{"kind": in.Kind},
	}
	if res != nil {
		e.Exit, e.Detail["outcome"] = &res.Code, res.Outcome.String()
	}
	_, err := w.node.storage.journal.Append(ctx, e)
	return err
}

// A prober is a worker whose program can report whether the work of a key was done.
type prober struct {
	worker
	agent agent.Prober
}

// Probe asks the program.
func (p prober) Probe(ctx context.Context, r *inbox.Run) inbox.Probe {
	key := cmp.Or(r.Content.GetIdempotencyKey(), r.ID.String())
	switch p.agent.Probe(ctx, key) {
	case agent.Done:
		return inbox.Done
	case agent.NotDone:
		return inbox.NotDone
	}
	return inbox.Unknown
}

// runFolder creates a folder for a run. With others set, its parent can be traversed
// but not listed by other users, because the run belongs to one of them.
func (n *Node) runFolder(r *inbox.Run, others bool) (string, error) {
	dir, err := n.runsFolder(others)
	if err != nil {
		return "", fmt.Errorf("make a folder for the run: %w", err)
	}
	dir, err = os.MkdirTemp(dir, r.ID.String()+"-")
	if err != nil {
		return "", fmt.Errorf("make a folder for the run: %w", err)
	}
	return dir, nil
}

// runsFolder creates the folder that holds the folders of runs.
func (n *Node) runsFolder(others bool) (string, error) {
	dir := filepath.Join(n.cfg.Dir, runDir)
	err := os.MkdirAll(dir, 0o700)
	if err == nil && others {
		err = os.Chmod(dir, 0o711)
	}
	return dir, err
}

// mayRunAs returns why the program of s cannot run as its user.
func (n *Node) mayRunAs(s HandlerSpec) error {
	if s.RunAs == "" {
		return nil
	}
	dir, err := n.runsFolder(true)
	if err == nil {
		err = command.MayRunAs(s.RunAs, dir)
	}
	if err != nil {
		return fmt.Errorf("%w: handler %s: %w", ErrInvalid, s.Kind, err)
	}
	return nil
}

// runResult turns an agent's result into what the inbox decides on.
func (n *Node) runResult(r *inbox.Run, output *runOutput, res agent.Result) *inbox.Result {
	out := &inbox.Result{
		Outcome: endOf(res.Outcome), ExitCode: int32(res.Code), Output: res.Output, ContentType: "application/octet-stream",
		Truncated: res.Truncated, Stderr: strings.ToValidUTF8(res.Stderr, "?"), Reason: res.Err,
	}
	if res.OutputFile == "" || out.Outcome == inbox.NoRoom || out.Outcome == inbox.Unready {
		out.Output = nil // the run is repeated
		if res.OutputFile == "" {
			out.Output = res.Output
		}
		return out
	}
	if err := n.keepOutput(r, output, res, out); err != nil {
		return &inbox.Result{Outcome: inbox.Retry, ExitCode: int32(res.Code), Reason: fmt.Sprintf("keep the result: %v", err), Stderr: out.Stderr}
	}
	return out
}

// keepOutput moves a large result out of the run's folder, which is removed.
func (n *Node) keepOutput(r *inbox.Run, output *runOutput, res agent.Result, out *inbox.Result) error {
	out.File = filepath.Join(n.cfg.Dir, runDir, r.ID.String()+".out")
	if err := os.Rename(res.OutputFile, out.File); err != nil {
		return err
	}
	f, err := os.Open(out.File)
	if err != nil {
		return err
	}
	defer f.Close()
	sum := sha256.New()
	size, err := io.Copy(sum, f)
	if err != nil {
		return err
	}
	out.Size, out.Digest = uint64(size), sum.Sum(nil)
	output.handOver(out.File)
	return nil
}

func endOf(o agent.Outcome) inbox.Outcome {
	switch o {
	case agent.Success:
		return inbox.Success
	case agent.Retry:
		return inbox.Retry
	case agent.Fail:
		return inbox.Fail
	case agent.Timeout, agent.Cancelled:
		return inbox.Stopped
	case agent.Unready:
		return inbox.Unready
	case agent.NoSpace:
		return inbox.NoRoom
	}
	return inbox.Crashed
}

// AddHandler registers a handler and keeps it across restarts. It replaces a handler
// of the same kind.
func (n *Node) AddHandler(ctx context.Context, s HandlerSpec) error {
	spec, err := n.spec(s)
	if err == nil {
		err = n.mayRunAs(s)
	}
	if err != nil {
		return err
	}
	n.handlers.Lock()
	defer n.handlers.Unlock()
	added := append(without(n.handlers.added, s.Kind), s)
	if err := saveHandlers(n.cfg.Dir, added); err != nil {
		return err
	}
	if err := n.inbox.Register(spec); err != nil {
		return errors.Join(fmt.Errorf("%w: %s", ErrInvalid, strings.TrimPrefix(err.Error(), inbox.ErrSpec.Error()+": ")), saveHandlers(n.cfg.Dir, n.handlers.added))
	}
	n.handlers.added = added
	n.handlers.specs[s.Kind] = s
	n.inbox.Suspend(s.Kind, s.problem())
	n.announceHandlers()
	n.announceKinds()
	return n.audit(ctx, "handler.add", s.Kind)
}

// RemoveHandler removes a handler. Its waiting tasks stay until there is a handler for
// them again or they expire.
func (n *Node) RemoveHandler(ctx context.Context, kind string) error {
	n.handlers.Lock()
	defer n.handlers.Unlock()
	if _, ok := n.handlers.specs[kind]; !ok {
		return fmt.Errorf("%w: this node has no handler %.40q", ErrNotFound, kind)
	}
	left := without(n.handlers.added, kind)
	if len(left) == len(n.handlers.added) {
		return fmt.Errorf("%w: handler %s is in the configuration file: remove it there", ErrInvalid, kind)
	}
	if err := saveHandlers(n.cfg.Dir, left); err != nil {
		return err
	}
	n.handlers.added = left
	n.inbox.Unregister(kind)
	delete(n.handlers.specs, kind)
	n.announceKinds()
	return n.audit(ctx, "handler.remove", kind)
}

// announceKinds tells the members at once which kinds this node handles.
func (n *Node) announceKinds() {
	if n.running.Load() {
		n.gossip.Describe()
	}
}

// Actors in the audit log.
const (
	actorPerson = "local"  // a person, by the socket
	actorSystem = "system" // the node itself, by a rule
)

// audit records a person's action in the audit log.
func (n *Node) audit(ctx context.Context, action, what string) error {
	return n.auditAs(ctx, actorPerson, action, what)
}

func (n *Node) auditAs(ctx context.Context, actor, action, what string) error {
	_, err := n.storage.journal.Append(ctx, journal.Entry{Boot: n.outbox.Boot(), Actor: actor, Action: action, Detail: map[string]string{"subject": what}})
	if err != nil {
		return fmt.Errorf("audit %s: %w", action, err)
	}
	return nil
}

func without(specs []HandlerSpec, kind string) []HandlerSpec {
	var out []HandlerSpec
	for _, s := range specs {
		if s.Kind != kind {
			out = append(out, s)
		}
	}
	return out
}
