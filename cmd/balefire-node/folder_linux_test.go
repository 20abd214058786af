package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/balefire/balefire/pairing"
	"github.com/balefire/balefire/store"
)

// A command on a folder of another user says so, whichever command it is, and what to do.
func TestFolderOfAnotherUser(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "n")
	if _, err := pairing.Init(pairing.InitOptions{Dir: dir, Name: "solo", NewMesh: true}); err != nil {
		t.Fatal(err)
	}
	loseAccess(t, dir)
	advice := fmt.Sprintf("this process runs as user %d, who may not use the node's folder: run it as the owner of the folder, or: chown -R %[1]d %s\n", os.Geteuid(), dir)
	for _, line := range []string{"run", "store check", "store migrate --to pebble", "store salvage /x", "audit verify", "audit", "config show"} {
		w, _, errs := newTestApp()
		code := execute(t.Context(), w, append(strings.Fields(line), "--dir", dir))
		if code != exitError || strings.Count(errs.String(), advice) != 1 || !strings.Contains(errs.String(), "permission denied\n") {
			t.Errorf("%s: %d, %s", line, code, errs)
		}
	}
}

// A folder that is not there and cannot be made has no owner to be changed.
func TestFolderThatCannotBeMade(t *testing.T) {
	parent := t.TempDir()
	if err := os.Chmod(filepath.Dir(parent), 0o755); err != nil {
		t.Fatal(err)
	}
	limitAccess(t, parent, 0o555)
	w, _, errs := newTestApp()
	if code := execute(t.Context(), w, []string{"init", "--dir", filepath.Join(parent, "n")}); code != exitError || strings.Contains(errs.String(), "chown") || !strings.Contains(errs.String(), "give another one with --dir") {
		t.Errorf("%d, %s", code, errs)
	}
}

// loseAccess takes the access to a folder from this goroutine until the test ends.
func loseAccess(t *testing.T, dir string) {
	t.Helper()
	limitAccess(t, dir, 0)
}

// limitAccess is loseAccess, except for what the mode allows everyone.
func limitAccess(t *testing.T, dir string, mode os.FileMode) {
	t.Helper()
	if err := os.Chmod(dir, mode); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 { // whom no mode stops
		runtime.LockOSThread()
		if err := syscall.Setfsuid(65534); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if os.Geteuid() == 0 {
			if err := syscall.Setfsuid(0); err != nil {
				t.Error(err)
			}
			runtime.UnlockOSThread()
		}
		if err := os.Chmod(dir, 0o700); err != nil {
			t.Error(err)
		}
	})
}

// Every command that needs the folder of a running node for itself explains that alike,
// once, and names the process that has it.
func TestFolderInUse(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "n")
	if _, err := pairing.Init(pairing.InitOptions{Dir: dir, Name: "solo", NewMesh: true}); err != nil {
		t.Fatal(err)
	}
	lock, err := store.LockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	want := fmt.Sprintf("folder is in use: %s belongs to process %d: another node is running there: stop it first, or use another folder with --dir\n", dir, os.Getpid())
	for _, line := range []string{"run", "store check", "store migrate --to pebble", "store salvage " + t.TempDir() + "/out"} {
		w, _, errs := newTestApp()
		code := execute(t.Context(), w, append(strings.Fields(line), "--dir", dir, "--socket", socketPath(t)))
		if code != exitRefused || !strings.HasSuffix(errs.String(), want) || strings.Count(errs.String(), "another node is running there") != 1 {
			t.Errorf("%s: %d, %s", line, code, errs)
		}
	}
}
