package main

import (
	"bytes"
	"context"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/clock"
)

func newTestApp() (*app, *bytes.Buffer, *bytes.Buffer) {
	out, err := new(bytes.Buffer), new(bytes.Buffer)
	return &app{in: strings.NewReader(""), out: out, err: err, clock: clock.System(), lookFor: time.Minute, requestTime: requestTimeout}, out, err
}

// walk visits every visible command.
func walk(c *cobra.Command, visit func(*cobra.Command)) {
	visit(c)
	for _, sub := range c.Commands() {
		walk(sub, visit)
	}
}

// bareFlag is a flag without a description, in a list of flags.
var bareFlag = regexp.MustCompile(`(?m)^ +(-\w, )?--[\w-]+( \w+)?$`)

// TestTree walks the tree of commands: each has a one-line summary and a description or an
// example; each that runs has an example, describes its flags, accepts -o and validates its
// arguments.
func TestTree(t *testing.T) {
	w, _, _ := newTestApp()
	n := 0
	walk(newRoot(w), func(c *cobra.Command) {
		path := c.CommandPath()
		if strings.Contains(path, " completion") || c.Name() == "help" || c.Hidden {
			return
		}
		n++
		switch {
		case c.Short == "" || strings.HasSuffix(c.Short, "."):
			t.Errorf("%s: summary %q", path, c.Short)
		case c.Long == "" && c.Example == "":
			t.Errorf("%s has neither a description nor an example", path)
		case c.Example == "" && !c.HasSubCommands():
			t.Errorf("%s has no example", path)
		case c.Example != "" && !strings.Contains(c.Example, path) && !strings.Contains(c.Example, "balefire-node"):
			t.Errorf("%s: the example does not contain the command", path)
		case c.Runnable() && !c.HasSubCommands() && c.Args == nil:
			t.Errorf("%s does not validate its arguments", path)
		case c.InheritedFlags().Lookup("output") == nil && c.HasParent():
			t.Errorf("%s has no -o", path)
		}
		if bare := bareFlag.FindString(c.LocalFlags().FlagUsages()); bare != "" {
			t.Errorf("%s: no description of %s", path, strings.TrimSpace(bare))
		}
		for line := range strings.SplitSeq(c.Long+"\n"+c.Short, "\n") {
			if displayWidth(line) > 84 {
				t.Errorf("%s: a help line is %d cells wide: %s", path, displayWidth(line), line)
			}
		}
	})
	if n < 40 {
		t.Errorf("the walk visited only %d commands", n)
	}
}

// The commands of the design exist.
func TestCommandsOfTheDesign(t *testing.T) {
	w, _, _ := newTestApp()
	var have []string
	walk(newRoot(w), func(c *cobra.Command) { have = append(have, strings.TrimPrefix(c.CommandPath(), "balefire-node ")) })
	for _, want := range strings.Split("init,run,status,send,task ls,task show,task watch,task cancel,task retry,task result,task receipts,task purge,dlq ls,dlq show,dlq retry,dlq purge,dlq export,"+
		"handler add,handler ls,handler rm,peers ls,peers show,peers block,peers unblock,peers forget,peers pending,peers accept,peers name,peers revoke,ping,path,netcheck,mesh members,mesh summary,mesh prune,mesh converge,mesh recover,mesh timeline,mesh ownership-events,queue ls,queue show,queue set,queue members,queue pause,queue resume,queue drain,queue handoff,queue seize,lease ls,lease show,lease conflicts,lease release,drain,stop,events,invite,join,why,bench deliver,bench mail,demo,"+
		"store stats,store check,store compact,store snapshot,store salvage,store restore,audit verify,audit ls,health,wait,mail send,mail read,mail ack,mail nack,mail extend,mail defer,mail bounce,mail reply,mail await,mail bounces,mail ls,mail show,mail watch,mail history,mailbox add,mailbox ls,mailbox show,mailbox set,mailbox pause,mailbox resume,mailbox purge,mailbox handoff,mailbox unblock,mailbox rm,"+
		"topic add,topic ls,topic show,topic set,topic publish,topic purge,topic handoff,topic rm,sub add,sub ls,sub show,sub set,sub seek,sub pause,sub resume,sub rm,config show,config path,config validate,version,completion", ",") {
		if !slices.Contains(have, want) {
			t.Errorf("no command %s", want)
		}
	}
}

