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
	"github.com/balefire/balefire/audit"
	"github.com/balefire/balefire/node"
	"github.com/balefire/balefire/node/config"
	"github.com/balefire/balefire/store"
)

const (
	minReopenDelay = time.Second // after a failed disk
	maxReopenDelay = time.Minute
)

func runCommand(w *app) *cobra.Command {
	var level string
	c := &cobra.Command{
		Use: "run", Short: "Run the node of this machine",
		Long: `Run the node in the foreground, for a service manager or a container. SIGTERM
and Ctrl-C stop it gracefully: running handlers have limits.graceful_timeout to
finish, and no attempt of a task is spent. SIGHUP reloads the configuration.
After a disk failure the node reopens its store automatically.`,
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

// setLevel overrides the log level of the environment with --log-level, if that is set.
func (w *app) setLevel(level string) error {
	const name = "BALEFIRE_LOG_LEVEL="
	switch level {
	case "":
		return nil
	case "debug", "info", "warn", "error":
	default:
		return usage("--log-level %.20q: it must be debug, info, warn or error", level)
	}
	w.environ = append(slices.DeleteFunc(slices.Clone(w.environ), func(e string) bool { return strings.HasPrefix(e, name) }), name+level)
	return nil
}

// A setup is a configuration and the paths that belong to it.
type setup struct {
	loaded *config.Loaded
	paths  config.Paths
}

// A daemon keeps a node open: it reopens the node after its disk failed, and when a changed
// configuration requires it.
type daemon struct {
	w     *app
	style *logStyle
	log   *slog.Logger
	open  func(node.Config) (*node.Node, error)

	running atomic.Pointer[node.Node] // nil while the node is opening or stopping
	hasRun  atomic.Bool               // a node runs, or ran, with setup

	// Only the goroutine of supervise uses these: what else runs in runOnce gets copies.
	setup    setup  // what the node is opened with next
	previous *setup // the last one that a node ran with, until a changed one has been tried
}

func newDaemon(w *app, l *config.Loaded, p config.Paths) *daemon {
	d := &daemon{w: w, setup: setup{l, p}, style: &logStyle{w: w}, open: node.New}
	d.style.set(l.Log)
	d.log = d.style.logger()
	return d
}

// errReload stops a node in order to reopen it with a changed configuration.
var errReload = errors.New("the configuration has changed")

// errStopped stops a node permanently, by a user's command.
var errStopped = errors.New("stopped by command")

func (d *daemon) run(ctx context.Context) error {
	logLibraries(d.log)
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, reloadSignals()...)
	defer signal.Stop(hup)
	again := make(chan os.Signal, 1) // nobody reads it: a node that stops is not hurried
	signal.Notify(again, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(again)
	beating, stop := context.WithCancel(context.WithoutCancel(ctx))
	var beat sync.WaitGroup
	beat.Go(func() { d.watchdog(beating) })
	defer beat.Wait()
	defer stop()
	return d.supervise(ctx, func() error { return d.runOnce(ctx, hup) })
}

// supervise reopens the node after its disk failed, with growing delays, and at once when
// the configuration has changed. It returns on any other error.
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
			d.log.Error("the node does not open with the new configuration: the old one is used", "err", err)
			d.setup, d.previous = *d.previous, nil
			d.style.set(d.setup.loaded.Log)
			continue
		case !isDiskFailure(err):
			return err
		}
		if d.w.clock.Mono()-opened > maxReopenDelay {
			wait = minReopenDelay
		}
		d.log.Error("the disk failed: the node will be reopened", "err", err, "in", wait)
		notifyManager(d.log, statusLine("the disk failed, the node will be reopened: "+err.Error()))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
		wait = min(2*wait, maxReopenDelay)
	}
}

// revertConfig reports whether to return to the previous configuration: the node did not
// open with the changed one, with which no node has run yet.
func (d *daemon) revertConfig(err error) bool {
	return d.previous != nil && !d.hasRun.Load() && !isDiskFailure(err) && !errors.Is(err, context.Canceled)
}

// isDiskFailure reports whether err is a failure of the disk, after which the node is reopened: a
// failed store or audit log, a failed read, or a full disk.
func isDiskFailure(err error) bool {
	return isAny(err, store.ErrFailed, store.ErrUnknown, audit.ErrFailed, audit.ErrUnknown, syscall.EIO, syscall.ENOSPC, syscall.EDQUOT)
}

