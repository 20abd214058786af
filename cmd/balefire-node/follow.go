package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/cmd/balefire-node/prose"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

const (
	followInterval = 200 * time.Millisecond // between two requests for a task that has not ended
	quietInterval  = 2 * time.Second        // before a wait prints that it is waiting
)

// A follower watches one task until it ends and reports its progress.
type follower struct {
	w            *app
	client       *client.Client
	start        time.Duration // on the monotonic clock
	lastNotice   time.Duration // when something was printed last
	notices      int           // lines that only report waiting
	receipts     int           // receipts that were reported
	state        string        // at the last request
	statusShown  bool          // a status line that will be overwritten is on the screen
	lastTransfer time.Duration // when a line about a transfer was printed; 0: never
}

// follow waits until a task has ended and prints its result. Its error has the exit code
// for the outcome of the task.
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
		w.infof("the task continues in the background; follow it: balefire-node task watch %s", id)
		return silentExit(exitInterrupted)
	}
	return err
}

// wait polls the task, and returns at once when the node reports its end.
func (f *follower) wait(ctx context.Context, id string) (wire.Task, error) {
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
			over <- err // for the deferred receive
			waiting = nil
			if err != nil && !errors.Is(err, wire.ErrRefused) { // refused: this node is not its home, so keep polling
				return t, err
			}
		case <-ctx.Done():
			return t, ctx.Err()
		}
	}
}

// progress prints what is new about a task, or that there is nothing new.
func (f *follower) progress(ctx context.Context, t wire.Task) {
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

// changes returns what happened since the last request: new receipts and failed attempts.
func (f *follower) changes(t wire.Task) (out []string) {
	for _, fact := range t.Receipts[min(f.receipts, len(t.Receipts)):] {
		switch fact {
		case "accepted":
			out = append(out, "accepted by "+t.Peer)
		case "started":
			out = append(out, fmt.Sprintf("running at %s, attempt %d", runnerOf(t), max(t.Attempts, 1)))
		}
	}
	f.receipts = max(f.receipts, len(t.Receipts))
	if t.State != f.state && (t.State == "RETRYING" || t.State == "WAITING_APPROVAL" || t.State == "INDETERMINATE") {
		out = append(out, strings.ToLower(t.State)+" at "+t.Peer+": "+reasonOf(t))
	}
	f.state = t.State
	return out
}

// runnerOf returns the node that started the task last, as far as this node knows. For a
// task of a queue it is not the home, which accepted the task.
func runnerOf(t wire.Task) string {
	node, attempt := t.Peer, uint32(0)
	for _, e := range t.Events { // by time, as different clocks showed it
		if e.State == stateRunning && e.Attempt >= attempt {
			node, attempt = e.Node, e.Attempt
		}
	}
	return node
}

// showWaiting prints that the task has not ended and why. On a terminal it overwrites the
// previous status line.
func (f *follower) showWaiting(ctx context.Context, t wire.Task, since time.Duration) {
	text := "waiting for " + formatDuration(since)
	if b, err := f.client.Why(ctx, t.ID); err == nil && t.State != stateRunning {
		text += ": " + prose.Text(b.Cause)
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

// timeoutError returns the error of a wait that ended before the task.
func (f *follower) timeoutError(ctx context.Context, id string) error {
	text := fmt.Sprintf("the wait timed out, the task is safe: it is %s", strings.ToLower(f.state))
	ctx, cancel := context.WithTimeout(ctx, quietInterval)
	defer cancel()
	if b, err := f.client.Why(ctx, id); err == nil {
		text += "; " + prose.Text(b.Cause)
	}
	return fmt.Errorf("%s. Follow it: balefire-node task watch %s", text, id)
}

// finish prints the result of an ended task.
func (f *follower) finish(ctx context.Context, t wire.Task) error {
	took := formatDuration(f.w.clock.Mono() - f.start)
	if t.Ended != nil {
		took = formatDuration(t.Ended.Sub(t.Created))
	}
	good := t.State == proto.Success.Name()
	if !f.w.humanOutput() {
		if err := f.w.show(taskView(f.w, t)); err != nil {
			return err
		}
	} else if t.ResultSize > 0 && t.Role != wire.RoleOwner { // else it is at its home
		if err := f.result(ctx, t); err != nil {
			return err
		}
	}
	if good {
		f.w.infof("%s in %s, exit %d", f.w.colorStderr(green, "✓ SUCCESS"), took, orZero(t.ExitCode))
		f.w.warnTruncated(t)
		return nil
	}
	if t.Stderr != "" && !f.w.flags.quiet {
		fmt.Fprintln(f.w.err, quoteLines(t.Stderr))
	}
	f.w.infof("%s after %s: %s", f.w.colorStderr(red, "✗ "+t.State), took, sanitizeLine(reasonOf(t)))
	f.w.warnTruncated(t)
	return silentExit(endCode(t))
}

func (f *follower) result(ctx context.Context, t wire.Task) error {
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

// warnTruncated warns, with --quiet too, that a result is only the beginning of the
// handler's output.
func (w *app) warnTruncated(t wire.Task) {
	if t.Truncated {
		fmt.Fprintf(w.err, "%s: it has the first %s of the handler's output\n", w.colorStderr(yellow, "! the result is truncated"), formatSize(t.ResultSize))
	}
}

const stateRunning = "RUNNING"

func ended(t wire.Task) bool {
	s, err := proto.ParseTaskState(t.State)
	return err == nil && s.Terminal()
}

func reasonOf(t wire.Task) string {
	switch {
	case t.Cause+t.Reason != "":
		return prose.Ending(t.Ending)
	case orZero(t.ExitCode) != 0:
		return fmt.Sprintf("exit %d", *t.ExitCode)
	}
	return "no reason given"
}

// endCode returns the exit code for a task that ended without success.
func endCode(t wire.Task) int {
	switch {
	case t.Code == proto.CodeDenied.Name():
		return exitDenied
	case t.State == "CANCELLED", t.State == "EXPIRED":
		return exitRefused
	}
	return exitFailed
}
