package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

func mailCommand(w *app) *cobra.Command {
	return group("mail", "Send mail to mailboxes and topics, read it and settle it",
		`A mail waits in a mailbox until a reader has acknowledged it. Reading leases it:
what is not acknowledged in time is delivered again. BOX is a mailbox, NAME, or a
subscription of a topic, topic:TOPIC/SUB.`,
		mailSend(w), mailRead(w),
		settleCommand(w, "ack"), settleCommand(w, "nack"), settleCommand(w, "extend"), settleCommand(w, "defer"), settleCommand(w, "bounce"),
		mailReply(w), mailAwait(w), mailList(w), mailHistory(w), mailShow(w), mailReceipts(w), mailWatch(w), mailOutgoing(w), mailBounces(w))
}

// mailFlags are the raw flags of the commands that send a mail.
type mailFlags struct {
	class, ttl, delay, at string
	labels                []string
	mail                  wire.Mail
}

func (f *mailFlags) add(c *cobra.Command) {
	fs := c.Flags()
	fs.StringVar(&f.class, "class", "", "critical, high, normal or low (default normal)")
	fs.StringVar(&f.mail.Key, "key", "", "ordering key: mails of one key are handled one after the other")
	fs.StringVar(&f.mail.Dedupe, "dedupe", "", "your name for this mail: for a day or more a second one with it is not sent")
	fs.StringVar(&f.mail.Type, "type", "", "what it is about, for programs")
	fs.StringVar(&f.mail.ContentType, "content-type", "", "media type of the body")
	fs.StringVar(&f.mail.ReplyTo, "reply-to", "", "the box for replies, such as agent:desk")
	fs.StringVar(&f.mail.BounceTo, "bounce-to", "", "the box that is told if it cannot be delivered (default --reply-to, then the mailbox of --sender)")
	fs.StringVar(&f.mail.Correlation, "correlation", "", "what it is part of, in your words; a reply has the same")
	fs.StringVar(&f.mail.Sender, "sender", "", "the agent that sends it")
	fs.StringArrayVar(&f.labels, "label", nil, "label key=value (repeatable)")
	fs.StringVar(&f.ttl, "ttl", "", "do not deliver it after this, at most 30d (default 7d)")
	fs.StringVar(&f.at, "at", "", "not before this time: 2006-01-02T15:04:05Z07:00, or the next 15:04")
	fs.StringVar(&f.delay, "delay", "", "not before this long from now")
	fs.BoolVar(&f.mail.Receipt, "receipt", false, "have the node of the box sign that it has the mail: see mail receipts")
	fs.StringVar(&f.mail.Notify, "notify", "", "done: the box of --bounce-to, or of its defaults, gets a mail when this one is DONE")
	fs.BoolVar(&f.mail.Relaxed, "relaxed", false, "do not wait until it is fsynced: a power cut in the next 100 ms may take it")
	c.MarkFlagsMutuallyExclusive("at", "delay")
	_ = c.RegisterFlagCompletionFunc("notify", cobra.FixedCompletions([]string{proto.NotifyDone}, cobra.ShellCompDirectiveNoFileComp))
	_ = c.RegisterFlagCompletionFunc("dedupe", cobra.NoFileCompletions) // the flag exists; that of send has words
}

// ofTopic hides what a mail to a topic cannot ask for.
func (f *mailFlags) ofTopic(c *cobra.Command) {
	f.add(c)
	_ = c.Flags().MarkHidden("notify") // it is refused with the reason
}

// read converts the flags to the mail.
func (f *mailFlags) read(now time.Time) (err error) {
	m := &f.mail
	if f.class != "" {
		class, err := proto.ParseClass(f.class)
		if err != nil {
			return usage("--class: %w", err)
		}
		m.Class = class.Name()
	}
	if m.TTL, err = parseSpan("ttl", f.ttl); err != nil {
		return err
	}
	if m.Delay, err = parseSpan("delay", f.delay); err != nil {
		return err
	}
	if m.At, err = parseTime(f.at, now); err != nil {
		return err
	}
	if m.Labels, err = parseLabels(f.labels); err != nil {
		return err
	}
	return checkAsked(m)
}

