package ledger

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
)

// sector is what a disk writes at once, in bytes.
const sector = 512

// errPower is what every call returns once the power is cut.
var errPower = errors.New("power cut")

// A faultFS is a file system in memory that remembers what was not synced. A cut of
// the power keeps any of the sectors that were written since the last sync of their
// file, and the first of the changes of names since the last sync of the folder.
// Its hook makes calls fail.
type faultFS struct {
	mu      sync.Mutex
	names   map[string]*inode
	durable map[string]*inode             // the names as of the last SyncDir
	renames []naming                      // what changed names since
	hook    func(call, name string) error // before each call that changes something; nil: none; set before use
	left    int                           // calls that change something until the power is cut; negative: never
	cut     bool
}

// A naming is a change of the names in a folder.
type naming struct {
	dir    string
	change func(map[string]*inode)
}

// An inode is the content of a file.
type inode struct {
	data   []byte
	synced []byte       // as of the last sync
	dirty  map[int]bool // sectors written since
}

func newFaultFS() *faultFS {
	return &faultFS{names: map[string]*inode{}, durable: map[string]*inode{}, left: -1}
}

// newFaultFSOf returns a file system with these files, all durable.
func newFaultFSOf(files map[string][]byte) *faultFS {
	s := newFaultFS()
	for name, b := range files {
		s.names[name] = &inode{data: bytes.Clone(b), synced: bytes.Clone(b), dirty: map[int]bool{}}
	}
	s.durable = maps.Clone(s.names)
	return s
}

// afterKill returns the file system as it is for the next process. This one changes nothing
// any more.
func (s *faultFS) afterKill() *faultFS {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut = true
	return &faultFS{names: s.names, durable: s.durable, renames: s.renames, left: -1}
}

// content returns the files as a process sees them.
func (s *faultFS) content() map[string][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string][]byte{}
	for name, n := range s.names {
		out[name] = bytes.Clone(n.data)
	}
	return out
}

// afterCut returns what the disk has after a cut of the power now. Each sector
// that was not synced is kept with the probability keep.
func (s *faultFS) afterCut(rng *rand.Rand, keep float64) *faultFS {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := maps.Clone(s.durable)
	for _, n := range s.renames[:rng.IntN(len(s.renames)+1)] {
		n.change(names)
	}
	files := map[string][]byte{}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		n := names[name]
		b := bytes.Clone(n.synced)
		for _, i := range slices.Sorted(maps.Keys(n.dirty)) {
			if rng.Float64() >= keep {
				continue
			}
			end := min((i+1)*sector, len(n.data))
			if len(b) < end {
				b = append(b, make([]byte, end-len(b))...)
			}
			copy(b[i*sector:end], n.data[i*sector:end])
		}
		files[name] = b
	}
	return newFaultFSOf(files)
}

// change runs f unless the power is cut or the hook says that the call fails.
func (s *faultFS) change(call, name string, f func()) error {
	if s.hook != nil {
		if err := s.hook(call, filepath.Base(name)); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cut {
		return errPower
	}
	if s.left == 0 {
		if s.cut = true; call != "sync" && call != "syncdir" {
			f() // it was under way: any part of it may be there
		}
		return errPower
	}
	if s.left > 0 {
		s.left--
	}
	f()
	return nil
}

func (s *faultFS) isCut() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cut
}

// naming makes a change of the names in the folder of name.
func (s *faultFS) naming(name string, f func(map[string]*inode)) {
	f(s.names)
	s.renames = append(s.renames, naming{filepath.Dir(name), f})
}

func (s *faultFS) MkdirAll(string) error { return nil }

