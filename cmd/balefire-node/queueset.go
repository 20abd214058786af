package main

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/wire"
)

// queueFlags are the raw flags of queue set.
type queueFlags struct {
	home, strategy, lease, lost string
	lanes                       string
	concurrency, each           int
	kinds, labels, allow        []string
	homes, members              []string
	wait                        bool
}

// adminPollInterval is the pause between two requests while no admin is connected.
const adminPollInterval = 2 * time.Second

// set changes the queue. With --wait it retries while no admin is connected.
func (f *queueFlags) set(ctx context.Context, w *app, c *client.Client, name string, s wire.QueueSettings) (wire.Queue, error) {
	for told := false; ; told = true {
		q, err := c.SetQueue(ctx, name, s)
		if p, ok := errors.AsType[*wire.Problem](err); !f.wait || !ok || p.Code != wire.CodeNoAdmin {
			return q, err
		}
		if !told {
			w.infof("waiting for a connected admin to sign the creation of queue %s", sanitize(name))
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
		Use: "set QUEUE", Short: "Change the settings of a queue, or create one",
		Long: `Change the settings of a queue, on its home. Settings without a flag do not
change; new settings apply at once, also to waiting tasks. With --home here a
queue that does not exist yet is created with this node as its home. An admin
signs that: this node, or a connected one if its setting queues.made_by allows
it.

A flag with a list replaces the whole list; an empty list clears it. --kind limits
one kind of task: llm=4 is 4 at a time in the whole queue, llm=4/1 also 1 on each
node, llm=0/1 only 1 on each node.

--homes lists the nodes that should be its home: it moves to the first one that
is available, and back to an earlier one when that returns. --member names a
node that runs tasks of the queue, with settings for that node; if any is named,
no other node runs tasks, and the strategy ordered uses this order.`,
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
				if _, err := callQueue(cmd, w, args[0], (*client.Client).Queue); errors.Is(err, wire.ErrNotFound) {
					done = "created"
				}
			}
			return w.changeQueue(cmd, args[0], done, func(c *client.Client, ctx context.Context, name string) (wire.Queue, error) {
				return f.set(ctx, w, c, name, s)
			})
		},
	}
	fs := c.Flags()
	fs.BoolVar(&f.wait, "wait", false, "wait for an admin to be connected who signs the creation of the queue")
	fs.StringVar(&f.home, "home", "", "here: create the queue if it does not exist yet")
	fs.StringVar(&f.strategy, "strategy", "", "how the node for a task is chosen: "+strings.Join(strategies, ", "))
	fs.Var(numberValue[int]{&f.concurrency, 0, wire.MaxQueueLimit}, "concurrency", "tasks that are owned at a time; 0: no limit")
	fs.Var(numberValue[int]{&f.each, 0, wire.MaxQueueLimit}, "node-concurrency", "the same on each node; 0: no limit")
	fs.StringArrayVar(&f.kinds, "kind", nil, "limits of one kind, KIND=ALL or KIND=ALL/NODE (repeatable)")
	fs.StringSliceVar(&f.labels, "labels", nil, "labels key=value that a member must have, comma-separated")
	fs.StringSliceVar(&f.allow, "allow", nil, "who may submit: peer:NAME, role:ROLE or *, comma-separated (none: every member with the role send)")
	fs.StringSliceVar(&f.homes, "homes", nil, "nodes that should be its home, in order of preference, comma-separated")
	fs.StringArrayVar(&f.members, "member", nil, "a node that runs its tasks, NODE or NODE=weight:N,priority:N,limit:N,drain (repeatable)")
	fs.StringVar(&f.lease, "lease", "", "duration of a lease without a renewal, from 5s to 1h; 0: the default, 15s")
	fs.StringVar(&f.lost, "on-lost-lease", "", "what happens to a handler whose lease cannot be renewed: continue or stop")
	fs.StringVar(&f.lanes, "lanes", "", "which tasks with the same --order-key run in order: origin (those of each origin) or shared (those of all origins)")
	oneOf(c, "lanes", wire.LanesOrigin, wire.LanesShared)
	oneOf(c, "strategy", strategies...)
	oneOf(c, "on-lost-lease", "continue", "stop")
	completeWords(c, "home", "here")
	_ = c.RegisterFlagCompletionFunc("member", w.completePeerFlag) // the flag exists
	return c
}

// strategies are the ways to choose the node for a task.
var strategies = []string{"ordered", "round_robin", "priority", "least_loaded"}

// annotationWords has the words that a flag may be.
const annotationWords = "words"