// checkAsked refuses, in the words of the flags, what a sender cannot ask for.
func checkAsked(m *wire.Mail) error {
	tells := m.Notify != ""
	switch {
	case tells && m.Notify != proto.NotifyDone:
		return usage("--notify %s: must be %s", m.Notify, proto.NotifyDone)
	case tells && strings.HasPrefix(m.To, proto.TopicPrefix):
		return usage("--notify: a mail to a topic has an end in each subscription, and none of its own: use it in a mail to a mailbox")
	case tells && m.Sender == "" && m.ReplyTo == "" && m.BounceTo == "":
		return usage("--notify: nobody could be told: add --sender, --reply-to or --bounce-to")
	case m.Receipt && m.Relaxed:
		return usage("--receipt and --relaxed are both given: there is no receipt of a mail before it is synced")
	}
	return nil
}

func mailSend(w *app) *cobra.Command {
	var f mailFlags
	var r requestFlags
	var file string
	c := &cobra.Command{
		Use: "send TARGET [BODY | @FILE | -]", Short: "Send a mail to a mailbox or a topic",
		Long: `Send a mail to TARGET: agent:NAME@NODE, agent:NAME for a mailbox of this node or of
the mesh, or topic:TOPIC. When the command returns, the mail is on this machine's
disk. Its id is printed on standard output.

The body is a text, a file (@FILE, or --file FILE), standard input (-) or empty. One
above 256 KiB is sent as it is read, and travels before its mail; with --wait there
is none. Give --dedupe if the command may be repeated: the mail is sent once.

With --wait the command waits for the reply and prints its body. The exit code is
6 if none came in time, and 7 if the mail was not delivered; nothing is lost: run
the command again with the same --dedupe, or use mail await.`,
		Example: `  balefire-node mail send agent:ceo@alpha --class high --key order-7 --dedupe inv-1 @brief.json
  balefire-node mail send agent:ceo 'the build is done' --sender ci --reply-to agent:ci
  balefire-node mail send agent:ceo@alpha 'how many?' --wait 30s`,
		Args: between(1, 2, "a target and a body: mail send TARGET [BODY | @FILE | -]"), ValidArgsFunction: w.completeMailTarget,
		RunE: func(cmd *cobra.Command, args []string) error {
			if file != "" && len(args) > 1 {
				return usage("--file and a body are both given: a mail has one body")
			} else if file != "" {
				args = append(args, "@"+file)
			}
			if r.wait > 0 || cmd.Flags().Changed("wait") {
				return w.requestMail(cmd, &f, &r, args[0], args[1:])
			}
			if len(r.from) > 0 {
				return usage("--reply-from goes with --wait: without it nobody waits for the reply")
			}
			return w.sendMail(cmd, &f, args[0], args[1:])
		},
	}
	f.add(c)
	r.add(c)
	c.Flags().StringVar(&f.mail.Subject, "subject", "", "of a mail to a topic: words with dots between them")
	c.Flags().StringVar(&file, "file", "", "send this file, as @FILE does")
	return c
}

// sendMail sends the mail of the flags to a target; the body, if there is one, is given as
// an argument.
func (w *app) sendMail(cmd *cobra.Command, f *mailFlags, to string, body []string) error {
	file, err := w.composeMail(f, to, body)
	if err != nil {
		return err
	}
	defer file.Close()
	return w.submitMail(cmd, f.mail)
}

// composeMail reads the flags of a mail, and its body from a file that stays open.
func (w *app) composeMail(f *mailFlags, to string, body []string) (io.Closer, error) {
	f.mail.To = to
	if err := f.read(w.clock.Now()); err != nil {
		return nil, err
	}
	return w.openMailBody(&f.mail, body)
}

// openMailBody opens the body that an argument stands for: a text, @FILE or -.
func (w *app) openMailBody(m *wire.Mail, body []string) (io.Closer, error) {
	if len(body) == 0 {
		if w.hasUnread != nil && w.hasUnread() {
			w.infof("! standard input was not sent: add - at the end to send it as the body")
		}
		return io.NopCloser(nil), nil
	}
	if word := body[0]; word != "-" && !strings.HasPrefix(word, "@") {
		m.Body = []byte(word)
		return io.NopCloser(nil), nil
	}
	head, rest, file, err := w.openInput(body[0], proto.MaxInlineBody)
	m.Body, m.Stream = head, rest
	return file, err
}

// submitMail sends a mail and prints its id.
func (w *app) submitMail(cmd *cobra.Command, m wire.Mail) error {
	if m.Stream != nil {
		w.unlimited(cmd)
	}
	start := w.clock.Mono()
	s, err := callMail(cmd, w, func(ctx context.Context, c *client.Client) (wire.SentMail, error) { return c.SendMail(ctx, m) })
	if err != nil {
		return w.unanswered(err, m.Dedupe, "--dedupe", "balefire-node mail history BOX here, or on the node of the box")
	}
	took := formatDuration(w.clock.Mono() - start)
	switch {
	case s.Known:
		w.infof("existing mail: the dedupe key was used before by mail %s", s.ID)
	case s.Durability == wire.DurabilityRelaxed:
		w.infof("written for %s in %s; a power cut in the next 100 ms may take it", sanitize(s.Box), took)
	default:
		w.infof("stored on disk for %s in %s", sanitize(s.Box), took)
	}
	return w.show(view{value: s, human: func(p *printer) { p.line("%s", s.ID) }})
}

