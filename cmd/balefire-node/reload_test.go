package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/balefire/balefire/node"
	"github.com/balefire/balefire/pairing"
	"github.com/balefire/balefire/store"
)

// A reloadable is a daemon with a node whose settings a test changes.
type reloadable struct {
	*daemon
	file string
	told logLines
	hup  chan os.Signal
}

// newReloadable returns a daemon that has not run.
func newReloadable(t *testing.T) *reloadable {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "n")
	if _, err := pairing.Init(pairing.InitOptions{Dir: dir, Name: "solo", NewMesh: true}); err != nil {
		t.Fatal(err)
	}
	r := &reloadable{file: filepath.Join(dir, "config.yaml"), told: make(logLines, 1000), hup: make(chan os.Signal)}
	r.write(t, "")
	w, _, _ := newTestApp()
	w.err, w.flags.paths.Dir = r.told, dir
	l, p, err := w.config()
	if err != nil {
		t.Fatal(err)
	}
	r.daemon = newDaemon(w, l, p)
	return r
}

func (r *reloadable) write(t *testing.T, more string) {
	t.Helper()
	if err := os.WriteFile(r.file, []byte("net: {listen: [/ip4/127.0.0.1/tcp/0]}\n"+more), 0o600); err != nil {
		t.Fatal(err)
	}
}

// reload changes the settings of the node that runs or opens.
func (r *reloadable) reload(t *testing.T, more string) {
	t.Helper()
	r.write(t, more)
	r.hup <- reloadSignals()[0]
	r.told.await(t, "the configuration was reloaded")
}

// TestReloadWhileOpening reloads the configuration while a large store opens. The race
// detector watches it best with -count=1: what records the files that a cached test reads has
// a lock.
func TestReloadWhileOpening(t *testing.T) {
	for _, stop := range []bool{false, true} {
		r := newReloadable(t)
		begun, read := make(chan struct{}), make(chan struct{})
		r.open = func(cfg node.Config) (*node.Node, error) {
			n, err := node.New(cfg)
			close(begun)
			<-read
			return n, err
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.runOnce(ctx, r.hup) }()
		<-begun
		r.reload(t, "limits: {slots: 9}\n")
		if stop {
			cancel()
		}
		close(read)
		if err := <-done; !errors.Is(err, errReload) && !stop {
			t.Errorf("%v, want a reload", err)
		}
		if r.setup.loaded.Limits.Slots != 9 {
			t.Error("the node would not be opened with the changed configuration")
		}
		cancel()
	}
}

// A node that has run with a changed configuration, and fails to open after a disk failure,
// does not return to the configuration before it.
func TestAProvenConfigurationIsNotReverted(t *testing.T) {
	r := newReloadable(t)
	portTaken := errors.New("the port is taken")
	opened := 0
	r.open = func(cfg node.Config) (*node.Node, error) {
		if opened++; opened == 3 {
			return nil, portTaken
		}
		return node.New(cfg)
	}
	runs := 0
	err := r.supervise(t.Context(), func() error {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- r.runOnce(ctx, r.hup) }()
		switch runs++; runs {
		case 1:
			r.told.await(t, "the node is running")
			r.reload(t, "limits: {slots: 9}\n")
		case 2:
			r.told.await(t, "the node is running")
			cancel()
			if err := dropCanceled(<-done); err != nil {
				t.Error(err)
			}
			return errors.Join(store.ErrFailed, syscall.EIO)
		case 4:
			t.Error("the node was opened with the configuration before the one that it had run with")
			cancel()
		}
		return <-done
	})
	if !errors.Is(err, portTaken) {
		t.Errorf("the daemon returned %v", err)
	}
}

// The format of the log changes at once, like its level, and returns with the configuration.
func TestReloadOfTheLog(t *testing.T) {
	r := newReloadable(t)
	opened := 0
	r.open = func(cfg node.Config) (*node.Node, error) {
		if opened++; opened == 2 {
			return nil, errors.New("the port is taken")
		}
		return node.New(cfg)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.supervise(ctx, func() error { return r.runOnce(ctx, r.hup) }) }()
	r.told.await(t, `"msg":"the node is running"`)
	r.reload(t, "log: {format: text}\n")
	r.write(t, "lgo: {}\n")
	r.hup <- reloadSignals()[0]
	r.told.await(t, `level=ERROR msg="the new configuration is invalid`)
	if opened != 1 {
		t.Error("the node was reopened for the format of its log")
	}
	r.reload(t, "log: {format: json, level: error}\nlimits: {slots: 9}\n")
	r.told.await(t, `"msg":"the node does not open with the new configuration`)
	r.told.await(t, `level=INFO msg="the node is running"`)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
