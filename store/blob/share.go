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

// shareOfFree is how many times what is free one owner may hold: see
// docs/promises.md, what one member may take up.
const shareOfFree = 9

// ErrShare refuses bytes beyond the share of an owner; others still have room.
var ErrShare = fmt.Errorf("%w: its sender holds its share of the room for bodies", ErrFull)

// Of returns d for what owner sends. Owner may hold nine times as many bytes as
// are free below MaxTotal; in the folder of [Dir.Essential], of what is free on the
// disk.
func (d *Dir) Of(owner string) *Dir {
	return &Dir{folder: d.folder, essential: d.essential, owner: owner}
}

// Fits reports, by an error, whether n more bytes would be taken now. Parts that
// nobody added to within Grace make room for them, the oldest first.
func (d *Dir) Fits(n int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.makeRoom(n)
}

// makeRoom is Fits for a caller that holds mu.
func (d *Dir) makeRoom(n int64) error {
	err := d.room(n)
	if err != nil && d.evict(n) {
		return nil
	}
	return err
}

// room refuses n more bytes where there is none. mu is held.
func (d *Dir) room(n int64) error {
	free, bound := d.free()
	switch {
	case bound && free < n:
		return fmt.Errorf("%w: %d bytes are kept, %d more may be: raise the limit or purge tasks", ErrFull, d.usage.Bytes, max(free, 0))
	case bound && d.owner != "" && d.held[d.owner]+n > shareOfFree*(free-n):
		return ErrShare
	}
	return nil
}

// free returns how many more bytes may be kept, and whether that is bounded.
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

// own notes whose the blob called name is, whole or part. f.mu is held.
func (f *folder) own(name, owner string) {
	if owner == "" || f.owners[name] == owner {
		return
	}
	f.disown(name)
	f.owners[name] = owner
	for _, path := range []string{name, name + partSuffix} {
		if info, err := f.root.Lstat(path); err == nil {
			f.held[owner] += info.Size()
		}
	}
}

// Own notes whose a blob is that was kept when the folder was opened.
func (d *Dir) Own(name, owner string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.own(name, owner)
}

// disown forgets whose a blob is. f.mu is held.
func (f *folder) disown(name string) {
	owner, ok := f.owners[name]
	if !ok {
		return
	}
	delete(f.owners, name)
	for _, path := range []string{name, name + partSuffix} {
		if info, err := f.root.Lstat(path); err == nil {
			f.holds(owner, -info.Size())
		}
	}
}

// partGone notes that the part of a name was removed. f.mu is held.
func (f *folder) partGone(name string) {
	if _, err := f.root.Lstat(name); errors.Is(err, fs.ErrNotExist) {
		delete(f.owners, name)
	}
}

// holds counts bytes of an owner. f.mu is held.
func (f *folder) holds(owner string, bytes int64) {
	if f.held[owner] += bytes; f.held[owner] <= 0 {
		delete(f.held, owner)
	}
}

// add counts bytes of a blob or part. f.mu is held.
func (f *folder) add(path string, bytes int64) {
	f.usage.Bytes += bytes
	if owner, ok := f.owners[strings.TrimSuffix(path, partSuffix)]; ok {
		f.holds(owner, bytes)
	}
}

// evictApart is the least time between two looks for parts that stand still.
const evictApart = time.Minute

// evict removes parts that nobody has added to for as long as Grace, the oldest
// first, until n bytes are taken. Who sends the rest of one begins again. It reports
// whether they are. mu is held.
func (d *Dir) evict(n int64) bool {
	f, now := d.folder, d.cfg.Clock.Mono()
	if now-f.opened < f.cfg.Grace || f.evicted != 0 && now-f.evicted < evictApart {
		return false
	}
	f.evicted = now
	f.forgetOld()
	var idle []fs.FileInfo
	err := f.each(func(path string, e fs.DirEntry) error {
		name, part := strings.CutSuffix(path, partSuffix)
		if _, young := f.recent[name]; !part || young || f.writing[name] {
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
			f.partGone(strings.TrimSuffix(part.Name(), partSuffix))
		}
		if d.room(n) == nil {
			return true
		}
	}
	return false
}
