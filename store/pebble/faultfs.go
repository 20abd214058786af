package pebble

import (
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A faultFS is between Pebble and the disk and hides errors of its logs, its
// manifest and its folder from it. Pebble v2.1.7 panics when it cannot
// close a log or begin the next one, with a mutex that it then unlocks twice: that
// ends the process, and nothing can catch it. So the first such error stops the
// engine instead:
//
//	error ──▶ monitor.fail ──▶ the current commit and all later ones return it
//	      └─▶ Pebble gets no error
//
// From then on the state on the disk is frozen: nothing is written to logs or
// manifest, none is created, and no file is removed, because Pebble now believes
// data to be durable that is not. Tables are still written, so that it can read them; no
// manifest refers to them and the next open removes them. All acknowledged data is
// in the logs and tables of that moment: close the engine and open it again.
type faultFS struct {
	vfs.FS
	dir     string
	monitor *monitor
	armed   atomic.Bool // set after the open: until then Pebble returns such errors itself
}

func newFaultFS(fs vfs.FS, dir string, w *monitor) *faultFS {
	return &faultFS{FS: fs, dir: fs.PathJoin(dir), monitor: w}
}

// Unwrap implements [vfs.FS].
func (s *faultFS) Unwrap() vfs.FS { return s.FS }

// failed reports whether Pebble is cut off from the log.
func (s *faultFS) failed() bool { return s.armed.Load() && s.monitor.failed() != nil }

// report records err, which stops the engine, and returns what Pebble gets
// instead.
func (s *faultFS) report(what, name string, err error) error {
	if err == nil || !s.armed.Load() {
		return err
	}
	s.monitor.fail(fmt.Errorf("pebble: %s %s: %w", what, s.FS.PathBase(name), err))
	return nil
}

// guarded reports whether name is a log, manifest or marker of this store. A
// snapshot has such files too.
func (s *faultFS) guarded(name string) bool {
	base := s.FS.PathBase(name)
	kind := strings.HasSuffix(base, ".log") || strings.HasPrefix(base, "MANIFEST-") || strings.HasPrefix(base, "marker.")
	return kind && s.FS.PathDir(name) == s.dir
}

// Create implements [vfs.FS].
func (s *faultFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if !s.guarded(name) {
		return s.FS.Create(name, c)
	}
	return s.create(name, func() (vfs.File, error) { return s.FS.Create(name, c) })
}

// ReuseForWrite implements [vfs.FS].
func (s *faultFS) ReuseForWrite(old, name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if !s.guarded(name) {
		return s.FS.ReuseForWrite(old, name, c)
	}
	return s.create(name, func() (vfs.File, error) { return s.FS.ReuseForWrite(old, name, c) })
}

// create creates a file. After an error it exists only in memory: a log that
// Pebble believes complete must stay the last one on disk, or it could not be
// read.
func (s *faultFS) create(name string, create func() (vfs.File, error)) (vfs.File, error) {
	if s.failed() {
		return s.inMemory(name)
	}
	f, err := create()
	if err == nil {
		return &faultFile{File: f, s: s, name: name}, nil
	}
	if err = s.report("begin", name, err); err != nil {
		return nil, err
	}
	return s.inMemory(name)
}

// inMemory returns a file that is not on the disk.
func (s *faultFS) inMemory(name string) (vfs.File, error) {
	f, err := vfs.NewMem().Create("log", "")
	if err != nil {
		return nil, err
	}
	return &faultFile{File: f, s: s, name: name}, nil
}

// OpenDir implements [vfs.FS]: the folder is synced for new logs and tables.
func (s *faultFS) OpenDir(name string) (vfs.File, error) {
	f, err := s.FS.OpenDir(name)
	if err != nil || s.FS.PathJoin(name) != s.dir {
		return f, err
	}
	return &faultFile{File: f, s: s, name: name}, nil
}

// Remove implements [vfs.FS]. Files that Pebble considers obsolete may still be
// needed, because errors were hidden from it.
func (s *faultFS) Remove(name string) error {
	if s.failed() {
		return nil
	}
	return s.FS.Remove(name)
}

// A faultFile is a log, a manifest, a marker, or the folder.
type faultFile struct {
	vfs.File
	s    *faultFS
	name string
}

// Write implements [vfs.File].
func (f *faultFile) Write(p []byte) (int, error) {
	if f.s.failed() {
		return len(p), nil
	}
	n, err := f.File.Write(p)
	if err != nil {
		if err = f.s.report("write", f.name, err); err == nil {
			n = len(p)
		}
	}
	return n, err
}

// Sync implements [vfs.File].
func (f *faultFile) Sync() error { return f.sync(f.File.Sync) }

// SyncData implements [vfs.File].
func (f *faultFile) SyncData() error { return f.sync(f.File.SyncData) }

// SyncTo implements [vfs.File].
func (f *faultFile) SyncTo(length int64) (full bool, err error) {
	err = f.sync(func() (err error) { full, err = f.File.SyncTo(length); return err })
	return full, err
}

// Preallocate implements [vfs.File]. It only reserves space: if there is too
// little for that, on a disk below its reserve, writes that still fit continue.
func (f *faultFile) Preallocate(offset, length int64) error {
	if f.s.failed() {
		return nil
	}
	return f.File.Preallocate(offset, length)
}

// Stat implements [vfs.File].
func (f *faultFile) Stat() (vfs.FileInfo, error) {
	info, err := f.File.Stat()
	if err == nil {
		return info, nil
	}
	if err = f.s.report("stat", f.name, err); err != nil {
		return nil, err
	}
	empty, err := f.s.inMemory(f.name)
	if err != nil {
		return nil, err
	}
	return empty.Stat()
}

// Close implements [vfs.File].
func (f *faultFile) Close() error { return f.s.report("close", f.name, f.File.Close()) }

// sync syncs with do unless the engine has stopped.
func (f *faultFile) sync(do func() error) error {
	if f.s.failed() {
		return nil
	}
	return f.s.report("sync", f.name, do())
}
