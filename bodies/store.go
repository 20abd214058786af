package bodies

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/disk"
	"github.com/balefire/balefire/proto"
)

// What callers test for with errors.Is.
var (
	// ErrName refuses a name that is not one of a file here.
	ErrName = errors.New("bodies: bad name")
	// ErrNotFound means that there is no complete file with that name.
	ErrNotFound = errors.New("bodies: not found")
	// ErrExists means that the object is here already.
	ErrExists = errors.New("bodies: already here")
	// ErrTooLarge refuses bytes beyond Config.MaxBody.
	ErrTooLarge = errors.New("bodies: too large")
	// ErrFull refuses bytes beyond Config.MaxTotal, or beyond the disk.
	ErrFull = errors.New("bodies: no space")
	// ErrShare refuses bytes beyond the share of an origin; others still have space.
	ErrShare = fmt.Errorf("%w: its origin has used up its share of the space for bodies", ErrFull)
	// ErrBusy refuses a second receiver of an object.
	ErrBusy = errors.New("bodies: being written")
)

// Config tunes a store of bodies. The zero value of each field means its default.
type Config struct {
	MaxBody  int64       // sealed bytes of one object; default 100 GiB
	MaxTotal int64       // bytes of all files; default half of the free space at Open, plus what is stored already
	Clock    clock.Clock // default clock.System()

	// Space returns the free and the total bytes of the folder's disk; default: none, and
	// then MaxTotal has no default either.
	Space func() (free, total int64, err error)
	// Reserve is the free space in bytes that only essential bodies may use; default 0.
	Reserve int64

	fault func(op string) error // tests: an error makes "read" (of a part), "write", "sync", "rename" or "syncdir" fail
}

func (c Config) withDefaults() Config {
	c.MaxBody = cmp.Or(c.MaxBody, 100<<30)
	if c.Clock.IsZero() {
		c.Clock = clock.System()
	}
	if c.fault == nil {
		c.fault = func(string) error { return nil }
	}
	return c
}

// A Store is a folder of bodies. It is safe for concurrent use; the lock of the data
// directory ensures that only one process has it open.
type Store struct {
	root *os.Root
	cfg  Config

	mu      sync.Mutex
	usage   Usage
	writing map[string]bool          // names with an open writer
	pins    map[string]int           // names whose record is being written
	held    map[string]time.Duration // until when a name is spared without a record, monotonic
	fresh   map[string]bool          // names written or released since the sweep in progress began; nil: none is
	charges charges
	parts   map[string]int64 // bytes that count of each part
	opened  time.Duration    // monotonic
	evicted time.Duration    // monotonic time of the last search for stalled parts; 0 none
	dropped chan struct{}    // a record has ended
	free    int64            // bytes of the disk at asked, less what was added since
	asked   time.Duration    // monotonic time of the last answer of cfg.Space plus one; 0: never
}

// Usage is what a store holds now.
type Usage struct {
	Blobs, Parts int   // complete and incomplete files
	Bytes        int64 // of both
	MaxTotal     int64 // 0: limited only by the disk
}

// Open opens the folder at path and creates it if needed. No name leads outside, not even
// through a symbolic link.
func Open(path string, cfg Config) (*Store, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("open bodies: %w", err)
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, fmt.Errorf("open bodies: %w", err)
	}
	s := &Store{
		root: root, cfg: cfg.withDefaults(), writing: map[string]bool{}, pins: map[string]int{},
		held: map[string]time.Duration{}, charges: charges{}, parts: map[string]int64{}, dropped: make(chan struct{}, 1),
	}
	s.opened = s.cfg.Clock.Mono()
	if err := errors.Join(s.measure(), disk.SyncDir(filepath.Dir(root.Name()))); err != nil {
		return nil, errors.Join(fmt.Errorf("open bodies in %s: %w", path, err), root.Close())
	}
	return s, nil
}

// Close releases the folder. Writers and readers must have been closed.
func (s *Store) Close() error { return s.root.Close() }

// Usage returns what the store holds now. It is cheap.
func (s *Store) Usage() Usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.usage
}

// Fits reports whether n more bytes of new work fit.
func (s *Store) Fits(n int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.checkSpace(n, false) == nil
}

// Has reports whether the complete file called name is here.
func (s *Store) Has(name string) bool {
	_, err := s.stat(name, name)
	return err == nil
}

// Pin reports whether the complete file called name is here, and keeps it until Release:
// a record that refers to it is about to be written.
func (s *Store) Pin(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.Has(name) {
		return false
	}
	s.pins[name]++
	return true
}

// PinBody pins the object that sealed content refers to, and returns its manifest.
func (s *Store) PinBody(o *proto.BodyRef) (m Manifest, err error) {
	name := o.File()
	if !s.Pin(name) {
		return m, ErrNotFound
	}
	if m, err = s.Manifest(name); err != nil {
		s.Release(name)
	}
	return m, err
}

// Release ends what Pin, Seal or Put began: the record is durable, or will never be, and
// then the next sweep removes what only it would have referred to.
func (s *Store) Release(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unpin(name)
	s.touch(name)
}

// Hold is Release for a record that may still be written: nobody knows.
func (s *Store) Hold(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unpin(name)
	s.hold(name)
}

func (s *Store) unpin(name string) {
	if s.pins[name]--; s.pins[name] <= 0 {
		delete(s.pins, name)
	}
}

// Drop says that a record which referred to a file has ended: a sweep comes soon. Whether
// another one refers to the file is for that to find out; one that will soon has until then to
// be written.
func (s *Store) Drop(name string) {
	if name == "" {
		return
	}
	s.mu.Lock()
	s.touch(name)
	if until, ok := s.held[name]; ok {
		s.held[name] = min(until, s.cfg.Clock.Mono()+sweepPause)
	}
	s.mu.Unlock()
	s.wake()
}

