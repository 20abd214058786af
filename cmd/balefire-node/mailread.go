package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/cmd/balefire-node/prose"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/wire"
)

// maxLeaseWait is how long one request waits for mail at most.
const maxLeaseWait = 10 * time.Minute

// readFlags are the raw flags of mail read.
type readFlags struct {
	lease       wire.LeaseMail
	wait        time.Duration
	ack, follow bool
	exec, save  string
}

func mailRead(w *app) *cobra.Command {
	var f readFlags
	c := &cobra.Command{
		Use: "read BOX [ARG...]", Short: "Read mail of a mailbox or a subscription",
		Long: `Lease mail of BOX and print one line a mail, with the handle to settle it. What is
not settled before its lease ends is delivered again. With --ack what was printed
is acknowledged. The exit code is 6 if no mail came within --wait, or the node of
BOX cannot be reached.

BOX may be on another node that allows this one to read it with --allow-read:
NAME@NODE, and by their names a mailbox and a topic of the mesh. The lease is
there, and its handle is settled with the same --box.

A body above 256 KiB is not printed: --save DIR writes it to DIR/ID, or mail show ID
--body to standard output. With --ack it has to be saved.

With --follow it prints mail as it comes, until it is interrupted, across restarts
of the node. An acknowledgment that a restart cuts off, or that comes too late, is
a warning, and so is a body that cannot be read: the mail is delivered again, and
has spent an attempt if its body is lost.

With --exec it runs a program for each mail instead, in this folder and one after
the other, with the body on standard input and the variables BALEFIRE_* that the
handler of a mailbox has. Exit code 0 acknowledges the mail, 65 makes it a dead
letter, any other gives it back at the price of an attempt. The lease is extended
while it runs, and what it writes is printed when it ends.`,
		Example: `  balefire-node mail read ceo --max 10 --wait 30s
  balefire-node mail read ceo@laptop --ack
  balefire-node mail read ceo --follow --exec ./on-mail.sh
  balefire-node mail read topic:orders/billing --follow --ack -o jsonl`,
		Annotations: map[string]string{annotationWaits: "yes"}, Args: between(1, -1, "a mailbox, or topic:TOPIC/SUBSCRIPTION, and the arguments of --exec"), ValidArgsFunction: w.completeBox,
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := parseReadable(args[0])
			switch {
			case err != nil:
				return err
			case len(f.lease.Reader) > box.MaxReader:
				return usage("--reader has %d bytes: at most %d", len(f.lease.Reader), box.MaxReader)
			case f.wait > maxLeaseWait:
				return usage("--wait %s: at most %s", wire.Duration(f.wait), wire.Duration(maxLeaseWait))
			case f.follow && !w.humanOutput() && w.flags.output != formatJSONL:
				return usage("--follow never ends and cannot be written as %s: use table or jsonl", w.flags.output)
			}
			f.lease.Wait = wire.Wait(f.wait)
			switch {
			case f.exec != "":
				return w.handleMail(cmd, r, &f, append([]string{f.exec}, args[1:]...))
			case len(args) > 1:
				return usage("%.60q: one box at a time; arguments of a program need --exec before it", args[1])
			case f.follow:
				return w.followMail(cmd, r, &f)
			}
			return w.readMail(cmd, r, &f)
		},
	}
	fs := c.Flags()
	f.lease.Max = 1
	fs.Var(numberValue[int]{&f.lease.Max, 1, wire.MaxMailBatch}, "max", "mails to read at most")
	fs.Var(spanValue{&f.wait}, "wait", "wait this long for the first one, at most 10m (default not at all)")
	fs.StringVar(&f.lease.Reader, "reader", "", "your name, for people and for exclusive subscriptions, at most 64 bytes")
	fs.IntVar(&f.lease.Priority, "priority", 0, "of a failover subscription: the reader with the highest one has all; with the strategy priority it is first")
	fs.BoolVar(&f.ack, "ack", false, "acknowledge what was printed")
	fs.StringVar(&f.save, "save", "", "write each body above 256 KiB to the file ID in this folder")
	fs.StringVar(&f.exec, "exec", "", "run this program for each mail; what follows BOX, or --, are its arguments")
	c.MarkFlagsMutuallyExclusive("exec", "ack")
	c.MarkFlagsMutuallyExclusive("exec", "save")
	fs.BoolVarP(&f.follow, "follow", "f", false, "print mail as it comes")
	return c
}

