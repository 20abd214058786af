// Package blob keeps big bodies as files: whatever is too large for a record
// of the store. A blob is there under its name with all its bytes, durably, or
// it is not there; what is still arriving is a part, which survives a crash and
// is resumed at the offset that the caller knows to be good.
//
//	Create ──▶ NAME.part ──Write, Sync──▶ … ──Commit──▶ NAME ──▶ Open, Delete
//	Resume ──▶    ▲ crash, Close ◀── fsync, then record the offset
//
// The rule that makes it safe beside a store: first Commit (or Sync), then the
// batch that refers to the blob (or to the offset). A crash between the two
// leaves a blob that nothing refers to, and [Dir.Sweep] takes it away.
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

// The errors to test for.
var (
	// ErrName refuses a name: 1 to 80 of a-z, 0-9 and '-', and none that
	// Windows keeps for devices.
	ErrName = errors.New("blob: bad name")
	// ErrNotFound says that there is no blob, or no part, of that name.
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
	MaxTotal int64         // bytes of all blobs and parts; default half of what Space says is free at Open, plus what is kept already
	Grace    time.Duration // blobs and parts written this recently are neither swept nor make room for others; default 1h
	Clock    clock.Clock   // default clock.System(); only its monotonic time is used

	// Space tells the bytes free and in all where the folder is; default: none,
	// and then MaxTotal has no default either.
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

// A Dir is a folder of blobs. It is safe for concurrent use; the lock of the
// data directory sees to it that one process at a time has it open.
type Dir struct {
	*folder
	essential bool   // MaxTotal does not bind
	owner     string // whose what is written is, "" for nobody's
}

// A folder is what a Dir and its Essential share.
type folder struct {
	root *os.Root
	cfg  Config

	mu         sync.Mutex
	usage      Usage
	writing    map[string]bool          // names with an open writer
	touched    map[string]time.Duration // when a name was written, monotonic
	pruneAt    int                      // size of recent at which it is pruned
	owners     map[string]string        // whose a name is
	ownerBytes map[string]int64         // bytes by owner
	opened     time.Duration            // monotonic
	evicted    time.Duration            // monotonic time of the last look for parts that stand still; 0 none
}

// Usage says what a folder holds now.
type Usage struct {
	Blobs, Parts int
	Bytes        int64 // of both
	MaxTotal     int64 // 0: no limit but the disk
}

// Open opens the folder at path, which it makes if needed. No name leads out
// of it, also not by a symbolic link.
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

// Essential returns d without its MaxTotal, for what must get through when
// there is no room for new work: results, and parts that were already accepted.
func (d *Dir) Essential() *Dir { return &Dir{folder: d.folder, essential: true} }

// Close releases the folder. Writers and readers must be closed before.
func (d *Dir) Close() error { return d.root.Close() }

// Usage returns what the folder holds now. It costs nothing.
func (d *Dir) Usage() Usage {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.usage
}

// Has reports whether the blob called name is there, whole.
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

// Close ends the reading.
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
