package main

import (
	"cmp"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/cmd/balefire-node/prose"
	"github.com/balefire/balefire/wire"
)

// handlerFlags are the raw flags of the handler of a mailbox.
type handlerFlags struct {
	exec    string
	timeout time.Duration
	handler wire.MailHandler
}

func (f *handlerFlags) add(c *cobra.Command) {
	fs, h := c.Flags(), &f.handler
	fs.StringVar(&f.exec, "exec", "", "run this program for each mail; what follows NAME, or --, are its arguments; '' removes it")
	fs.StringVar(&h.Post, "post", "", "post each mail to this URL; '' removes it")
	fs.StringVar(&h.Forward, "forward", "", "send the output on to this mailbox or topic, with the headers of the mail")
	fs.Var(numberValue[int]{&h.Concurrency, 1, 256}, "concurrency", "mails that --exec or --post handles at once (default 1)")
	fs.Var(spanValue{&f.timeout}, "run-timeout", "limit of one run of --exec or --post, at most 12h (default 10m)")
	fs.StringVar(&h.Profile, "profile", "", "of --exec: read-only, dev-write or dangerous (default dev-write)")
	fs.StringSliceVar(&h.Env, "env", nil, "name of an environment variable that --exec gets from the node (repeatable)")
	fs.StringVar(&h.RunAs, "run-as", "", "USER or USER:GROUP that --exec runs as (default the node's user)")
	fs.StringVar(&h.Dir, "work-dir", "", "folder that --exec runs in (default a new one for each run)")
	c.MarkFlagsMutuallyExclusive("exec", "post")
}

// settings converts the flags that are set, with the arguments of the program; nil: none is set.
func (f *handlerFlags) settings(given func(flag string) bool, args []string) (*wire.MailHandler, error) {
	some := false
	for _, flag := range []string{"exec", "post", "forward", "concurrency", "run-timeout", "profile", "env", "run-as", "work-dir"} {
		some = some || given(flag)
	}
	switch {
	case len(args) > 0 && f.exec == "":
		return nil, usage("%.60q: one mailbox at a time; arguments of a program need --exec before it", args[0])
	case !some:
		return nil, nil
	}
	h := f.handler
	h.Timeout = wire.Duration(f.timeout)
	if f.exec == "" {
		return &h, nil
	}
	program := f.exec
	if strings.ContainsAny(program, `/\`) { // as this command sees it, not the node
		var err error
		if program, err = filepath.Abs(program); err != nil {
			return nil, err
		}
	}
	h.Exec = append([]string{program}, args...)
	return &h, nil
}

// printHandler prints the handler of a mailbox.
func printHandler(row rowFunc, v wire.Box) {
	h := v.Settings.Handler
	if h == nil {
		return
	}
	what := "post " + h.Post
	if len(h.Exec) > 0 {
		what = "exec " + strings.Join(h.Exec, " ")
	}
	if h.Forward != "" {
		what += "  forward " + h.Forward
	}
	row("handler", "%s  %d at once", what, cmp.Or(h.Concurrency, 1))
	if v.Problem != "" {
		row("problem", "it does not run: %s", prose.Plain(v.Problem))
	}
}
