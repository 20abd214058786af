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
	if err := tryLock(f); err != nil {
		holder := readHolder(f)
		f.Close()
		if errors.Is(err, errBusy) {
			return nil, fmt.Errorf("%w: %s belongs to %s; stop it first, or give this one another folder", ErrLocked, dir, holder)
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

func writeHolder(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

// readHolder names the process that wrote f.
func readHolder(f *os.File) string {
	b, _ := io.ReadAll(io.NewSectionReader(f, 0, 32))
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return "another process"
	}
	return fmt.Sprintf("process %d", pid)
}