func (s *faultFS) OpenFile(name string, flag int) (file, error) {
	if flag&os.O_CREATE != 0 {
		n := &inode{dirty: map[int]bool{}}
		err := s.change("create", name, func() { s.naming(name, func(m map[string]*inode) { m[name] = n }) })
		return &memFile{s, name, n}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.names[name]
	if n == nil {
		return nil, fmt.Errorf("open %s: %w", name, iofs.ErrNotExist)
	}
	return &memFile{s, name, n}, nil
}

func (s *faultFS) Rename(from, to string) error {
	return s.change("rename", to, func() {
		s.naming(to, func(m map[string]*inode) { m[to] = m[from]; delete(m, from) })
	})
}

func (s *faultFS) Link(from, to string) error {
	return s.change("link", to, func() {
		n := s.names[from]
		s.naming(to, func(m map[string]*inode) { m[to] = n })
	})
}

func (s *faultFS) Linked(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, other := range s.names {
		if other == s.names[name] {
			n++
		}
	}
	return n > 1
}

func (s *faultFS) Remove(name string) error {
	return s.change("remove", name, func() { s.naming(name, func(m map[string]*inode) { delete(m, name) }) })
}

func (s *faultFS) Names(dir string) (names []string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(s.names)) {
		if filepath.Dir(name) == dir {
			names = append(names, filepath.Base(name))
		}
	}
	return names, nil
}

func (s *faultFS) SyncDir(dir string) error {
	return s.change("syncdir", dir, func() {
		s.renames = slices.DeleteFunc(s.renames, func(n naming) bool {
			if n.dir == dir {
				n.change(s.durable)
			}
			return n.dir == dir
		})
	})
}

// A memFile is an open file of a faultFS.
type memFile struct {
	s    *faultFS
	name string
	n    *inode
}

func (f *memFile) Close() error { return nil }

func (f *memFile) Size() (int64, error) {
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	return int64(len(f.n.data)), nil
}

func (f *memFile) ReadAt(b []byte, off int64) (int, error) {
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	if f.s.cut {
		return 0, errPower
	}
	n := copy(b, f.n.data[min(off, int64(len(f.n.data))):])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func (f *memFile) WriteAt(b []byte, off int64) (int, error) {
	err := f.s.change("write", f.name, func() {
		if end := int(off) + len(b); end > len(f.n.data) {
			f.n.data = append(f.n.data, make([]byte, end-len(f.n.data))...)
		}
		copy(f.n.data[off:], b)
		f.n.touch(int(off), len(b))
	})
	if err == nil {
		return len(b), nil
	}
	return 0, err
}

func (n *inode) touch(off, size int) {
	for i := off / sector; i*sector < off+size; i++ {
		n.dirty[i] = true
	}
}

// Sync makes the content durable. After one that failed the system takes it for durable all the same.
func (f *memFile) Sync() error {
	if err := f.sync(); err != nil {
		f.s.mu.Lock()
		defer f.s.mu.Unlock()
		if !f.s.cut {
			clear(f.n.dirty)
		}
		return err
	}
	return nil
}

func (f *memFile) sync() error {
	return f.s.change("sync", f.name, func() {
		n := f.n
		n.synced = slices.Grow(n.synced, len(n.data)-len(n.synced))[:len(n.data)]
		for i := range n.dirty {
			end := min((i+1)*sector, len(n.data))
			copy(n.synced[i*sector:end], n.data[i*sector:end])
		}
		clear(n.dirty)
	})
}

// The layer itself: what was not synced may be lost, what was synced is not.
func TestFaultFSLosesOnlyWhatIsNotSynced(t *testing.T) {
	s := newFaultFS()
	f, err := s.OpenFile("d/a", os.O_CREATE)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 1))
	write := func(b byte, off int64) {
		t.Helper()
		if _, err := f.WriteAt(bytes.Repeat([]byte{b}, 2*sector), off); err != nil {
			t.Fatal(err)
		}
	}
	write(1, 0)
	if err := errors.Join(f.Sync(), s.SyncDir("d")); err != nil {
		t.Fatal(err)
	}
	write(2, sector)
	if err := s.Rename("d/a", "d/b"); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for range 200 {
		for name, b := range s.afterCut(rng, 0.5).content() {
			if !bytes.Equal(b[:sector], bytes.Repeat([]byte{1}, sector)) {
				t.Fatal("a synced sector is lost")
			}
			seen[fmt.Sprint(name, len(b)/sector, b[sector])] = true
		}
	}
	for _, want := range []string{"d/a2 1", "d/a2 2", "d/a3 1", "d/a3 2", "d/b2 1", "d/b2 2", "d/b3 0", "d/b3 2"} {
		if want != "d/b3 0" && want != "d/a3 1" && want != "d/a3 2" && !seen[want] {
			t.Errorf("never saw %q in %v", want, slices.Sorted(maps.Keys(seen)))
		}
	}
}
