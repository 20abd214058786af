package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/node/config"
)

// An app is everything that a command may use: its streams, the environment, the time and
// the global flags.
type app struct {
	in          io.Reader
	tty         *os.File    // the terminal of in; nil: none
	hasUnread   func() bool // reports whether in has unread input; nil: unknown
	out, err    io.Writer
	environ     []string
	clock       clock.Clock
	lookFor     time.Duration // how long to ask the node for names: completion, the names of the audit
	requestTime time.Duration // how long a request may take without --timeout
	inTTY       bool
	errTTY      bool
	outTTY      bool
	runPager    func(argv []string, text []byte) error // nil: output is never paged
	flags       globals
}

// globals are the global flags.
type globals struct {
	paths   config.Paths
	output  string
	color   string
	timeout time.Duration
	noPager bool
	quiet   bool
	verbose bool
	yes     bool
}

// interruptible returns a reader of r whose reads fail when ctx is done. The underlying
// read cannot be canceled; it ends with the process. Reading starts with the first Read.
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

// newApp returns the app of this process.
func newApp() *app {
	w := &app{
		in: os.Stdin, out: os.Stdout, err: os.Stderr, environ: os.Environ(), clock: clock.System(), lookFor: completeTimeout, requestTime: requestTimeout,
		inTTY: isTerminal(os.Stdin), errTTY: isTerminal(os.Stderr), outTTY: isTerminal(os.Stdout),
		runPager: startPager,
	}
	if w.inTTY {
		w.tty = os.Stdin
	} else {
		w.hasUnread = func() bool { return hasUnread(os.Stdin) }
	}
	return w
}

// readHidden reads a line without echo, if in is a terminal.
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

// env returns an environment variable, or an empty string.
func (w *app) env(name string) string {
	v, _ := w.lookupEnv(name)
	return v
}

// lookupEnv returns an environment variable and whether it is set.
func (w *app) lookupEnv(name string) (string, bool) {
	for _, e := range w.environ {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			return v, true
		}
	}
	return "", false
}

// locate returns the node's folder, configuration and socket.
func (w *app) locate() (config.Paths, error) {
	home, err := os.UserHomeDir()
	if err != nil {
		home = "" // a service may have none
	}
	p, err := config.Locate(config.Machine{Env: w.env, Root: os.Geteuid() == 0, Home: home, Exists: mayExist}, w.flags.paths)
	if err == nil && (w.flags.paths.Dir != "" || w.env("BALEFIRE_DIR") != "") {
		if file := notFolder(p.Dir); file != "" {
			err = usage("%s cannot be the node's folder: %s is not a folder: give another one with --dir", p.Dir, file)
		}
	}
	return p, err
}

// notFolder returns the part of path that exists and is not a folder, or "".
func notFolder(path string) string {
	for {
		info, err := os.Stat(path)
		parent := filepath.Dir(path)
		switch {
		case err == nil && !info.IsDir():
			return path
		case err == nil || parent == path:
			return ""
		}
		path = parent
	}
}

// mayExist is like exists, but also true if the path may not be inspected: the folder of
// the system's socket is not accessible to users outside its group; opening the socket then
// reports that.
func mayExist(path string) bool {
	_, err := os.Stat(path)
	return err == nil || errors.Is(err, fs.ErrPermission)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// config loads the configuration of the node and returns its paths. A socket set in the
// configuration is used unless a flag or the environment sets one.
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

// node returns a client of the node of this machine. An unreadable configuration does not
// prevent requests to a running node.
func (w *app) node() (*client.Client, error) {
	p, err := w.locateConfigured()
	if err != nil {
		return nil, err
	}
	return client.New(p.Socket), nil
}

// locateConfigured is like locate, with the socket of the configuration if that can be
// read.
func (w *app) locateConfigured() (config.Paths, error) {
	if _, p, err := w.config(); err == nil {
		return p, nil
	}
	return w.locate()
}

// infof prints a message on standard error. Messages are not data.
func (w *app) infof(format string, a ...any) {
	if !w.flags.quiet {
		fmt.Fprintf(w.err, format+"\n", a...)
	}
}

// confirm asks before an action that cannot be undone. Without a terminal --yes is
// required.
func (w *app) confirm(what string) error {
	if w.flags.yes {
		return nil
	}
	if !w.inTTY || !w.errTTY {
		return usage("%s cannot be undone: add --yes to confirm", what)
	}
	fmt.Fprintf(w.err, "%s: this cannot be undone. Type yes to continue: ", what)
	var answer string
	_, err := fmt.Fscanln(w.in, &answer)
	switch {
	case errors.Is(err, context.Canceled):
		return err
	case err != nil || answer != "yes":
		return fmt.Errorf("%s: canceled: the answer was not yes", what)
	}
	return nil
}

// colorStderr colors text if standard error shows colors.
func (w *app) colorStderr(style, text string) string { return w.colored(w.errTTY, style, text) }

// colorStdout colors text if standard output shows colors.
func (w *app) colorStdout(style, text string) string { return w.colored(w.outTTY, style, text) }

// terminalSize returns the size of the terminal of standard output in characters; 0: it is
// not a terminal, or unknown. COLUMNS and LINES override it.
func (w *app) terminalSize() (columns, lines int) { return w.sizeOf(os.Stdout, w.outTTY) }

func (w *app) sizeOf(f *os.File, tty bool) (columns, lines int) {
	if tty {
		if c, l, err := term.GetSize(int(f.Fd())); err == nil {
			columns, lines = c, l
		}
	}
	for name, size := range map[string]*int{"COLUMNS": &columns, "LINES": &lines} {
		if n, err := strconv.Atoi(w.env(name)); err == nil && n > 0 {
			*size = n
		}
	}
	return columns, lines
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
