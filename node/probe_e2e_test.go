//go:build e2e

package node

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/balefire/balefire/audit"
	"github.com/balefire/balefire/wire"
)

// I19: the program that is asked about an interrupted run is in the audit like a run.
func TestAuditHasTheProbe(t *testing.T) {
	t.Parallel()
	a, b := pair(t, nil)
	gate := filepath.Join(t.TempDir(), "gate")
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, []byte("#!/bin/sh\ntest \"$1\" = --check && exit 0\nuntil test -e "+gate+"; do sleep 0.1; done\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := b.Handlers.Add(t.Context(), wire.HandlerSpec{Kind: "run", Exec: []string{program}, Allow: []string{"role:send"}, OnCrash: "probe"}); err != nil {
		t.Fatal(err)
	}
	cut := a.submit(t, wire.Request{Target: "b", Kind: "run"})
	eventually(t, func() bool {
		task, err := b.Views.Task(t.Context(), cut)
		return err == nil && task.State == "RUNNING"
	}, func() string { return "the task is not running" })
	crashed := b.copyAsCrashed(t)
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b.halt()
	again := start(t, crashed)
	again.endsHere(t, cut)
	again.halt()
	var probe []string
	err := audit.Scan(filepath.Join(crashed.Dir, audit.DirName), func(r audit.Record) error {
		if r.Detail["check"] != "" {
			probe = append(probe, r.Action+" "+r.Detail["outcome"])
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"command.start ", "command.end done"}; !slices.Equal(probe, want) {
		t.Errorf("the probe has %q in the audit, want %q", probe, want)
	}
}
