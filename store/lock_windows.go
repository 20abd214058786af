package store

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// tryLock locks one byte far behind the content, so that others can still read
// who holds the lock.
func tryLock(f *os.File) error {
	at := &windows.Overlapped{OffsetHigh: 1}
	const flags = windows.LOCKFILE_EXCLUSIVE_LOCK | windows.LOCKFILE_FAIL_IMMEDIATELY
	err := windows.LockFileEx(windows.Handle(f.Fd()), flags, 0, 1, 0, at)
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) || errors.Is(err, windows.ERROR_IO_PENDING) {
		return errBusy
	}
	return err
}

// unlock does nothing: closing releases f.
func unlock(*os.File) error { return nil }

// exited reports whether it is certain that there is no such process. On Windows
// a lock is never inherited, so there is nothing to wait for.
func exited(int) bool { return false }
