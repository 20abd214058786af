package main

import (
	"bytes"
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/wire"
)

// addWatch adds the flag --watch, which repeats a command.
func (w *app) addWatch(c *cobra.Command) {
	var every time.Duration
	once := c.RunE
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if !cmd.Flags().Changed("watch") {
			return once(cmd, args)
		}
		if !w.humanOutput() && w.flags.output != formatJSONL {
			return usage("--watch never ends and cannot be written as %s: use table, wide or jsonl", w.flags.output)
		}
		if every < minWatchInterval {
			return usage("--watch=%s: it must be at least %s", every, minWatchInterval)
		}
		return w.repeat(cmd.Context(), every, func() error { return once(cmd, args) })
	}
	c.Flags().Var(spanValue{&every}, "watch", "repeat at this interval until Ctrl-C")
	c.Flags().Lookup("watch").NoOptDefVal = "2s"
}

// minWatchInterval is the shortest interval of --watch.
const minWatchInterval = 200 * time.Millisecond

// repeat runs show at every interval until ctx is done. On a terminal each output replaces
// the previous one. It continues while the node is down for a moment.
func (w *app) repeat(ctx context.Context, every time.Duration, show func() error) error {
	screen, notes, pager := w.out, w.err, w.runPager
	defer func() { w.out, w.err, w.runPager = screen, notes, pager }()
	w.runPager = nil
	tick := time.NewTicker(every)
	defer tick.Stop()
	for shown := false; ; shown = true {
		var page bytes.Buffer
		if w.out = &page; w.outTTY {
			page.WriteString("\x1b[H\x1b[2J")
			w.err = &page
		}
		err := show()
		switch {
		case err != nil && !(shown && isAny(err, client.ErrNodeDown, wire.ErrDraining, wire.ErrStarting, context.DeadlineExceeded)):
			return err
		case err != nil && w.humanOutput():
			page.WriteString("… " + sanitize(err.Error()) + "\n")
		case err != nil:
			w.infof("… %s", sanitize(err.Error()))
		}
		if _, err := screen.Write(page.Bytes()); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// nextNotice is how long a wait prints nothing after it has printed this many notices. In a
// file or a log, where each line stays, notices get rarer.
func (w *app) nextNotice(said int) time.Duration {
	if w.errTTY {
		return quietInterval
	}
	return min(quietInterval<<min(said, 10), maxQuietInterval)
}

// maxQuietInterval is the longest time that a wait prints nothing.
const maxQuietInterval = time.Minute

// showWaiting prints now and then that something is still in progress, until stop is
// called.
func (w *app) showWaiting(what string) (stop func()) {
	quit, gone := make(chan struct{}), make(chan struct{})
	start := w.clock.Mono()
	go func() {
		defer close(gone)
		for said := 0; ; said++ {
			select {
			case <-quit:
				return
			case <-time.After(w.nextNotice(said)):
				w.infof("… %s, %s so far", what, formatDuration(w.clock.Mono()-start))
			}
		}
	}()
	return func() { close(quit); <-gone }
}
