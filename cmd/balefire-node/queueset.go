package main

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api"
	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/node"
)

// queueFlags are the flags of queue set as they are written.
type queueFlags struct {
	home, strategy, lease, lost string
	lanes                       string
	concurrency, each           int
	kinds, labels, allow        []string
	homes, members              []string
	wait                        bool
}

// adminPollInterval is the pause between two questions whether an admin is connected.
const adminPollInterval = 2 * time.Second

// set changes the queue. With --wait it asks again while no admin is connected.
func (f *queueFlags) set(ctx context.Context, w *app, c *client.Client, name string, s node.QueueSettings) (node.Queue, error) {
	for told := false; ; told = true {
		q, err := c.SetQueue(ctx, name, s)
		if p, ok := errors.AsType[*api.Problem](err); !f.wait || !ok || p.Code != api.CodeNoAdmin {
			return q, err
		}
		if !told {
			w.infof("waiting for an admin to be connected, who signs that queue %s is made", sanitize(name))
		}
		select {
		case <-time.After(adminPollInterval):
		case <-ctx.Done():
			return q, err
		}
	}
}

func queueSet(w *app) *cobra.Command {
	var f queueFlags
	c := &cobra.Command{
		Use: "set QUEUE", Short: "Change the rules of a queue, or make one",
		Long: `Change the rules of a queue, on its home. What no flag names stays as it is; the new
rules count at once, for what waits, too. With --home here a queue that nobody knows
yet is made, and this node is its home. An admin signs that: this node, or a
connected one, by its setting queues.made_by.

A flag that holds a list replaces the whole list; an empty one clears it. --kind
bounds one kind of task: llm=4 is 4 at a time in the whole queue, llm=4/1 also 1 on
each node, llm=0/1 only that.

--homes names the nodes that shall be its home: it goes to the first of them that is
there, at once, and back to an earlier one when that has returned. --member names a
node that works on it, with what counts for that node alone; when one is named, all
others stay away, and strategy ordered takes them in this order.`,
		Example: `  balefire-node queue set build --home here
  balefire-node queue set build --strategy least_loaded --concurrency 8
  balefire-node queue set build --kind llm=4/1 --kind shell=6 --labels gpu=yes
  balefire-node queue set build --homes alpha,beta
  balefire-node queue set build --member alpha=weight:3 --member beta=limit:1,priority:9
  balefire-node queue set build --labels ''`,
		Args: oneQueue, ValidArgsFunction: w.completeQueue,
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := f.settings(cmd.Flags().Changed)
			if err != nil {
				return err
			}
			done := "changed"
			if f.home != "" {
				if _, err := callQueue(cmd, w, args[0], (*client.Client).Queue); errors.Is(err, node.ErrNotFound) {
					done = "made"
				}
			}
			return w.changeQueue(cmd, args[0], done, func(c *client.Client, ctx context.Context, name string) (node.Queue, error) {
				return f.set(ctx, w, c, name, s)
			})
		},
	}
	fs := c.Flags()
	fs.BoolVar(&f.wait, "wait", false, "go on asking while no admin is connected who signs that the queue is made")
	fs.StringVar(&f.home, "home", "", "here: make the queue if nobody knows it yet")
	fs.StringVar(&f.strategy, "strategy", "", "who is given what waits: "+strings.Join(strategies, ", "))
	fs.IntVar(&f.concurrency, "concurrency", 0, "tasks that are owned at a time; 0: no limit")
	fs.IntVar(&f.each, "node-concurrency", 0, "likewise on each node; 0: no limit")
	fs.StringArrayVar(&f.kinds, "kind", nil, "limits of one kind, KIND=ALL or KIND=ALL/NODE (repeatable)")
	fs.StringSliceVar(&f.labels, "labels", nil, "key=value that a member must have, with commas")
	fs.StringSliceVar(&f.allow, "allow", nil, "who may submit: peer:NAME, role:ROLE or *, with commas (none: every member with the role send)")
	fs.StringSliceVar(&f.homes, "homes", nil, "nodes that shall be its home, the first that is there, with commas")
	fs.StringArrayVar(&f.members, "member", nil, "a node that works on it, NODE or NODE=weight:N,priority:N,limit:N,drain (repeatable)")
	fs.StringVar(&f.lease, "lease", "", "of a grant without a renewal, as 15s; 0: the node's setting")
	fs.StringVar(&f.lost, "on-lost-lease", "", "what a handler does whose lease cannot be renewed: continue or stop")
	fs.StringVar(&f.lanes, "lanes", "", "whose tasks with one --order-key follow each other: origin (those of each), or shared (those of all)")
	completeWords(c, "lanes", node.LanesOrigin, node.LanesShared)
	completeWords(c, "strategy", strategies...)
	completeWords(c, "on-lost-lease", "continue", "stop")
	completeWords(c, "home", "here")
	_ = c.RegisterFlagCompletionFunc("member", w.completePeerFlag) // the flag is there
	return c
}

