package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// A command on a path that may not be looked at says that, and not that nothing is there.
func TestPathInAClosedFolder(t *testing.T) {
	closed, open := t.TempDir(), filepath.Dir(socketPath(t))
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	loseAccess(t, closed)
	inside := filepath.Join(closed, "n")
	for _, args := range [][]string{
		{"store", "check", "--dir", inside},
		{"audit", "verify", "--dir", inside},
		{"store", "restore", inside, "--dir", open},
	} {
		w, _, errs := newTestApp()
		if code := execute(t.Context(), w, args); code != exitError || !strings.Contains(errs.String(), inside) || !strings.Contains(errs.String(), "permission denied") {
			t.Errorf("%v: %d, %s", args, code, errs)
		}
	}
}

// A user without a node of their own who may not look into the folder of the system's
// socket uses that socket: opening it says why that is not possible.
func TestSocketOfTheSystemInAClosedFolder(t *testing.T) {
	const inside = "BALEFIRE_TEST_OWN_RUN"
	if os.Getenv(inside) == "" {
		home := t.TempDir()
		again := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		again.Env = append(os.Environ(), inside+"=1", "HOME="+home)
		again.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
		if os.Geteuid() != 0 { // it may mount in a user namespace of its own
			again.SysProcAttr = &syscall.SysProcAttr{
				Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
				UidMappings: []syscall.SysProcIDMap{{ContainerID: 1000, HostID: os.Getuid(), Size: 1}},
				GidMappings: []syscall.SysProcIDMap{{ContainerID: 1000, HostID: os.Getgid(), Size: 1}},
				AmbientCaps: []uintptr{unix.CAP_SYS_ADMIN},
			}
		}
		if out, err := again.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
			t.Errorf("where it may mount: %v\n%s", err, out)
		}
		return
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	const closed = "/run/balefire"
	if err := os.Mkdir(closed, 0); err != nil {
		t.Fatal(err)
	}
	loseAccess(t, closed)
	w, _, _ := newTestApp()
	if p, err := w.locate(); err != nil || p.Socket != "/run/balefire/node.sock" {
		t.Errorf("%+v, %v", p, err)
	}
}
