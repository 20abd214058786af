package ledger

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/balefire/balefire/disk"
)

// A fileSystem is what the ledger needs of the system. Tests put one in its place
// that fails, or loses what was not synced.
type fileSystem interface {
	MkdirAll(dir string) error
	OpenFile(name string, flag int) (file, error) // flags as for os.OpenFile
	Rename(from, to string) error                 // replaces
	Link(from, to string) error                   // gives a file a second name; an error where that is not possible
	Linked(name string) bool                      // the file may have another name
	Remove(name string) error
	Names(dir string) ([]string, error) // sorted
	SyncDir(dir string) error           // makes the names in dir durable
}

// A file is one open file. Sync makes its content and size durable.
type file interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Size() (int64, error)
	Sync() error
}

// osFS is the file system of the machine.
type osFS struct{}

func (osFS) MkdirAll(dir string) error    { return os.MkdirAll(dir, 0o700) }
func (osFS) Rename(from, to string) error { return os.Rename(from, to) }
func (osFS) Link(from, to string) error   { return link(from, to) }
func (osFS) Linked(name string) bool      { return linked(name) }
func (osFS) Remove(name string) error     { return os.Remove(name) }
func (osFS) SyncDir(dir string) error     { return disk.SyncDir(dir) }

func (osFS) OpenFile(name string, flag int) (file, error) {
	f, err := os.OpenFile(name, flag, 0o600)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (osFS) Names(dir string) ([]string, error) {
	list, err := os.ReadDir(dir)
	names := make([]string, len(list))
	for i, e := range list {
		names[i] = e.Name()
	}
	return names, err
}

type osFile struct{ *os.File }

func (f osFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

func (f osFile) Sync() error { return syncData(f.File) }

// writeFile replaces path by what write writes: after a crash it is the old file or
// the new one.
func writeFile(fs fileSystem, path string, write func(io.Writer) error) error {
	tmp := path + tmpSuffix
	f, err := fs.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(io.NewOffsetWriter(f, 0), 64<<10)
	if err = write(w); err == nil {
		err = w.Flush()
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = fs.Rename(tmp, path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, errors.Join(err, fs.Remove(tmp)))
	}
	return fs.SyncDir(filepath.Dir(path))
}

// openSized opens a file and returns its size.
func openSized(fs fileSystem, path string, flag int) (file, int64, error) {
	f, err := fs.OpenFile(path, flag)
	if err != nil {
		return nil, 0, err
	}
	size, err := f.Size()
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, size, nil
}
