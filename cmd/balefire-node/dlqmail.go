package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/cmd/balefire-node/prose"
	"github.com/balefire/balefire/wire"
)

// addMailbox adds the flag that selects the dead letters of a box.
func (w *app) addMailbox(c *cobra.Command, box *string) {
	c.Flags().StringVar(box, "mailbox", "", "the dead letters of this mailbox, or topic:TOPIC/SUB, in place of tasks")
	_ = c.RegisterFlagCompletionFunc("mailbox", w.completeBoxFlag) // the flag exists
}

// onlyFor returns an error if a flag is given that is not one of those for mail.
func onlyFor(cmd *cobra.Command, flags ...string) error {
	for _, f := range []string{"state", "role", "peer", "kind", "label", "before", "since", "limit", "cursor", "all", "sort", "reverse", "dry-run"} {
		if cmd.Flags().Changed(f) && !slices.Contains(flags, f) {
			return usage("--%s selects tasks and cannot be used with --mailbox", f)
		}
	}
	return nil
}

// deadMail lists the dead letters of a box.
func (w *app) deadMail(cmd *cobra.Command, f *queryFlags, name string) error {
	if err := onlyFor(cmd, "before", "since", "limit", "cursor", "all"); err != nil {
		return err
	}
	return w.listMails(cmd, name, mailQuery{since: f.since, until: f.before, all: f.all, q: wire.MailQuery{State: "DEAD", Limit: f.q.Limit, Cursor: f.q.Cursor}})
}

// redriveFlags are the raw flags of dlq retry --mailbox.
type redriveFlags struct {
	box, to string
	rate    int
}

const (
	defaultRedriveRate = 50 // of the node, mails a second
	maxRedriveRate     = 10_000
	redriveSeconds     = 10 // that one request takes at most
)

func (f *redriveFlags) add(w *app, c *cobra.Command) {
	w.addMailbox(c, &f.box)
	c.Flags().StringVar(&f.to, "to", "", "with --mailbox: another mailbox or topic for them (default their own; needed for a topic)")
	c.Flags().Var(numberValue[int]{&f.rate, 1, maxRedriveRate}, "rate", "with --mailbox: mails a second (default 50)")
	_ = c.RegisterFlagCompletionFunc("to", w.completeMailTargetFlag) // the flag exists
}

// retry sends dead letters of a box again: those with these numbers, or all that were not
// sent again yet. One request takes as many as it can send in some seconds.
func (f *redriveFlags) retry(cmd *cobra.Command, w *app, args []string) error {
	if err := onlyFor(cmd); err != nil {
		return err
	}
	r, err := parseReadable(f.box)
	if err != nil {
		return err
	}
	seqs, err := numbers(args)
	if err != nil {
		return err
	}
	most := min(cmp.Or(f.rate, defaultRedriveRate)*redriveSeconds, maxLimit)
	done := wire.RedrivenMail{Items: []wire.MailBatchItem{}}
	for more := true; more && err == nil; {
		request := wire.RedriveMail{To: f.to, Rate: f.rate, Max: most}
		request.Seqs, seqs = seqs[:min(most, len(seqs))], seqs[min(most, len(seqs)):]
		var part wire.RedrivenMail
		part, err = callMail(cmd, w, func(ctx context.Context, c *client.Client) (wire.RedrivenMail, error) {
			return c.RedriveMail(ctx, r.box, r.sub, request)
		})
		done.Items = append(done.Items, part.Items...)
		stuck := slices.ContainsFunc(part.Items, func(i wire.MailBatchItem) bool { return i.Problem != nil && i.Status != http.StatusConflict })
		more = !stuck && (part.More || len(seqs) > 0)
	}
	if err != nil && len(done.Items) == 0 {
		return err
	}
	var bad []string
	t := newTable(col("NEW MAIL"), col("BOX"), col("SENT BEFORE"))
	for _, i := range done.Items {
		if i.Problem != nil {
			bad = append(bad, prose.Plain(i.Problem.Detail))
		} else if i.Mail != nil {
			t.row(i.Mail.ID, i.Mail.Box, yesNo(i.Mail.Known))
		}
	}
	shown := w.show(view{value: done, lines: lines(done.Items), human: func(p *printer) {
		if len(done.Items) > len(bad) {
			p.table(t)
		}
	}})
	w.infof("%d dead letters were sent again", len(done.Items)-len(bad))
	if err == nil && len(bad) > 0 {
		err = &codedError{exitRefused, fmt.Errorf("%d of %d were not sent again; %s", len(bad), len(done.Items), bad[0])}
	}
	return errors.Join(err, shown)
}

// numbers parses the numbers of mails.
func numbers(args []string) (out []uint64, err error) {
	for _, a := range args {
		n, err := strconv.ParseUint(a, 10, 64)
		if err != nil || n == 0 {
			return nil, usage("%.40q is not the number of a dead letter: use one from dlq ls --mailbox BOX", a)
		}
		out = append(out, n)
	}
	return out, nil
}
