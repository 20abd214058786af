package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/node"
	"github.com/balefire/balefire/proto"
)

const (
	followInterval = 200 * time.Millisecond // between two looks at a task that has not ended
	quietInterval  = 2 * time.Second        // a wait says after so long that it waits
)

// A follower watches one task to its end and tells what happens to it.
type follower struct {
	w            *app
	client       *client.Client
	start        time.Duration // on the monotonic clock
	lastNotice   time.Duration // when something was said last
	notices      int           // lines that only say that it waits
	receipts     int           // receipts that were told
	state        string        // at the last look
	statusShown  bool          // the line that is rewritten is on the screen
	lastTransfer time.Duration // when a line was told of one; 0: never
}

// follow waits for a task to end and prints its result. Its error carries the
// exit code that tells how the task ended.
func (w *app) follow(ctx context.Context, c *client.Client, id string) error {
	now := w.clock.Mono()
	f := &follower{w: w, client: c, start: now, lastNotice: now}
	t, err := f.wait(ctx, id)
	f.clearStatus()
	switch {
	case err == nil:
		return f.finish(context.WithoutCancel(ctx), t)
	case errors.Is(err, context.DeadlineExceeded):
		return &codedError{exitTimeout, f.timeoutError(context.WithoutCancel(ctx), id)}
	case ctx.Err() != nil:
		w.infof("the task goes on without you; follow it: balefire-node task watch %s", id)
		return silentExit(exitInterrupted)
	}
	return err
}

// wait looks at the task at every step, and at once when the node says that it
// has ended.
func (f *follower) wait(ctx context.Context, id string) (node.Task, error) {
	ctx, cancel := context.WithCancel(ctx)
	over := make(chan error, 1)
	go func() {
		_, err := f.client.Wait(ctx, id)
		over <- err
	}()
	defer func() { cancel(); <-over }()
	tick := time.NewTicker(followInterval)
	defer tick.Stop()
	waiting := over
	for {
		t, err := f.client.Task(ctx, id)
		if err != nil {
			return t, err
		}
		f.progress(ctx, t)
		if ended(t) {
			return t, nil
		}
		select {
		case <-tick.C:
		case err := <-waiting:
			over <- err // for the one who waits at the end
			waiting = nil
			if err != nil && !errors.Is(err, node.ErrRefused) { // refused: this node is not its home, so look again and again
				return t, err
			}
		case <-ctx.Done():
			return t, ctx.Err()
		}
	}
}

// progress says what is new about a task, or that there is nothing new.
func (f *follower) progress(ctx context.Context, t node.Task) {
	now := f.w.clock.Mono()
	news := f.changes(t)
	for _, line := range news {
		f.clearStatus()
		f.w.infof("→ %s", sanitizeLine(line))
		f.lastNotice, f.notices = now, 0
	}
	if !ended(t) && f.showTransfers(t.Transfers) {
		f.lastNotice = now
		return
	}
	if len(news) == 0 && now-f.lastNotice >= f.w.nextNotice(f.notices) && !ended(t) {
		f.lastNotice, f.notices = now, f.notices+1
		f.showWaiting(ctx, t, now-f.start)
	}
}

// changes returns what happened since the last look: what nodes have signed, and
// that an attempt failed.
func (f *follower) changes(t node.Task) (out []string) {
	for _, fact := range t.Receipts[min(f.receipts, len(t.Receipts)):] {
		switch fact {
		case "accepted":
			out = append(out, "accepted by "+t.Peer)
		case "started":
			out = append(out, fmt.Sprintf("running at %s, attempt %d", executor(t), max(t.Attempts, 1)))
		}
	}
	f.receipts = max(f.receipts, len(t.Receipts))
	if t.State != f.state && (t.State == "RETRYING" || t.State == "WAITING_APPROVAL" || t.State == "INDETERMINATE") {
		out = append(out, strings.ToLower(t.State)+" at "+t.Peer+": "+reasonOf(t))
	}
	f.state = t.State
	return out
}

// executor is the node that a task was started at last, as far as this one was told: of
// a task of a queue it is not the home, which took it over.
func executor(t node.Task) string {
	for _, e := range slices.Backward(t.Events) {
		if e.State == stateRunning {
			return e.Node
		}
	}
	return t.Peer
}

