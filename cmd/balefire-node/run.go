package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/balefire/balefire/api"
	"github.com/balefire/balefire/node"
	"github.com/balefire/balefire/node/config"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/journal"
)

const (
	minReopenDelay = time.Second // after a store failure
	maxReopenDelay = time.Minute
)

func runCommand(w *app) *cobra.Command {
	var level string
	c := &cobra.Command{
		Use: "run", Short: "Run this machine's node until it is told to stop",
		Long: `Run the node in the foreground, as a service manager or a container wants it.
SIGTERM and Ctrl-C stop it gracefully: running handlers have the time of
limits.graceful_timeout, and no attempt of a task is spent. SIGHUP reads the
configuration again. When the disk fails, the node opens its store again by
itself.`,
		Example:     "  balefire-node run\n  balefire-node run --dir ./two --log-level debug",
		Annotations: map[string]string{annotationWaits: "yes"}, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := w.setLevel(level); err != nil {
				return err
			}
			l, p, err := w.config()
			if err != nil {
				return err
			}
			return newDaemon(w, l, p).run(cmd.Context())
		},
	}
	c.Flags().StringVar(&level, "log-level", "", "debug, info, warn or error (default log.level)")
	return c
}

// setLevel puts what --log-level says, unless it is empty, in the place of what the
// environment does.
func (w *app) setLevel(level string) error {
	const name = "BALEFIRE_LOG_LEVEL="
	switch level {
	case "":
		return nil
	case "debug", "info", "warn", "error":
	default:
		return usage("--log-level %.20q: it is debug, info, warn or error", level)
	}
	w.environ = append(slices.DeleteFunc(slices.Clone(w.environ), func(e string) bool { return strings.HasPrefix(e, name) }), name+level)
	return nil
}

// A daemon keeps a node open: it opens it again after its store failed, and
// when a changed configuration asks for that.
type daemon struct {
	w      *app
	paths  config.Paths
	loaded *config.Loaded
	level  *slog.LevelVar
	log    *slog.Logger
	open   func(node.Config) (*node.Node, error)

	running       atomic.Pointer[node.Node] // nil while it is opened or stops
	previous      *config.Loaded            // that a node has run with, while one that changed was not tried yet
	previousPaths config.Paths              // of before
	hasRun        atomic.Bool               // a node runs, or ran, with loaded
}

func newDaemon(w *app, l *config.Loaded, p config.Paths) *daemon {
	d := &daemon{w: w, paths: p, loaded: l, level: new(slog.LevelVar), open: node.New}
	d.level.Set(l.Log.Severity())
	d.log = w.logger(l.Log.Format, d.level)
	return d
}

// errReload ends a node so that it is opened with a changed configuration.
var errReload = errors.New("the configuration has changed")

// errStopped ends a node for good, by a person's command.
var errStopped = errors.New("a person asked for it")

func (d *daemon) run(ctx context.Context) error {
	logLibraries(d.log)
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, reloadSignals()...)
	defer signal.Stop(hup)
	beating, stop := context.WithCancel(context.WithoutCancel(ctx))
	var beat sync.WaitGroup
	beat.Go(func() { d.watchdog(beating) })
	defer beat.Wait()
	defer stop()
	return d.supervise(ctx, func() error { return d.runOnce(ctx, hup) })
}

// supervise opens the node again after its disk failed, later and later, and at
// once when the configuration has changed. Any other end is the end.
func (d *daemon) supervise(ctx context.Context, once func() error) error {
	wait := minReopenDelay
	for {
		opened := d.w.clock.Mono()
		err := once()
		switch {
		case ctx.Err() != nil:
			return dropCanceled(err)
		case errors.Is(err, errStopped):
			return nil
		case errors.Is(err, errReload):
			continue
		case d.revertConfig(err):
			d.log.Error("the node does not open with the new configuration: the old one is used again", "err", err)
			d.loaded, d.paths, d.previous = d.previous, d.previousPaths, nil
			continue
		case !passes(err):
			return err
		}
		if d.w.clock.Mono()-opened > maxReopenDelay {
			wait = minReopenDelay
		}
		d.log.Error("the disk failed: the node is opened again", "err", err, "in", wait)
		notifyManager(d.log, statusLine("the disk failed, the node is opened again: "+err.Error()))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
		wait = min(2*wait, maxReopenDelay)
	}
}

// revertConfig reports whether a changed configuration, with which no node has run yet, is
// given up for the one before: it does not open with it.
func (d *daemon) revertConfig(err error) bool {
	return d.previous != nil && !d.hasRun.Load() && !passes(err) && !errors.Is(err, context.Canceled)
}

