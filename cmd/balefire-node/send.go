package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/settings"
	"github.com/balefire/balefire/wire"
)

// inlineBody is the largest body that is sent to the node inside the request; a larger one
// is streamed.
const inlineBody = 1 << 20

// sendFlags are the raw flags of send.
type sendFlags struct {
	class, ttl, delay, at string
	result                string
	dedupe                string
	labels                []string
	wait, once            bool
	request               wire.Request
}

func sendCommand(w *app) *cobra.Command {
	var f sendFlags
	c := &cobra.Command{
		Use:   "send PEER KIND [@FILE | -] [-- ARG...]",
		Short: "Send a task to another machine",
		Long: `Send a task to a peer. When the command returns, the task is on this machine's
disk: it is delivered as soon as there is a path, takes effect once, and its
result comes back. Its id is printed on standard output.

The body is a file (@FILE), standard input (-) or empty; the words after -- are
passed to the handler as arguments, if it allows that. With --wait the result is
printed instead of the id (with -o json the task), and the exit code is the
outcome: 5 it was denied, 7 it failed, 8 it was cancelled or expired, 6 the wait
timed out and the task is safe.`,
		Example: `  balefire-node send laptop resize @photo.jpg --wait -- 800 600
  balefire-node send laptop ingest @photos.tar --class low --ttl 24h
  pg_dump shop | balefire-node send backup store - --key shop-$(date +%F)`,
		Annotations: map[string]string{annotationWaits: "yes"},
		Args:        between(2, -1, "a peer and a kind: send PEER KIND [@FILE | -] [-- ARG...]"),

		ValidArgsFunction: w.completeTarget,
		RunE:              func(cmd *cobra.Command, args []string) error { return w.send(cmd, &f, args) },
	}
	fs := c.Flags()
	fs.StringVar(&f.class, "class", "", "critical, high, normal or low (default normal)")
	fs.BoolVar(&f.once, "at-most-once", false, "never start it a second time: after a crash during the run its outcome is indeterminate")
	fs.StringVar(&f.ttl, "ttl", "", "do not start it after this, at most 30d (default 7d)")
	fs.StringVar(&f.request.Key, "key", "", "idempotency key: one task; for another request than the first it is refused")
	fs.StringVar(&f.dedupe, "dedupe", "", "content: derive the key from target, kind, body, arguments, type, order key and labels of a node")
	fs.StringVar(&f.at, "at", "", "not before this time: 2006-01-02T15:04:05Z07:00, or the next 15:04")
	fs.StringVar(&f.delay, "delay", "", "not before this long from now")
	fs.StringVar(&f.request.Order, "order-key", "", "tasks of one key run one after the other")
	fs.StringVar(&f.request.OnDead, "on-dead", "", "what follows a dead task of the same order key: skip or block (default skip)")
	fs.StringArrayVar(&f.labels, "label", nil, "label key=value (repeatable)")
	fs.StringArrayVar(&f.request.Require, "require", nil, "for a queue: a label that the node must have (repeatable)")
	fs.StringArrayVar(&f.request.Prefer, "prefer", nil, "for a queue: a label that the node should have (repeatable)")
	fs.StringVar(&f.request.Type, "type", "", "content type of the body")
	fs.Var(numberValue[uint32]{&f.request.Retries, 0, math.MaxUint32}, "retries", "attempts of the handler, up to what it allows (default its own)")
	fs.StringVar(&f.result, "max-result", "", "largest result to accept, like 64MiB, up to the handler's limit (default that limit)")
	fs.BoolVar(&f.wait, "wait", false, "wait for the end and print the result")
	oneOf(c, "on-dead", "skip", "block")
	c.MarkFlagsMutuallyExclusive("key", "dedupe")
	c.MarkFlagsMutuallyExclusive("at", "delay")
	return c
}

func (w *app) send(cmd *cobra.Command, f *sendFlags, args []string) error {
	words := args
	if dash := cmd.ArgsLenAtDash(); dash >= 0 {
		words, f.request.Args = args[:dash], args[dash:]
	}
	if len(words) < 2 || len(words) > 3 {
		return usage("send takes a peer, a kind and one body: @FILE or -; arguments for the handler follow --")
	}
	f.request.Target, f.request.Kind = words[0], words[1]
	if err := f.read(w.clock.Now()); err != nil {
		return err
	}
	if len(words) == 3 {
		file, err := w.openBody(words[2], &f.request)
		if err != nil {
			return err
		}
		defer file.Close()
	}
	return do(cmd, w, func(ctx context.Context, c *client.Client) error {
		start := w.clock.Mono()
		s, err := c.Submit(ctx, f.request)
		if err != nil {
			return w.unanswered(err, f.request.Key, "--key", "balefire-node task ls")
		}
		w.printSubmitted(s, w.clock.Mono()-start)
		if len(args) == 2 && w.hasUnread != nil && w.hasUnread() {
			w.infof("! standard input was not sent: add - after the kind to send it as the body")
		}
		if !s.Known {
			w.warnUnserved(ctx, c, f.request)
		}
		if f.wait {
			return w.follow(ctx, c, s.ID)
		}
		return w.show(view{value: s, human: func(p *printer) { p.line("%s", s.ID) }})
	})
}

func (w *app) printSubmitted(s wire.Submitted, took time.Duration) {
	switch {
	case s.Known && s.State == "":
		w.infof("existing task: the key was used before by task %s, which has ended; its record is no longer stored. The options of this command do not change it", s.ID)
	case s.Known:
		w.infof("existing task: the key was used before by task %s, %s; the options of this command do not change it", s.ID, s.State)
	case s.Due != nil:
		w.infof("stored on disk for %s in %s; it will be sent at %s", s.Target, formatDuration(took), formatTime(*s.Due))
	default:
		w.infof("stored on disk for %s in %s", s.Target, formatDuration(took))
	}
}

