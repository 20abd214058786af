package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	agentcommand "github.com/balefire/balefire/agent/command"
	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// leastExtension is the shortest extension of a lease while a program runs.
const leastExtension = 10 * time.Second

// mailProgram returns what runs the program of mail read --exec.
func mailProgram(args []string) (handler.Handler, error) {
	dir, err := os.Getwd()
	if err == nil && strings.ContainsAny(args[0], `/\`) {
		args[0], err = filepath.Abs(args[0])
	}
	if err != nil {
		return nil, err
	}
	if _, err := exec.LookPath(args[0]); err != nil {
		return nil, usage("--exec: %v", err)
	}
	h, err := agentcommand.New(agentcommand.Config{Exec: args, Timeout: -1, MaxOutput: proto.MaxInlineBody, CutOutput: true, Dir: dir})
	if err != nil {
		return nil, usage("--exec: %v", err)
	}
	return h, nil
}

// handleMail runs a program for one mail after the other: f.lease.Max mails, or with --follow
// until ctx is done.
func (w *app) handleMail(cmd *cobra.Command, r readable, f *readFlags, args []string) error {
	program, err := mailProgram(args)
	if err != nil {
		return err
	}
	most := f.lease.Max
	f.lease.Max = 1
	if f.follow {
		f.lease.Wait = wire.Wait(followWait)
	}
	for n := 0; f.follow || n < most; n++ {
		given, err := callMail(cmd, w, func(ctx context.Context, c *client.Client) ([]wire.DeliveredMail, error) {
			return c.LeaseMail(ctx, r.box, r.sub, f.lease)
		})
		switch {
		case cmd.Context().Err() != nil:
			return cmd.Context().Err()
		case f.follow && n > 0 && err != nil && isUnreachable(err):
			clock.Pause(cmd.Context(), reconnectDelay)
			continue
		case err != nil:
			return err
		case len(given) == 0 && !f.follow && n == 0:
			return &codedError{exitTimeout, fmt.Errorf("no mail came from %s", r)}
		case len(given) == 0 && !f.follow:
			return nil
		}
		for i := range given {
			err := w.handleOne(cmd, r, f, program, &given[i])
			_, unsettled := errors.AsType[*unsettledError](err)
			switch goesOn := f.follow && cmd.Context().Err() == nil; { // the mail comes again
			case err == nil:
			case goesOn && unsettled:
				printError(w, cmd.CommandPath(), err)
			case goesOn && comesAgain(err):
				w.warn(err)
				clock.Pause(cmd.Context(), reconnectDelay)
			default:
				return err
			}
		}
	}
	return nil
}

// handleOne runs the program for one mail and settles it by the exit code, as the handler of a
// mailbox does.
func (w *app) handleOne(cmd *cobra.Command, r readable, f *readFlags, program handler.Handler, d *wire.DeliveredMail) error {
	ctx, stop := context.WithCancelCause(context.WithoutCancel(cmd.Context()))
	defer stop(nil)
	defer context.AfterFunc(cmd.Context(), func() { stop(handler.ErrStopping) })()
	var extending sync.WaitGroup
	extending.Go(func() { w.extendMail(ctx, cmd, r, d, stop) })
	res, unread := w.runMail(ctx, r, program, d)
	stop(nil)
	extending.Wait()
	_, written := w.out.Write(res.Output)
	if text := strings.TrimSuffix(res.Stderr, "\n"); text != "" {
		w.infof("%s", sanitize(text))
	}
	if written != nil && res.Outcome == handler.Success { // it may do so again
		res.Outcome, res.Reason = handler.Retry, "what the program wrote could not be written"
	}
	s := outcome(d.Lease, res)
	for i := range s.Defer {
		s.Defer[i].Delay = f.bodyDelay(unread)
	}
	done, err := w.settleQuietly(cmd, r, s)
	switch {
	case written != nil:
		return errors.Join(fmt.Errorf("write what the program wrote for %s: %w", d.Lease, written), err)
	case err != nil:
		return &unsettledError{d.Lease, mailFailure(err)}
	}
	if res.Outcome == handler.Unready {
		return fmt.Errorf("the mail was given back: %w", cmp.Or(unread, errors.New(res.Reason)))
	}
	if unread != nil {
		w.warn(unread)
	}
	w.infof("%s  %s  %s", d.Lease, res.Outcome, done[0].Code)
	if err := unsettled(r, done); err != nil {
		return &unsettledError{d.Lease, err}
	}
	return cmd.Context().Err()
}

// An unsettledError is why nothing was said of a mail that was handled.
type unsettledError struct {
	lease string
	err   error
}

func (e *unsettledError) Error() string {
	return fmt.Sprintf("%s was handled, and is not settled: %v", e.lease, e.err)
}

func (e *unsettledError) Unwrap() error { return e.err }

// runMail runs the program with the body of a mail, of which it gets no byte before all are checked.
// If the body cannot be read, unread says why, and the program does not run.
func (w *app) runMail(ctx context.Context, r readable, program handler.Handler, d *wire.DeliveredMail) (res *handler.Result, unread error) {
	run := runOf(d)
	if d.Mail.Digest == "" {
		return handler.Call(ctx, program, run), nil
	}
	file, err := w.fetchBody(ctx, r, d, os.TempDir())
	if _, bad := errors.AsType[*badBodyError](err); bad {
		return &handler.Result{Outcome: handler.Retry, Reason: err.Error()}, err
	}
	if err != nil {
		return &handler.Result{Outcome: handler.Unready, Reason: err.Error()}, err
	}
	defer os.Remove(file.Name())
	defer file.Close()
	run.Body, run.BodySize = file, d.Mail.Size
	return handler.Call(ctx, program, run), nil
}

// runOf returns the run of a program for a mail.
func runOf(d *wire.DeliveredMail) *handler.Run {
	run := &handler.Run{
		Attempt:  d.Attempt,
		Content:  &proto.Content{Kind: d.Mail.Box, ContentType: d.Mail.ContentType, Traceparent: d.Mail.Trace},
		Env:      d.Env(),
		Body:     bytes.NewReader(d.Mail.Body),
		BodySize: int64(len(d.Mail.Body)),
	}
	if id, err := proto.ParseMailID(d.Mail.ID); err == nil {
		run.ID = proto.TaskID(id)
	}
	if h, err := box.ParseHandle(d.Lease); err == nil {
		run.Epoch = proto.Seq{Boot: h.Boot, Counter: h.N}
	}
	if origin, err := proto.ParsePeerID(d.Mail.FromID); err == nil {
		run.Origin = origin
	}
	return run
}

// outcome returns the settlement for the end of a run.
func outcome(lease string, res *handler.Result) (s wire.SettleMail) {
	reason, _, _ := strings.Cut(res.Reason, "\n")
	reason = strings.ToValidUTF8(reason[:min(len(reason), box.MaxReason)], "")
	switch res.Outcome {
	case handler.Success:
		s.Ack = []string{lease}
	case handler.Unready, handler.Cancelled:
		s.Defer = []wire.DeferMail{{Lease: lease, Reason: reason}}
	default:
		s.Nack = []wire.NackMail{{Lease: lease, Reason: reason, Final: res.Outcome == handler.Fail}}
	}
	return s
}

// settleQuietly settles also after the command was interrupted.
func (w *app) settleQuietly(cmd *cobra.Command, r readable, s wire.SettleMail) ([]wire.SettledItem, error) {
	c, err := w.node()
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(cmd.Context()), lastSettle)
	defer stop()
	return c.SettleMail(ctx, r.box, r.sub, s)
}

// lastSettle is how long a settlement may take after an interrupt.
const lastSettle = 20 * time.Second

// bodyExtension is how often the lease of a mail with a large body is extended at least.
const bodyExtension = 15 * time.Second

// extendMail extends the lease of a mail until ctx is done. If somebody else has it, the program
// is stopped.
func (w *app) extendMail(ctx context.Context, cmd *cobra.Command, r readable, d *wire.DeliveredMail, stop context.CancelCauseFunc) {
	lease := max(d.Until.Sub(w.clock.Now()), leastExtension)
	every := lease / 3
	if d.Mail.Digest != "" {
		every = min(every, bodyExtension) // its node gives less while it fetches the body
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		s := wire.SettleMail{Extend: []wire.ExtendMail{{Lease: d.Lease, For: wire.Duration(lease)}}}
		if done, err := w.settleQuietly(cmd, r, s); err == nil && done[0].Code != wire.SettledOK {
			stop(handler.ErrLeaseLost)
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
