package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/node"
)

func auditCommand(w *app) *cobra.Command {
	return group("audit", "Look at the audit and check its chain",
		"The audit says what was run here for whom and what was decided by whom. Its lines\nare chained by hashes. These commands read the node's folder, whether the node\nruns or not, and change nothing.",
		auditVerify(w), auditList(w))
}

func auditVerify(w *app) *cobra.Command {
	var known []string
	c := &cobra.Command{
		Use: "verify", Short: "Check that the audit is what was written",
		Long: `Follow the chain of hashes through the whole audit. Every edit, deletion and
reorder of a line is found and named with its file and line; the exit code is 1
then, and 0 when the audit is sound.

Whoever can rewrite the whole folder can make a new chain. Against that keep the
head that this command shows on another machine, and give it back later.`,
		Example: "  balefire-node audit verify\n  balefire-node audit verify --dir /var/lib/balefire --known 1042:9f86d081884c7d65…", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			p, err := w.nodeFolder()
			if err != nil {
				return err
			}
			stop := w.showWaiting("reading the audit")
			r, err := node.VerifyAudit(p.Dir, known...)
			stop()
			if err != nil {
				return err
			}
			if err := w.show(auditView(r)); err != nil || r.Sound {
				return err
			}
			return fmt.Errorf("the audit is not what was written, first at %s: keep a copy of the folder as it is, and find out who changed it", breachLocation(r.Breaches[0]))
		},
	}
	c.Flags().StringArrayVar(&known, "known", nil, "a head that was kept elsewhere, SEQ:HASH; may be given again")
	return c
}

func breachLocation(b node.AuditBreach) string {
	if b.Line == 0 {
		return b.File
	}
	return fmt.Sprintf("%s:%d", b.File, b.Line)
}

func auditView(r node.AuditReport) view {
	return view{value: r, human: func(p *printer) {
		state := "sound"
		if !r.Sound {
			state = "BROKEN"
		}
		p.line("%s  %d lines in %d files, %s", state, r.Lines, r.Files, formatSize(r.Bytes))
		if r.Head != "" {
			p.line("head  %s", r.Head)
		}
		if r.Torn > 0 {
			p.line("%d bytes of an unfinished write at the end: the next start cuts them off", r.Torn)
		}
		for _, b := range r.Breaches {
			p.line("%s: %s", breachLocation(b), b.Reason)
		}
	}}
}

func auditList(w *app) *cobra.Command {
	var q node.AuditQuery
	var since string
	c := &cobra.Command{
		Use: "ls", Short: "List lines of the audit",
		Long:    "List lines of the audit, the oldest first. Whether they are true is the word of\naudit verify.",
		Example: "  balefire-node audit ls --since 24h --action command\n  balefire-node audit ls --task 01a1f84f-… -o jsonl", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			at, err := parsePast("since", since, w.clock.Now())
			if err != nil {
				return err
			}
			q.Since = at
			if q.Limit < 0 {
				return usage("limit %d: it is 0 or more", q.Limit)
			}
			p, err := w.nodeFolder()
			if err != nil {
				return err
			}
			stop := w.showWaiting("reading the audit")
			list, bad := node.ReadAudit(p.Dir, q)
			stop()
			if bad != nil && list == nil {
				return bad
			}
			if err := w.show(auditLines(list, w.peerNames(cmd.Context()))); err != nil {
				return err
			}
			return bad
		},
	}
	f := c.Flags()
	f.StringVar(&since, "since", "", "only those younger than this: 1h, or a time")
	f.StringVar(&q.Task, "task", "", "only those of this task: its whole id")
	f.StringVar(&q.Action, "action", "", "only this action, or those that begin with it: command, peer, handler.add")
	f.IntVar(&q.Limit, "limit", 100, "the newest so many; 0: all")
	return c
}

// peerNames are the names of the peers by their ids, where the node runs and people read.
func (w *app) peerNames(ctx context.Context) map[string]string {
	names := map[string]string{}
	c, err := w.node()
	if err != nil || !w.humanOutput() {
		return names
	}
	ctx, cancel := context.WithTimeout(ctx, completeTimeout)
	defer cancel()
	peers, _ := c.Peers(ctx) // else the ids stay
	for _, p := range peers {
		names[p.ID] = p.Name
	}
	return names
}

func auditLines(list []node.AuditLine, names map[string]string) view {
	named := func(id string) string { return cmp.Or(names[id], id) }
	return view{value: node.Page[node.AuditLine]{Items: list}, lines: lines(list), human: func(p *printer) {
		t := newTable(num("SEQ"), col("TIME"), col("ACTION"), col("ACTOR"), col("TASK"), wideOnly("ATTEMPT"), num("EXIT"), wideOnly("ARGV"), col("DETAIL"))
		for _, l := range list {
			exit := ""
			if l.Exit != nil {
				exit = fmt.Sprint(*l.Exit)
			}
			var detail []string
			for _, k := range slices.Sorted(maps.Keys(l.Detail)) {
				detail = append(detail, k+"="+named(l.Detail[k]))
			}
			t.row(l.Seq, l.Time.Local().Format(time.DateTime), l.Action, p.cut(named(l.Actor), 16), p.cut(l.Task, 13), l.Attempt, exit, strings.Join(l.Argv, " "), strings.Join(detail, " "))
		}
		p.table(t)
	}}
}
