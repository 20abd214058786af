package blob

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
)

// A Writer writes one blob sequentially. It is not safe for concurrent use. Finish with
// Commit, Abort or Close.
type Writer struct {
	dir    *Dir
	name   string
	file   *os.File
	offset int64
	err    error // once set, the content of the file after the last Sync is unknown
	closed bool
}

// Create starts writing the blob called name. An existing part of that name is discarded;
// an existing blob of that name stays until Commit replaces it.
func (d *Dir) Create(name string) (*Writer, error) {
	w, err := d.openPart(name)
	if err != nil {
		return nil, fmt.Errorf("create blob: %w", err)
	}
	if err := w.Truncate(0); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// Resume continues the part called name, or starts it. Offset returns its size. After a
// crash, bytes that were not synced may be garbage: Truncate to the recorded offset.
func (d *Dir) Resume(name string) (*Writer, error) {
	w, err := d.openPart(name)
	if err != nil {
		return nil, fmt.Errorf("resume blob: %w", err)
	}
	return w, nil
}

// Put writes a whole blob. When it returns nil, the blob is durable.
func (d *Dir) Put(name string, body []byte) error {
	w, err := d.Create(name)
	if err != nil {
		return err
	}
	if _, err := w.Write(body); err != nil {
		return errors.Join(err, w.Abort())
	}
	if err := w.Commit(); err != nil {
		return errors.Join(err, w.Abort())
	}
	return nil
}

// openPart opens the part called name at its end and creates it if needed.
func (d *Dir) openPart(name string) (*Writer, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	path := name + partSuffix
	info, err := d.stat(name, path)
	isNew := errors.Is(err, ErrNotFound)
	if err != nil && !isNew {
		return nil, err
	}
	if d.writing[name] {
		return nil, fmt.Errorf("%w: %s", ErrBusy, name)
	}
	flag := os.O_RDWR
	if isNew {
		flag |= os.O_CREATE | os.O_EXCL
	}
	f, err := d.root.OpenFile(path, flag, 0o600)
	if err != nil {
		return nil, d.translate(name, err)
	}
	w := &Writer{dir: d, name: name, file: f}
	if isNew {
		d.count(path, 1, 0)
	} else {
		w.offset = info.Size()
	}
	d.writing[name] = true
	d.touch(name)
	d.setOwner(name, d.owner)
	return w, nil
}

// Offset returns how many bytes were written; not all need to be durable.
func (w *Writer) Offset() int64 { return w.offset }

// Write appends all of p or nothing: after ErrTooLarge or ErrFull the part is unchanged.
func (w *Writer) Write(p []byte) (int, error) {
	if err := w.usable(); err != nil {
		return 0, err
	}
	more := int64(len(p))
	if w.offset+more > w.dir.cfg.MaxBlob {
		return 0, fmt.Errorf("write blob %s: %w: more than %d bytes", w.name, ErrTooLarge, w.dir.cfg.MaxBlob)
	}
	if err := w.reserve(more); err != nil {
		return 0, fmt.Errorf("write blob %s: %w", w.name, err)
	}
	err := w.dir.cfg.fault("write")
	if err == nil {
		_, err = w.file.WriteAt(p, w.offset)
	}
	if err != nil {
		w.release(more)
		if undo := w.file.Truncate(w.offset); undo != nil {
			w.err = errors.Join(err, undo)
		}
		return 0, fmt.Errorf("write blob: %w", w.dir.translate(w.name, err))
	}
	w.offset += more
	return len(p), nil
}

// Truncate cuts the part to its first n bytes; writing continues there.
func (w *Writer) Truncate(n int64) error {
	if err := w.usable(); err != nil {
		return err
	}
	if n < 0 || n > w.offset {
		return fmt.Errorf("truncate blob %s: it has %d bytes, not %d", w.name, w.offset, n)
	}
	if err := w.file.Truncate(n); err != nil {
		return fmt.Errorf("truncate blob: %w", err)
	}
	w.release(w.offset - n)
	w.offset = n
	return nil
}

// Sync makes the written bytes durable. After an error nothing after the last successful
// Sync can be trusted: close the writer, resume, truncate.
func (w *Writer) Sync() error {
	if err := w.usable(); err != nil {
		return err
	}
	if err := errors.Join(w.dir.cfg.fault("sync"), w.file.Sync()); err != nil {
		w.err = err
		return fmt.Errorf("sync blob: %w", w.dir.translate(w.name, err))
	}
	return nil
}

// Commit durably turns the part into the blob and closes the writer. After an error the
// blob may or may not exist; Abort removes a leftover part.
func (w *Writer) Commit() error {
	if err := w.Sync(); err != nil {
		return err
	}
	if err := w.rename(); err != nil {
		w.err = err
		return fmt.Errorf("commit blob: %w", w.dir.translate(w.name, err))
	}
	if err := errors.Join(w.dir.syncDir(), closeUnlessDone(w.file)); err != nil {
		return fmt.Errorf("commit blob %s: %w", w.name, err)
	}
	return nil
}

// rename renames the part to the blob.
func (w *Writer) rename() error {
	d := w.dir
	d.mu.Lock()
	defer d.mu.Unlock()
	if runtime.GOOS == "windows" { // an open file cannot be renamed there
		if err := w.file.Close(); err != nil {
			return err
		}
	}
	old, statErr := d.root.Lstat(w.name)
	err := d.cfg.fault("rename")
	if err == nil {
		err = d.root.Rename(w.name+partSuffix, w.name)
	}
	if err != nil {
		return err
	}
	d.count(partSuffix, -1, 0)
	d.count(w.name, 1, 0)
	if statErr == nil {
		d.count(w.name, -1, -old.Size())
	}
	d.touch(w.name)
	w.end()
	return nil
}

// Close closes the writer without a sync and keeps the part for Resume. After Commit or
// Abort it does nothing.
func (w *Writer) Close() error {
	w.dir.mu.Lock()
	defer w.dir.mu.Unlock()
	if w.closed {
		return nil
	}
	w.end()
	return closeUnlessDone(w.file)
}

// Abort closes the writer and removes the part. After Commit or Close it does nothing.
func (w *Writer) Abort() error {
	d := w.dir
	d.mu.Lock()
	defer d.mu.Unlock()
	if w.closed {
		return nil
	}
	w.end()
	err := closeUnlessDone(w.file)
	if rerr := d.root.Remove(w.name + partSuffix); rerr != nil {
		return fmt.Errorf("abort blob: %w", errors.Join(err, rerr))
	}
	d.count(w.name+partSuffix, -1, -w.offset)
	d.partRemoved(w.name)
	return err
}

// end releases the name for other writers. The caller holds dir.mu.
func (w *Writer) end() {
	w.closed = true
	delete(w.dir.writing, w.name)
}

func (w *Writer) usable() error {
	switch {
	case w.closed:
		return fmt.Errorf("write blob %s: %w", w.name, fs.ErrClosed)
	case w.err != nil:
		return fmt.Errorf("write blob %s: an earlier write failed: %w", w.name, w.err)
	}
	return nil
}

// closeUnlessDone closes f; it is not an error if Commit already closed it.
func closeUnlessDone(f *os.File) error {
	if err := f.Close(); !errors.Is(err, fs.ErrClosed) {
		return err
	}
	return nil
}

// reserve counts n more bytes of the writer's part, or refuses them.
func (w *Writer) reserve(n int64) error {
	d := w.dir
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.makeSpace(n); err != nil {
		return err
	}
	d.touch(w.name)
	d.add(w.name, n)
	return nil
}

func (w *Writer) release(n int64) {
	w.dir.mu.Lock()
	defer w.dir.mu.Unlock()
	w.dir.add(w.name, -n)
}