// passes reports whether err is a failure of the disk, after which the node is opened
// again: a store or an audit log that failed, or no space left for a file.
func passes(err error) bool {
	return isAny(err, store.ErrFailed, store.ErrUnknown, journal.ErrFailed, journal.ErrUnknown, syscall.ENOSPC, syscall.EDQUOT)
}

// dropCanceled drops the error that only says that the node was told to stop.
func dropCanceled(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// runOnce opens the node and runs it with its window until ctx is done or one of
// them fails. The window is there first: a large store takes its time.
func (d *daemon) runOnce(ctx context.Context, hup <-chan os.Signal) error {
	d.hasRun.Store(false)
	cfg := d.loaded.Node(d.paths.Dir)
	cfg.Version, cfg.Logger, cfg.Clock, cfg.Fail = version, d.log, timeOf(d.w), failpoint(d.w)
	asked := make(chan struct{})
	cfg.Stop = sync.OnceFunc(func() { close(asked) })
	win := api.NewEndpoint(api.Config{Payload: cfg.Limits.Payload, Logger: d.log})
	cfg.Opening = func(text string) {
		win.SetProgress(text)
		notifyManager(d.log, statusLine(text))
	}
	l, err := api.Listen(d.paths.Socket)
	if err != nil {
		return d.explainListenError(cfg, err)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		select {
		case <-asked:
			return errStopped
		case <-ctx.Done():
			return nil
		}
	})
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	g.Go(func() error {
		defer stopServing() // the window stays open until the node has stopped
		n, err := d.open(cfg)
		if err != nil {
			return explainOpenError(err, d.paths.Dir)
		}
		d.hasRun.Store(true)
		win.SetNode(n)
		d.log.Info("the node runs", "dir", d.paths.Dir, "socket", d.paths.Socket, "version", version)
		d.running.Store(n)
		notifyManager(d.log, stateReady, statusLine("runs as "+n.Name()))
		return n.Run(ctx)
	})
	g.Go(func() error { return win.Serve(serving, l) })
	g.Go(func() error { return d.watchReload(ctx, hup) })
	<-ctx.Done()
	d.running.Store(nil)
	if err := context.Cause(ctx); !errors.Is(err, errReload) && !d.revertConfig(err) && !passes(err) { // else it is opened again
		notifyManager(d.log, stateStopping, statusLine("stops"))
	}
	if d.hasRun.Load() {
		d.log.Info("the node stops")
	}
	return g.Wait()
}

// explainListenError explains why the socket cannot be had: when another process holds the
// folder, that is the reason.
func (d *daemon) explainListenError(cfg node.Config, because error) error {
	n, err := d.open(cfg)
	if err != nil {
		return explainOpenError(err, d.paths.Dir)
	}
	return errors.Join(because, n.Close())
}

// watchReload reads the configuration again at each signal. What can be changed at
// once is; for the rest the node is stopped gracefully and opened again. A
// configuration that is wrong changes nothing.
func (d *daemon) watchReload(ctx context.Context, hup <-chan os.Signal) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-hup:
		}
		fresh, paths, err := d.w.config()
		if err != nil {
			d.log.Error("the new configuration is wrong, the old one stays", "err", err)
			continue
		}
		changed := d.loaded.Changed(fresh)
		d.log.Info("the configuration was read again", "changed_fields", changed)
		d.level.Set(fresh.Log.Severity())
		restart := paths.Socket != d.paths.Socket
		for _, key := range changed {
			restart = restart || key != "log.level"
		}
		if restart {
			d.previous, d.previousPaths = d.loaded, d.paths
		}
		d.loaded, d.paths = fresh, paths
		notifyManager(d.log, stateReloading, statusLine("takes a changed configuration"))
		if restart {
			return errReload
		}
		notifyManager(d.log, stateReady, statusLine("runs with a changed configuration"))
	}
}

// explainOpenError adds to an error of opening what to do about it.
func explainOpenError(err error, dir string) error {
	switch {
	case errors.Is(err, store.ErrLocked):
		return fmt.Errorf("%w: another node runs there: stop it first, or give this one a folder of its own with --dir", err)
	case errors.Is(err, store.ErrOtherEngine):
		return fmt.Errorf("%w: set store.engine to the engine that the folder has, or take another folder", err)
	case errors.Is(err, store.ErrNewerSchema):
		return fmt.Errorf("%w: run the newer balefire-node on this folder", err)
	}
	return err
}