func mailReply(w *app) *cobra.Command {
	var f mailFlags
	c := &cobra.Command{
		Use: "reply ID|@FILE [BODY | @FILE | -]", Short: "Send a reply to a mail",
		Long: `Send a reply to the box that a mail names for replies (--reply-to of mail send).
It has the class, the key and the trace of the mail, and as correlation that of the
mail or its id. Reply before you acknowledge the mail: it must still be there.

A mail that was read from another node is given as @FILE: what mail read -o jsonl
printed of it. It may be acknowledged already.

Of a request (mail send --wait) the first reply counts: later ones are sent too, and
come to nothing. To another box a mail is answered once: a second reply is not sent,
unless it has another --dedupe.`,
		Example: `  balefire-node mail reply 01a20c7e-5b1f-7d12-9a44-3f0c2b6d8e91 @answer.json
  balefire-node mail read desk@laptop -o jsonl > mail && balefire-node mail reply @mail done`,
		Args: func(cmd *cobra.Command, args []string) error {
			if err := between(1, 2, "a mail and a body: mail reply ID|@FILE [BODY | @FILE | -]")(cmd, args); err != nil || strings.HasPrefix(args[0], "@") {
				return err
			}
			return mailID(args[0])
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 || len(args) == 0 && strings.HasPrefix(begun, "@") {
				return bodies(begun)
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.read(w.clock.Now()); err != nil {
				return err
			}
			old, err := w.mailToReply(cmd, args[0])
			if err != nil {
				return err
			}
			if err := f.mail.AsReplyTo(&old); err != nil {
				return &codedError{exitRefused, err}
			}
			file, err := w.openMailBody(&f.mail, args[1:])
			if err != nil {
				return err
			}
			defer file.Close()
			return w.submitMail(cmd, f.mail)
		},
	}
	f.add(c)
	return c
}

// mailToReply returns the mail with an id, or that of a file.
func (w *app) mailToReply(cmd *cobra.Command, word string) (wire.ReceivedMail, error) {
	path, named := strings.CutPrefix(word, "@")
	if !named {
		m, err := callMail(cmd, w, func(ctx context.Context, c *client.Client) (wire.BoxedMail, error) { return c.Mail(ctx, word) })
		return m.ReceivedMail, err
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return wire.ReceivedMail{}, fmt.Errorf("read the mail: %w", err)
	}
	var read struct {
		wire.DeliveredMail
		Items []wire.DeliveredMail `json:"items"`
	}
	err = json.Unmarshal(raw, &read)
	if err == nil && len(read.Items) == 1 {
		read.DeliveredMail = read.Items[0]
	}
	if err != nil || read.Mail.ID == "" {
		return wire.ReceivedMail{}, usage("%s is not one mail as mail read -o jsonl prints it", path)
	}
	return read.Mail, nil
}

// mailID checks the id of a mail, or its beginning.
func mailID(text string) error {
	if !taskRE.MatchString(text) {
		return usage("%.60q is not the id of a mail: use an id from mail ls, or the beginning of one", text)
	}
	return nil
}

// mailQuery are the raw flags that select mails of a box.
type mailQuery struct {
	since, until string
	all          bool
	q            wire.MailQuery
}

func (f *mailQuery) query(now time.Time) (q wire.MailQuery, err error) {
	q = f.q
	q.State = strings.ToUpper(q.State)
	if q.Limit < 1 || q.Limit > maxLimit {
		return q, usage("--limit %d: it must be 1 to %d entries per page; --all fetches all pages", q.Limit, maxLimit)
	}
	if q.State != "" && !slices.Contains(mailStates, q.State) {
		return q, usage("--state %.20q: it must be %s", f.q.State, joinOr(lower(mailStates)))
	}
	if q.Since, err = parsePast("since", f.since, now); err != nil {
		return q, err
	}
	q.Until, err = parsePast("until", f.until, now)
	return q, err
}

var mailStates = []string{"WAITING", "LEASED", "RETRYING", "DEAD"}

// boxMails fetches one page of the mails of a box, or with all of them all pages as one.
func (w *app) boxMails(cmd *cobra.Command, r readable, q wire.MailQuery, all bool) (wire.Page[wire.BoxedMail], error) {
	if all {
		q.Limit = maxLimit
	}
	page := wire.Page[wire.BoxedMail]{Items: []wire.BoxedMail{}}
	for {
		more, err := callMail(cmd, w, func(ctx context.Context, c *client.Client) (wire.Page[wire.BoxedMail], error) {
			return c.BoxMails(ctx, r.box, r.sub, q)
		})
		if err != nil {
			return page, err
		}
		page.Items, page.Next = append(page.Items, more.Items...), more.Next
		if q.Cursor = more.Next; !all || q.Cursor == "" {
			return page, nil
		}
	}
}

func mailList(w *app) *cobra.Command {
	var f mailQuery
	c := &cobra.Command{
		Use: "ls BOX", Short: "List the mails of a box, oldest first",
		Long: `List the mails of a mailbox, or of a subscription of a topic, that have not ended;
with --state dead its dead letters. Looking changes nothing.`,
		Example: "  balefire-node mail ls ceo --state waiting\n  balefire-node mail ls topic:orders/billing --subject 'eu.>' -o jsonl", Args: oneBox, ValidArgsFunction: w.completeBox,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 { // mail without a subcommand
				return cmd.Help()
			}
			return w.listMails(cmd, args[0], f)
		},
	}
	c.Flags().StringVar(&f.q.State, "state", "", "waiting, leased, retrying or dead (default all but dead)")
	f.add(c)
	completeWords(c, "state", lower(mailStates)...)
	return c
}

