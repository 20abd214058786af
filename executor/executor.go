// Package executor runs the handlers of a node: it keeps which are registered, makes them
// from their descriptions, and gives each run a folder, an audit record and its share of the
// disk. A kind whose program is missing is not offered.
//
//	inbox ──Run──▶ worker ──▶ folder, audit start ──▶ handler ──▶ audit end, output ──▶ inbox
//
// Every run of a command has one start and one end in the audit, or one crash, which
// [Open] writes for a run that the death of the process cut off (I19).
package executor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/balefire/balefire/agent/command"
	"github.com/balefire/balefire/audit"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/wire"
)

// An Audit stores what was done.
type Audit interface {
	// Append returns once the entry is on disk.
	Append(ctx context.Context, e audit.Entry) (uint64, error)
}

// Parts are what an executor works with. All are required.
type Parts struct {
	Inbox *inbox.Inbox
	Store *store.Store
	Audit Audit
	// Record writes an action of the caller in ctx to the audit.
	Record func(ctx context.Context, action, what string) error
	// Changed is called when the kinds that this node offers have changed; more: tasks that
	// were refused may be accepted now.
	Changed func(more bool)
	// Unknown names the peers and roles of an allow list that no member has.
	Unknown func(allow []string) []wire.Note
}

// Config describes an executor.
type Config struct {
	Dir       string                     // of the node
	Node      proto.PeerID               // this node
	Boot      uint64                     // number of this start
	Handlers  []wire.HandlerSpec         // that cannot be removed; Add adds more
	Functions map[string]handler.Handler // by kind, for handlers of the type function
	Dangerous []string                   // mailboxes whose programs may have the profile dangerous
	NoDisk    bool                       // do not measure the disk: the node is simulated
	Clock     clock.Clock
	Logger    *slog.Logger
}

// An Executor holds the handlers of a node. Its methods are safe for concurrent use.
type Executor struct {
	parts  Parts
	cfg    Config
	quotas *quotas
	runs   *runLog

	mu          sync.Mutex
	added       []wire.HandlerSpec // by Add, stored in a file
	specs       map[string]wire.HandlerSpec
	refused     map[string]string // of added handlers that the configuration does not allow any more: why
	interrupted map[cutRun]int    // how many runs the death of the process cut off
}

// Open removes what a killed process left behind, closes its runs in the audit and
// registers the handlers at the inbox. It starts nothing: see [Executor.Run].
func Open(parts Parts, cfg Config) (*Executor, error) {
	x := &Executor{parts: parts, cfg: cfg, runs: newRunLog(parts.Audit, cfg.Dir), specs: map[string]wire.HandlerSpec{}, refused: map[string]string{}, interrupted: map[cutRun]int{}}
	x.quotas = newQuotas(x.diskSpace())
	var err error
	if x.added, err = loadAdded(cfg.Dir); err != nil {
		return nil, err
	}
	all := slices.Concat(cfg.Handlers, x.added)
	x.reap(all)
	x.sweepFolders(command.RemoveAll)
	if err := x.closeRuns(context.Background()); err != nil {
		return nil, err
	}
	for _, s := range cfg.Handlers {
		if err := x.register(s); err != nil {
			return nil, err
		}
	}
	for _, s := range x.added {
		if err := x.register(s); err != nil { // it is kept, and can be removed
			x.refused[s.Kind] = err.Error()
			cfg.Logger.Error("a handler that was added is not offered: the configuration does not allow it any more", "kind", s.Kind, "err", err)
		}
	}
	return x, nil
}

// register offers the kind of s, in place of another handler of that kind.
func (x *Executor) register(s wire.HandlerSpec) error {
	spec, err := x.compile(s)
	if err == nil {
		err = x.parts.Inbox.Register(spec)
	}
	if err != nil {
		return fmt.Errorf("handler %s: %w", s.Kind, err)
	}
	x.specs[s.Kind] = s
	_, why := x.problem(s)
	x.parts.Inbox.Suspend(s.Kind, why)
	return nil
}

