package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/cmd/balefire-node/prose"
	"github.com/balefire/balefire/pairing"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/wire"
)

// Exit codes. They are part of the interface: scripts test for them.
const (
	exitOK          = 0
	exitError       = 1
	exitUsage       = 2
	exitDown        = 3 // no node is running
	exitNotFound    = 4
	exitDenied      = 5
	exitTimeout     = 6 // --timeout expired, the task is safe
	exitFailed      = 7 // the task failed
	exitRefused     = 8 // refused in this state; the task was cancelled or expired
	exitInterrupted = 130
)

// A codedError is an error with an exit code. One without text has already been reported.
type codedError struct {
	code int
	err  error
}

func (e *codedError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e *codedError) Unwrap() error { return e.err }

// usage returns the error of an invalid command line.
func usage(format string, a ...any) error {
	return &codedError{exitUsage, fmt.Errorf(format, a...)}
}

// silentExit returns an error with an exit code whose reason has already been reported.
func silentExit(code int) error { return &codedError{code: code} }

// exitCode returns the exit code of the process for err.
func exitCode(ctx context.Context, err error) int {
	coded, ok := errors.AsType[*codedError](err)
	switch {
	case err == nil:
		return exitOK
	case ok:
		return coded.code
	case ctx.Err() != nil:
		return exitInterrupted
	case errors.Is(err, client.ErrNodeDown):
		return exitDown
	case errors.Is(err, wire.ErrNotFound):
		return exitNotFound
	case errors.Is(err, wire.ErrDenied):
		return exitDenied
	case errors.Is(err, context.DeadlineExceeded):
		return exitTimeout
	case isAny(err, wire.ErrRefused, wire.ErrKeyConflict, wire.ErrFull, wire.ErrNoAdmin, wire.ErrMoved, wire.ErrHeld, wire.ErrDraining, wire.ErrStarting, pairing.ErrPaired, store.ErrLocked):
		return exitRefused
	case isAny(err, wire.ErrInvalid, wire.ErrTooLarge), isCobraError(err):
		return exitUsage
	}
	return exitError
}

func isAny(err error, targets ...error) bool {
	return slices.ContainsFunc(targets, func(t error) bool { return errors.Is(err, t) })
}

// isCobraError recognizes the untyped errors of cobra.
func isCobraError(err error) bool {
	starts := []string{"unknown command ", "required flag(s) ", "if any flags in the group ", "invalid argument "}
	return slices.ContainsFunc(starts, func(start string) bool { return strings.HasPrefix(err.Error(), start) })
}

// printError tells the user why the command failed and what to do.
func printError(w *app, path string, err error) {
	if err.Error() == "" {
		return
	}
	text := prose.Plain(err.Error())
	if text == context.DeadlineExceeded.Error() {
		text = fmt.Sprintf("the node did not answer within %s: retry, possibly with a longer --timeout", w.flags.timeout)
	}
	fmt.Fprintf(w.err, "%s %s\n", w.colorStderr(red, "error:"), sanitize(text))
	if hint := hintFor(err); hint != "" {
		fmt.Fprintf(w.err, "  %s\n", hint)
	}
	if p, perr := w.locate(); perr == nil && errors.Is(err, fs.ErrPermission) && strings.Contains(text, p.Dir) {
		switch _, other := errors.AsType[*fs.PathError](err); {
		case other && !mayExist(p.Dir):
			fmt.Fprintf(w.err, "  this process runs as user %d, who may not make the node's folder: make it, or give another one with --dir\n", os.Geteuid())
		case other:
			fmt.Fprintf(w.err, "  this process runs as user %d, who may not use the node's folder: run it as the owner of the folder, or: chown -R %d %s\n", os.Geteuid(), os.Geteuid(), p.Dir)
		}
	}
	coded, ok := errors.AsType[*codedError](err)
	if ok && coded.code == exitUsage || isCobraError(err) {
		fmt.Fprintf(w.err, "  see: %s --help\n", path)
	}
}

// A hintedError is an error with its own hint, or none if that is "".
type hintedError struct {
	error
	hint string
}

func (e *hintedError) Unwrap() error { return e.error }

// hintFor returns what a user can do about an error, or "".
func hintFor(err error) string {
	if h, ok := errors.AsType[*hintedError](err); ok {
		return h.hint
	}
	if p, ok := errors.AsType[*wire.Problem](err); ok {
		return hints[p.Code]
	}
	return ""
}

// hints are what a user of the command line can do about a problem; the fixes of the
// problem itself are for API clients. There is none where the error already names it.
var hints = map[wire.Code]string{
	wire.CodeInternal:    "check the node's log; if it persists, restart the node: no task is lost",
	wire.CodeUnhealthy:   "check the node's log and: balefire-node status",
	wire.CodeDraining:    "nothing was accepted: retry when the node has started (balefire-node wait --for ready)",
	wire.CodeStarting:    "nothing was accepted: retry when the node is ready (balefire-node wait --for ready)",
	wire.CodeUnknown:     "retry with the same --key: the task is stored once",
	wire.CodeFull:        "free disk space, or remove ended tasks: balefire-node task purge",
	wire.CodeKeyConflict: "repeat the first request unchanged, or use another --key",
	wire.CodeNotFound:    "list what exists: balefire-node task ls, peers ls, handler ls, queue ls",
	wire.CodeTimeout:     "retry, possibly with a longer --timeout",
}
