package ledger

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/balefire/balefire/store"
)

const (
	zeroChunk = 1 << 20 // bytes of zeros that are written at once
	zeroSync  = 8 << 20 // bytes after which they are synced: a long sync would delay those of the log
)

// spares are files of the size of a segment that are on disk, full of zeros or of
// old batches. Its goroutine makes one whenever there is none.
type spares struct {
	fs   fileSystem
	dir  string
	size int64
	mono func() time.Duration

	mu       sync.Mutex
	changed  sync.Cond
	ready    []string // paths
	number   int      // of the last one
	wanted   bool     // take waits, after a failure
	tries    int      // files that were made or not
	err      error    // why the last one was not made
	failedAt time.Duration
	closed   bool
}

func newSpares(dir string, cfg Config) *spares {
	s := &spares{fs: cfg.fs, dir: dir, size: cfg.Segment, mono: cfg.Clock.Mono}
	s.changed.L = &s.mu
	return s
}

// run makes files until close is called.
func (s *spares) run() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		for !s.closed && (len(s.ready) > 0 || s.err != nil && !s.wanted) {
			s.changed.Wait()
		}
		if s.closed {
			return
		}
		s.wanted = false
		path := s.name()
		s.mu.Unlock()
		err := makeZeros(s.fs, path, s.size, s.isClosed)
		s.mu.Lock()
		s.tries++
		if s.err = nil; err == nil {
			s.ready = append(s.ready, path)
		} else {
			s.err, s.failedAt = fmt.Errorf("make the next segment: %w", err), s.mono()
		}
		s.changed.Broadcast()
	}
}

// name returns the path of another file. s.mu must be held.
func (s *spares) name() string {
	s.number++
	return filepath.Join(s.dir, fmt.Sprint(sparePrefix, s.number))
}

// take returns a file. It waits while one is made, and tries again at most once a
// second if that fails.
func (s *spares) take() (path string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.ready) == 0 && s.err != nil && s.mono()-s.failedAt < askEvery {
		return "", s.err
	}
	s.wanted = len(s.ready) == 0
	s.changed.Broadcast()
	for tries := s.tries; len(s.ready) == 0 && s.tries == tries && !s.closed; {
		s.changed.Wait()
	}
	if len(s.ready) == 0 {
		if s.closed {
			return "", store.ErrClosed
		}
		return "", s.err
	}
	path = s.ready[0]
	s.ready = s.ready[1:]
	s.changed.Broadcast()
	return path, nil
}

// room returns the paths for up to n files that may be added.
func (s *spares) room(n int) (paths []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range min(n, maxSpares-len(s.ready)) {
		paths = append(paths, s.name())
	}
	return paths
}

// add adds files.
func (s *spares) add(paths []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready = append(s.ready, paths...)
	s.changed.Broadcast()
}

func (s *spares) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.ready)
}

// close ends run.
func (s *spares) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.changed.Broadcast()
}

func (s *spares) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// makeZeros makes a synced file of size zeros, unless stop returns true meanwhile.
func makeZeros(fs fileSystem, path string, size int64, stop func() bool) error {
	f, err := fs.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return err
	}
	err = writeZeros(f, 0, size, stop)
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, fs.Remove(path))
	}
	return nil
}

// zeros is read only.
var zeros [zeroChunk]byte

// writeZeros writes and syncs zeros from byte from up to byte to of f.
func writeZeros(f file, from, to int64, stop func() bool) error {
	for off, synced := from, from; off < to; {
		if stop() {
			return store.ErrClosed
		}
		n := min(int64(len(zeros)), to-off)
		if _, err := f.WriteAt(zeros[:n], off); err != nil {
			return err
		}
		if off += n; off-synced >= zeroSync {
			if err := f.Sync(); err != nil {
				return err
			}
			synced = off
		}
	}
	return f.Sync()
}
