package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/executor"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// completeTimeout bounds a completion request after the tab key, outside tests.
const completeTimeout = time.Second

// completeFrom offers one word for each item that the node lists.
func completeFrom[T any](w *app, cmd *cobra.Command, list func(*client.Client, context.Context) ([]T, error), word func(T) string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), w.lookFor)
	defer cancel()
	c, err := w.node()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	all, err := list(c, ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var words []string
	for _, v := range all {
		words = append(words, word(v))
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}

// completeFirst is completeFrom for the first argument, and offers nothing for others.
func completeFirst[T any](w *app, cmd *cobra.Command, args []string, list func(*client.Client, context.Context) ([]T, error), word func(T) string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return completeFrom(w, cmd, list, word)
}

// completePeer offers the names of peers for the first argument.
func (w *app) completePeer(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return completeFirst(w, cmd, args, (*client.Client).Peers,
		func(p wire.Peer) string { return cobra.CompletionWithDesc(p.Name, p.State) })
}

// completeTask offers the ids of the newest tasks.
func (w *app) completeTask(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return w.taskIDs(cmd, (*client.Client).Tasks, nil)
}

// completeLive offers the newest tasks that have not ended, completeEnded those that have
// ended, completeDead the dead letters.
func (w *app) completeLive(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return w.taskIDs(cmd, (*client.Client).Tasks, taskStates(func(s proto.TaskState) bool { return !s.Terminal() }))
}

func (w *app) completeEnded(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return w.taskIDs(cmd, (*client.Client).Tasks, taskStates(proto.TaskState.Terminal))
}

func (w *app) completeDead(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return w.taskIDs(cmd, (*client.Client).DeadLetters, nil)
}

// taskStates returns the states for which is returns true.
func taskStates(is func(proto.TaskState) bool) (out []string) {
	for _, name := range proto.TaskStateNames() {
		if s, err := proto.ParseTaskState(name); err == nil && is(s) {
			out = append(out, name)
		}
	}
	return out
}

func (w *app) taskIDs(cmd *cobra.Command, list func(*client.Client, context.Context, wire.Query) (wire.Page[wire.Task], error), states []string) ([]string, cobra.ShellCompDirective) {
	return completeFrom(w, cmd, func(c *client.Client, ctx context.Context) ([]wire.Task, error) {
		page, err := list(c, ctx, wire.Query{Limit: 20, States: states})
		return page.Items, err
	}, func(t wire.Task) string { return cobra.CompletionWithDesc(t.ID, t.Kind+" "+t.State) })
}

// completeJoinRequest offers the codes of the machines that ask to join.
func (w *app) completeJoinRequest(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return completeFirst(w, cmd, args, (*client.Client).JoinRequests,
		func(v wire.JoinRequest) string { return cobra.CompletionWithDesc(v.Code, v.Name) })
}

// completePeerFlag offers the names of peers for a flag.
func (w *app) completePeerFlag(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
	return w.completePeer(cmd, nil, begun)
}

// completeQueue offers the names of shared queues for the first argument.
func (w *app) completeQueue(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return w.completeQueueFlag(cmd, nil, begun)
}

// completeQueueFlag offers the names of shared queues for a flag.
func (w *app) completeQueueFlag(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return w.queueNames(cmd, "")
}

// completeTarget offers the peers and the queues that a task can be sent to.
func (w *app) completeTarget(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	switch len(args) {
	case 0:
	case 1:
		return w.kindsOf(cmd, args[0])
	case 2:
		return bodies(begun)
	default:
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	names, how := w.completePeer(cmd, nil, begun)
	if how == cobra.ShellCompDirectiveError {
		return names, how
	}
	queues, _ := w.queueNames(cmd, proto.QueuePrefix) // an older node has none
	return append(names, queues...), how
}

// completeMailbox offers the mailboxes of this node for the first argument.
func (w *app) completeMailbox(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return completeFirst(w, cmd, args, listMailboxes, func(v wire.Box) string {
		return cobra.CompletionWithDesc(mailboxName(v), fmt.Sprintf("%d waiting", v.Waiting))
	})
}

// listMailboxes lists the mailboxes but those for replies, whose names are secrets.
func listMailboxes(c *client.Client, ctx context.Context) ([]wire.Box, error) { //nolint:revive // as a method of Client
	all, err := c.Mailboxes(ctx)
	return slices.DeleteFunc(all, func(v wire.Box) bool { return wire.IsReplyBox(v.Name) }), err
}

// mailboxName returns the name of a mailbox on its node.
func mailboxName(v wire.Box) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(v.Name, proto.AgentPrefix), "@")
	return name
}