// strategies are the ways to choose who is given a task.
var strategies = []string{"ordered", "round_robin", "priority", "least_loaded"}

// completeWords completes a flag with words.
func completeWords(c *cobra.Command, flag string, words ...string) {
	_ = c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)) // the flag is there: it was just made
}

// settings turns the flags that were given into settings.
func (f *queueFlags) settings(given func(flag string) bool) (node.QueueSettings, error) {
	var s node.QueueSettings
	var err, bad error
	some := false
	for flag, set := range map[string]func(){
		"home":             func() { s.Home = f.home },
		"strategy":         func() { s.Strategy = &f.strategy },
		"concurrency":      func() { s.Concurrency = &f.concurrency },
		"node-concurrency": func() { s.NodeConcurrency = &f.each },
		"kind":             func() { s.Kinds, err = kindLimits(f.kinds) },
		"labels":           func() { s.Labels = nonNil(f.labels) },
		"allow":            func() { s.Allow = nonNil(f.allow) },
		"homes":            func() { s.Homes = nonNil(f.homes) },
		"member":           func() { s.MemberRules, bad = memberRules(f.members) },
		"lease":            func() { s.LeaseMs = new(int) },
		"on-lost-lease":    func() { s.OnLostLease = &f.lost },
		"lanes":            func() { s.Lanes = &f.lanes },
	} {
		if given(flag) {
			some = true
			set()
		}
	}
	switch {
	case errors.Join(err, bad) != nil:
		return s, errors.Join(err, bad)
	case !some:
		return s, usage("nothing to set: name a rule, like --concurrency 8")
	case f.concurrency < 0 || f.each < 0:
		return s, usage("a concurrency is 0 or more")
	}
	if s.LeaseMs != nil && f.lease != "0" {
		d, err := parseSpan("lease", f.lease)
		if err != nil {
			return s, err
		}
		if d > 0 && d < time.Millisecond {
			return s, usage("--lease %s: it is at least 1ms", f.lease)
		}
		*s.LeaseMs = int(d / time.Millisecond)
	}
	return s, nil
}

// nonNil is a list that stands in the request even when it is empty.
func nonNil(list []string) *[]string {
	if list == nil {
		list = []string{}
	}
	return &list
}

// kindLimits reads limits that are written as KIND=ALL or KIND=ALL/NODE.
func kindLimits(texts []string) (*[]node.KindLimit, error) {
	out := []node.KindLimit{}
	for _, text := range texts {
		if text == "" {
			continue
		}
		i := strings.LastIndexByte(text, '=') // a kind may hold one itself
		if i <= 0 {
			return nil, usage("--kind %.60q: write it as KIND=ALL or KIND=ALL/NODE", text)
		}
		l := node.KindLimit{Kind: text[:i]}
		all, each, both := strings.Cut(text[i+1:], "/")
		if !parseCount(all, &l.Concurrency) || both && !parseCount(each, &l.NodeConcurrency) {
			return nil, usage("--kind %.60q: a limit is a number, 0 for none", text)
		}
		if slices.ContainsFunc(out, func(o node.KindLimit) bool { return o.Kind == l.Kind }) {
			return nil, usage("--kind %.60q: this kind is there twice", text)
		}
		out = append(out, l)
	}
	return &out, nil
}

// memberRules reads nodes that are written as NODE or NODE=weight:N,priority:N,limit:N,drain.
func memberRules(texts []string) (*[]node.MemberRule, error) {
	out := []node.MemberRule{}
	for _, text := range texts {
		if text == "" {
			continue
		}
		name, words, _ := strings.Cut(text, "=")
		r := node.MemberRule{Node: name}
		for word := range strings.SplitSeq(words, ",") {
			what, number, _ := strings.Cut(word, ":")
			good := false
			switch what {
			case "weight":
				good = parseCount(number, &r.Weight)
			case "priority":
				good = parseCount(number, &r.Priority)
			case "limit":
				good = parseCount(number, &r.Concurrency)
			case "drain":
				r.Draining, good = true, number == ""
			case "":
				good = words == ""
			}
			if !good {
				return nil, usage("--member %.60q: write it as NODE=weight:N,priority:N,limit:N,drain, with what is to be set", text)
			}
		}
		out = append(out, r)
	}
	return &out, nil
}

// parseCount reads a number that is 0 or more.
func parseCount(text string, to *int) bool {
	n, err := strconv.ParseUint(text, 10, 31)
	*to = int(n)
	return err == nil
}

// formatMillis writes a number of milliseconds.
func formatMillis(n int) string { return formatDuration(time.Duration(n) * time.Millisecond) }

// changeQueue does something with a queue and shows what it is then.
func (w *app) changeQueue(cmd *cobra.Command, name, done string, change func(*client.Client, context.Context, string) (node.Queue, error)) error {
	q, err := callQueue(cmd, w, name, change)
	if err != nil {
		return err
	}
	w.infof("%s: %s", sanitize(q.Name), done)
	return w.show(view{value: q, human: func(p *printer) { printQueue(p, q) }})
}

