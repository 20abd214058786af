package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/node"
	"github.com/balefire/balefire/proto"
)

// queryFlags choose tasks.
type queryFlags struct {
	states        []string
	before, since string
	all           bool
	q             node.Query
}

// add gives a command the flags; a list has pages too.
func (f *queryFlags) add(c *cobra.Command, list bool) {
	fs := c.Flags()
	fs.StringSliceVar(&f.states, "state", nil, "only these states, as success,failed")
	fs.StringVar(&f.q.Role, "role", "", "only those this node is home or owner of")
	fs.StringVar(&f.q.Peer, "peer", "", "only those to or from this peer")
	fs.StringVar(&f.q.Kind, "kind", "", "only this kind")
	fs.StringVar(&f.q.Label, "label", "", "only those with this label, as key=value")
	fs.StringVar(&f.before, "before", "", "only those older than this: 7d, or a time")
	fs.StringVar(&f.since, "since", "", "only those younger than this: 1h, or a time")
	if list {
		fs.IntVar(&f.q.Limit, "limit", 50, "entries of a page, at most 1000")
		fs.StringVar(&f.q.Cursor, "cursor", "", "continue after this page")
		fs.BoolVar(&f.all, "all", false, "all pages")
	}
}

// query reads the flags.
func (f *queryFlags) query(now time.Time) (node.Query, error) {
	q := f.q
	for _, name := range f.states {
		s, err := proto.ParseTaskState(name)
		if err != nil {
			return q, usage("--state: %w", err)
		}
		q.States = append(q.States, s)
	}
	if q.Role != "" && q.Role != "home" && q.Role != "owner" {
		return q, usage("--role %.20q: it is home or owner", q.Role)
	}
	var err error
	if q.Before, err = longAgo("before", f.before, now); err != nil {
		return q, err
	}
	q.After, err = longAgo("since", f.since, now)
	return q, err
}

// pages fetches one page of a list, or all of them as one.
func pages(ctx context.Context, w *world, q node.Query, all bool, fetch func(context.Context, node.Query) (node.Page[node.Task], error)) (node.Page[node.Task], error) {
	ctx, cancel := w.within(ctx)
	defer cancel()
	if all {
		q.Limit = 1000
	}
	page, err := fetch(ctx, q)
	for all && err == nil && page.Next != "" {
		q.Cursor = page.Next
		var more node.Page[node.Task]
		more, err = fetch(ctx, q)
		page.Items, page.Next = append(page.Items, more.Items...), more.Next
	}
	if page.Items == nil {
		page.Items = []node.Task{}
	}
	return page, err
}