// showWaiting says that the task has not ended and why. On a terminal the line is
// written over the one before.
func (f *follower) showWaiting(ctx context.Context, t node.Task, since time.Duration) {
	text := "waiting for " + formatDuration(since)
	if b, err := f.client.Why(ctx, t.ID); err == nil && b.Cause != "" && t.State != stateRunning {
		text += ": " + b.Cause
	}
	if f.w.flags.quiet {
		return
	}
	if !f.w.errTTY {
		f.w.infof("… %s", sanitizeLine(text))
		return
	}
	fmt.Fprintf(f.w.err, "\r\x1b[K… %.100s", sanitizeLine(text))
	f.statusShown = true
}

func (f *follower) clearStatus() {
	if f.statusShown {
		fmt.Fprint(f.w.err, "\r\x1b[K")
		f.statusShown = false
	}
}

// timeoutError is the error of a wait that is over before the task is.
func (f *follower) timeoutError(ctx context.Context, id string) error {
	text := fmt.Sprintf("the waiting is over, the task is safe: it is %s", strings.ToLower(f.state))
	ctx, cancel := context.WithTimeout(ctx, quietInterval)
	defer cancel()
	if b, err := f.client.Why(ctx, id); err == nil && b.Cause != "" {
		text += "; " + b.Cause
	}
	return fmt.Errorf("%s. Follow it: balefire-node task watch %s", text, id)
}

// finish prints the result of an ended task.
func (f *follower) finish(ctx context.Context, t node.Task) error {
	took := formatDuration(f.w.clock.Mono() - f.start)
	if t.Ended != nil {
		took = formatDuration(t.Ended.Sub(t.Created))
	}
	good := t.State == proto.Success.Name()
	if !f.w.humanOutput() {
		if err := f.w.show(taskView(f.w, t)); err != nil {
			return err
		}
	} else if t.ResultSize > 0 {
		if err := f.result(ctx, t); err != nil {
			return err
		}
	}
	if good {
		f.w.infof("%s in %s, exit %d", f.w.colorStderr(green, "✓ SUCCESS"), took, exitOf(t))
		f.warnTruncated(t)
		return nil
	}
	if t.Stderr != "" && !f.w.flags.quiet {
		fmt.Fprintln(f.w.err, quoteLines(t.Stderr))
	}
	f.w.infof("%s after %s: %s", f.w.colorStderr(red, "✗ "+t.State), took, sanitizeLine(reasonOf(t)))
	f.warnTruncated(t)
	return silentExit(endCode(t))
}

func (f *follower) result(ctx context.Context, t node.Task) error {
	r, _, err := f.client.Result(ctx, t.ID)
	if err != nil {
		return err
	}
	defer r.Close()
	if err := f.w.writeResult(t.ID, r); err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	return nil
}

// warnTruncated says that a result is not all that the handler wrote.
func (f *follower) warnTruncated(t node.Task) {
	if t.Truncated {
		f.w.infof("%s: it is the first %s, and the handler wrote more", f.w.colorStderr(yellow, "! the result is cut off"), formatSize(t.ResultSize))
	}
}

const stateRunning = "RUNNING"

func ended(t node.Task) bool {
	s, err := proto.ParseTaskState(t.State)
	return err == nil && s.Terminal()
}

func reasonOf(t node.Task) string {
	switch {
	case t.Reason != "":
		return stripPackages(t.Reason)
	case exitOf(t) != 0:
		return fmt.Sprintf("exit %d", exitOf(t))
	}
	return "no reason was given"
}

// exitOf is what the last run of a task ended with; 0: no run has ended.
func exitOf(t node.Task) int32 {
	if t.ExitCode == nil {
		return 0
	}
	return *t.ExitCode
}

// endCode is the exit code for a task that ended without success.
func endCode(t node.Task) int {
	switch {
	case strings.Contains(t.Reason, "DENIED"):
		return exitDenied
	case t.State == "CANCELLED", t.State == "EXPIRED":
		return exitRefused
	}
	return exitFailed
}