// wake makes Run sweep soon.
func (s *Store) wake() {
	select {
	case s.dropped <- struct{}{}:
	default:
	}
}

// touch spares name from the sweep in progress. s.mu is held.
func (s *Store) touch(name string) {
	if s.fresh != nil {
		s.fresh[name] = true
	}
}

// hold spares name for a while although no record refers to it. s.mu is held.
func (s *Store) hold(name string) {
	s.held[name] = s.cfg.Clock.Mono() + grace
	s.touch(name)
}

const smallPrefix = "s-"

// Put stores bytes that are sealed already, and too large for a record, under a name made
// of their SHA-256. When it returns nil they are durable, and pinned.
func (s *Store) Put(b []byte, essential bool) (name string, err error) {
	sum := sha256.Sum256(b)
	name = smallPrefix + hex.EncodeToString(sum[:])
	if s.Pin(name) {
		if err := s.syncDir(); err != nil { // whoever wrote it may not have come that far
			s.Release(name)
			return "", err
		}
		return name, nil
	}
	w, err := s.create(essential)
	if err != nil {
		return "", err
	}
	if err := w.writeAt(b, 0); err != nil {
		return "", errors.Join(err, w.abort())
	}
	if err := w.commit(name); err != nil {
		return "", err
	}
	return name, nil
}

// Get returns what Put stored, at most limit bytes.
func (s *Store) Get(name string, limit int64) ([]byte, error) {
	f, size, err := s.open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if size > limit {
		return nil, fmt.Errorf("%w: %s has %d bytes, the limit is %d", ErrTooLarge, name, size, limit)
	}
	b := make([]byte, size)
	_, err = io.ReadFull(f, b)
	return b, err
}

// open opens a complete file. It can be swept meanwhile, and is then gone when closed.
func (s *Store) open(name string) (*os.File, int64, error) {
	size, err := s.stat(name, name)
	if err != nil {
		return nil, 0, fmt.Errorf("open body: %w", err)
	}
	f, err := s.root.Open(name)
	if err != nil {
		return nil, 0, fmt.Errorf("open body: %w", translate(name, err))
	}
	return f, size, nil
}

// A writer writes one file that has no name yet.
type writer struct {
	s         *Store
	file      *os.File
	path      string
	size      int64
	essential bool
}

// tempPrefix is that of files that are given their name when they are complete; those of
// an earlier process are removed.
const tempPrefix = "w-"

func (s *Store) create(essential bool) (*writer, error) {
	path := tempPrefix + strings.ToLower(rand.Text()) + partSuffix
	s.mu.Lock()
	defer s.mu.Unlock() // a sweep must not see the file before it is being written
	f, err := s.root.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("create body: %w", translate(path, err))
	}
	s.count(path, 1, 0)
	s.writing[strings.TrimSuffix(path, partSuffix)] = true
	return &writer{s: s, file: f, path: path, essential: essential}, nil
}

// writeAt writes b; bytes beyond the size so far are counted, or refused.
func (w *writer) writeAt(b []byte, off int64) error {
	more := max(0, off+int64(len(b))-w.size)
	if w.size+more > w.s.cfg.MaxBody {
		return fmt.Errorf("write body: %w: more than %d bytes", ErrTooLarge, w.s.cfg.MaxBody)
	}
	if err := w.s.reserve("", more, proto.PeerID{}, w.essential); err != nil {
		return fmt.Errorf("write body: %w", err)
	}
	w.size += more
	err := w.s.cfg.fault("write")
	if err == nil {
		_, err = w.file.WriteAt(b, off)
	}
	if err != nil {
		return fmt.Errorf("write body: %w", translate(w.path, err))
	}
	return nil
}

// commit makes the file durable under its name and pins it. A file of that name has the
// same bytes, or for an object the same plain bytes.
func (w *writer) commit(name string) error {
	if err := errors.Join(w.s.cfg.fault("sync"), w.file.Sync(), w.file.Close()); err != nil {
		return errors.Join(fmt.Errorf("commit body: %w", translate(w.path, err)), w.abort())
	}
	s := w.s
	s.mu.Lock()
	old, statErr := s.stat(name, name)
	err := s.cfg.fault("rename")
	if err == nil {
		err = s.root.Rename(w.path, name)
	}
	if err != nil {
		s.mu.Unlock()
		return errors.Join(fmt.Errorf("commit body: %w", translate(w.path, err)), w.abort())
	}
	s.count(w.path, -1, -w.size)
	s.count(name, 1, w.size)
	if statErr == nil {
		s.count(name, -1, -old)
	}
	delete(s.writing, strings.TrimSuffix(w.path, partSuffix))
	s.pins[name]++
	s.mu.Unlock()
	if err := s.syncDir(); err != nil {
		s.Release(name)
		return fmt.Errorf("commit body: %w", err)
	}
	return nil
}

// abort removes the file.
func (w *writer) abort() error {
	w.file.Close() // it may be closed already
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	delete(w.s.writing, strings.TrimSuffix(w.path, partSuffix))
	if err := w.s.root.Remove(w.path); err != nil {
		return fmt.Errorf("abort body: %w", err)
	}
	w.s.count(w.path, -1, -w.size)
	return nil
}

// syncDir makes names durable.
func (s *Store) syncDir() error {
	return errors.Join(s.cfg.fault("syncdir"), disk.SyncDir(s.root.Name()))
}
