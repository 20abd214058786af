//go:build unix

package store

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// A program that is being started briefly holds the open files of its parent: a folder that
// was closed is free at that moment too.
func TestClosedFolderIsFreeWhileAProgramStarts(t *testing.T) {
	dir := t.TempDir()
	l, err := LockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	child := duplicate(t, l.file) // like a fork
	defer syscall.Close(child)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := LockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if _, err := LockDir(dir); !errors.Is(err, ErrLocked) {
		t.Errorf("a second holder in one process: %v", err)
	}
}

// A node that was killed while it started a program leaves its lock with that program for a
// moment: the next node waits.
func TestLockWaitsForTheProgramOfADeadHolder(t *testing.T) {
	dir := t.TempDir()
	l, err := LockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	dead := exec.Command(os.Args[0], "-test.run=^$")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(l.file.Name(), []byte(strconv.Itoa(dead.Process.Pid)), 0o600); err != nil {
		t.Fatal(err)
	}
	child := duplicate(t, l.file)
	if err := l.file.Close(); err != nil { // without unlocking, like a kill
		t.Fatal(err)
	}
	time.AfterFunc(50*time.Millisecond, func() { syscall.Close(child) }) // like exec
	again, err := LockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

func duplicate(t *testing.T, f *os.File) int {
	t.Helper()
	fd, err := syscall.Dup(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	return fd
}
