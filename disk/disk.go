// Package disk writes files whose content and name are there after a power cut.
package disk

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
)

// SyncDir makes the names in dir durable: those of files that were created, renamed or
// removed. Windows has no such call; NTFS journals names itself.
func SyncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync folder: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("sync folder %s: %w", dir, err)
	}
	return nil
}

// WriteFile replaces path, which only its owner may read, with b: after a crash the file is the
// old or the new one. What a crash left of path.tmp is overwritten; so nobody else may write to
// path meanwhile.
func WriteFile(path string, b []byte) error {
	f, err := os.OpenFile(path+".tmp", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Chmod(0o600)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, errors.Join(err, os.Remove(f.Name())))
	}
	return SyncDir(filepath.Dir(path))
}

// A Log is what Rewrite needs of a file.
type Log interface {
	io.ReaderAt
	io.WriterAt
}

// Rewrite writes again what f has from offset from to offset to, whole pages of memory at a time, so
// that the next sync of f writes it to the disk. After a sync that failed the system takes what is in
// memory for what is on the disk, and reports no further error (LWN, "PostgreSQL's fsync() surprise", 2018).
// Where that needs space, as on a file system that never overwrites, a full disk ends it without an error.
func Rewrite(f Log, from, to int64) error {
	from -= from % int64(os.Getpagesize())
	b := make([]byte, min(max(to-from, 0), 256<<10))
	for from < to {
		part := b[:min(int64(len(b)), to-from)]
		if _, err := f.ReadAt(part, from); err != nil {
			return err
		}
		if _, err := f.WriteAt(part, from); errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
			return nil
		} else if err != nil {
			return err
		}
		from += int64(len(part))
	}
	return nil
}
