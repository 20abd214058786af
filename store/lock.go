package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// lockName is the file in a data folder that the process using it keeps locked.
const lockName = "LOCK"

// errBusy is what tryLock returns when another holder has the lock.
var errBusy = errors.New("locked")

// A DirLock reserves a folder for one process. The system releases it when the
// process ends, however it ends.
type DirLock struct{ file *os.File }

// LockDir locks the folder dir for this process. If another process has it, the
// error is [ErrLocked] and names that process.
func LockDir(dir string) (*DirLock, error) {
	path := filepath.Join(dir, lockName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock folder: %w", err)
	}
	if err := takeLock(f); err != nil {
		holder := readHolder(f)
		f.Close()
		if errors.Is(err, errBusy) {
			who := "another process"
			if holder != 0 {
				who = fmt.Sprintf("process %d", holder)
			}
			return nil, fmt.Errorf("%w: %s belongs to %s", ErrLocked, dir, who)
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	if err := writeHolder(f); err != nil {
		f.Close()
		return nil, fmt.Errorf("write %s: %w", path, err)
	}
	return &DirLock{file: f}, nil
}

// Close releases the folder. The file stays: removing it would let two processes
// lock two files of the same name.
func (l *DirLock) Close() error {
	// Closing is not enough: a program that is being started has the file open as well.
	if err := errors.Join(unlock(l.file), l.file.Close()); err != nil && !errors.Is(err, fs.ErrClosed) {
		return fmt.Errorf("unlock folder: %w", err)
	}
	return nil
}

// A process that was killed while it started a program leaves the lock with that
// program's process, which releases it a moment later.
const (
	staleLockWait = 2 * time.Second
	staleLockPoll = 10 * time.Millisecond
)

// takeLock locks f. It waits for a lock left by a dead holder, but not for a live one.
func takeLock(f *os.File) error {
	for waited := time.Duration(0); ; waited += staleLockPoll {
		err := tryLock(f)
		if holder := readHolder(f); !errors.Is(err, errBusy) || waited >= staleLockWait || !exited(holder) {
			return err
		}
		time.Sleep(staleLockPoll)
	}
}

func writeHolder(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

// readHolder returns the process that wrote f, 0 if unknown.
func readHolder(f *os.File) int {
	b, _ := io.ReadAll(io.NewSectionReader(f, 0, 32))
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return 0
	}
	return pid
}