// warnUnserved warns if the peer of a task has no handler for its kind, as far as this node
// knows.
func (w *app) warnUnserved(ctx context.Context, c *client.Client, r wire.Request) {
	if _, queued := proto.QueueOf(r.Target); queued || w.flags.quiet {
		return
	}
	m, err := c.Member(ctx, r.Target)
	if err != nil || m.Phase == "" || slices.Contains(m.Kinds, r.Kind) { // without a phase nothing is known about its handlers
		return
	}
	does := "it has no handlers"
	if len(m.Kinds) > 0 {
		does = "it serves " + truncate(strings.Join(m.Kinds, ", "), 200)
	}
	w.infof("! %s has announced no handler for %s (%s): until it has one, the task waits", sanitize(m.Name), r.Kind, sanitize(does))
}

// read converts the flags to the request.
func (f *sendFlags) read(now time.Time) (err error) {
	r := &f.request
	class, err := proto.ParseClass(f.class)
	if err != nil {
		return usage("--class: %w", err)
	}
	r.Class = class.Name()
	if f.once {
		r.Mode = proto.AtMostOnce.Name()
	}
	if r.TTL, err = parseSpan("ttl", f.ttl); err != nil {
		return err
	}
	if time.Duration(r.TTL) > proto.MaxTTL {
		return usage("--ttl %s: at most %s", f.ttl, wire.Duration(proto.MaxTTL))
	}
	if r.Delay, err = parseSpan("delay", f.delay); err != nil {
		return err
	}
	if r.At, err = parseTime(f.at, now); err != nil {
		return err
	}
	if r.MaxResult, err = parseSize("max-result", f.result); err != nil {
		return err
	}
	switch f.dedupe {
	case "":
	case "content":
		r.Key = "auto"
	default:
		return usage("--dedupe %.20q: it must be content", f.dedupe)
	}
	r.Labels, err = parseLabels(f.labels)
	return err
}

// maxLabelKey is the largest key of a label, in bytes.
const maxLabelKey = 128

// parseLabels parses labels of the form key=value.
func parseLabels(texts []string) (labels map[string]string, err error) {
	for _, l := range texts {
		k, v, ok := strings.Cut(l, "=")
		if !ok || k == "" {
			return nil, usage("--label %.60q: write it as key=value", l)
		}
		if len(k) > maxLabelKey {
			return nil, usage("--label %.60q: a key of %d bytes: at most %d", l, len(k), maxLabelKey)
		}
		if labels == nil {
			labels = map[string]string{}
		}
		labels[k] = v
	}
	return labels, nil
}

// parseSpan parses a flag that is a positive duration.
func parseSpan(flag, text string) (d wire.Duration, err error) {
	if err := d.UnmarshalText([]byte(text)); err != nil {
		return 0, usage("--%s: %w", flag, err)
	}
	return d, nil
}

// parseSize parses a flag that is a size; empty is 0.
func parseSize(flag, text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	n, err := settings.ParseBytes(text)
	if err == nil && n <= 0 {
		err = errors.New("it must be positive")
	}
	if err != nil {
		return 0, usage("--%s: %w", flag, err)
	}
	return int64(n), nil
}

// parseTime parses a time: a full one, or an hour and minute of today or tomorrow.
func parseTime(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return t, nil
	}
	t, err := time.ParseInLocation("15:04", text, now.Location())
	if err != nil {
		return t, usage("--at %.40q: use 2006-01-02T15:04:05Z07:00 or 15:04", text)
	}
	t = time.Date(now.Year(), now.Month(), now.Day(), t.Hour(), t.Minute(), 0, 0, now.Location())
	if t.Before(now) {
		t = t.AddDate(0, 0, 1)
	}
	return t, nil
}

// openBody opens the body of a task.
func (w *app) openBody(word string, r *wire.Request) (file io.Closer, err error) {
	if word != "-" && !strings.HasPrefix(word, "@") {
		return nil, usage("body %.60q: use @FILE for a file, - for standard input, or -- before arguments", word)
	}
	r.Body, r.Stream, file, err = w.openInput(word, inlineBody)
	return file, err
}

// openInput opens the body that @FILE or - stands for. A small one is read at once, so that it is
// sent inside the request: up to a limit. Otherwise rest is all of it.
func (w *app) openInput(word string, limit int64) (small []byte, rest io.Reader, closer io.Closer, err error) {
	src, file := w.in, io.NopCloser(nil)
	switch path, named := strings.CutPrefix(word, "@"); {
	case named && path == "":
		return nil, nil, nil, usage("body @: name the file, as in @photo.jpg")
	case named:
		f, err := os.Open(path)
		if err != nil {
			return nil, nil, nil, fmt.Errorf("open the body: %w", err)
		}
		if info, err := f.Stat(); err != nil || info.IsDir() {
			return nil, nil, nil, errors.Join(usage("open the body: %s is a folder: pack it first, for example with tar", path), f.Close())
		}
		src, file = f, f
	case w.inTTY:
		w.infof("reading the body from the terminal, end it with Ctrl-D")
	}
	head, err := io.ReadAll(io.LimitReader(src, limit+1))
	switch {
	case err != nil:
		return nil, nil, nil, errors.Join(fmt.Errorf("read the body: %w", err), file.Close())
	case int64(len(head)) <= limit:
		return head, nil, file, nil
	}
	return nil, io.MultiReader(bytes.NewReader(head), src), file, nil
}
