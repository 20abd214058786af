package node

import (
	"fmt"
	"os"
	"sync"

	"github.com/balefire/balefire/agent"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// outputs share the disk above the reserve among the outputs of all runs. Each byte
// of them counts twice: the end of a task seals its output into a blob before the
// file goes, and must find room for that.
type outputs struct {
	space func() (free, reserve int64, ok bool) // not ok: nobody knows, and nothing is refused

	mu      sync.Mutex
	taken   int64                 // about to be written
	written int64                 // in files of runs, and in those that wait to be sealed
	files   map[string]int64      // sizes of those that wait, by path
	hungry  map[proto.TaskID]bool // tasks that were stopped because there was no room
}

func newOutputs(space func() (free, reserve int64, ok bool)) *outputs {
	return &outputs{space: space, files: map[string]int64{}, hungry: map[proto.TaskID]bool{}}
}

// outputSpace asks for the disk of this node; a simulated one has none.
func (n *Node) outputSpace() func() (free, reserve int64, ok bool) {
	disk := store.DiskSpace(n.cfg.Dir)
	return func() (free, reserve int64, ok bool) {
		if n.cfg.Simulated.Engine != nil {
			return 0, 0, false
		}
		free, _, err := disk()
		_, reserve = n.ground.store.Space()
		return free, reserve, err == nil
	}
}

// maxHungry bounds what is remembered of tasks that found no room. One that is
// forgotten is stopped once more.
const maxHungry = 4096

// A seat is the room of one run.
type seat struct {
	all  *outputs
	size int64 // written; guarded by all.mu
}

var _ agent.Room = (*seat)(nil)

func (o *outputs) seat() *seat { return &seat{all: o} }

// Take asks for n more bytes above the reserve.
func (s *seat) Take(n int64) bool {
	o := s.all
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.fits(n) {
		return false
	}
	o.taken += n
	return true
}

// Wrote notes what became of bytes that were taken.
func (s *seat) Wrote(taken, written int64) {
	o := s.all
	o.mu.Lock()
	defer o.mu.Unlock()
	o.taken -= taken
	o.written += written
	s.size += written
}

// keep hands the output over to the end of its task, which removes the file.
func (s *seat) keep(path string) {
	o := s.all
	o.mu.Lock()
	defer o.mu.Unlock()
	o.files[path] = s.size
	s.size = 0
}

// leave gives back what the run had that is removed with its folder.
func (s *seat) leave() {
	o := s.all
	o.mu.Lock()
	defer o.mu.Unlock()
	o.written -= s.size
	s.size = 0
}

// fits reports whether n more bytes of output, and the copies of all that there is,
// find room above the reserve.
func (o *outputs) fits(n int64) bool {
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

// starved notes that the run of a task was stopped for want of room.
func (o *outputs) starved(id proto.TaskID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.hungry) >= maxHungry {
		clear(o.hungry)
	}
	o.hungry[id] = true
}

// waits says why a task that was stopped for want of room must wait still: it is
// started again when there is room for all that it may write.
func (o *outputs) waits(id proto.TaskID, limit int64) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case !o.hungry[id]:
		return nil
	case !o.fits(limit):
		return fmt.Errorf("NO_ROOM: it was stopped when the disk was at its reserve, and starts again when there is room for %d bytes of output twice", limit)
	}
	delete(o.hungry, id)
	return nil
}