// oneOf completes a flag with words, which are all that it may be.
func oneOf(c *cobra.Command, flag string, words ...string) {
	completeWords(c, flag, words...)
	_ = c.Flags().SetAnnotation(flag, annotationWords, words) // the flag exists, too
}

// checkWords refuses a flag that is none of its words. Empty, it counts as not given.
func checkWords(fs *pflag.FlagSet) (err error) {
	fs.Visit(func(f *pflag.Flag) {
		words := f.Annotations[annotationWords]
		if text := f.Value.String(); len(words) > 0 && text != "" && !slices.Contains(words, text) {
			err = usage("--%s %.40q: it must be %s", f.Name, text, joinOr(words))
		}
	})
	return err
}

// completeWords completes a flag with words.
func completeWords(c *cobra.Command, flag string, words ...string) {
	_ = c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)) // the flag exists: it was just added
}

// settings converts the flags that are set.
func (f *queueFlags) settings(given func(flag string) bool) (wire.QueueSettings, error) {
	var s wire.QueueSettings
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
	if err := wantSetting(some, errors.Join(err, bad), "--concurrency 8"); err != nil {
		return s, err
	}
	if s.LeaseMs != nil && f.lease != "0" {
		d, err := parseSpan("lease", f.lease)
		if err != nil {
			return s, err
		}
		if d > 0 && time.Duration(d) < time.Millisecond {
			return s, usage("--lease %s: it must be at least 1ms", f.lease)
		}
		*s.LeaseMs = int(time.Duration(d).Milliseconds())
	}
	return s, nil
}

// nonNil returns a list that is in the request even if it is empty.
func nonNil(list []string) *[]string {
	if list == nil {
		list = []string{}
	}
	return &list
}

// kindLimits parses limits of the form KIND=ALL or KIND=ALL/NODE.
func kindLimits(texts []string) (*[]wire.KindLimit, error) {
	out := []wire.KindLimit{}
	for _, text := range texts {
		if text == "" {
			continue
		}
		i := strings.LastIndexByte(text, '=') // a kind may contain one itself
		if i <= 0 {
			return nil, usage("--kind %.60q: use KIND=ALL or KIND=ALL/NODE", text)
		}
		l := wire.KindLimit{Kind: text[:i]}
		all, each, both := strings.Cut(text[i+1:], "/")
		if !parseCount(all, &l.Concurrency) || both && !parseCount(each, &l.NodeConcurrency) {
			return nil, usage("--kind %.60q: a limit must be a whole number from 0 to %d, 0 for none", text, wire.MaxQueueLimit)
		}
		if slices.ContainsFunc(out, func(o wire.KindLimit) bool { return o.Kind == l.Kind }) {
			return nil, usage("--kind %.60q: this kind is given twice", text)
		}
		out = append(out, l)
	}
	return &out, nil
}

// memberRules parses members of the form NODE or NODE=weight:N,priority:N,limit:N,drain.
func memberRules(texts []string) (*[]wire.MemberRule, error) {
	out := []wire.MemberRule{}
	for _, text := range texts {
		if text == "" {
			continue
		}
		name, words, _ := strings.Cut(text, "=")
		r := wire.MemberRule{Node: name}
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
				return nil, usage("--member %.60q: use NODE=weight:N,priority:N,limit:N,drain, with the settings to change and each N from 0 to %d", text, wire.MaxQueueLimit)
			}
		}
		out = append(out, r)
	}
	return &out, nil
}

// parseCount parses a limit, weight or priority.
func parseCount(text string, to *int) bool {
	n, err := strconv.ParseUint(text, 10, 31)
	*to = int(n)
	return err == nil && n <= wire.MaxQueueLimit
}

// formatMillis formats a number of milliseconds.
func formatMillis(n int) string { return formatDuration(time.Duration(n) * time.Millisecond) }

// changeQueue changes a queue and shows the result.
func (w *app) changeQueue(cmd *cobra.Command, name, done string, change func(*client.Client, context.Context, string) (wire.Queue, error)) error {
	q, err := callQueue(cmd, w, name, change)
	if err != nil {
		return err
	}
	w.infof("%s: %s", sanitize(q.Name), done)
	return w.show(view{value: q, human: func(p *printer) { printQueue(p, q) }})
}

func queuePause(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "pause QUEUE", Short: "Stop granting tasks of a queue",
		Long:    "Stop granting tasks of a queue until it is resumed. Owned tasks continue; new\ntasks are accepted and wait. Run this on the home of the queue.",
		Example: "  balefire-node queue pause build", Args: oneQueue, ValidArgsFunction: w.completeQueue,
		RunE: func(cmd *cobra.Command, args []string) error {
			return w.changeQueue(cmd, args[0], "paused; owned tasks continue", (*client.Client).PauseQueue)
		},
	}
}

