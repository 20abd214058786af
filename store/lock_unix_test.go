//go:build linux || darwin

package store_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/balefire/balefire/store"
)

// A node that was killed between the fork and the exec of a handler leaves its
// lock with the fork. The next start waits for that to end, so that it starts by
// itself (I20).
func TestLockOfADeadProcessIsAwaited(t *testing.T) {
	dir := t.TempDir()
	dead := exec.Command("true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(dir, "LOCK"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(strconv.Itoa(dead.Process.Pid) + "\n"); err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	fork := exec.Command("sleep", "0.2")
	fork.ExtraFiles = []*os.File{f}
	if err := fork.Start(); err != nil {
		t.Fatal(err)
	}
	f.Close()
	l, err := store.LockDir(dir)
	if err != nil {
		t.Errorf("the lock that a dead process left: %v", err)
	} else {
		l.Close()
	}
	if err := fork.Wait(); err != nil {
		t.Error(err)
	}
}