// completeTopic offers the topics of this node for the first argument.
func (w *app) completeTopic(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return completeFirst(w, cmd, args, (*client.Client).Topics, func(v wire.Box) string {
		return cobra.CompletionWithDesc(strings.TrimPrefix(v.Name, proto.TopicPrefix), fmt.Sprintf("%d mails", v.Waiting))
	})
}

// completeSub offers a topic for the first argument, and its subscriptions for the second.
func (w *app) completeSub(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) != 1 {
		return w.completeTopic(cmd, args, begun)
	}
	list := func(c *client.Client, ctx context.Context) ([]wire.Subscription, error) {
		v, err := c.Topic(ctx, args[0])
		return v.Subscriptions, err
	}
	return completeFrom(w, cmd, list, func(s wire.Subscription) string { return s.Name })
}

// completeBox offers what mail can be read from: mailboxes and topic:TOPIC/SUB.
func (w *app) completeBox(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	names, how := w.completeMailbox(cmd, args, begun)
	if len(args) > 0 || how == cobra.ShellCompDirectiveError {
		return names, how
	}
	list := func(c *client.Client, ctx context.Context) (names []string, err error) {
		topics, err := c.Topics(ctx)
		for _, v := range topics {
			for _, s := range v.Subscriptions {
				names = append(names, v.Name+"/"+s.Name)
			}
		}
		return names, err
	}
	subs, how := completeFrom(w, cmd, list, func(name string) string { return name })
	return append(names, subs...), how
}

// completeBoxFlag is completeBox for a flag.
func (w *app) completeBoxFlag(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
	return w.completeBox(cmd, nil, begun)
}

