// Package blob stores large bodies as files: everything that is too large for a
// record of the store. A blob exists under its name with all its bytes, durably, or
// not at all. An incomplete one is a part, which survives a crash and is resumed at
// the offset that the caller knows to be valid.
//
//	Create ──▶ NAME.part ──Write, Sync──▶ … ──Commit──▶ NAME ──▶ Open, Delete
//	Resume ──▶    ▲ crash, Close ◀── fsync, then record the offset
//
// The rule for use with a store: first Commit (or Sync), then the
// batch that refers to the blob (or to the offset). A crash between the two
// leaves an unreferenced blob, which [Dir.Sweep] removes.
package blob

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/balefire/balefire/clock"
)

// What callers test for with errors.Is.
var (
	// ErrName refuses a name: 1 to 80 of a-z, 0-9 and '-', not one that
	// Windows reserves for devices.
	ErrName = errors.New("blob: bad name")
	// ErrNotFound means that there is no blob, or no part, with that name.
	ErrNotFound = errors.New("blob: not found")
	// ErrTooLarge refuses bytes beyond Config.MaxBlob.
	ErrTooLarge = errors.New("blob: too large")
	// ErrFull refuses bytes beyond Config.MaxTotal, or beyond the disk.
	ErrFull = errors.New("blob: no space")
	// ErrBusy refuses a second writer for a name.
	ErrBusy = errors.New("blob: being written")
)

// Config tunes a folder of blobs. The zero value of each field means its default.
type Config struct {
	MaxBlob  int64         // bytes of one blob; default 100 GiB
	MaxTotal int64         // bytes of all blobs and parts; default half of the free space at Open, plus what is stored already
	Grace    time.Duration // blobs and parts written this recently are neither swept nor evicted; default 1h
	Clock    clock.Clock   // default clock.System(); only its monotonic time is used

	// Space returns the free and the total bytes of the folder's disk; default:
	// none, and then MaxTotal has no default either.
	Space func() (free, total int64, err error)

	fault func(op string) error // tests: an error makes "write", "sync" or "rename" fail
}

func (c Config) withDefaults() Config {
	c.MaxBlob = cmp.Or(c.MaxBlob, 100<<30)
	c.Grace = cmp.Or(c.Grace, time.Hour)
	if c.Clock.IsZero() {
		c.Clock = clock.System()
	}
	if c.fault == nil {
		c.fault = func(string) error { return nil }
	}
	return c
}

// A Dir is a folder of blobs. It is safe for concurrent use; the lock of the data
// directory ensures that only one process has it open.
type Dir struct {
	*folder
	essential bool   // MaxTotal does not apply
	owner     string // of the blobs written through this Dir, "" for none
}

// A folder is what a Dir and its Essential share.
type folder struct {
	root *os.Root
	cfg  Config

	mu         sync.Mutex
	usage      Usage
	writing    map[string]bool          // names with an open writer
	touched    map[string]time.Duration // when a name was written, monotonic
	pruneAt    int                      // size of touched at which it is pruned
	owners     map[string]string        // owner by name
	ownerBytes map[string]int64         // bytes by owner
	opened     time.Duration            // monotonic
	evicted    time.Duration            // monotonic time of the last scan for stalled parts; 0 none
}

// Usage is what a folder holds now.
type Usage struct {
	Blobs, Parts int
	Bytes        int64 // of both
	MaxTotal     int64 // 0: limited only by the disk
}

// Open opens the folder at path and creates it if needed. No name leads outside,
// not even through a symbolic link.
func Open(path string, cfg Config) (*Dir, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("open blobs: %w", err)
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, fmt.Errorf("open blobs: %w", err)
	}
	f := &folder{root: root, cfg: cfg.withDefaults(), writing: make(map[string]bool), touched: make(map[string]time.Duration), owners: map[string]string{}, ownerBytes: map[string]int64{}}
	f.opened = f.cfg.Clock.Mono()
	if err := errors.Join(f.measure(), f.syncParent()); err != nil {
		return nil, errors.Join(fmt.Errorf("open blobs in %s: %w", path, err), root.Close())
	}
	return &Dir{folder: f}, nil
}

// Essential returns d without its MaxTotal, for data that must be accepted when
// there is no space for new work: results, and parts that were already accepted.
func (d *Dir) Essential() *Dir { return &Dir{folder: d.folder, essential: true} }

// Close releases the folder. Writers and readers must have been closed.
func (d *Dir) Close() error { return d.root.Close() }

// Usage returns what the folder holds now. It is cheap.
func (d *Dir) Usage() Usage {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.usage
}

// Has reports whether the complete blob called name exists.
func (d *Dir) Has(name string) (bool, error) {
	_, err := d.stat(name, name)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// A Blob is an open blob. It is an io.ReadSeeker and an io.ReaderAt.
type Blob struct {
	*io.SectionReader // of the whole file; Size is the blob's
	file              *os.File
}

// Close closes the file.
func (b *Blob) Close() error { return b.file.Close() }

// Open opens the blob called name for reading. It can be deleted meanwhile,
// and is then gone when closed; on Windows the delete fails until then.
func (d *Dir) Open(name string) (*Blob, error) {
	info, err := d.stat(name, name)
	if err != nil {
		return nil, fmt.Errorf("open blob: %w", err)
	}
	f, err := d.root.Open(name)
	if err != nil {
		return nil, fmt.Errorf("open blob: %w", d.translate(name, err))
	}
	return &Blob{SectionReader: io.NewSectionReader(f, 0, info.Size()), file: f}, nil
}
