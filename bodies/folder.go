package bodies

import (
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"runtime"
	"strings"
	"syscall"
)

const partSuffix = ".part"

// validName matches the names of the files here, without the suffix of a part.
var validName = regexp.MustCompile(`^([os]-[0-9a-f]{64}|w-[a-z0-9]{1,64})$`)

// stat returns the size of path, a file of the body called name.
func (s *Store) stat(name, path string) (int64, error) {
	if !validName.MatchString(name) {
		return 0, fmt.Errorf("%w: %.100q", ErrName, name)
	}
	info, err := s.root.Lstat(path)
	if err != nil {
		return 0, translate(name, err)
	}
	if !info.Mode().IsRegular() {
		return 0, fmt.Errorf("%w: %s is not a regular file", ErrNotFound, path)
	}
	return info.Size(), nil
}

// translate maps errors of the file system to errors of this package.
func translate(name string, err error) error {
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

// each calls fn with every regular file that is a body or a part of one.
func (s *Store) each(fn func(path string, e fs.DirEntry) error) error {
	d, err := s.root.Open(".")
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
		if !e.Type().IsRegular() || !validName.MatchString(strings.TrimSuffix(path, partSuffix)) {
			continue
		}
		if err := fn(path, e); err != nil {
			return err
		}
	}
	return nil
}

// measure counts the existing files, sets the limit and removes what an earlier process
// was sealing.
func (s *Store) measure() error {
	err := s.each(func(path string, e fs.DirEntry) error {
		if strings.HasPrefix(path, tempPrefix) {
			return s.root.Remove(path)
		}
		if name, ok := strings.CutSuffix(path, partSuffix); ok {
			s.count(path, 1, 0)
			s.setPart(name, s.partSize(path))
			return nil
		}
		info, err := e.Info()
		if err == nil {
			s.count(path, 1, info.Size())
		}
		return err
	})
	if err != nil {
		return err
	}
	s.usage.MaxTotal = s.cfg.MaxTotal
	if s.cfg.MaxTotal == 0 && s.cfg.Space != nil {
		free, _, err := s.cfg.Space()
		if err != nil {
			return fmt.Errorf("ask for the free space: %w", err)
		}
		s.usage.MaxTotal = max(1, s.usage.Bytes+free/2)
	}
	return nil
}

// count adds n files like path and bytes to the usage. s.mu is held.
func (s *Store) count(path string, n int, bytes int64) {
	if strings.HasSuffix(path, partSuffix) {
		s.usage.Parts += n
	} else {
		s.usage.Blobs += n
	}
	s.usage.Bytes += bytes
}

// partSize returns the bytes of a part that count: its file has holes.
func (s *Store) partSize(path string) int64 {
	f, err := s.root.Open(path)
	if err != nil {
		return 0
	}
	defer f.Close()
	n, err := readNote(f)
	if err != nil {
		return 0
	}
	size := int64(headerSize)
	readEntries(f, &n.manifest, func(e entry) { size += int64(n.manifest.ChunkSize(e.index)) + entrySize })
	return size
}

// setPart records how many bytes of a part count; 0 for one that is no more. s.mu is
// held.
func (s *Store) setPart(name string, bytes int64) {
	s.usage.Bytes += bytes - s.parts[name]
	if s.parts[name] = bytes; bytes == 0 {
		delete(s.parts, name)
	}
}
