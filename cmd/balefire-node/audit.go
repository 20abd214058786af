package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/audit"
	"github.com/balefire/balefire/wire"
)

func auditCommand(w *app) *cobra.Command {
	return group("audit", "Read the audit log and verify its chain",
		"The audit log records what was run here, for whom, and which decisions were made\nby whom. Its lines form a hash chain. These commands read the node's folder,\nwhether or not the node is running, and change nothing.",
		auditVerify(w), auditList(w))
}

func auditVerify(w *app) *cobra.Command {
	var known []string
	c := &cobra.Command{
		Use: "verify", Short: "Check that the audit log was not changed",
		Long: `Verify the hash chain of the whole audit log. Every edited, deleted or reordered
line is reported with its file and line number. The exit code is 1 if the log was
changed.

Someone who can rewrite the whole folder can build a new chain. To detect that,
keep the head that this command prints on another machine and pass it with
--known later. Files are removed after 90 days: if all heads that you pass are
older than what is kept, they prove nothing, and the exit code is 1.`,
		Example: "  balefire-node audit verify\n  balefire-node audit verify --dir /var/lib/balefire --known 1042:9f86d081884c7d65…", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			heads := make([]audit.Head, len(known))
			for i, k := range known {
				if err := heads[i].UnmarshalText([]byte(k)); err != nil || heads[i].Seq == 0 {
					return usage("--known %.90q: use SEQ:HASH, as audit verify shows it", k)
				}
			}
			dir, err := w.auditFolder()
			if err != nil {
				return err
			}
			stop := w.showWaiting("reading the audit log")
			r, err := audit.Verify(dir, heads...)
			stop()
			if err != nil && !errors.Is(err, audit.ErrBroken) {
				return err
			}
			if err := w.show(auditView(r)); err != nil || r.Sound {
				return err
			}
			return fmt.Errorf("the audit log was changed, first at %s: keep a copy of the folder as it is, and find out who changed it", r.Breaches[0].Location())
		},
	}
	c.Flags().StringArrayVar(&known, "known", nil, "an earlier head, SEQ:HASH, that was kept elsewhere (repeatable)")
	return c
}

// auditFolder returns the folder of the node's audit log.
func (w *app) auditFolder() (string, error) {
	p, err := w.nodeFolder()
	dir := filepath.Join(p.Dir, audit.DirName)
	if err == nil && !mayExist(dir) {
		err = fmt.Errorf("%w: %s has no audit log: is it a node's folder, and did the node ever run?", wire.ErrNotFound, p.Dir)
	}
	return dir, err
}

func auditView(r audit.Report) view {
	return view{value: r, human: func(p *printer) {
		state := "sound"
		if !r.Sound {
			state = "BROKEN"
		}
		p.line("%s  %d lines in %d files, %s", state, r.Lines, r.Files, formatSize(r.Bytes))
		if r.Last.Seq > 0 {
			p.line("head  %s", r.Last)
		}
		if r.Torn > 0 {
			p.line("%d bytes of an unfinished write at the end: the next start removes them", r.Torn)
		}
		for _, b := range r.Breaches {
			p.line("%s", b)
		}
	}}
}

func auditList(w *app) *cobra.Command {
	var q audit.Query
	var since string
	c := &cobra.Command{
		Use: "ls", Short: "List lines of the audit log",
		Long:    "List lines of the audit log, oldest first. This does not verify them: see\naudit verify.",
		Example: "  balefire-node audit ls --since 24h --action command\n  balefire-node audit ls --task 01a1f84f-… -o jsonl", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			at, err := parsePast("since", since, w.clock.Now())
			if err != nil {
				return err
			}
			q.Since = at
			dir, err := w.auditFolder()
			if err != nil {
				return err
			}
			stop := w.showWaiting("reading the audit log")
			list, bad := audit.Read(dir, q)
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
	f.StringVar(&since, "since", "", "only lines after this: an age like 1h, or a time")
	f.StringVar(&q.Task, "task", "", "only lines of this task: its whole id")
	f.StringVar(&q.Action, "action", "", "only this action, or actions with this prefix: command, peer, handler.add")
	q.Limit = 100
	f.Var(natural(&q.Limit), "limit", "only the newest lines, at most this many; 0: all")
	return c
}

// peerNames returns the names of peers by id, if the node is running and the output is for
// people.
func (w *app) peerNames(ctx context.Context) map[string]string {
	names := map[string]string{}
	c, err := w.node()
	if err != nil || !w.humanOutput() {
		return names
	}
	ctx, cancel := context.WithTimeout(ctx, w.lookFor)
	defer cancel()
	peers, _ := c.Peers(ctx) // the ids stay without names
	for _, p := range peers {
		names[p.ID] = p.Name
	}
	return names
}

func auditLines(list []audit.Record, names map[string]string) view {
	named := func(id string) string { return cmp.Or(names[id], id) }
	return view{value: wire.Page[audit.Record]{Items: list}, lines: lines(list), human: func(p *printer) {
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
			t.row(l.Seq, l.Time.Local().Format(time.DateTime), l.Action, p.truncate(named(l.Actor), 16), p.truncate(l.Task, 13), l.Attempt, exit, strings.Join(l.Argv, " "), strings.Join(detail, " "))
		}
		p.table(t)
	}}
}
