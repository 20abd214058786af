package blob

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
)

const partSuffix = ".part"

var validName = regexp.MustCompile(`^[a-z0-9-]{1,80}$`)

// devices are the names that Windows gives to devices in every folder. They
// are refused everywhere, so that a name good here is good there.
var devices = regexp.MustCompile(`^(con|prn|aux|nul|com[0-9]|lpt[0-9])$`)

func checkName(name string) error {
	if !validName.MatchString(name) || devices.MatchString(name) {
		return fmt.Errorf("%w: %.100q: use 1 to 80 of a-z, 0-9 and '-'", ErrName, name)
	}
	return nil
}

// stat returns the info of path, a file of the blob called name.
func (d *Dir) stat(name, path string) (fs.FileInfo, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	info, err := d.root.Lstat(path)
	if err != nil {
		return nil, d.translate(name, err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: %s is not a regular file", ErrNotFound, path)
	}
	return info, nil
}

// translate maps errors of the file system to errors of this package.
func (f *folder) translate(name string, err error) error {
	no, isErrno := errors.AsType[syscall.Errno](err)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %s", ErrNotFound, name)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT),
		isErrno && runtime.GOOS == "windows" && no == windowsDiskFull:
		return fmt.Errorf("%w: %s: %w", ErrFull, name, err)
	}
	return err
}

// windowsDiskFull is ERROR_DISK_FULL.
const windowsDiskFull = 112

// names lists the names of all blobs and parts.
func (f *folder) names() (map[string]bool, error) {
	names := make(map[string]bool)
	err := f.each(func(path string, _ fs.DirEntry) error {
		names[strings.TrimSuffix(path, partSuffix)] = true
		return nil
	})
	return names, err
}

// each calls fn with every regular file that is a blob or a part.
func (f *folder) each(fn func(path string, e fs.DirEntry) error) error {
	d, err := f.root.Open(".")
	if err != nil {
		return err
	}
	defer d.Close()
	list, err := d.ReadDir(-1)
	if err != nil {
		return err
	}
	for _, e := range list {
		path := e.Name()
		if e.Type().IsRegular() && checkName(strings.TrimSuffix(path, partSuffix)) == nil {
			if err := fn(path, e); err != nil {
				return err
			}
		}
	}
	return nil
}

// measure counts the existing files and sets the limit.
func (f *folder) measure() error {
	err := f.each(func(path string, e fs.DirEntry) error {
		info, err := e.Info()
		if err == nil {
			f.count(path, 1, info.Size())
		}
		return err
	})
	if err != nil {
		return err
	}
	f.usage.MaxTotal = f.cfg.MaxTotal
	if f.cfg.MaxTotal == 0 && f.cfg.Space != nil {
		free, _, err := f.cfg.Space()
		if err != nil {
			return fmt.Errorf("ask for the free space: %w", err)
		}
		f.usage.MaxTotal = max(1, f.usage.Bytes+free/2)
	}
	return nil
}

// count adds n files like path and bytes to the usage. f.mu is held.
func (f *folder) count(path string, n int, bytes int64) {
	if strings.HasSuffix(path, partSuffix) {
		f.usage.Parts += n
	} else {
		f.usage.Blobs += n
	}
	f.add(path, bytes)
}

// syncDir makes names durable. Windows has no such call: NTFS journals them itself.
func (f *folder) syncDir() error {
	if runtime.GOOS == "windows" {
		return nil
	}
	d, err := f.root.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(f.cfg.fault("syncdir"), d.Sync(), d.Close())
}

// syncParent makes the folder's own name durable.
func (f *folder) syncParent() error {
	if runtime.GOOS == "windows" {
		return nil
	}
	d, err := os.Open(filepath.Dir(f.root.Name()))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
