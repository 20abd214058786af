package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/balefire/balefire/settings"
)

// execute runs one command line and returns its exit code.
func execute(ctx context.Context, w *app, args []string) int {
	w.in = interruptible(ctx, w.in)
	root := newRoot(w)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	err = explainGroup(err)
	code := exitCode(ctx, err)
	if err != nil && (code != exitInterrupted || !errors.Is(err, context.Canceled)) {
		printError(w, cmd.CommandPath(), err)
	}
	return code
}

// groupError matches the library's error for flags that exclude each other.
var groupError = regexp.MustCompile(`^if any flags in the group \[.*\] are set none of the others can be; \[(.*)\] were all set$`)

// explainGroup says of flags that exclude each other which were given.
func explainGroup(err error) error {
	if err == nil {
		return nil
	}
	m := groupError.FindStringSubmatch(err.Error())
	if m == nil {
		return err
	}
	flags := strings.Fields(m[1])
	last := len(flags) - 1
	return usage("--%s and --%s are both given: give one", strings.Join(flags[:last], ", --"), flags[last])
}

// newRoot builds the command tree of w.
func newRoot(w *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "balefire-node",
		Short: "Run tasks on other machines, over any network, and get the results",
		Long: `balefire-node carries tasks between machines whose network cannot be trusted to
be available. A task survives power cuts, flapping links and weeks offline; it
takes effect once, and its signed result returns to the sender.

To start with two machines:

  one  balefire-node init --new-mesh && balefire-node run
       balefire-node invite
  two  balefire-node join - && balefire-node run     (it asks for the ticket)

Exit codes: 0 done, 1 an error, 2 wrong usage, 3 no node is running, 4 no such
object, 5 denied, 6 timeout (the task is safe), 7 the task failed, 8 refused in
this state, or the task was cancelled or expired, 130 interrupted.`,
		Example: `  balefire-node send laptop resize @photo.jpg --wait -- 800 600
  balefire-node send laptop ingest @photo.tar
  balefire-node why 01a1f84f`,
		SilenceErrors: true, SilenceUsage: true, Args: cobra.ArbitraryArgs, RunE: unknownCommand,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return w.checkFlags(cmd) },
	}
	root.Version = readBuild().String() // a custom template would link text/template, 6 MB
	root.SetIn(w.in)
	root.SetOut(w.out)
	root.SetErr(w.err)
	root.SetFlagErrorFunc(flagError)
	w.addGlobals(root)
	root.AddGroup(&cobra.Group{ID: groupDaily, Title: "Every day:"}, &cobra.Group{ID: groupMesh, Title: "The mesh:"}, &cobra.Group{ID: groupMaintenance, Title: "Maintenance:"})
	addTo(root, groupDaily, sendCommand(w), taskCommand(w), dlqCommand(w), statusCommand(w), whyCommand(w), eventsCommand(w), waitCommand(w), queueCommand(w), scheduleCommand(w),
		mailCommand(w), mailboxCommand(w), topicCommand(w), subCommand(w))
	addTo(root, groupMesh, initCommand(w), runCommand(w), inviteCommand(w), joinCommand(w), peersCommand(w), pingCommand(w), pathCommand(w), netcheckCommand(w), meshCommand(w), leaseCommand(w), handlerCommand(w), drainCommand(w), stopCommand(w))
	addTo(root, groupMaintenance, configCommand(w), storeCommand(w), auditCommand(w), healthCommand(w), benchCommand(w), demoCommand(w), versionCommand(w))
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd(nil...)
	for _, c := range root.Commands() {
		switch c.Name() {
		case "help":
			c.Run, c.RunE = nil, helpFor
		case "completion":
			c.Args, c.RunE = cobra.ArbitraryArgs, unknownCommand
		}
	}
	checkArgs(root)
	w.completeFlags(root)
	return root
}

const (
	groupDaily       = "daily"
	groupMesh        = "mesh"
	groupMaintenance = "keep"
)

func addTo(root *cobra.Command, group string, cmds ...*cobra.Command) {
	for _, c := range cmds {
		c.GroupID = group
		root.AddCommand(c)
	}
}

// checkArgs turns every error about arguments into a usage error.
func checkArgs(c *cobra.Command) {
	if check := c.Args; check != nil {
		c.Args = func(cmd *cobra.Command, args []string) error {
			err := check(cmd, args)
			switch {
			case err == nil:
				return nil
			case strings.HasPrefix(err.Error(), "unknown command ") && cmd.Flags().Lookup("watch") != nil && cmd.Flags().Changed("watch"):
				return usage("%s takes no arguments, got %.40q: write --watch=%[2]s", cmd.CommandPath(), args[0])
			case strings.HasPrefix(err.Error(), "unknown command "): // cobra.NoArgs
				return usage("%s takes no arguments, got %.40q", cmd.CommandPath(), args[0])
			}
			return usage("%w", err)
		}
	}
	for _, sub := range c.Commands() {
		checkArgs(sub)
	}
}

