package blob

import (
	"errors"
	"fmt"
	"io/fs"
)

// Delete removes the blob called name and its part. It is not made durable: a
// blob that comes back after a power cut is one that Sweep finds.
func (d *Dir) Delete(name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.writing[name] {
		return fmt.Errorf("delete blob: %w: %s", ErrBusy, name)
	}
	return d.remove(name)
}

// remove does what Delete promises. d.mu is held.
func (f *folder) remove(name string) error {
	found := false
	for _, path := range []string{name, name + partSuffix} {
		info, err := f.root.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = f.root.Remove(path)
		}
		if err != nil {
			return fmt.Errorf("delete blob %s: %w", name, err)
		}
		found = true
		f.count(path, -1, -info.Size())
	}
	delete(f.touched, name)
	delete(f.owners, name)
	if !found {
		return fmt.Errorf("delete blob: %w: %s", ErrNotFound, name)
	}
	return nil
}

// Sweep deletes the blobs and parts for which keep says no, and returns how
// many. Those being written or written within Grace by this process are left
// alone: their reference may not be committed yet. keep is called without a
// lock held. Call it at the start, when all references are known, and then now
// and then. Files with names that are none of a blob are not touched.
func (d *Dir) Sweep(keep func(name string) bool) (n int, err error) {
	names, err := d.names()
	if err != nil {
		return 0, fmt.Errorf("sweep blobs: %w", err)
	}
	var errs []error
	for name := range names {
		if keep(name) {
			continue
		}
		switch swept, err := d.sweep(name); {
		case err != nil:
			errs = append(errs, err)
		case swept:
			n++
		}
	}
	return n, errors.Join(errs...)
}

func (d *Dir) sweep(name string) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pruneTouched()
	if _, young := d.touched[name]; young || d.writing[name] {
		return false, nil
	}
	err := d.remove(name)
	if errors.Is(err, ErrNotFound) {
		return false, nil // removed concurrently
	}
	return err == nil, err
}

// touch records that name was written now. f.mu is held.
func (f *folder) touch(name string) {
	f.touched[name] = f.cfg.Clock.Mono()
	if len(f.touched) > f.pruneAt {
		f.pruneTouched()
		f.pruneAt = 2*len(f.touched) + 1024
	}
}

func (f *folder) pruneTouched() {
	now := f.cfg.Clock.Mono()
	for name, at := range f.touched {
		if now-at > f.cfg.Grace {
			delete(f.touched, name)
		}
	}
}
