package main

import (
	"cmp"
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client"
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
	fs.Var(spanValue{&f.timeout}, "run-timeout", "limit of one run of --exec or --post, at most 12h; 0: the default, 10m")
	fs.StringVar(&h.Profile, "profile", "", "of --exec: read-only, dev-write or dangerous (default dev-write)")
	fs.Var(envValue{&h.Env}, "env", "NAMEs of environment variables that --exec gets from the node, comma-separated, or NAME=VALUE (repeatable)")
	fs.StringVar(&h.RunAs, "run-as", "", "USER or USER:GROUP that --exec runs as (default the node's user)")
	fs.StringVar(&h.Dir, "work-dir", "", "folder that --exec runs in (default a new one for each run)")
	c.MarkFlagsMutuallyExclusive("exec", "post")
}

// handlerFlagNames are the flags of the handler of a mailbox.
var handlerFlagNames = []string{"exec", "post", "forward", "concurrency", "run-timeout", "profile", "env", "run-as", "work-dir"}

// check checks the flags that are set, with the arguments of the program, and reports whether
// there are some.
func (f *handlerFlags) check(given func(flag string) bool, args []string) (some bool, err error) {
	other := ""
	for _, flag := range handlerFlagNames {
		if given(flag) {
			some = true
			if flag != "exec" && flag != "post" {
				other = flag
			}
		}
	}
	switch {
	case len(args) > 0 && f.exec == "":
		return some, usage("%.60q: one mailbox at a time; arguments of a program need --exec before it", args[0])
	case other != "" && f.removes(given):
		return some, usage("an empty --exec or --post removes the handler: leave out --%s", other)
	case f.exec != "":
		f.handler.Exec = append([]string{f.exec}, args...)
		if strings.ContainsAny(f.exec, `/\`) { // as this command sees it, not the node
			f.handler.Exec[0], err = filepath.Abs(f.exec)
		}
	}
	return some, err
}

// removes reports whether the flags remove the handler.
func (f *handlerFlags) removes(given func(flag string) bool) bool {
	return given("exec") && f.exec == "" || given("post") && f.handler.Post == ""
}

// change returns the handler that the flags make of the one that a mailbox has, if any, and the
// flags of what is dropped of that one, as only programs have it. Nil: nothing changes.
func (f *handlerFlags) change(given func(flag string) bool, old *wire.MailHandler) (h *wire.MailHandler, dropped []string, err error) {
	h = new(wire.MailHandler)
	if old != nil {
		*h = *old
	}
	set := &f.handler
	some := false
	for _, flag := range handlerFlagNames {
		if !given(flag) {
			continue
		}
		some = true
		switch flag {
		case "exec":
			h.Exec, h.Post = set.Exec, ""
		case "post":
			h.Exec, h.Post = nil, set.Post
			dropped = dropProgram(h)
		case "forward":
			h.Forward = set.Forward
		case "concurrency":
			h.Concurrency = set.Concurrency
		case "run-timeout":
			h.Timeout = wire.Duration(f.timeout)
		case "profile":
			h.Profile = set.Profile
		case "env":
			h.Env = set.Env
		case "run-as":
			h.RunAs = set.RunAs
		case "work-dir":
			h.Dir = set.Dir
		}
	}
	switch {
	case !some:
		return nil, nil, nil
	case f.removes(given):
		return new(wire.MailHandler), nil, nil
	case len(h.Exec) == 0 && h.Post == "":
		return nil, nil, usage("the mailbox has no handler that could change: give --exec or --post, too")
	}
	return h, dropped, nil
}

// dropProgram removes from h what only programs have, and returns the flags of what there was.
func dropProgram(h *wire.MailHandler) (dropped []string) {
	for _, v := range []struct {
		flag string
		had  bool
	}{{"--profile", h.Profile != ""}, {"--env", len(h.Env) > 0}, {"--run-as", h.RunAs != ""}, {"--work-dir", h.Dir != ""}} {
		if v.had {
			dropped = append(dropped, v.flag)
		}
	}
	h.Profile, h.Env, h.RunAs, h.Dir = "", nil, "", ""
	return dropped
}

// setMailbox sets a mailbox to s, with the handler that the flags make of the one it has, if any,
// and says what is dropped of that.
func (w *app) setMailbox(ctx context.Context, c *client.Client, name string, f *handlerFlags, given func(flag string) bool, old *wire.MailHandler, s wire.MailboxSettings) (wire.Box, error) {
	h, dropped, err := f.change(given, old)
	if err != nil {
		return wire.Box{}, err
	}
	s.Handler = h
	v, err := c.SetMailbox(ctx, name, s)
	if err == nil && given("exec") && h != nil && len(h.Exec) > 0 {
		if _, missing := exec.LookPath(h.Exec[0]); missing != nil {
			w.infof("! %v: until the node finds the program, the mail of %s waits", missing, sanitize(v.Name))
		}
	}
	if err == nil && len(dropped) > 0 {
		w.infof("%s: dropped %s, which only programs have", sanitize(v.Name), strings.Join(dropped, ", "))
	}
	return v, err
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
	if v.Problem != nil {
		row("problem", "it does not run: %s", prose.Line(*v.Problem))
	}
}
