package main

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/libp2p/go-libp2p/gologshim"

	"github.com/balefire/balefire/node"
)

// Lines of libp2p are lines of the log of every command that opens a node or a part of one,
// one level lower.
func TestLibp2pWritesIntoTheLog(t *testing.T) {
	t.Cleanup(func() { logLibraries(slog.New(slog.DiscardHandler)) })
	for name, begin := range map[string]func(*testing.T, *app){
		"run":   beginRun,
		"other": func(_ *testing.T, w *app) { w.quietLogger() },
	} {
		t.Run(name, func(t *testing.T) {
			w, _, errs := newTestApp()
			begin(t, w)
			gologshim.Logger("test").Error("it broke")
			if got := errs.String(); !strings.Contains(got, "WARN") || !strings.Contains(got, "it broke") {
				t.Errorf("the log has %q", got)
			}
		})
	}
}

// beginRun begins to run a node that does not open.
func beginRun(t *testing.T, w *app) {
	w.flags.paths.Dir, w.flags.paths.Socket = t.TempDir(), socketPath(t)
	l, p, err := w.config()
	if err != nil {
		t.Fatal(err)
	}
	broken := errors.New("the node does not open")
	d := newDaemon(w, l, p)
	d.open = func(node.Config) (*node.Node, error) { return nil, broken }
	if err := d.run(t.Context()); !errors.Is(err, broken) {
		t.Fatal(err)
	}
}
