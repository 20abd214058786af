package store_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/balefire/balefire/store"
)

// TestSecondLockNamesTheHolder: the error for a second daemon on a folder names the
// holder, and the folder is free once the holder is killed.
func TestSecondLockNamesTheHolder(t *testing.T) {
	dir := os.Getenv("LOCK_DIR_OF_TEST")
	if dir != "" { // the first daemon
		if _, err := store.LockDir(dir); err != nil {
			t.Fatal(err)
		}
		os.Stdout.WriteString("locked\n")
		os.Stdin.Read(make([]byte, 1)) // until it is killed
		return
	}
	dir = t.TempDir()
	first := exec.Command(os.Args[0], "-test.run=^TestSecondLockNamesTheHolder$")
	first.Env = append(os.Environ(), "LOCK_DIR_OF_TEST="+dir)
	in, err := first.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := first.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 7)); err != nil {
		t.Fatal(err)
	}
	_, err = store.LockDir(dir)
	if !errors.Is(err, store.ErrLocked) || !strings.Contains(err.Error(), "process "+strconv.Itoa(first.Process.Pid)) {
		t.Errorf("second lock: %v, want one that names process %d", err, first.Process.Pid)
	}
	first.Process.Kill()
	first.Wait()
	l, err := store.LockDir(dir)
	if err != nil {
		t.Fatalf("lock after the holder was killed: %v", err)
	}
	if _, err := store.LockDir(dir); !errors.Is(err, store.ErrLocked) {
		t.Errorf("second lock in one process: %v", err)
	}
	if err := errors.Join(l.Close(), l.Close()); err != nil {
		t.Error(err)
	}
	l, err = store.LockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if _, err := store.LockDir(filepath.Join(dir, "missing")); err == nil || errors.Is(err, store.ErrLocked) {
		t.Errorf("lock of a missing folder: %v", err)
	}
}

func TestMarkEngine(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data", "store")
	for range 2 {
		if err := store.MarkEngine(dir, "pebble"); err != nil {
			t.Fatal(err)
		}
	}
	err := store.MarkEngine(dir, "nuts")
	if !errors.Is(err, store.ErrOtherEngine) || !strings.Contains(err.Error(), "pebble") {
		t.Errorf("another engine: %v", err)
	}
	strange := t.TempDir()
	if err := os.WriteFile(filepath.Join(strange, "CURRENT"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := store.MarkEngine(strange, "pebble"); !errors.Is(err, store.ErrOtherEngine) {
		t.Errorf("a folder with unrelated files: %v", err)
	}
	begun := t.TempDir() // a mark that a crash left half written
	if err := os.WriteFile(filepath.Join(begun, "ENGINE.tmp"), []byte("pe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := store.MarkEngine(begun, "nuts"); err != nil {
		t.Error(err)
	}
}

func TestDiskSpace(t *testing.T) {
	free, total, err := store.DiskSpace(t.TempDir())()
	if err != nil || free <= 0 || total < free {
		t.Errorf("free %d of %d, %v", free, total, err)
	}
	if _, _, err := store.DiskSpace(filepath.Join(t.TempDir(), "missing"))(); err == nil {
		t.Error("no error for the space of a missing folder")
	}
}
