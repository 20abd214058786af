package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// requestFlags are the flags of a mail whose sender waits for the reply.
type requestFlags struct {
	wait time.Duration
	from []string
}

func (f *requestFlags) add(c *cobra.Command) {
	c.Flags().Var(spanValue{&f.wait}, "wait", "wait this long for the reply, and print its body")
	c.Flags().StringArrayVar(&f.from, "reply-from", nil, "with --wait: who may reply besides the node of the box, peer:NAME or role:ROLE (repeatable; default each node that is given the mail)")
	c.MarkFlagsMutuallyExclusive("wait", "reply-to")
	c.MarkFlagsMutuallyExclusive("wait", "bounce-to")
}

func checkReplyWait(d time.Duration) error {
	if d <= 0 {
		return usage("--wait %s: say how long, as in --wait 30s", d)
	}
	return nil
}

// requestMail sends the mail of the flags and waits for its reply.
func (w *app) requestMail(cmd *cobra.Command, f *mailFlags, r *requestFlags, to string, body []string) error {
	if err := checkReplyWait(r.wait); err != nil {
		return err
	}
	if f.mail.Notify != "" {
		return usage("--notify and --wait are both given: the reply tells that the mail is done")
	}
	file, err := w.composeMail(f, to, body)
	if err != nil {
		return err
	}
	defer file.Close()
	if f.mail.Stream != nil {
		return usage("the body has more than %s, the limit of a mail whose reply is awaited: send it without --wait", formatSize(proto.MaxInlineBody))
	}
	sent, err := callMail(cmd, w, func(ctx context.Context, c *client.Client) (wire.MailReply, error) {
		return c.Request(ctx, wire.MailRequest{Mail: f.mail, ReplyFrom: r.from})
	})
	if err != nil {
		return bounced(w.unanswered(err, f.mail.Dedupe, "--dedupe", "balefire-node mail history BOX here, or on the node of the box"))
	}
	known := ""
	if sent.Known {
		known = ", sent before"
	}
	w.infof("mail %s for %s%s: waiting for the reply", sent.ID, sanitize(sent.Box), known)
	return w.awaitReply(cmd, sent.ID, r.wait)
}

func mailAwait(w *app) *cobra.Command {
	wait := 30 * time.Second
	c := &cobra.Command{
		Use: "await ID", Short: "Wait for the reply to a mail that was sent with --wait",
		Long: `Wait for the reply to a mail that was sent from this node with --wait, and print its
body. A reply is kept until nobody has asked for it for an hour, and for five
minutes after it was given.`,
		Example: "  balefire-node mail await 01a20c7e-5b1f-7d12-9a44-3f0c2b6d8e91 --wait 10m",
		Args: func(cmd *cobra.Command, args []string) error {
			if err := exactly(1, "the id of a mail")(cmd, args); err != nil {
				return err
			}
			return mailID(args[0])
		}, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkReplyWait(wait); err != nil {
				return err
			}
			return w.awaitReply(cmd, args[0], wait)
		},
	}
	c.Flags().Var(spanValue{&wait}, "wait", "how long")
	return c
}

// awaitReply waits for the reply to a request and prints it. It goes on while the node restarts.
func (w *app) awaitReply(cmd *cobra.Command, id string, wait time.Duration) error {
	c, err := w.node()
	if err != nil {
		return err
	}
	if cmd.Flags().Changed("timeout") && w.flags.timeout > 0 {
		wait = min(wait, w.flags.timeout)
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), wait)
	defer cancel()
	for told := false; ; clock.Pause(ctx, reconnectDelay) {
		r, err := c.Reply(ctx, id)
		switch {
		case err == nil:
			return w.showReply(r)
		case cmd.Context().Err() != nil:
			return cmd.Context().Err()
		case errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil:
			return &codedError{exitTimeout, &hintedError{
				fmt.Errorf("no reply to mail %s came within %s", id, wire.Duration(wait)),
				"the mail is not withdrawn: go on waiting with: balefire-node mail await " + id + "; see where it is: balefire-node why " + id,
			}}
		case !isUnreachable(err):
			return bounced(mailFailure(err))
		case !told:
			told = true
			w.infof("… the node is not running: waiting for it")
		}
	}
}

// bounced adds the exit code to the error of a mail that was not delivered.
func bounced(err error) error {
	if errors.Is(err, wire.ErrBounced) {
		return &codedError{exitFailed, err}
	}
	return err
}

// showReply prints the body of a reply, or with -o the whole of it.
func (w *app) showReply(r wire.MailReply) error {
	if !w.humanOutput() {
		return w.show(view{value: r})
	}
	w.infof("reply from %s: mail %s", sanitize(r.Reply.From), r.Reply.ID)
	if w.outTTY && !isText(r.Reply.Body) {
		return fmt.Errorf("the reply is not text and is not written to the terminal: balefire-node mail await %s > FILE", r.ID)
	}
	return w.writeResult(r.Reply.ID, bytes.NewReader(r.Reply.Body))
}
