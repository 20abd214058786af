package blob

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"
)

// freeMultiple is how many times the free space one owner may hold: see
// docs/promises.md, what one member may take up.
const freeMultiple = 9

// ErrShare refuses bytes beyond the share of an owner; others still have space.
var ErrShare = fmt.Errorf("%w: its sender has used up its share of the space for bodies", ErrFull)

// Of returns d for blobs sent by owner. An owner may hold nine times as many
// bytes as are free below MaxTotal; with [Dir.Essential], as are free on the
// disk.
func (d *Dir) Of(owner string) *Dir {
	return &Dir{folder: d.folder, essential: d.essential, owner: owner}
}

// Fits returns an error unless n more bytes would be accepted now. Parts without
// progress within Grace are evicted to make space, oldest first.
func (d *Dir) Fits(n int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.makeSpace(n)
}

// makeSpace is Fits for a caller that holds mu.
func (d *Dir) makeSpace(n int64) error {
	err := d.checkSpace(n)
	if err != nil && d.evict(n) {
		return nil
	}
	return err
}

// checkSpace refuses n more bytes if there is no space for them. mu is held.
func (d *Dir) checkSpace(n int64) error {
	free, bound := d.free()
	switch {
	case bound && free < n:
		return fmt.Errorf("%w: %d bytes are stored, %d more fit: raise the limit or purge tasks", ErrFull, d.usage.Bytes, max(free, 0))
	case bound && d.owner != "" && d.ownerBytes[d.owner]+n > freeMultiple*(free-n):
		return ErrShare
	}
	return nil
}

// free returns how many more bytes fit, and whether there is a limit.
func (d *Dir) free() (n int64, bound bool) {
	if !d.essential {
		return d.usage.MaxTotal - d.usage.Bytes, d.usage.MaxTotal > 0
	}
	if d.owner == "" || d.cfg.Space == nil {
		return 0, false
	}
	n, _, err := d.cfg.Space()
	return n, err == nil
}

// setOwner records the owner of the blob called name, whole or part. f.mu is
// held.
func (f *folder) setOwner(name, owner string) {
	if owner == "" || f.owners[name] == owner {
		return
	}
	f.clearOwner(name)
	f.owners[name] = owner
	for _, path := range []string{name, name + partSuffix} {
		if info, err := f.root.Lstat(path); err == nil {
			f.ownerBytes[owner] += info.Size()
		}
	}
}

// SetOwner records the owner of a blob that existed when the folder was opened.
func (d *Dir) SetOwner(name, owner string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.setOwner(name, owner)
}

// clearOwner removes the owner of a blob. f.mu is held.
func (f *folder) clearOwner(name string) {
	owner, ok := f.owners[name]
	if !ok {
		return
	}
	delete(f.owners, name)
	for _, path := range []string{name, name + partSuffix} {
		if info, err := f.root.Lstat(path); err == nil {
			f.addToOwner(owner, -info.Size())
		}
	}
}

// partRemoved updates the owners after the part of a name was removed. f.mu is
// held.
func (f *folder) partRemoved(name string) {
	if _, err := f.root.Lstat(name); errors.Is(err, fs.ErrNotExist) {
		delete(f.owners, name)
	}
}

// addToOwner adds bytes to the count of an owner. f.mu is held.
func (f *folder) addToOwner(owner string, bytes int64) {
	if f.ownerBytes[owner] += bytes; f.ownerBytes[owner] <= 0 {
		delete(f.ownerBytes, owner)
	}
}

// add adds bytes of a blob or part to the counts. f.mu is held.
func (f *folder) add(path string, bytes int64) {
	f.usage.Bytes += bytes
	if owner, ok := f.owners[strings.TrimSuffix(path, partSuffix)]; ok {
		f.addToOwner(owner, bytes)
	}
}

// evictInterval is the minimum time between two scans for stalled parts.
const evictInterval = time.Minute

// evict removes parts without progress for at least Grace, oldest first, until n
// bytes fit. Their senders start over. It reports whether n bytes fit. mu is
// held.
func (d *Dir) evict(n int64) bool {
	f, now := d.folder, d.cfg.Clock.Mono()
	if now-f.opened < f.cfg.Grace || f.evicted != 0 && now-f.evicted < evictInterval {
		return false
	}
	f.evicted = now
	f.pruneTouched()
	var idle []fs.FileInfo
	err := f.each(func(path string, e fs.DirEntry) error {
		name, part := strings.CutSuffix(path, partSuffix)
		if _, young := f.touched[name]; !part || young || f.writing[name] {
			return nil
		}
		info, err := e.Info()
		if err == nil {
			idle = append(idle, info)
		}
		return err
	})
	if err != nil {
		return false
	}
	slices.SortFunc(idle, func(a, b fs.FileInfo) int {
		return cmp.Or(a.ModTime().Compare(b.ModTime()), cmp.Compare(a.Name(), b.Name()))
	})
	for _, part := range idle {
		if f.root.Remove(part.Name()) == nil {
			f.count(part.Name(), -1, -part.Size())
			f.partRemoved(strings.TrimSuffix(part.Name(), partSuffix))
		}
		if d.checkSpace(n) == nil {
			return true
		}
	}
	return false
}
