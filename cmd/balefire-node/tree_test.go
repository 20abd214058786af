package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/clock"
)

func testWorld() (*world, *bytes.Buffer, *bytes.Buffer) {
	out, err := new(bytes.Buffer), new(bytes.Buffer)
	return &world{in: strings.NewReader(""), out: out, err: err, clock: clock.System()}, out, err
}

// walk visits every command that somebody may type.
func walk(c *cobra.Command, visit func(*cobra.Command)) {
	visit(c)
	for _, sub := range c.Commands() {
		walk(sub, visit)
	}
}

// TestTree walks the tree of commands: each says in a line what it does, and
// more or by an example how; each that can be run takes -o and checks its
// arguments.
func TestTree(t *testing.T) {
	w, _, _ := testWorld()
	n := 0
	walk(newRoot(w), func(c *cobra.Command) {
		path := c.CommandPath()
		if strings.Contains(path, " completion") || c.Name() == "help" || c.Hidden {
			return
		}
		n++
		switch {
		case c.Short == "" || strings.HasSuffix(c.Short, "."):
			t.Errorf("%s: its one line is %q", path, c.Short)
		case c.Long == "" && c.Example == "":
			t.Errorf("%s has neither a description nor an example", path)
		case c.Example != "" && !strings.Contains(c.Example, path) && !strings.Contains(c.Example, "balefire-node"):
			t.Errorf("%s: its example does not show it", path)
		case c.Runnable() && !c.HasSubCommands() && c.Args == nil:
			t.Errorf("%s takes any arguments", path)
		case c.InheritedFlags().Lookup("output") == nil && c.HasParent():
			t.Errorf("%s has no -o", path)
		}
		for line := range strings.SplitSeq(c.Long+"\n"+c.Short, "\n") {
			if cells(line) > 84 {
				t.Errorf("%s: a line of its help is %d wide: %s", path, cells(line), line)
			}
		}
	})
	if n < 40 {
		t.Errorf("the walk saw %d commands only", n)
	}
}

// The commands that DESIGN promises are there.
func TestCommandsOfTheDesign(t *testing.T) {
	w, _, _ := testWorld()
	var have []string
	walk(newRoot(w), func(c *cobra.Command) { have = append(have, strings.TrimPrefix(c.CommandPath(), "balefire-node ")) })
	for _, want := range strings.Split("init,run,status,send,task ls,task show,task watch,task cancel,task retry,task result,task receipts,task purge,dlq ls,dlq show,dlq retry,dlq purge,dlq export,"+
		"handler add,handler ls,handler rm,peers ls,peers show,peers block,peers unblock,peers forget,invite,join,why,bench deliver,demo,"+
		"store stats,store check,store compact,store snapshot,store salvage,health,wait,config show,config path,config validate,version,completion", ",") {
		if !slices.Contains(have, want) {
			t.Errorf("there is no %s", want)
		}
	}
}

// Help is data: somebody asked for it. A mistake is told on standard error.
func TestHelpAndMistakes(t *testing.T) {
	w, out, errs := testWorld()
	if code := execute(t.Context(), w, []string{"send", "--help"}); code != exitOK || !strings.Contains(out.String(), "Hand a task to a peer") || errs.Len() > 0 {
		t.Errorf("help: %d, %q, %q", code, out, errs)
	}
	w, out, errs = testWorld()
	if code := execute(t.Context(), w, []string{"send", "--nothing"}); code != exitUsage || out.Len() > 0 || !strings.Contains(errs.String(), "see: balefire-node send --help") {
		t.Errorf("mistake: %d, %q, %q", code, out, errs)
	}
}