// Requested help is written to standard output, a usage error to standard error.
func TestHelpAndMistakes(t *testing.T) {
	w, out, errs := newTestApp()
	if code := execute(t.Context(), w, []string{"send", "--help"}); code != exitOK || !strings.Contains(out.String(), "Send a task to a peer") || errs.Len() > 0 {
		t.Errorf("help: %d, %q, %q", code, out, errs)
	}
	w, out, errs = newTestApp()
	if code := execute(t.Context(), w, []string{"send", "--nothing"}); code != exitUsage || out.Len() > 0 || !strings.Contains(errs.String(), "see: balefire-node send --help") {
		t.Errorf("mistake: %d, %q, %q", code, out, errs)
	}
}

// An unknown command is a usage error at every level, and similar commands are suggested.
func TestMistypedCommands(t *testing.T) {
	for line, want := range map[string]string{
		"sned":            `"sned" of balefire-node: did you mean send?`,
		"task lss":        `"lss" of balefire-node task: did you mean ls?`,
		"help sned":       "did you mean send?",
		"help task lss":   "did you mean ls?",
		"completion bsah": "did you mean bash",
		"queue zzzzzzzz":  `"zzzzzzzz" of balefire-node queue: to show one: balefire-node queue show zzzzzzzz`,
	} {
		w, out, errs := newTestApp()
		if code := execute(t.Context(), w, strings.Fields(line)); code != exitUsage || out.Len() > 0 || !strings.Contains(errs.String(), want) {
			t.Errorf("%s: %d, %q, %q; want %q", line, code, out, errs, want)
		}
	}
	for _, line := range []string{"", "help", "help task ls", "config", "completion", "completion fish"} {
		w, out, errs := newTestApp()
		if code := execute(t.Context(), w, strings.Fields(line)); code != exitOK || out.Len() == 0 || errs.Len() > 0 {
			t.Errorf("%q: %d, %d bytes, %q", line, code, out.Len(), errs)
		}
	}
}

// At a terminal join asks for the ticket, and says that it is not shown.
func TestJoinAsksForTheTicket(t *testing.T) {
	w, _, errs := newTestApp()
	w.in, w.inTTY = strings.NewReader("BALE1X\n"), true
	if code := execute(t.Context(), w, []string{"join", "-", "--dir", t.TempDir()}); code != exitUsage || !strings.HasPrefix(errs.String(), "paste the ticket (it is not shown):\n") {
		t.Errorf("%d, %q", code, errs)
	}
}

// A prompt can be interrupted: a command does not block on silent input.
func TestInterruptWhileReading(t *testing.T) {
	for _, args := range [][]string{{"join", "-"}, {"send", "laptop", "echo", "-"}, {"peers", "forget", "laptop"}} {
		synctest.Test(t, func(t *testing.T) {
			w, out, errs := newTestApp()
			silent, _ := io.Pipe()
			w.in, w.inTTY, w.errTTY, w.flags.quiet = silent, true, true, true
			ctx, interrupt := context.WithCancel(t.Context())
			ended := make(chan int)
			go func() { ended <- execute(ctx, w, append(args, "--dir", t.TempDir())) }()
			synctest.Wait() // until it reads
			interrupt()
			if code := <-ended; code != exitInterrupted || out.Len() > 0 || strings.Contains(errs.String(), "error") {
				t.Errorf("%v: %d, %q, %q", args, code, out, errs)
			}
			silent.Close()
		})
	}
}