// readMail reads mail once.
func (w *app) readMail(cmd *cobra.Command, r readable, f *readFlags) error {
	items, err := callMail(cmd, w, func(ctx context.Context, c *client.Client) ([]wire.DeliveredMail, error) {
		return c.LeaseMail(ctx, r.box, r.sub, f.lease)
	})
	if err != nil {
		return err
	}
	if err := w.saveBodies(cmd, r, f, items); err != nil {
		return err
	}
	if items == nil {
		items = []wire.DeliveredMail{}
	}
	if len(items) > 0 || !w.humanOutput() {
		if err := w.show(view{value: wire.LeasedMail{Items: items}, lines: lines(items), human: func(p *printer) { p.table(deliveryTable(p, w.clock.Now(), items)) }}); err != nil {
			return err
		}
	}
	if len(items) == 0 {
		within := "now"
		if f.wait > 0 {
			within = "within " + wire.Duration(f.wait).String()
		}
		return &codedError{exitTimeout, fmt.Errorf("no mail came from %s %s", r, within)}
	}
	return w.ackRead(cmd, r, f, items)
}

// deliveryTable lists deliveries.
func deliveryTable(p *printer, now time.Time, items []wire.DeliveredMail) *table {
	t := newTable(col("HANDLE"), col("FROM"), col("CLASS"), col("KEY"), col("ABOUT"), num("TRY"), num("LEASE"), col("BODY"), wideOnly("ID"), wideOnly("SENDER"), wideOnly("REPLY TO"), wideOnly("AGE"))
	for _, d := range items {
		m := d.Mail
		t.row(d.Lease, m.From, m.Class, m.Key, about(m), d.Attempt, formatDuration(d.Until.Sub(now)), p.truncate(bodyLine(m), 60), m.ID, m.Sender, m.ReplyTo, formatDuration(now.Sub(m.Created)))
	}
	return t
}

// about returns the subject or the type of a mail.
func about(m wire.ReceivedMail) string {
	if m.Subject != "" {
		return m.Subject
	}
	return m.Type
}

// bodyLine returns the body of a mail as one line.
func bodyLine(m wire.ReceivedMail) string {
	if m.Digest != "" {
		return "(" + formatSize(m.Size) + ": balefire-node mail show " + m.ID + " --body)"
	}
	if !isText(m.Body) {
		return "(" + formatSize(m.Size) + ", not text)"
	}
	return sanitizeLine(string(m.Body))
}

// ackRead acknowledges what was printed, if the flags say so.
func (w *app) ackRead(cmd *cobra.Command, r readable, f *readFlags, items []wire.DeliveredMail) error {
	if !f.ack {
		return nil
	}
	var s wire.SettleMail
	for _, d := range items {
		s.Ack = append(s.Ack, d.Lease)
	}
	done, err := callMail(cmd, w, func(ctx context.Context, c *client.Client) ([]wire.SettledItem, error) {
		return c.SettleMail(ctx, r.box, r.sub, s)
	})
	if err != nil {
		return fmt.Errorf("what was read is not acknowledged, and may be delivered again: %w", err)
	}
	return unsettled(r, done)
}

// followWait is how long one request of --follow waits.
const followWait = time.Minute