// add adds the flags that every list of mails has.
func (f *mailQuery) add(c *cobra.Command) {
	fs := c.Flags()
	fs.StringVar(&f.q.Class, "class", "", "only this class")
	fs.StringVar(&f.q.Key, "key", "", "only mails with this ordering key")
	fs.StringVar(&f.q.Subject, "subject", "", "only these subjects, such as 'eu.>'")
	fs.StringVar(&f.since, "since", "", "only mails accepted since: an age like 1h, or a time")
	fs.StringVar(&f.until, "until", "", "only mails accepted before: an age like 7d, or a time")
	fs.IntVar(&f.q.Limit, "limit", 50, "entries per page, at most 1000")
	fs.StringVar(&f.q.Cursor, "cursor", "", "continue after this page")
	fs.BoolVar(&f.all, "all", false, "all pages")
}

// listMails shows the mails of a box that the flags select.
func (w *app) listMails(cmd *cobra.Command, box string, f mailQuery) error {
	r, err := parseReadable(box)
	if err != nil {
		return err
	}
	q, err := f.query(w.clock.Now())
	if err != nil {
		return err
	}
	page, err := w.boxMails(cmd, r, q, f.all)
	if err != nil {
		return err
	}
	return w.show(mailsView(w, r, page))
}

// mailsView shows a page of mails.
func mailsView(w *app, r readable, page wire.Page[wire.BoxedMail]) view {
	return view{value: page, lines: lines(page.Items), human: func(p *printer) {
		about := "TYPE"
		if r.sub != "" {
			about = "SUBJECT"
		}
		t := newTable(num("NUMBER"), col("ID"), col("STATE"), col("CLASS"), col("KEY"), col(about), col("FROM"), num("AGE"), num("TRIES"), num("SIZE"), col("REASON"),
			wideOnly("FULL ID"), wideOnly("SENDER"), wideOnly("REPLY TO"), wideOnly("SENT AGAIN"))
		for _, m := range page.Items {
			topic := m.Type
			if r.sub != "" {
				topic = m.Subject
			}
			t.row(m.Seq, shortTask(m.ID), m.State, m.Class, m.Key, topic, m.From, w.ago(&m.Accepted), m.Attempts, formatSize(m.Size), p.truncate(whyRetried(m), 60),
				m.ID, m.Sender, m.ReplyTo, yesNo(m.Redriven))
		}
		p.table(t)
		if page.Next != "" {
			w.infof("there are more: use --cursor %s or --all", page.Next)
		}
	}}
}

// whyRetried returns why a mail is a dead letter, or why its last delivery failed.
func whyRetried(m wire.BoxedMail) string {
	cause, reason := m.Cause, m.Reason
	if cause == "" && len(m.Tries) > 0 {
		last := m.Tries[len(m.Tries)-1]
		cause, reason = last.Cause, last.Reason
	}
	if reason == "" {
		return cause
	}
	return cause + ": " + sanitizeLine(reason)
}

