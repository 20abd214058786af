package main

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/cmd/balefire-node/prose"
	"github.com/balefire/balefire/wire"
)

// timelineClock is the time format of a merged timeline: events of different nodes can be
// less than a second apart.
const timelineClock = "15:04:05.000"

func meshTimeline(w *app) *cobra.Command {
	var q wire.TimelineQuery
	c := &cobra.Command{
		Use: "timeline --task TASK | --queue QUEUE", Short: "Show the ownership events of all nodes for a task or a queue",
		Long: `Collect the ownership events of one task, or of one queue, from all connected
nodes and show them as one timeline: grants, starts, leases that ended, late
results, queues that moved. It is ordered by the clocks of the nodes, which may
differ; epochs do not depend on them. Each node keeps only its newest events
since its start, in memory: use -o jsonl to save the timeline.`,
		Example: "  balefire-node mesh timeline --task 01a1f84f\n  balefire-node mesh timeline --queue build -o jsonl > build.jsonl", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if (q.Task == "") == (q.Queue == "") {
				return usage("name one task with --task, or one queue with --queue")
			}
			q.Task = strings.ToLower(q.Task)
			t, err := callShared(cmd, w, func(ctx context.Context, c *client.Client) (wire.Timeline, error) { return c.Timeline(ctx, q) })
			if err != nil {
				return err
			}
			if err := w.show(view{value: t, lines: lines(t.Items), human: func(p *printer) { p.table(timelineTable(t)) }}); err != nil {
				return err
			}
			if len(t.Silent) > 0 {
				w.infof("without %s: not connected, or no answer", sanitize(strings.Join(t.Silent, ", ")))
			}
			if t.More {
				w.infof("older events were left out")
			}
			return nil
		},
	}
	fs := c.Flags()
	fs.StringVar(&q.Task, "task", "", "events of this task: its id, or the beginning of one that this node knows")
	fs.StringVar(&q.Queue, "queue", "", "events of this queue")
	_ = c.RegisterFlagCompletionFunc("queue", w.completeQueueFlag) // the flags exist
	_ = c.RegisterFlagCompletionFunc("task", w.completeTask)
	return c
}

func timelineTable(tl wire.Timeline) *table {
	t := newTable(col("TIME"), col("NODE"), col("KIND"), col("TASK"), col("PEER"), col("EPOCH"), col("CAUSE"), wideOnly("DATE"), wideOnly("NUMBER"), wideOnly("QUEUE"), wideOnly("PEER ID"))
	for _, e := range tl.Items {
		at := e.Time.Local()
		t.row(at.Format(timelineClock), e.Node, e.Kind, shortTask(e.Task), e.Peer, e.Epoch, prose.Ownership(e.OwnershipEvent), at.Format(time.DateOnly), e.Number, e.Queue, e.PeerID)
	}
	return t
}
