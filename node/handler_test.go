package node

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/pairing"
	"github.com/balefire/balefire/wire"
)

// The user that a handler runs as is checked when the handler is added; the error
// states what to do.
func TestRunAsIsCheckedWhenAHandlerIsAdded(t *testing.T) {
	a := startAlone(t)
	for name, tt := range map[string]struct {
		spec wire.HandlerSpec
		want string
	}{
		"root":            {wire.HandlerSpec{Exec: []string{"true"}, RunAs: "root"}, "run_as"},
		"nobody's name":   {wire.HandlerSpec{Exec: []string{"true"}, RunAs: "no-such-user-here"}, "run_as"},
		"a built-in type": {wire.HandlerSpec{Type: wire.TypeEcho, RunAs: "nobody"}, "drop run_as"},
	} {
		tt.spec.Kind, tt.spec.Allow = "k", []string{"peer:a"}
		if err := a.Handlers.Add(t.Context(), tt.spec); !errors.Is(err, wire.ErrInvalid) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(a.Handlers.List()) != 0 {
		t.Errorf("it was added anyway: %+v", a.Handlers.List())
	}
}

// The folder that a handler runs in is checked when the handler is added.
func TestWorkFolderIsCheckedWhenAHandlerIsAdded(t *testing.T) {
	a := startAlone(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for at, want := range map[string]string{
		filepath.Join(dir, "missing"): "missing\" does not exist on this node: create it",
		filepath.Join(file, "below"):  "below\" does not exist on this node: create it",
		file:                          "is not a folder",
	} {
		err := a.Handlers.Add(t.Context(), wire.HandlerSpec{Kind: "k", Exec: []string{"true"}, Allow: []string{"peer:a"}, Dir: at})
		if !errors.Is(err, wire.ErrInvalid) || !strings.Contains(err.Error(), want) || len(a.Handlers.List()) > 0 {
			t.Errorf("%s: %v", at, err)
		}
	}
	if err := a.Handlers.Add(t.Context(), wire.HandlerSpec{Kind: "k", Exec: []string{"true"}, Allow: []string{"peer:a"}, Dir: dir}); err != nil {
		t.Error(err)
	}
}

// A handler of the configuration whose user cannot run its program, or cannot reach the
// folders of runs, is not offered, and its problem says what to do.
func TestRunAsOfTheConfigurationIsChecked(t *testing.T) {
	cfg := testConfig(t, filepath.Join(t.TempDir(), "node"))
	if _, err := pairing.Init(pairing.InitOptions{Dir: cfg.Dir, Name: "a", NewMesh: true}); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(cfg.Dir, 0o700); err != nil { // no other user passes through
		t.Fatal(err)
	}
	cfg.Handlers = []wire.HandlerSpec{{Kind: "k", Exec: []string{"true"}, RunAs: "64401:64401", Allow: []string{"peer:a"}}}
	a := start(t, cfg)
	hs := a.Handlers.List()
	if len(hs) != 1 || hs[0].Problem == nil || hs[0].Problem.Code != wire.ProblemRunAs || a.inbox.Suspended("k") == "" {
		t.Fatalf("handlers %+v, suspended: %q", hs, a.inbox.Suspended("k"))
	}
	if want := "chmod 0711"; runtime.GOOS == "linux" && os.Geteuid() == 0 && !strings.Contains(hs[0].Problem.Detail, want) {
		t.Errorf("the problem is %+v, want one with %s", hs[0].Problem, want)
	}
}

// Only the node's user reads anything in its folder, even where others pass through to
// the folders of their runs.
func TestNodeFolderIsPrivate(t *testing.T) {
	a := startAlone(t)
	// the check of the user makes the folder of runs for other users
	if err := a.Handlers.Add(t.Context(), wire.HandlerSpec{Kind: "k", Exec: []string{"true"}, RunAs: "no-such-user-here", Allow: []string{"peer:a"}}); err == nil {
		t.Fatal("a handler was added that cannot run")
	}
	entries, err := os.ReadDir(a.cfg.Dir)
	if err != nil || len(entries) < 4 {
		t.Fatal(entries, err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		most := os.FileMode(0)
		if e.Name() == datadir.Run {
			most = 0o011
		}
		if runtime.GOOS != "windows" && info.Mode().Perm()&0o077&^most != 0 {
			t.Errorf("%s has mode %v", e.Name(), info.Mode())
		}
	}
}

// startAlone starts a node that is the only one of its mesh.
func startAlone(t *testing.T) *testNode {
	t.Helper()
	cfg := testConfig(t, filepath.Join(t.TempDir(), "node"))
	if _, err := pairing.Init(pairing.InitOptions{Dir: cfg.Dir, Name: "a", NewMesh: true}); err != nil {
		t.Fatal(err)
	}
	return start(t, cfg)
}

// The error for an unknown target says so once, without the name of a package.
func TestUnknownTargetIsNamedOnce(t *testing.T) {
	a := startAlone(t)
	for what, f := range map[string]func() error{
		"submit": func() error {
			_, err := a.Submit(t.Context(), wire.Request{Target: "nobody", Kind: "k"})
			return err
		},
		"list": func() error {
			_, err := a.Views.Tasks(wire.Query{Peer: "nobody"})
			return err
		},
	} {
		err := f()
		if !errors.Is(err, wire.ErrNotFound) || strings.Count(err.Error(), "not found") != 1 || !strings.Contains(err.Error(), `not found: unknown peer "nobody"`) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// What is wrong with a request is named: which key, and how a queue is called.
func TestWrongRequestsAreNamed(t *testing.T) {
	a := startAlone(t)
	long := strings.Repeat("k", 300)
	for want, r := range map[string]wire.Request{
		"the idempotency key has 300 bytes, the limit is 256": {Target: "a", Key: long},
		"the ordering key has 300 bytes, the limit is 256":    {Target: "a", Order: long},
		`queue "bad name!": use 1-63`:                         {Target: "queue:bad name!"},
		`queue "": use 1-63`:                                  {Target: "queue:"},
		"or queue:NAME":                                       {Target: "all"},
	} {
		r.Kind = "k"
		if _, err := a.Submit(t.Context(), r); !errors.Is(err, wire.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// The removal of a handler that replaced one of the configuration brings that one back, as
// the next start would.
func TestRemovedHandlerUncoversTheConfiguredOne(t *testing.T) {
	cfg := testConfig(t, filepath.Join(t.TempDir(), "node"))
	cfg.Handlers = []wire.HandlerSpec{{Kind: "k", Type: wire.TypeEcho, Allow: []string{"peer:configured"}}}
	if _, err := pairing.Init(pairing.InitOptions{Dir: cfg.Dir, Name: "a", NewMesh: true}); err != nil {
		t.Fatal(err)
	}
	a := start(t, cfg)
	if err := a.Handlers.Add(t.Context(), wire.HandlerSpec{Kind: "k", Exec: []string{"no-such-program-here"}, Allow: []string{"peer:added"}}); err != nil {
		t.Fatal(err)
	}
	if h := a.Handlers.List(); len(h) != 1 || h[0].Type != wire.TypeCommand || h[0].Problem == nil {
		t.Errorf("with the added one: %+v", h)
	}
	if err := a.Handlers.Remove(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	if h := a.Handlers.List(); len(h) != 1 || h[0].Type != wire.TypeEcho || h[0].Problem != nil || h[0].Allow[0] != "peer:configured" {
		t.Errorf("after its removal: %+v", h)
	}
	if err := a.Handlers.Remove(t.Context(), "k"); !errors.Is(err, wire.ErrInvalid) {
		t.Errorf("the configured one can be removed: %v", err)
	}
}