// completeMailTarget offers what a mail can be sent to here, and then its body.
func (w *app) completeMailTarget(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	switch len(args) {
	case 0:
		return w.completeMailTargetFlag(cmd, nil, begun)
	case 1:
		return bodies(begun)
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

// completeMailTargetFlag offers what a mail can be sent to here, for a flag.
func (w *app) completeMailTargetFlag(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	list := func(c *client.Client, ctx context.Context) (names []string, err error) {
		mailboxes, err := listMailboxes(c, ctx)
		if err != nil {
			return nil, err
		}
		topics, err := c.Topics(ctx)
		for _, v := range append(mailboxes, topics...) {
			names = append(names, v.Name)
		}
		return names, err
	}
	return completeFrom(w, cmd, list, func(name string) string { return name })
}

// completeSubject offers the subjects of why.
func (w *app) completeSubject(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	names, _ := w.completeTarget(cmd, nil, begun)
	ids, how := w.completeTask(cmd, nil, begun)
	return append(names, ids...), how
}

// kindsOf offers the kinds that a peer, or a member of a queue, has handlers for.
func (w *app) kindsOf(cmd *cobra.Command, target string) ([]string, cobra.ShellCompDirective) {
	kinds, how := completeFrom(w, cmd, func(c *client.Client, ctx context.Context) (kinds []string, err error) {
		queue, ok := proto.QueueOf(target)
		if !ok {
			m, err := c.Member(ctx, target)
			return m.Kinds, err
		}
		q, err := c.Queue(ctx, queue)
		for _, m := range q.Members {
			kinds = append(kinds, m.Kinds...)
		}
		return kinds, err
	}, func(kind string) string { return kind })
	slices.Sort(kinds)
	return slices.Compact(kinds), how
}

// bodies offers - and, after an @, the files of a folder.
func bodies(begun string) ([]string, cobra.ShellCompDirective) {
	path, named := strings.CutPrefix(begun, "@")
	if !named {
		return []string{"-\tstandard input", "@\ta file"}, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
	entries, err := os.ReadDir(cmp.Or(filepath.Dir(path), "."))
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	how, folder := cobra.ShellCompDirectiveNoFileComp, path[:strings.LastIndexByte(path, '/')+1]
	var out []string
	for _, e := range entries {
		name := "@" + folder + e.Name()
		switch {
		case !strings.HasPrefix(name, begun):
			continue
		case e.IsDir():
			name, how = name+"/", how|cobra.ShellCompDirectiveNoSpace
		}
		out = append(out, name)
	}
	return out, how
}

// completeKind offers the kinds of this node's own handlers.
func (w *app) completeKind(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return completeFirst(w, cmd, args, (*client.Client).Handlers,
		func(h wire.Handler) string { return cobra.CompletionWithDesc(h.Kind, strings.Join(h.Allow, ", ")) })
}

// completeAllow offers the entries of an allow list.
func (w *app) completeAllow(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
	names, _ := w.completePeer(cmd, nil, begun)
	for _, role := range meshRoles {
		names = append(names, "role:"+role)
	}
	return afterComma(names, begun), cobra.ShellCompDirectiveNoFileComp
}

// completeCondition offers the conditions of wait.
func (w *app) completeCondition(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
	prefix, names := "", []string{"ready", "peer=", "task="}
	switch kind, _, named := strings.Cut(begun, "="); {
	case named && kind == "peer":
		prefix = "peer="
		names, _ = w.completePeer(cmd, nil, "")
	case named && kind == "task":
		prefix = "task="
		names, _ = w.completeLive(cmd, nil, "")
	}
	for i := range names {
		names[i] = prefix + names[i]
	}
	return names, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}

// afterComma offers words for the last item of a comma-separated list.
func afterComma(words []string, begun string) []string {
	head := begun[:strings.LastIndexByte(begun, ',')+1]
	var out []string
	for _, word := range words {
		out = append(out, head+word)
	}
	return out
}

// meshRoles are the built-in roles.
var meshRoles = []string{"send", "work", "relay", "courier", "admin"}

// completeFlags adds completions to the flags of c and of its subcommands that have few
// values.
func (w *app) completeFlags(c *cobra.Command) {
	for flag, values := range map[string][]string{
		"output": formats, "color": {"auto", "always", "never"}, "class": {"critical", "high", "normal", "low"}, "state": lower(proto.TaskStateNames()),
		"role": {wire.RoleHome, wire.RoleOwner}, "roles": meshRoles, "on-crash": {"retry", "probe", "park"}, "profile": {"read-only", "dev-write", "dangerous"},
		"on-overflow": {"fail", "cut"}, "on-dead": {"skip", "block"}, "dedupe": {"content"}, "log-level": {"debug", "info", "warn", "error"}, "sort": sortNames(),
		"engine": {datadir.EngineNuts, datadir.EnginePebble},
	} {
		w.completeFlag(c, flag, func(_ *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
			return afterComma(values, begun), cobra.ShellCompDirectiveNoFileComp
		})
	}
	w.completeFlag(c, "peer", w.completePeerFlag)
	w.completeFlag(c, "allow", w.completeAllow)
	switch c.CommandPath() {
	case "balefire-node handler add":
		completeWords(c, "type", executor.Types()...)
		completeWords(c, "body", "stdin", "file")
	case "balefire-node wait":
		w.completeFlag(c, "for", w.completeCondition)
	}
	if c.LocalFlags().Lookup("state") != nil { // a command that lists tasks
		w.completeFlag(c, "kind", func(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
			return w.completeKind(cmd, nil, begun)
		})
	}
	for _, sub := range c.Commands() {
		w.completeFlags(sub)
	}
}

// completeFlag adds a completion to a flag of c, unless c has no such flag or the flag has
// its own completion.
func (w *app) completeFlag(c *cobra.Command, flag string, with cobra.CompletionFunc) {
	if c.LocalNonPersistentFlags().Lookup(flag) != nil || c.PersistentFlags().Lookup(flag) != nil {
		_ = c.RegisterFlagCompletionFunc(flag, with) // it has its own
	}
}

func lower(words []string) []string {
	out := make([]string, len(words))
	for i, word := range words {
		out[i] = strings.ToLower(word)
	}
	return out
}

// queueNames offers the names of the queues, each with a prefix.
func (w *app) queueNames(cmd *cobra.Command, prefix string) ([]string, cobra.ShellCompDirective) {
	return completeFrom(w, cmd, (*client.Client).Queues,
		func(q wire.Queue) string { return cobra.CompletionWithDesc(prefix+q.Name, queueState(q)+" at "+q.Home) })
}
