//go:build unix

package store

import (
	"errors"
	"syscall"
	"testing"
	"time"
)

// A program that is being started briefly holds the open files of its parent: a node that
// reopens its folder at that moment waits.
func TestLockWaitsForAStartingProgram(t *testing.T) {
	dir := t.TempDir()
	l, err := LockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	child, err := syscall.Dup(int(l.file.Fd())) // like a fork
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(50*time.Millisecond, func() { syscall.Close(child) }) // like exec
	again, err := LockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if _, err := LockDir(dir); !errors.Is(err, ErrLocked) {
		t.Errorf("a second holder in one process: %v", err)
	}
}
