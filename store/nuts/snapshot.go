package nuts

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/balefire/balefire/disk"
	"github.com/balefire/balefire/store"
)

// Snapshot writes all committed records into dir, which must not exist. The log only
// grows, so its files are copied up to the last commit while writers continue.
func (d *DB) Snapshot(dir string) error {
	if err := d.snapshot(dir); err != nil {
		return fmt.Errorf("snapshot into %s: %w", dir, err)
	}
	return nil
}

func (d *DB) snapshot(dir string) error {
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		return cmp.Or(err, fs.ErrExist)
	}
	part := dir + ".part" // only a complete snapshot gets its final name
	if err := os.RemoveAll(part); err != nil {
		return err
	}
	n := name{num: 1}
	if err := os.MkdirAll(genDir(part, n.num), 0o700); err != nil {
		return err
	}
	defer os.RemoveAll(part)

	d.snapshots.RLock()
	defer d.snapshots.RUnlock()
	g, pos, err := d.keep()
	if err != nil {
		return err
	}
	defer d.release(g)
	n.segment = g.segment
	d.cfg.at("snapshot: copying")
	if err := g.copyTo(genDir(part, n.num), pos); err != nil {
		return err
	}
	if err := setCurrent(part, n); err != nil {
		return err
	}
	if err := os.Rename(part, dir); err != nil {
		return err
	}
	return disk.SyncDir(filepath.Dir(dir))
}

// keep returns the current generation and the end of its log. Its files stay until release,
// also if a compaction replaces it.
func (d *DB) keep() (*generation, position, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.down != nil {
		return nil, position{}, d.down
	}
	d.gen.copies++
	return d.gen, d.gen.pos, nil
}

// release ends keep.
func (d *DB) release(g *generation) {
	d.mu.Lock()
	g.copies--
	last := g.copies == 0 && g != d.gen
	d.mu.Unlock()
	if last {
		d.remove(g)
	}
}

// copyTo copies the log up to pos into the folder dst and checks the copy.
func (g *generation) copyTo(dst string, pos position) error {
	for num := range pos.segment + 1 {
		n := pos.off
		if num < pos.segment {
			info, err := os.Stat(segmentPath(g.dir, num))
			if err != nil {
				return err
			}
			n = info.Size()
		}
		if err := copyRange(segmentPath(dst, num), segmentPath(g.dir, num), 0, n); err != nil {
			return err
		}
	}
	names := filepath.Join(g.dir, bucketFile)
	info, err := os.Stat(names)
	if err != nil {
		return err
	}
	if err := copyRange(filepath.Join(dst, bucketFile), names, 0, info.Size()); err != nil {
		return err
	}
	m, err := openMark(dst)
	if err != nil {
		return err
	}
	err = m.set(pos)
	if err == nil {
		err = m.sync()
	}
	if err := cmp.Or(err, m.close(), disk.SyncDir(dst), checkBucketFile(dst)); err != nil {
		return err
	}
	s, err := surveyAll(dst, g.segment, func(int64, int64) {})
	if err == nil && (!s.clean() || s.last != pos) {
		err = fmt.Errorf("%w: the copy ends at %v instead of %v", store.ErrCorrupt, s.last, pos)
	}
	return err
}