func (w *app) addGlobals(root *cobra.Command) {
	f := root.PersistentFlags()
	f.StringVar(&w.flags.paths.Dir, "dir", "", "the node's folder (BALEFIRE_DIR)")
	f.StringVar(&w.flags.paths.File, "config", "", "configuration file (BALEFIRE_CONFIG)")
	f.StringVar(&w.flags.paths.Socket, "socket", "", "the node's socket (BALEFIRE_SOCKET)")
	f.StringVarP(&w.flags.output, "output", "o", formatTable, "format: table, wide, json, jsonl or yaml")
	f.Var(spanValue{&w.flags.timeout}, "timeout", "give up after this long; a stored task continues (default 30s for a request, no limit for commands that wait)")
	f.StringVar(&w.flags.color, "color", "auto", "use colors: auto, always or never")
	f.BoolVar(&w.flags.noPager, "no-pager", false, "never show long output in a pager (BALEFIRE_PAGER, PAGER)")
	f.BoolVarP(&w.flags.quiet, "quiet", "q", false, "print no messages, only data and errors")
	f.BoolVarP(&w.flags.verbose, "verbose", "v", false, "print more messages")
	f.BoolVar(&w.flags.yes, "yes", false, "confirm actions that cannot be undone")
}

func (w *app) checkFlags(cmd *cobra.Command) error {
	switch {
	case !slices.Contains(formats, w.flags.output):
		return usage("--output %.20q: it must be table, wide, json, jsonl or yaml", w.flags.output)
	case !slices.Contains([]string{"auto", "always", "never"}, w.flags.color):
		return usage("--color %.20q: it must be auto, always or never", w.flags.color)
	case w.flags.timeout < 0:
		return usage("--timeout %s: it must be positive", w.flags.timeout)
	}
	if err := checkWords(cmd.Flags()); err != nil {
		return err
	}
	if !cmd.Flags().Changed("timeout") && cmd.Annotations[annotationWaits] == "" {
		w.flags.timeout = w.requestTime
	}
	return nil
}

// requestTimeout bounds requests that a running node answers at once.
const requestTimeout = 30 * time.Second

// annotationWaits marks commands that may wait without a limit.
const annotationWaits = "waits"

// unlimited lifts the limit of a request whose body may take any time to travel; --timeout
// counts.
func (w *app) unlimited(cmd *cobra.Command) {
	if !cmd.Flags().Changed("timeout") {
		w.flags.timeout = 0
	}
}

// withTimeout bounds ctx by --timeout.
func (w *app) withTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	if w.flags.timeout == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, w.flags.timeout)
}

// flagError adds a suggestion to the error of an unknown flag, which may be one of a program.
func flagError(cmd *cobra.Command, err error) error {
	text := numberError.ReplaceAllString(err.Error(), "$1 is not a valid number")
	if word, ok := strings.CutPrefix(text, "unknown flag: --"); ok {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		if like := settings.Nearest(word, names); like != "" {
			text += ": did you mean --" + like + "?"
		}
	}
	if exec := cmd.Flags().Lookup("exec"); exec != nil && exec.Changed && strings.HasPrefix(text, "unknown ") {
		text += ": -- goes before the arguments of the program, as in --exec sh -- -c 'exit 0'"
	}
	return usage("%s", text)
}

// numberError matches the library's error for an invalid number.
var numberError = regexp.MustCompile(`strconv\.Parse\w+: parsing ("[^"]*"): (invalid syntax|value out of range)`)

// group returns a command with subcommands. Without a subcommand it runs ls, if there is
// one.
func group(use, short, long string, subs ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use: use, Short: short, Long: long,
		RunE: unknownCommand,
	}
	c.AddCommand(subs...)
	for _, s := range subs {
		if s.Name() == "ls" {
			c.RunE = func(cmd *cobra.Command, args []string) error {
				if len(args) > 0 {
					return unknownCommand(cmd, args)
				}
				return s.RunE(cmd, nil)
			}
		}
	}
	return c
}

// unknownCommand runs a command that has only subcommands: it prints its help, and for an
// unknown subcommand suggests similar ones.
func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	if cmd.SuggestionsMinimumDistance == 0 {
		cmd.SuggestionsMinimumDistance = 2
	}
	meant := ""
	if like := cmd.SuggestionsFor(args[0]); len(like) > 0 {
		meant = ": did you mean " + strings.Join(like, " or ") + "?"
	} else if len(args) > 1 {
		// it has words of its own: it is no name
	} else if show, _, err := cmd.Find([]string{"show"}); err == nil && show != cmd {
		meant = fmt.Sprintf(": to show one: %s %.40s", show.CommandPath(), args[0])
	}
	return usage("unknown command %.40q of %s%s", args[0], cmd.CommandPath(), meant)
}

// helpFor prints the help of the named command.
func helpFor(cmd *cobra.Command, words []string) error {
	c, rest, err := cmd.Root().Find(words)
	if err == nil && len(rest) > 0 {
		err = unknownCommand(c, rest)
	}
	if err != nil {
		return err
	}
	return c.Help()
}
