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

// lockName is the file in a data folder that its process holds locked.
const lockName = "LOCK"

// errBusy is what tryLock returns when another holder has the lock.
var errBusy = errors.New("locked")

// A DirLock keeps a folder for one process. The system gives it back when the
// process ends, however it ends.
type DirLock struct{ file *os.File }

// LockDir takes the folder dir for this process. If another has it, the error
// is [ErrLocked] and names that process.
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

// Close gives the folder back. The file stays: removing it would let two
// processes hold two files of the same name.
func (l *DirLock) Close() error {
	if err := l.file.Close(); err != nil && !errors.Is(err, fs.ErrClosed) {
		return fmt.Errorf("unlock folder: %w", err)
	}
	return nil
}

// A process that was killed, or gave the folder back, while it started a program
// leaves the lock with that program's process, which lets go of it a moment later.
const (
	staleLockWait = 2 * time.Second
	staleLockPoll = 10 * time.Millisecond
)

// takeLock locks f. It waits for what a dead holder left, or an earlier opening in
// this process, not for another holder.
func takeLock(f *os.File) error {
	for waited := time.Duration(0); ; waited += staleLockPoll {
		err := tryLock(f)
		if holder := readHolder(f); !errors.Is(err, errBusy) || waited >= staleLockWait || holder != os.Getpid() && !exited(holder) {
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

// readHolder returns the process that wrote f, 0 if nobody can tell.
func readHolder(f *os.File) int {
	b, _ := io.ReadAll(io.NewSectionReader(f, 0, 32))
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return 0
	}
	return pid
}