// Add registers a handler and keeps it across restarts. It replaces a handler of the same
// kind.
func (x *Executor) Add(ctx context.Context, s wire.HandlerSpec) error {
	spec, err := x.compile(s)
	if err != nil {
		return err
	}
	if err := errors.Join(checkFolder(s.Dir), x.mayRunAs(s)); err != nil {
		return fmt.Errorf("%w: handler %s: %w", wire.ErrInvalid, s.Kind, err)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	added := append(without(x.added, s.Kind), s)
	if err := saveAdded(x.cfg.Dir, added); err != nil {
		return err
	}
	if err := x.parts.Inbox.Register(spec); err != nil {
		return errors.Join(fmt.Errorf("%w: %s", wire.ErrInvalid, strings.TrimPrefix(err.Error(), inbox.ErrSpec.Error()+": ")), saveAdded(x.cfg.Dir, x.added))
	}
	x.added = added
	delete(x.refused, s.Kind)
	x.specs[s.Kind] = s
	_, why := x.problem(s)
	x.parts.Inbox.Suspend(s.Kind, why)
	x.parts.Changed(true)
	return x.parts.Record(ctx, "handler.add", s.Kind)
}

// Remove removes a handler that was added. One of the configuration that it had replaced is
// back; otherwise its waiting tasks stay until there is a handler for them again or they
// expire.
func (x *Executor) Remove(ctx context.Context, kind string) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	left := without(x.added, kind)
	_, offered := x.specs[kind]
	switch {
	case len(left) < len(x.added):
	case !offered:
		return fmt.Errorf("%w: this node has no handler %.40q", wire.ErrNotFound, kind)
	default:
		return fmt.Errorf("%w: handler %s is in the configuration file: remove it there", wire.ErrInvalid, kind)
	}
	if err := saveAdded(x.cfg.Dir, left); err != nil {
		return err
	}
	x.added = left
	delete(x.refused, kind)
	covered := false
	for _, s := range x.cfg.Handlers { // the last one of a kind counts, as in Open
		if s.Kind != kind {
			continue
		}
		if err := x.register(s); err != nil {
			return err
		}
		covered = true
	}
	if !covered {
		x.parts.Inbox.Unregister(kind)
		delete(x.specs, kind)
	}
	x.parts.Changed(covered)
	return x.parts.Record(ctx, "handler.remove", kind)
}

// List returns the handlers by kind, with what is wrong with each.
func (x *Executor) List() []wire.Handler {
	kinds := map[string]inbox.KindStatus{}
	for _, k := range x.parts.Inbox.Status().Kinds {
		kinds[k.Kind] = k
	}
	out := []wire.Handler{}
	for _, s := range x.parts.Inbox.Specs() {
		x.mu.Lock()
		spec := x.specs[s.Kind]
		x.mu.Unlock()
		why, _ := x.problem(spec)
		h := wire.Handler{
			Kind: s.Kind, Type: typeName(spec), Exec: spec.Exec, Allow: s.Allow, Profile: string(s.Profile),
			Timeout: max(s.Timeout, 0).String(), Concurrency: s.Concurrency, MaxAttempts: s.MaxAttempts, OnCrash: string(s.OnCrash),
			Warnings: append(command.Warn(spec.Exec, spec.Args, spec.AllowFlags), x.parts.Unknown(s.Allow)...),
			Running:  kinds[s.Kind].Running, Waiting: kinds[s.Kind].Waiting, Problem: why,
		}
		out = append(out, h)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, s := range x.added {
		if why := x.refused[s.Kind]; why != "" {
			out = append(out, wire.Handler{Kind: s.Kind, Type: typeName(s), Exec: s.Exec, Allow: s.Allow, Profile: s.Profile, Problem: problem(wire.ProblemHandler, why)})
		}
	}
	slices.SortStableFunc(out, func(a, b wire.Handler) int { return strings.Compare(a.Kind, b.Kind) })
	return out
}

// reapTimeout bounds the search for processes of a killed node.
const reapTimeout = 15 * time.Second

// reap kills the processes that a killed node left running (S35).
func (x *Executor) reap(all []wire.HandlerSpec) {
	ctx, cancel := context.WithTimeout(context.Background(), reapTimeout)
	defer cancel()
	var users []string
	for _, s := range all {
		if s.RunAs != "" && !slices.Contains(users, s.RunAs) {
			users = append(users, s.RunAs)
		}
	}
	if found, err := command.Reap(ctx, x.cfg.Node.String(), time.Second, users...); err != nil {
		x.cfg.Logger.Warn("processes of an earlier start may still be running", "found", found, "err", err)
	} else if found > 0 {
		x.cfg.Logger.Info("killed processes of an earlier start", "count", found)
	}
}

// sweepFolders removes the folders of runs of earlier starts. What cannot be removed stays,
// and is tried again at the next start: it is no reason to run nothing.
func (x *Executor) sweepFolders(remove func(path string) error) {
	runs := filepath.Join(x.cfg.Dir, datadir.Run)
	left, err := os.ReadDir(runs)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		x.cfg.Logger.Warn("the folders of earlier runs cannot be listed: make the folder readable for the node, then restart it", "path", runs, "err", err)
	}
	for _, e := range left {
		path := filepath.Join(runs, e.Name())
		if err := remove(path); err != nil {
			x.cfg.Logger.Warn("what an earlier run left cannot be removed and takes up space: remove it by hand", "path", path, "err", err)
		}
	}
}

func without(specs []wire.HandlerSpec, kind string) []wire.HandlerSpec {
	return slices.DeleteFunc(slices.Clone(specs), func(s wire.HandlerSpec) bool { return s.Kind == kind })
}
