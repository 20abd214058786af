package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strings"

	"github.com/balefire/balefire/api"
	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/node"
	"github.com/balefire/balefire/store"
)

// Exit codes. They are part of the interface: scripts test for them.
const (
	exitOK          = 0
	exitError       = 1
	exitUsage       = 2
	exitDown        = 3 // no node is running
	exitNotFound    = 4
	exitDenied      = 5
	exitTimeout     = 6 // the waiting is over, the task is safe
	exitFailed      = 7 // the task ran and failed
	exitRefused     = 8
	exitInterrupted = 130
)

// A codedError is an error that knows its exit code. One without text has been
// told already.
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

// usage is the error of a command line that makes no sense.
func usage(format string, a ...any) error {
	return &codedError{exitUsage, fmt.Errorf(format, a...)}
}

// silentExit ends with a code whose reason was told already.
func silentExit(code int) error { return &codedError{code: code} }

// exitCode turns an error into what the process ends with.
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
	case errors.Is(err, node.ErrNotFound):
		return exitNotFound
	case errors.Is(err, node.ErrDenied):
		return exitDenied
	case errors.Is(err, context.DeadlineExceeded):
		return exitTimeout
	case isAny(err, node.ErrRefused, node.ErrKeyConflict, node.ErrFull, node.ErrDraining, api.ErrStarting, node.ErrPaired, store.ErrLocked):
		return exitRefused
	case errors.Is(err, node.ErrInvalid), isCobraError(err):
		return exitUsage
	}
	return exitError
}

func isAny(err error, targets ...error) bool {
	for _, t := range targets {
		if errors.Is(err, t) {
			return true
		}
	}
	return false
}

// isCobraError recognises the errors that cobra makes itself and gives no type.
func isCobraError(err error) bool {
	for _, start := range []string{"unknown command ", "required flag(s) ", "if any flags in the group ", "invalid argument "} {
		if strings.HasPrefix(err.Error(), start) {
			return true
		}
	}
	return false
}

// printError tells a person why the command failed and what to do.
func printError(w *app, path string, err error) {
	if err.Error() == "" {
		return
	}
	text := stripPackages(err.Error())
	if text == context.DeadlineExceeded.Error() {
		text = fmt.Sprintf("the node did not answer within %s: ask again, or with a longer --timeout", w.flags.timeout)
	}
	fmt.Fprintf(w.err, "%s %s\n", w.colorStderr(red, "error:"), sanitize(text))
	if p, ok := errors.AsType[*api.Problem](err); ok && hints[p.Code] != "" {
		fmt.Fprintf(w.err, "  %s\n", hints[p.Code])
	}
	if p, perr := w.locate(); perr == nil && errors.Is(err, fs.ErrPermission) && strings.Contains(text, p.Dir) {
		if _, other := errors.AsType[*fs.PathError](err); other {
			fmt.Fprintf(w.err, "  this process is user %d, and may not use the node's folder: run it as the owner of the folder, or: chown -R %d %s\n", os.Geteuid(), os.Geteuid(), p.Dir)
		}
	}
	coded, ok := errors.AsType[*codedError](err)
	if ok && coded.code == exitUsage || isCobraError(err) {
		fmt.Fprintf(w.err, "  see: %s --help\n", path)
	}
}

// packagePrefix matches what an error says for programmers: the package that it is of, and that
// the request is invalid, which the rest explains.
var packagePrefix = regexp.MustCompile(`(^|: )(?:(?:invalid request|transport|identity|store|inbox|outbox|command|journal|schedule|blob|ownership): )+`)

// stripPackages is an error without the names of packages.
func stripPackages(text string) string { return packagePrefix.ReplaceAllString(text, "$1") }

// hints says what to do about a problem in words of the command line; those of
// the problem itself are for programs. Where the error says it, none is here.
var hints = map[api.Code]string{
	api.CodeInternal:    "look into the node's log; if it stays, restart the node: no task is lost",
	api.CodeUnhealthy:   "look into the node's log, and at: balefire-node status",
	api.CodeDraining:    "nothing was taken: do it again when the node has started (balefire-node wait --for ready)",
	api.CodeStarting:    "nothing was taken: do it again when the node is ready (balefire-node wait --for ready)",
	api.CodeUnknown:     "do it again with the same --key: it is stored once",
	api.CodeFull:        "make room on the disk, or remove ended tasks: balefire-node task purge",
	api.CodeKeyConflict: "repeat the first request unchanged, or take another --key",
	api.CodeNotFound:    "see what there is: balefire-node task ls, peers ls, handler ls, queue ls",
	api.CodeTimeout:     "ask again, or with a longer --timeout",
}