func mailShow(w *app) *cobra.Command {
	var body bool
	c := &cobra.Command{
		Use: "show ID", Short: "Show a mail with its body and its failed deliveries",
		Long: `Show a mail that waits on this node, in a box or for another node (PENDING), or is
a dead letter there. Looking changes nothing. With --body only its body is
written, as it is.`,
		Example: "  balefire-node mail show 01a20c7e-5b1f-7d12\n  balefire-node mail show 01a20c7e-5b1f-7d12 --body > brief.json",
		Args: func(cmd *cobra.Command, args []string) error {
			if err := exactly(1, "the id of a mail, or its beginning")(cmd, args); err != nil {
				return err
			}
			return mailID(args[0])
		}, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := callMail(cmd, w, func(ctx context.Context, c *client.Client) (wire.BoxedMail, error) { return c.Mail(ctx, args[0]) })
			switch {
			case err != nil:
				return err
			case body && m.Digest != "":
				return w.writeMailBody(cmd, m.ID)
			case body && w.outTTY && !isText(m.Body):
				return errors.New("the body is not text and is not written to the terminal: redirect it to a file")
			case body:
				return w.writeResult(m.ID, strings.NewReader(string(m.Body)))
			}
			return w.show(view{value: m, human: func(p *printer) { printMail(p, m) }})
		},
	}
	c.Flags().BoolVar(&body, "body", false, "write only the body")
	return c
}

func printMail(p *printer, m wire.BoxedMail) {
	w := p.app
	p.line("mail      %s   class %s   from %s", m.ID, m.Class, m.From)
	switch m.State {
	case "PENDING":
		p.line("box       %s   on its way: balefire-node mail outgoing", m.Box)
	case "ACCEPTED":
		p.line("box       %s   its node has it", m.Box)
	default:
		p.line("box       %s   number %d", m.Box, m.Seq)
	}
	state := fmt.Sprintf("state     %s   attempts %d   abandons %d", m.State, m.Attempts, m.Abandons)
	if m.Died == nil {
		state += "   ttl " + formatDuration(m.NotAfter.Sub(w.clock.Now())) + " left"
	}
	if m.Due != nil && m.Due.After(w.clock.Now()) {
		state += "   not before " + formatTime(*m.Due)
	}
	p.line("%s", state)
	p.line("accepted  %s ago", w.ago(&m.Accepted))
	if m.Receipt != nil {
		p.line("receipt   %s has signed at %s that it has the mail: balefire-node mail receipts %s", sanitize(m.Receipt.Node), formatTime(m.Receipt.Time), shortTask(m.ID))
	} else if m.State == "ACCEPTED" {
		p.line("receipt   none: the node of the box did not sign that it has the mail")
	}
	if m.Died != nil {
		p.line("died      %s ago   %s", w.ago(m.Died), whyRetried(m))
	}
	for _, x := range []struct{ name, text string }{
		{"body", largeBody(m.ReceivedMail)}, {"subject", m.Subject}, {"key", m.Key}, {"type", m.Type}, {"content", m.ContentType}, {"sender", m.Sender}, {"reply to", m.ReplyTo}, {"regarding", m.Correlation},
		{"trace", m.Trace}, {"again", m.RedriveOf}, {"bounce of", m.BounceOf}, {"labels", formatLabels(m.Labels)},
	} {
		if x.text != "" {
			p.line("%-9s %s", x.name, sanitizeLine(x.text))
		}
	}
	if len(m.Tries) > 0 {
		t := newTable(col("FAILED"), col("CAUSE"), col("READER"), col("REASON"))
		for _, x := range m.Tries {
			t.row(x.At.Local().Format("15:04:05.000"), x.Cause, x.Reader, x.Reason)
		}
		p.table(t)
	}
	if m.Stderr != "" {
		p.line("stderr\n%s", quoteLines(m.Stderr))
	}
	switch {
	case len(m.Body) == 0:
		p.line("body      empty")
	case isText(m.Body):
		p.line("body      %s\n%s", formatSize(m.Size), quoteLines(string(m.Body)))
	default:
		p.line("body      %s, not text: balefire-node mail show %s --body > FILE", formatSize(m.Size), shortTask(m.ID))
	}
}

// isText reports whether a body is text.
func isText(b []byte) bool { return utf8.Valid(b) && !slices.Contains(b, 0) }

// formatLabels formats labels by name.
func formatLabels(labels map[string]string) string {
	var words []string
	for name, value := range labels {
		words = append(words, name+"="+value)
	}
	slices.Sort(words)
	return strings.Join(words, ", ")
}
