package node

import (
	"fmt"
	"os"
	"sync"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// outputLimiter divides the disk space above the reserve among the outputs of all runs. Each
// byte counts twice: the end of a task seals its output into a blob before the file is
// removed, which needs the same space again.
type outputLimiter struct {
	space func() (free, reserve int64, ok bool) // not ok: unknown, and nothing is refused

	mu      sync.Mutex
	taken   int64                 // reserved, not written yet
	written int64                 // in files of runs and in files that wait to be sealed
	files   map[string]int64      // sizes of the files that wait, by path
	starved map[proto.TaskID]bool // tasks stopped for lack of disk space
}

func newOutputLimiter(space func() (free, reserve int64, ok bool)) *outputLimiter {
	return &outputLimiter{space: space, files: map[string]int64{}, starved: map[proto.TaskID]bool{}}
}

// diskSpace returns a function that measures the disk of this node; a simulated node
// has none.
func (n *Node) diskSpace() func() (free, reserve int64, ok bool) {
	disk := store.DiskSpace(n.cfg.Dir)
	return func() (free, reserve int64, ok bool) {
		if n.cfg.Simulated.Engine != nil {
			return 0, 0, false
		}
		free, _, err := disk()
		_, reserve = n.storage.store.Space()
		return free, reserve, err == nil
	}
}

// maxStarved bounds the number of remembered tasks that were stopped for lack of space. A
// forgotten one is only stopped once more.
const maxStarved = 4096

// A runOutput is the disk quota of one run.
type runOutput struct {
	limiter *outputLimiter
	size    int64 // written; guarded by all.mu
}

var _ handler.Quota = (*runOutput)(nil)

func (o *outputLimiter) newOutput() *runOutput { return &runOutput{limiter: o} }

// Reserve reserves n more bytes above the disk reserve.
func (s *runOutput) Reserve(n int64) bool {
	o := s.limiter
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.fits(n) {
		return false
	}
	o.taken += n
	return true
}

// Settle records how many of the reserved bytes were written.
func (s *runOutput) Settle(taken, written int64) {
	o := s.limiter
	o.mu.Lock()
	defer o.mu.Unlock()
	o.taken -= taken
	o.written += written
	s.size += written
}

// handOver transfers the output to the end of its task, which removes the file.
func (s *runOutput) handOver(path string) {
	o := s.limiter
	o.mu.Lock()
	defer o.mu.Unlock()
	o.files[path] = s.size
	s.size = 0
}

// release releases the space of output that is removed with the folder of the run.
func (s *runOutput) release() {
	o := s.limiter
	o.mu.Lock()
	defer o.mu.Unlock()
	o.written -= s.size
	s.size = 0
}

// fits reports whether n more bytes of output, and the sealed copies of all output, fit
// above the reserve.
func (o *outputLimiter) fits(n int64) bool {
	free, reserve, ok := o.space()
	if !ok {
		return true
	}
	if free-2*(o.taken+n)-o.written >= reserve {
		return true
	}
	for path, size := range o.files {
		if _, err := os.Lstat(path); os.IsNotExist(err) { // it was sealed
			delete(o.files, path)
			o.written -= size
		}
	}
	return free-2*(o.taken+n)-o.written >= reserve
}

// noteStarved records that the run of a task was stopped for lack of disk space.
func (o *outputLimiter) noteStarved(id proto.TaskID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.starved) >= maxStarved {
		clear(o.starved)
	}
	o.starved[id] = true
}

// mustWait returns the reason why a task that was stopped for lack of space must still
// wait: it restarts when there is space for everything that it may write.
func (o *outputLimiter) mustWait(id proto.TaskID, limit int64) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case !o.starved[id]:
		return nil
	case !o.fits(limit):
		return fmt.Errorf("NO_ROOM: stopped when the disk reached its reserve; restarts when there is space for twice %d bytes of output", limit)
	}
	delete(o.starved, id)
	return nil
}
