package executor

import (
	"fmt"
	"os"
	"sync"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// quotas divide the disk space above the reserve among the files of all runs. Each byte
// of output counts twice: the end of a task seals its output into a blob before the file
// is removed, which needs the same space again.
type quotas struct {
	space func() (free, reserve int64, ok bool) // not ok: unknown, and nothing is refused

	mu      sync.Mutex
	taken   int64                 // reserved, not written yet
	bodies  int64                 // reserved for copies of bodies, not written yet
	written int64                 // of output, in files of runs and in files that wait to be sealed
	files   map[string]int64      // sizes of the files that wait, by path
	sweepAt int                   // number of files at which those that are gone are forgotten
	starved map[proto.TaskID]bool // tasks stopped for lack of disk space
}

func newQuotas(space func() (free, reserve int64, ok bool)) *quotas {
	return &quotas{space: space, files: map[string]int64{}, sweepAt: minSweep, starved: map[proto.TaskID]bool{}}
}

// minSweep is the number of files up to which those that are gone are remembered.
const minSweep = 64

// diskSpace returns a function that measures the disk of this node; a simulated node
// has none.
func (x *Executor) diskSpace() func() (free, reserve int64, ok bool) {
	disk := store.DiskSpace(x.cfg.Dir)
	return func() (free, reserve int64, ok bool) {
		if x.cfg.NoDisk {
			return 0, 0, false
		}
		free, _, err := disk()
		_, reserve = x.parts.Store.Space()
		return free, reserve, err == nil
	}
}

// maxStarved bounds the number of remembered tasks that were stopped for lack of space. A
// forgotten one is only stopped once more.
const maxStarved = 4096

// A runOutput is the disk quota of one run.
type runOutput struct {
	quotas *quotas
	size   int64 // written; guarded by all.mu
}

var _ handler.Quota = (*runOutput)(nil)

func (l *quotas) newOutput() *runOutput { return &runOutput{quotas: l} }

// Reserve reserves n more bytes above the disk reserve.
func (r *runOutput) Reserve(n int64) bool {
	o := r.quotas
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.fits(2 * n) {
		return false
	}
	o.taken += n
	return true
}

// Settle records how many of the reserved bytes were written.
func (r *runOutput) Settle(taken, written int64) {
	o := r.quotas
	o.mu.Lock()
	defer o.mu.Unlock()
	o.taken -= taken
	o.written += written
	r.size += written
}

// handOver transfers the output to the end of its run, which removes the file. A file of an
// earlier run at the same path is gone.
func (r *runOutput) handOver(path string) {
	o := r.quotas
	o.mu.Lock()
	defer o.mu.Unlock()
	o.written -= o.files[path]
	o.files[path] = r.size
	r.size = 0
	if len(o.files) >= o.sweepAt {
		o.sweep()
	}
}

// sweep forgets the files that are gone.
func (l *quotas) sweep() {
	for path, size := range l.files {
		if _, err := os.Lstat(path); os.IsNotExist(err) {
			delete(l.files, path)
			l.written -= size
		}
	}
	l.sweepAt = max(2*len(l.files), minSweep)
}

// release releases the space of output that is removed with the folder of the run.
func (r *runOutput) release() {
	o := r.quotas
	o.mu.Lock()
	defer o.mu.Unlock()
	o.written -= r.size
	r.size = 0
}

// A bodyQuota is the disk quota for the copy of one body. No other copy follows, so that
// each byte counts once, until it is written.
type bodyQuota struct{ quotas *quotas }

var _ handler.Quota = bodyQuota{}

// Reserve reserves n more bytes above the disk reserve.
func (b bodyQuota) Reserve(n int64) bool {
	o := b.quotas
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.fits(n) {
		return false
	}
	o.bodies += n
	return true
}

// Settle releases reserved bytes: those that were written are no longer free.
func (b bodyQuota) Settle(taken, _ int64) {
	b.quotas.mu.Lock()
	defer b.quotas.mu.Unlock()
	b.quotas.bodies -= taken
}

// fits reports whether n more bytes, what is reserved, and the sealed copies of all
// output, fit above the reserve.
func (l *quotas) fits(n int64) bool {
	free, reserve, ok := l.space()
	if !ok {
		return true
	}
	if free-2*l.taken-l.bodies-l.written-n >= reserve {
		return true
	}
	l.sweep()
	return free-2*l.taken-l.bodies-l.written-n >= reserve
}

// noteStarved records that the run of a task was stopped for lack of disk space.
func (l *quotas) noteStarved(id proto.TaskID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.starved) >= maxStarved {
		clear(l.starved)
	}
	l.starved[id] = true
}

// mustWait returns the reason why a task that was stopped for lack of space must still
// wait: it restarts when there is space for everything that it may write.
func (l *quotas) mustWait(id proto.TaskID, limit int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !l.starved[id]:
		return nil
	case !l.fits(2 * limit):
		return fmt.Errorf("NO_ROOM: stopped when the disk reached its reserve; restarts when there is space for twice %d bytes of output", limit)
	}
	delete(l.starved, id)
	return nil
}
