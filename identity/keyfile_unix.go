//go:build unix

package identity

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// openKeyFile opens a file, but follows no link to it and waits for no pipe.
func openKeyFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	switch {
	case err == nil:
		return f, nil
	case errors.Is(err, syscall.ELOOP), errors.Is(err, syscall.EMLINK):
		return nil, fmt.Errorf("%w %s: it is a symbolic link: put the key itself there", ErrKeyFile, path)
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%w %s: %w: make one with init", ErrKeyFile, path, fs.ErrNotExist)
	}
	return nil, fmt.Errorf("%w: %w: run the node as the owner of its folder", ErrKeyFile, err)
}

// checkOwner refuses a file of another user, and one that others can read.
func checkOwner(path string, info fs.FileInfo, uid int) error {
	if s, ok := info.Sys().(*syscall.Stat_t); ok && int(s.Uid) != uid {
		return fmt.Errorf("%w %s: it belongs to user %d, this is user %d: chown %d %s",
			ErrKeyFile, path, s.Uid, uid, uid, path)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return fmt.Errorf("%w %s: others can read or change it (mode %04o): chmod 600 %s",
			ErrKeyFile, path, mode, path)
	}
	return nil
}