func queuePause(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "pause QUEUE", Short: "Grant nothing more from a queue",
		Long:    "Grant nothing more from a queue until it is resumed. What is owned goes on; new\ntasks are taken and wait. It is done on the home of the queue.",
		Example: "  balefire-node queue pause build", Args: oneQueue, ValidArgsFunction: w.completeQueue,
		RunE: func(cmd *cobra.Command, args []string) error {
			return w.changeQueue(cmd, args[0], "paused; what is owned goes on", (*client.Client).PauseQueue)
		},
	}
}

func queueResume(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "resume QUEUE", Short: "Grant from a paused queue again",
		Example: "  balefire-node queue resume build", Args: oneQueue, ValidArgsFunction: w.completeQueue,
		RunE: func(cmd *cobra.Command, args []string) error {
			return w.changeQueue(cmd, args[0], "grants again", (*client.Client).ResumeQueue)
		},
	}
}

func queueDrain(w *app) *cobra.Command {
	var off bool
	c := &cobra.Command{
		Use: "drain QUEUE", Short: "Take no new tasks into a queue, and work on those that are in it",
		Long:    "Take no new tasks into a queue. Those that are in it are worked on until none is\nleft. With --off it takes tasks again. It is done on the home of the queue. To have\na whole node be given nothing new: balefire-node drain.",
		Example: "  balefire-node queue drain build\n  balefire-node queue drain build --off", Args: oneQueue, ValidArgsFunction: w.completeQueue,
		RunE: func(cmd *cobra.Command, args []string) error {
			on, done := !off, "takes no new tasks"
			if off {
				done = "takes tasks again"
			}
			return w.changeQueue(cmd, args[0], done, func(c *client.Client, ctx context.Context, name string) (node.Queue, error) {
				return c.SetQueue(ctx, name, node.QueueSettings{Draining: &on})
			})
		},
	}
	c.Flags().BoolVar(&off, "off", false, "take tasks again")
	return c
}

func queueHandOff(w *app) *cobra.Command {
	var to string
	c := &cobra.Command{
		Use: "handoff QUEUE", Short: "Give a queue whose home is here to another home",
		Long: `Give a queue whose home is this node to another node, with every task that is in
it. Nothing is lost and nothing counts twice: owners go on, and are told where their
home is now. Without --to the best node that is there becomes the home.`,
		Example: "  balefire-node queue handoff build --to field-07", Args: oneQueue, ValidArgsFunction: w.completeQueue,
		RunE: func(cmd *cobra.Command, args []string) error {
			return w.changeQueue(cmd, args[0], "handed off", func(c *client.Client, ctx context.Context, name string) (node.Queue, error) {
				return c.HandOffQueue(ctx, name, to)
			})
		},
	}
	c.Flags().StringVar(&to, "to", "", "name or id of the next home (default: the best that is there)")
	_ = c.RegisterFlagCompletionFunc("to", w.completePeerFlag) // the flag is there
	return c
}

func queueSeize(w *app) *cobra.Command {
	var from string
	var accept bool
	c := &cobra.Command{
		Use: "seize QUEUE --from NODE --accept-loss", Short: "Make this node the home of a queue whose home is gone for good",
		Long: `Make this node the home of a queue whose home is gone and was not handed off. New
tasks go on here at once. What only the old home knows stays with it: the tasks that
wait there, and those it gave to owners, whose results wait for it. When it comes
back with its disk it hands all of that over and is a member like any other; if it
never does, they are lost. No task has two homes. This node needs the role admin.

While the old home may come back, waiting loses nothing. The seizure is written to
the audit.`,
		Example: "  balefire-node queue seize build --from field-09 --accept-loss", Args: oneQueue, ValidArgsFunction: w.completeQueue,
		RunE: func(cmd *cobra.Command, args []string) error {
			if from == "" {
				return usage("--from is missing: name the home that is given up, as queue show %s names it", args[0])
			}
			if !accept {
				return usage("seize %s: this gives up what only %s knows of the queue: the tasks that wait there, those that it gave to owners, and their results. They come here when it comes back with its disk, and are lost if it does not. While it may come back, waiting loses nothing. To go on, add --accept-loss", args[0], from)
			}
			return w.changeQueue(cmd, args[0], "seized: this node is its home", func(c *client.Client, ctx context.Context, name string) (node.Queue, error) {
				return c.SeizeQueue(ctx, name, from)
			})
		},
	}
	c.Flags().StringVar(&from, "from", "", "name or id of the home that is given up")
	c.Flags().BoolVar(&accept, "accept-loss", false, "agree that what only the old home knows is lost unless it comes back")
	_ = c.RegisterFlagCompletionFunc("from", w.completePeerFlag) // the flag is there
	return c
}