// dropCanceled drops the error of a node that was told to stop.
func dropCanceled(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// runOnce opens the node and runs it with its API server until ctx is done or one of them
// fails. The server listens first: opening a large store takes time.
func (d *daemon) runOnce(ctx context.Context, hup <-chan os.Signal) error {
	d.hasRun.Store(false)
	current, next := d.setup, setup{} // belong to watchReload until all goroutines have ended
	paths := current.paths
	cfg := current.loaded.Node(paths.Dir)
	cfg.Version, cfg.Logger, cfg.Clock, cfg.Fail = version, d.log, timeOf(d.w), failpoint(d.w)
	asked := make(chan struct{})
	cfg.Stop = sync.OnceFunc(func() { close(asked) })
	win := api.NewEndpoint(api.Config{Payload: int64(cfg.Limits.PayloadMax), Logger: d.log})
	cfg.Opening = func(text string) {
		win.SetProgress(text)
		notifyManager(d.log, statusLine(text))
	}
	l, err := api.Listen(paths.Socket)
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
		defer stopServing() // the server listens until the node has stopped
		n, err := d.open(cfg)
		if err != nil {
			return explainOpenError(err)
		}
		d.hasRun.Store(true)
		win.SetNode(n)
		d.log.Info("the node is running", "dir", paths.Dir, "socket", paths.Socket, "version", version)
		d.running.Store(n)
		notifyManager(d.log, stateReady, statusLine("running as "+n.Name()))
		return n.Run(ctx)
	})
	g.Go(func() error { return win.Serve(serving, l) })
	g.Go(func() (err error) {
		next, err = d.watchReload(ctx, hup, &current)
		return err
	})
	<-ctx.Done()
	d.running.Store(nil)
	if err := context.Cause(ctx); !errors.Is(err, errReload) && !d.revertConfig(err) && !isDiskFailure(err) { // else it is reopened
		notifyManager(d.log, stateStopping, statusLine("stops"))
	}
	if d.hasRun.Load() {
		d.log.Info("the node is stopping")
	}
	err = g.Wait()
	d.changeSetup(current, next)
	return err
}

// changeSetup records the end of a run with current, and that the node is to be opened with
// next, unless that is empty.
func (d *daemon) changeSetup(current, next setup) {
	if d.hasRun.Load() {
		d.previous = nil
	}
	d.setup = current
	if next.loaded == nil {
		return
	}
	if d.hasRun.Load() {
		d.previous = &current
	}
	d.setup = next
}

// explainListenError explains why the socket cannot be bound: usually another process has
// locked the folder.
func (d *daemon) explainListenError(cfg node.Config, because error) error {
	n, err := d.open(cfg)
	if err != nil {
		return explainOpenError(err)
	}
	return errors.Join(because, n.Close())
}

// watchReload reloads the configuration at each signal. Settings that can be changed at run
// time are applied, and current is replaced; for the rest it returns what the node is to be
// reopened with, after a graceful stop. An invalid configuration changes nothing.
func (d *daemon) watchReload(ctx context.Context, hup <-chan os.Signal, current *setup) (next setup, err error) {
	for {
		select {
		case <-ctx.Done():
			return setup{}, nil
		case <-hup:
		}
		fresh, paths, err := d.w.config()
		if err != nil {
			d.log.Error("the new configuration is invalid, the old one stays in use", "err", err)
			continue
		}
		changed := current.loaded.Changed(fresh)
		d.log.Info("the configuration was reloaded", "changed_fields", changed)
		d.style.set(fresh.Log)
		restart := paths.Socket != current.paths.Socket
		for _, key := range changed {
			restart = restart || !strings.HasPrefix(key, "log.")
		}
		notifyManager(d.log, stateReloading, statusLine("applying the changed configuration"))
		if restart {
			return setup{fresh, paths}, errReload
		}
		*current = setup{fresh, paths}
		notifyManager(d.log, stateReady, statusLine("running with the changed configuration"))
	}
}

// explainOpenError adds a hint to an error from opening the node.
func explainOpenError(err error) error {
	switch {
	case errors.Is(err, store.ErrLocked):
		return fmt.Errorf("%w: another node is running there: stop it first, or use another folder with --dir", err)
	case errors.Is(err, store.ErrOtherEngine):
		return fmt.Errorf("%w: set store.engine to the engine of that folder, or use another folder", err)
	case errors.Is(err, store.ErrNewerSchema):
		return fmt.Errorf("%w: use the newer balefire-node with this folder", err)
	}
	return err
}
