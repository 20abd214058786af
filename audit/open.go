package audit

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/balefire/balefire/disk"
)

// repaired is the action of the entry that records the repairs of Open.
const repaired = "journal.repaired"

// Open opens the journal in dir and creates it if needed. It reads the newest
// file. An unfinished write at its end, which was never acknowledged, is moved
// to a separate file. Any other damage is left as it is, for [Verify] to find, and
// the record continues in a new file. In both cases the journal opens, and the
// record itself states what happened.
func Open(dir string, cfg Config) (*Journal, error) {
	j := &Journal{dir: dir, cfg: cfg.withDefaults(), leader: make(chan struct{}, 1)}
	if err := j.open(); err != nil {
		if j.file != nil {
			err = errors.Join(err, j.file.Close())
		}
		if j.headF != nil {
			err = errors.Join(err, j.headF.Close())
		}
		return nil, fmt.Errorf("open journal %s: %w", dir, err)
	}
	if len(j.repairs) > 0 {
		return j, j.recordRepairs()
	}
	return j, nil
}

func (j *Journal) open() error {
	if err := os.MkdirAll(j.dir, 0o700); err != nil {
		return err
	}
	if err := disk.SyncDir(filepath.Dir(j.dir)); err != nil {
		return err
	}
	names, err := files(j.dir)
	if err != nil {
		return err
	}
	h, err := j.readOrRebuildHeads(names)
	if err != nil {
		return err
	}
	j.base = h.Base
	if err := j.resume(names, h.Last); err != nil {
		return err
	}
	return j.openHead(heads{Base: j.base, Last: j.last})
}

// readOrRebuildHeads returns the content of HEAD or, if it cannot be read, rebuilds
// it from the files. The Last of a rebuilt one is zero: unknown.
func (j *Journal) readOrRebuildHeads(names []string) (heads, error) {
	h, err := readHeads(j.dir)
	_, unreadable := errors.AsType[*fs.PathError](err)
	switch {
	case err == nil:
		return h, nil
	case errors.Is(err, fs.ErrNotExist) && len(names) == 0:
		return h, nil // a new journal
	case errors.Is(err, fs.ErrNotExist):
		err = errors.New("HEAD was missing")
	case unreadable:
		return h, err
	}
	j.repairs = append(j.repairs, err.Error()+"; it was rebuilt from the files")
	h = heads{}
	if len(names) > 0 {
		if first, err := readHeader(j.dir, names[0]); err == nil {
			h.Base = first.before()
		}
	}
	return h, nil
}

// resume finds the end of the chain and prepares to write there.
func (j *Journal) resume(names []string, synced Head) error {
	if len(names) == 0 {
		gap := ""
		if synced.Seq > 0 {
			gap = fmt.Sprintf("lines up to %d are missing with their files", synced.Seq)
		}
		return j.continueAfter(synced, gap)
	}
	name := names[len(names)-1]
	first, _ := firstOf(name)
	changed := false
	w, err := scanFile(j.dir, name, Head{Seq: first - 1}, func(at Head) {
		changed = changed || (at.Seq == synced.Seq && at.Hash != synced.Hash && synced.Seq > 0)
	})
	if err != nil {
		return err
	}
	if !changed && w.torn(synced, synced.Seq > 0) {
		return j.reopen(name, w, true)
	}
	switch {
	case changed:
		return j.continueAfter(w.resumeAfter(synced), fmt.Sprintf("line %d changed", synced.Seq))
	case len(w.bad) > 0:
		return j.continueAfter(w.resumeAfter(synced), w.bad[0].String())
	case w.end.Seq < synced.Seq:
		return j.continueAfter(synced, fmt.Sprintf("lines %d to %d missing", w.end.Seq+1, synced.Seq))
	}
	return j.reopen(name, w, false)
}

// continueAfter continues the chain after last in a new file. Its header states
// what is wrong with the files before it.
func (j *Journal) continueAfter(last Head, gap string) error {
	if gap != "" {
		j.repairs = append(j.repairs, gap+"; the record continues in a new file")
	}
	j.last = last
	h := header{First: last.Seq + 1, Start: last.Hash, Time: j.cfg.Clock.Now(), Gap: gap}
	path := filepath.Join(j.dir, fileName(h.First))
	if _, err := os.Lstat(path); err == nil { // a damaged file without a readable line
		if err := os.Rename(path, path+".damaged"); err != nil {
			return err
		}
	}
	return j.begin(h)
}

// reopen continues in the file called name, after cutting off a torn end.
func (j *Journal) reopen(name string, w fileScan, torn bool) error {
	f, err := os.OpenFile(filepath.Join(j.dir, name), os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	j.file, j.size, j.last = f, w.cut, w.valid
	j.firstSeq, j.created = w.header.First, w.header.Time
	if !torn {
		return j.persist()
	}
	kept := quarantine(f, w.cut)
	if err := errors.Join(f.Truncate(w.cut), f.Sync()); err != nil {
		return fmt.Errorf("cut the unfinished end off %s: %w", name, err)
	}
	j.repairs = append(j.repairs, fmt.Sprintf("%s: %d bytes of an unfinished write behind line %d cut off%s",
		name, w.size-w.cut, w.valid.Seq, kept))
	return j.persist()
}

// persist makes the end of the file durable. It is written again: its sync may have failed.
func (j *Journal) persist() error {
	return cmp.Or(disk.Rewrite(j.file, max(0, j.size-maxGroup), j.size), j.file.Sync())
}

// quarantine copies the content of f from off on to a separate file, if the disk
// allows: none of it was ever acknowledged.
func quarantine(f *os.File, off int64) (kept string) {
	path := fmt.Sprintf("%s.torn-%d", f.Name(), off)
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return ""
	}
	_, err = io.Copy(out, io.NewSectionReader(f, off, maxGroup))
	if err := errors.Join(err, out.Sync(), out.Close()); err != nil {
		return ""
	}
	return ", kept in " + filepath.Base(path)
}

// openHead opens HEAD for rewriting in place; it is made durable first if it
// does not contain h.
func (j *Journal) openHead(h heads) error {
	path := filepath.Join(j.dir, headName)
	if now, err := readHeads(j.dir); err != nil || now != h {
		b, err := h.encode()
		if err != nil {
			return err
		}
		if err := disk.WriteFile(path, b); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0o600)
	j.headF = f
	return err
}

// recordRepairs queues an entry about the repairs. The first Append, or Close,
// writes it: a full disk must not keep a node from starting.
func (j *Journal) recordRepairs() error {
	detail := map[string]string{"found": strings.Join(j.repairs, "\n")}
	text, err := Entry{
		Time: j.cfg.Clock.Now(), Actor: "system", Action: repaired, Detail: detail,
	}.encode()
	if err != nil {
		return err
	}
	j.queue = append(j.queue, &waiter{entry: text, done: make(chan struct{})})
	return nil
}