// followMail prints mail until ctx is done.
func (w *app) followMail(cmd *cobra.Command, r readable, f *readFlags) error {
	ctx, cancel := w.withTimeout(cmd.Context())
	defer cancel()
	cmd.SetContext(ctx)
	f.lease.Wait = wire.Wait(followWait)
	for read, told := false, false; ; {
		items, err := callMail(cmd, w, func(ctx context.Context, c *client.Client) ([]wire.DeliveredMail, error) {
			return c.LeaseMail(ctx, r.box, r.sub, f.lease)
		})
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && read && isUnreachable(err):
			if !told {
				w.infof("… the node is not running: waiting for it")
			}
			told = true
			clock.Pause(ctx, reconnectDelay)
			continue
		case err != nil:
			return err
		}
		if read, told = true, false; len(items) == 0 {
			continue
		}
		switch err := w.saveBodies(cmd, r, f, items); {
		case err == nil:
		case ctx.Err() == nil && comesAgain(err):
			w.warn(err)
			clock.Pause(ctx, reconnectDelay)
			continue
		default:
			return err
		}
		if err := w.show(view{lines: lines(items), human: func(p *printer) {
			for _, d := range items {
				p.line("%s  %s  %s  %s  %s", d.Lease, d.Mail.From, orDash(d.Mail.Key), orDash(about(d.Mail)), p.truncate(bodyLine(d.Mail), 100))
			}
		}}); err != nil {
			return err
		}
		err = w.ackRead(cmd, r, f, items)
		switch code := wire.CodeOf(err); {
		case err == nil:
		case ctx.Err() != nil || !isUnreachable(err) && code != wire.CodeUnknown && code != wire.CodeTimeout:
			return err
		default: // a node on the way does not answer, or the lease has ended: what counts for nothing comes again
			w.warn(err)
		}
	}
}

// warn prints an error after which a command goes on.
func (w *app) warn(err error) {
	fmt.Fprintf(w.err, "warning: %s\n", sanitize(prose.Plain(err.Error())))
}

// settleFlags are the raw flags of the commands that settle deliveries.
type settleFlags struct {
	box, delay, span, reason string
	final                    bool
}

// settleTexts are the help of the commands that settle deliveries.
var settleTexts = map[string]struct{ short, long, example string }{
	"ack": {"Acknowledge mail: it is done", "The mail has been handled and ends.", "balefire-node mail ack 88121.1795212606.4 --box ceo"},
	"nack": {
		"Give mail back that could not be handled", "This spends an attempt: the mail is delivered again after --delay, or is a dead\nletter if it was the last one, or with --final at once.",
		"balefire-node mail nack 88122.1795212606.5 --box ceo --delay 30s --reason 'rate limit'",
	},
	"extend": {"Extend the lease of mail", "The lease ends --lease from now, at most 12 hours after the delivery.", "balefire-node mail extend 88121.1795212606.4 --box ceo --lease 10m"},
	"defer":  {"Give mail back for later", "This spends no attempt: the mail is delivered again after --delay.", "balefire-node mail defer 88121.1795212606.4 --box ceo --delay 1h"},
	"bounce": {"Send mail back to its sender", "The mail ends, and its sender is told why.", "balefire-node mail bounce 88121.1795212606.4 --box ceo --reason 'not for me'"},
}

func settleCommand(w *app, verb string) *cobra.Command {
	var f settleFlags
	text := settleTexts[verb]
	c := &cobra.Command{
		Use: verb + " HANDLE... --box BOX", Short: text.short,
		Long:    text.long + "\n\nA handle is one of its box: --box names the mailbox, or topic:TOPIC/SUB, that it\nwas read from. The exit code is 8 if a handle does not count, because somebody\nelse was given the mail since, or it has ended otherwise than by an\nacknowledgment.",
		Example: "  " + text.example, Args: handles, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.box == "" {
				return usage("--box is missing: a handle alone does not name the box that it was read from, as in --box ceo or --box topic:orders/billing")
			}
			r, err := parseReadable(f.box)
			if err != nil {
				return err
			}
			s, err := f.settlement(verb, args)
			if err != nil {
				return err
			}
			return w.settle(cmd, r, s)
		},
	}
	fs := c.Flags()
	fs.StringVar(&f.box, "box", "", "the mailbox, or topic:TOPIC/SUB, that the handles were read from")
	_ = c.RegisterFlagCompletionFunc("box", w.completeBoxFlag) // the flag exists
	switch verb {
	case "nack":
		fs.StringVar(&f.delay, "delay", "", "until the next delivery, at most 30d (default 1s, doubled with each attempt up to 5m)")
		fs.BoolVar(&f.final, "final", false, "it can never succeed: make it a dead letter")
		c.MarkFlagsMutuallyExclusive("delay", "final")
	case "extend":
		fs.StringVar(&f.span, "lease", "", "how long the lease lasts from now")
	case "defer":
		fs.StringVar(&f.delay, "delay", "", "until the next delivery, at most 30d (default at once)")
	}
	if verb != "ack" && verb != "extend" {
		fs.StringVar(&f.reason, "reason", "", "why, at most 256 bytes")
	}
	return c
}