func queueResume(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "resume QUEUE", Short: "Resume a paused queue",
		Example: "  balefire-node queue resume build", Args: oneQueue, ValidArgsFunction: w.completeQueue,
		RunE: func(cmd *cobra.Command, args []string) error {
			return w.changeQueue(cmd, args[0], "resumed", (*client.Client).ResumeQueue)
		},
	}
}

func queueDrain(w *app) *cobra.Command {
	var off bool
	c := &cobra.Command{
		Use: "drain QUEUE", Short: "Accept no new tasks into a queue and finish the existing ones",
		Long:    "Accept no new tasks into a queue. The existing tasks are granted until none is\nleft. With --off the queue accepts tasks again. Run this on the home of the\nqueue. To drain a whole node, use balefire-node drain.",
		Example: "  balefire-node queue drain build\n  balefire-node queue drain build --off", Args: oneQueue, ValidArgsFunction: w.completeQueue,
		RunE: func(cmd *cobra.Command, args []string) error {
			on, done := !off, "accepts no new tasks"
			if off {
				done = "accepts tasks again"
			}
			return w.changeQueue(cmd, args[0], done, func(c *client.Client, ctx context.Context, name string) (wire.Queue, error) {
				return c.SetQueue(ctx, name, wire.QueueSettings{Draining: &on})
			})
		},
	}
	c.Flags().BoolVar(&off, "off", false, "accept tasks again")
	return c
}

func queueHandOff(w *app) *cobra.Command {
	var to string
	c := &cobra.Command{
		Use: "handoff QUEUE", Short: "Hand over a queue to another home",
		Long: `Hand over a queue whose home is this node to another node, with all its tasks.
Nothing is lost or run twice: owners continue and learn their new home. Without
--to the best connected node becomes the home.`,
		Example: "  balefire-node queue handoff build --to field-07", Args: oneQueue, ValidArgsFunction: w.completeQueue,
		RunE: func(cmd *cobra.Command, args []string) error {
			return w.changeQueue(cmd, args[0], "handed off", func(c *client.Client, ctx context.Context, name string) (wire.Queue, error) {
				return c.HandOffQueue(ctx, name, to)
			})
		},
	}
	c.Flags().StringVar(&to, "to", "", "name or id of the new home (default: the best connected node)")
	_ = c.RegisterFlagCompletionFunc("to", w.completePeerFlag) // the flag exists
	return c
}

func queueSeize(w *app) *cobra.Command {
	var from string
	var accept bool
	c := &cobra.Command{
		Use: "seize QUEUE --from NODE --accept-loss", Short: "Make this node the home of a queue whose home is permanently lost",
		Long: `Make this node the home of a queue whose home is gone without a handoff. New
tasks can be sent to it at once. What only the old home knows stays there: the
tasks that wait there, and those that it granted to owners, whose results wait
for it. If it comes back with its disk, it hands all of that over and becomes an
ordinary member; if it never does, those tasks are lost. No task has two homes.
This node needs the role admin.

As long as the old home may come back, waiting loses nothing. The seizure is
written to the audit log.`,
		Example: "  balefire-node queue seize build --from field-09 --accept-loss", Args: oneQueue, ValidArgsFunction: w.completeQueue,
		RunE: func(cmd *cobra.Command, args []string) error {
			if from == "" {
				return usage("--from is missing: name the home to give up, as shown by queue show %s", args[0])
			}
			if !accept {
				if err := do(cmd, w, func(ctx context.Context, c *client.Client) error {
					_, unknown := c.Queue(ctx, args[0])
					if unknown == nil {
						_, unknown = c.Peer(ctx, from)
					}
					return unknown
				}); err != nil {
					return err
				}
				return usage("seize %s: this gives up what only %s knows of the queue: the tasks that wait there, those that it granted to owners, and their results. They are handed over if it comes back with its disk, else they are lost. As long as it may come back, waiting loses nothing. To continue, add --accept-loss", args[0], from)
			}
			return w.changeQueue(cmd, args[0], "seized: this node is its home", func(c *client.Client, ctx context.Context, name string) (wire.Queue, error) {
				return c.SeizeQueue(ctx, name, from)
			})
		},
	}
	c.Flags().StringVar(&from, "from", "", "name or id of the home to give up")
	c.Flags().BoolVar(&accept, "accept-loss", false, "accept that what only the old home knows is lost unless it comes back")
	_ = c.RegisterFlagCompletionFunc("from", w.completePeerFlag) // the flag exists
	return c
}
