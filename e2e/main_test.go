//go:build e2e

// Package e2e runs real nodes as separate processes and injects the faults of real
// machines: it kills them at any moment, fills their disks, cuts their links and
// damages their files. After any of these, a node must restart without intervention, and
// no task that it acknowledged may be lost or run twice.
//
//	test ── socket ──▶ balefire-node (home) ══ wire ══ balefire-node (owner) ──▶ handler
//	  ├── kill -9, failpoints, strace                                              │
//	  └── the marks that every run of a handler leaves in a file ◀─────────────────┘
//
// It needs Linux, root, strace and iproute2, for the examples of docs/mail.md python3 and
// curl, for disks loop devices, FUSE and tracefs, and for the exposure of the service unit
// systemd-analyze; a test that lacks one of them fails.
// The networks are those of internal/lab. The binary under test is built with the
// tag failpoint, unless BALEFIRE_NODE names one.
package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/balefire/balefire/store/storetest/crash"
)

// nodeBinary is the node under test.
var nodeBinary string

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(mutantVariable) != "":
		os.Exit(runMutant())
	case os.Getenv(unitVariable) != "":
		os.Exit(runUnit())
	case os.Getenv(probeVariable) != "":
		os.Exit(runProbe(os.Getenv(probeVariable)))
	}
	crash.Victim(crashStores)
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if given := os.Getenv("BALEFIRE_NODE"); given != "" {
		var err error
		if nodeBinary, err = filepath.Abs(given); err != nil { // tests run it in other folders
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "balefire-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	nodeBinary = filepath.Join(dir, "balefire-node")
	build := exec.Command("go", "build", "-tags", "failpoint", "-o", nodeBinary, "../cmd/balefire-node")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the node: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}