var handleRE = regexp.MustCompile(`^\d+\.\d+\.\d+$`)

// handles checks for handles of deliveries.
func handles(cmd *cobra.Command, args []string) error {
	for _, a := range args {
		if !handleRE.MatchString(a) {
			return usage("%.60q is not a handle: use one that mail read printed, such as 88121.1795212606.4", a)
		}
	}
	return between(1, wire.MaxMailBatch, fmt.Sprintf("1 to %d handles", wire.MaxMailBatch))(cmd, args)
}

// settlement converts handles and flags to the request.
func (f *settleFlags) settlement(verb string, handles []string) (s wire.SettleMail, err error) {
	delay, err := parseSpan("delay", f.delay)
	if err != nil {
		return s, err
	}
	span, err := parseSpan("lease", f.span)
	switch {
	case err != nil:
		return s, err
	case verb == "extend" && span == 0:
		return s, usage("--lease is missing: say how long, as in --lease 10m")
	case len(f.reason) > box.MaxReason:
		return s, usage("--reason has %d bytes: at most %d", len(f.reason), box.MaxReason)
	case time.Duration(delay) > box.MaxDelay:
		return s, usage("--delay %s: at most %s", f.delay, wire.Duration(box.MaxDelay))
	}
	for _, h := range handles {
		switch verb {
		case "ack":
			s.Ack = append(s.Ack, h)
		case "nack":
			s.Nack = append(s.Nack, wire.NackMail{Lease: h, Delay: delay, Reason: f.reason, Final: f.final})
		case "extend":
			s.Extend = append(s.Extend, wire.ExtendMail{Lease: h, For: span})
		case "defer":
			s.Defer = append(s.Defer, wire.DeferMail{Lease: h, Delay: delay, Reason: f.reason})
		case "bounce":
			s.Bounce = append(s.Bounce, wire.BouncedMail{Lease: h, Reason: f.reason})
		}
	}
	return s, nil
}

// settle settles deliveries and prints what became of each.
func (w *app) settle(cmd *cobra.Command, r readable, s wire.SettleMail) error {
	items, err := callMail(cmd, w, func(ctx context.Context, c *client.Client) ([]wire.SettledItem, error) {
		return c.SettleMail(ctx, r.box, r.sub, s)
	})
	if err != nil {
		return err
	}
	err = w.show(view{value: wire.SettledMail{Items: items}, lines: lines(items), human: func(p *printer) {
		for _, i := range items {
			until := ""
			if i.Until != nil {
				until = "  the lease ends in " + formatDuration(i.Until.Sub(w.clock.Now()))
			}
			p.line("%s  %s%s", i.Lease, i.Code, until)
		}
	}})
	return errors.Join(err, unsettled(r, items))
}

// settledWhy says why a handle does not count.
var settledWhy = map[string]string{
	wire.SettledStale:      "somebody else was given the mail since, or it has ended otherwise than by an acknowledgment",
	wire.SettledOutOfOrder: "a mail before it with the same key is not acknowledged",
	wire.SettledUnknown:    "there was no such delivery of %s: is it the right box?",
}

// unsettled returns the error for handles that do not count, or nil.
func unsettled(r readable, items []wire.SettledItem) error {
	var bad []string
	for _, i := range items {
		if i.Code != wire.SettledOK {
			bad = append(bad, fmt.Sprintf("%s is %s: %s", i.Lease, i.Code, strings.ReplaceAll(settledWhy[i.Code], "%s", r.String())))
		}
	}
	switch {
	case len(bad) == 0:
		return nil
	case len(bad) == 1:
		return &codedError{exitRefused, errors.New(bad[0])}
	}
	return &codedError{exitRefused, fmt.Errorf("%d of %d do not count; %s", len(bad), len(items), bad[0])}
}
