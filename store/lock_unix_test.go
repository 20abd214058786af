//go:build unix

package store

import (
	"errors"
	"syscall"
	"testing"
	"time"
)

// A program that is being started holds what its parent had open for a moment: a
// node that opens its folder again at that moment waits for it.
func TestLockWaitsForAStartingProgram(t *testing.T) {
	dir := t.TempDir()
	l, err := LockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	child, err := syscall.Dup(int(l.file.Fd())) // what a fork does
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(50*time.Millisecond, func() { syscall.Close(child) }) // what exec does
	again, err := LockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if _, err := LockDir(dir); !errors.Is(err, ErrLocked) {
		t.Errorf("a second holder in one process: %v", err)
	}
}
