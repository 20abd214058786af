package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/node/config"
)

// A app is what a command may touch: its streams, the environment, the time
// and the global flags.
type app struct {
	in        io.Reader
	tty       *os.File    // the terminal behind in; nil: none
	hasUnread func() bool // reports whether in has something that nobody has read; nil: it is not known
	out, err  io.Writer
	environ   []string
	clock     clock.Clock
	inTTY     bool
	errTTY    bool
	outTTY    bool
	flags     globals
}

// globals are the flags that every command has.
type globals struct {
	paths   config.Paths
	output  string
	color   string
	timeout time.Duration
	quiet   bool
	verbose bool
	yes     bool
}

// interruptible gives up a read of r when ctx is done. The read itself cannot be
// ended, it ends with the process. Nothing is read before somebody asks for it.
func interruptible(ctx context.Context, r io.Reader) io.Reader {
	out, in := io.Pipe()
	context.AfterFunc(ctx, func() { in.CloseWithError(ctx.Err()) })
	start := sync.OnceFunc(func() {
		go func() {
			_, err := io.Copy(in, r)
			in.CloseWithError(err)
		}()
	})
	return readerFunc(func(p []byte) (int, error) {
		start()
		return out.Read(p)
	})
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// newApp is the world that the process was started in.
func newApp() *app {
	w := &app{
		in: os.Stdin, out: os.Stdout, err: os.Stderr, environ: os.Environ(), clock: clock.System(),
		inTTY: isTerminal(os.Stdin), errTTY: isTerminal(os.Stderr), outTTY: isTerminal(os.Stdout),
	}
	if w.inTTY {
		w.tty = os.Stdin
	} else {
		w.hasUnread = func() bool { return hasUnread(os.Stdin) }
	}
	return w
}

// readHidden reads a line that the terminal, if there is one, does not show.
func (w *app) readHidden(ctx context.Context) (io.Reader, error) {
	if w.tty == nil {
		return w.in, nil
	}
	fd := int(w.tty.Fd())
	state, err := term.GetState(fd)
	if err != nil {
		return nil, err
	}
	type line struct {
		text []byte
		err  error
	}
	read := make(chan line, 1)
	go func() { // it ends with the process at the latest
		text, err := term.ReadPassword(fd)
		read <- line{text, err}
	}()
	select {
	case <-ctx.Done():
		return nil, errors.Join(ctx.Err(), term.Restore(fd, state))
	case l := <-read:
		return bytes.NewReader(l.text), l.err
	}
}

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// env returns a variable of the environment, empty if there is none.
func (w *app) env(name string) string {
	for _, e := range w.environ {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			return v
		}
	}
	return ""
}

// locate finds the node's folder, configuration and socket.
func (w *app) locate() (config.Paths, error) {
	home, err := os.UserHomeDir()
	if err != nil {
		home = "" // a service may have none
	}
	return config.Locate(config.Machine{Env: w.env, Root: os.Geteuid() == 0, Home: home, Exists: mayExist}, w.flags.paths)
}

// mayExist is exists, also for what this user may not look at: the folder of the
// system's socket is closed to who is not in its group, and says so when it is opened.
func mayExist(path string) bool {
	_, err := os.Stat(path)
	return err == nil || errors.Is(err, fs.ErrPermission)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// config reads the configuration of the node and where it lives. A socket that
// the configuration names counts, unless a flag or the environment names one.
func (w *app) config() (*config.Loaded, config.Paths, error) {
	p, err := w.locate()
	if err != nil {
		return nil, p, err
	}
	l, err := config.Load(config.Source{File: p.File, Required: p.Named, Environ: w.environ})
	if err != nil {
		return nil, p, err
	}
	if l.API.Socket != "" && w.flags.paths.Socket == "" && w.env("BALEFIRE_SOCKET") == "" {
		p.Socket = l.API.Socket
	}
	return l, p, nil
}

// node returns a client of the node that runs on this machine. A configuration
// that cannot be read does not keep anybody from asking a running node.
func (w *app) node() (*client.Client, error) {
	p, err := w.locateConfigured()
	if err != nil {
		return nil, err
	}
	return client.New(p.Socket), nil
}

// locateConfigured is places with the socket that the configuration names, where that can be
// read.
func (w *app) locateConfigured() (config.Paths, error) {
	if _, p, err := w.config(); err == nil {
		return p, nil
	}
	return w.locate()
}

// infof tells a person what goes on, on standard error. It is no data.
func (w *app) infof(format string, a ...any) {
	if !w.flags.quiet {
		fmt.Fprintf(w.err, format+"\n", a...)
	}
}

// confirm asks before something is destroyed. Without a terminal only --yes
// agrees.
func (w *app) confirm(what string) error {
	if w.flags.yes {
		return nil
	}
	if !w.inTTY || !w.errTTY {
		return usage("%s cannot be undone: add --yes to agree", what)
	}
	fmt.Fprintf(w.err, "%s: this cannot be undone. Type yes to go on: ", what)
	var answer string
	_, err := fmt.Fscanln(w.in, &answer)
	switch {
	case errors.Is(err, context.Canceled):
		return err
	case err != nil || answer != "yes":
		return fmt.Errorf("%s: not done: the answer was not yes", what)
	}
	return nil
}

// colorStderr wraps text in a colour where the standard error shows colours.
func (w *app) colorStderr(style, text string) string { return w.colored(w.errTTY, style, text) }

// colorStdout does so where the standard output does.
func (w *app) colorStdout(style, text string) string { return w.colored(w.outTTY, style, text) }

// terminalWidth is how wide the terminal of the standard output is; 0: it is none, or nobody
// knows. COLUMNS says otherwise.
func (w *app) terminalWidth() int {
	if n, err := strconv.Atoi(w.env("COLUMNS")); err == nil && n > 0 {
		return n
	}
	if w.outTTY {
		if n, _, err := term.GetSize(int(os.Stdout.Fd())); err == nil {
			return n
		}
	}
	return 0
}

func (w *app) colored(on bool, style, text string) string {
	on = on && w.env("NO_COLOR") == "" && w.env("TERM") != "dumb"
	switch w.flags.color {
	case "always":
		on = true
	case "never":
		on = false
	}
	if !on {
		return text
	}
	return "\x1b[" + style + "m" + text + "\x1b[0m"
}

const (
	red    = "31"
	green  = "32"
	yellow = "33"
)
