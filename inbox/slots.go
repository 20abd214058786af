package inbox

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/backlog"
)

// Bounds of the starts whose ends are not on disk yet: beyond them nothing is started.
const (
	minUnwritten     = 64       // starts
	unwrittenPerSlot = 4        // starts for each slot, if that is more
	maxEndBytes      = 8 << 20  // of the outputs of handlers that have returned
	maxStalledBytes  = 64 << 20 // of those whose ends are refused for a reason of their own
)

// A job is the exclusive right to work on one task: only its holder starts, ends or cancels
// the task.
type job struct {
	key     backlog.Key
	kind    string
	version uint32    // of rec in the backlog
	stale   bool      // rec is not what is on disk: it must be read again to be changed
	started time.Time // of a start that is not on disk when the handler is called
	// unwritten: rec has a start that is not on disk. It belongs to the worker and, while
	// note is noteWriting, to the writer of notes.
	unwritten bool
	stored    *proto.Stored // as read when the job began
	rec       *proto.Record // the holder's own copy
	h         *registration
	origin    proto.PeerID
	epoch     proto.Seq   // like attempt guarded by slots.mu once it has a slot
	attempt   uint32      // number of the start that this job leads to
	idemKey   string      // (origin, idempotency key); empty: none
	timer     *time.Timer // of the run; nil: none; owned by the worker
	lease     *Leased     // its lease; nil: the task is in custody here

	// Guarded by slots.mu:
	slot     bool // it holds a slot
	ending   bool // its handler has returned, and its end is not on disk
	note     noteState
	noted    chan struct{} // closed when the note is written; nil: nobody waits for it
	endBytes int           // of its output, while it is ending
	why      stop          // the first reason to stop
	cancel   context.CancelCauseFunc
	kill     chan struct{} // closed: stop at once
	killed   bool
	began    time.Time     // wall time of the start; zero: the handler has not been called
	limit    time.Duration // boot time at which the run times out; 0: never
	notifyAt time.Duration // boot time after which the start is reported; 0: it was reported
}

// slots tracks the jobs and the slots they hold. It writes nothing to disk.
type slots struct {
	limit        int
	maxUnwritten int // jobs at a time, with those that hold a slot

	mu                   sync.Mutex
	jobs                 map[backlog.Key]*job
	used                 int                  // slots in use
	kinds                map[string]kindUse   // by kind
	origins              map[proto.PeerID]int // slots in use by origin
	finishing            int                  // jobs without a slot
	endBytes             int                  // of the outputs of ending jobs
	stalledBytes         int                  // of the outputs of stalled ones
	notes                []*job               // whose starts wait to be written
	keys                 map[string]*job
	waitingForKey        map[string][]backlog.Key // taken; wait for the job with their key to end
	writeErrors          map[backlog.Key]string   // why the end of a task could not be written at the last attempt
	quarantined          *job
	waitingForQuarantine []backlog.Key // taken; wait for the quarantined job to end
	stopped              bool
	halting              chan struct{} // closed with stopped
	freed                chan struct{} // holds a token when a slot became free or a handler was registered
	begun                chan struct{} // holds a token when a handler was called
	noteAdded            chan struct{} // holds a token when a start waits to be written
	working              sync.WaitGroup
}

// A kindUse counts the jobs of a kind.
type kindUse struct {
	running int // they hold a slot
	ending  int // their handlers have returned, and their ends are not on disk
}

func newSlots(limit int) *slots {
	return &slots{
		limit: limit, maxUnwritten: max(minUnwritten, unwrittenPerSlot*limit),
		jobs: map[backlog.Key]*job{}, kinds: map[string]kindUse{}, origins: map[proto.PeerID]int{},
		keys: map[string]*job{}, writeErrors: map[backlog.Key]string{}, waitingForKey: map[string][]backlog.Key{},
		freed: make(chan struct{}, 1), begun: make(chan struct{}, 1), noteAdded: make(chan struct{}, 1), halting: make(chan struct{}),
	}
}

func (s *slots) notify() { signal(s.freed) }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// idle reports whether no job holds a slot.
func (s *slots) idle() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.used == 0 }

// spareFinishing returns how many more tasks may be finished concurrently.
func (s *slots) spareFinishing() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.maxUnwritten - s.finishing
}

// available reports whether another task may be started. With diskFull a slot is free only
// once the end of its last run is on disk.
func (s *slots) available(diskFull bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	limit := s.maxUnwritten
	if diskFull {
		limit = s.limit
	}
	return !s.stopped && s.used < s.limit && s.used+s.finishing < limit && s.endBytes < maxEndBytes && s.stalledBytes < maxStalledBytes
}

// kindUse returns the counts of a kind.
func (s *slots) kindUse(kind string) kindUse { s.mu.Lock(); defer s.mu.Unlock(); return s.kinds[kind] }

// countKind adds to the counts of a kind. The caller holds mu.
func (s *slots) countKind(kind string, running, ending int) {
	u := s.kinds[kind]
	u.running, u.ending = u.running+running, u.ending+ending
	if s.kinds[kind] = u; u == (kindUse{}) {
		delete(s.kinds, kind)
	}
}

// atOriginLimit reports whether an origin, given as the bytes of its id, holds all slots
// but one: the last is for others that wait.
func (s *slots) atOriginLimit(origin string) bool {
	p, err := proto.PeerIDFrom([]byte(origin))
	s.mu.Lock()
	defer s.mu.Unlock()
	return err == nil && s.limit > 1 && s.origins[p] >= s.limit-1
}

// take creates the job of a task, or returns nil if it has one.
func (s *slots) take(k backlog.Key) *job {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.jobs[k] != nil {
		return nil
	}
	j := &job{key: k, kill: make(chan struct{})}
	s.jobs[k] = j
	s.finishing++
	return j
}

// find returns the job of a task, nil if it has none.
func (s *slots) find(k backlog.Key) *job { s.mu.Lock(); defer s.mu.Unlock(); return s.jobs[k] }

// busy reports whether the key of j is in use, and whether a quarantined task is running.
func (s *slots) busy(j *job) (key, quarantined bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return j.idemKey != "" && s.keys[j.idemKey] != nil, s.quarantined != nil
}

// await makes the task of j wait for the end of the job that holds its key, or of the
// quarantined one. It returns false if that has ended since it was checked, and nothing
// would wake the task. The caller drops j.
func (s *slots) await(j *job) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case j.idemKey != "" && s.keys[j.idemKey] != nil:
		s.waitingForKey[j.idemKey] = append(s.waitingForKey[j.idemKey], j.key)
	case s.quarantined != nil && needsQuarantine(j.rec):
		s.waitingForQuarantine = append(s.waitingForQuarantine, j.key)
	default:
		return false
	}
	return true
}

// acquire gives j a slot, its key and, if quarantined is set, the quarantine. Only the
// dispatcher calls it, so the answer of busy still holds.
func (s *slots) acquire(j *job, quarantined bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j.idemKey != "" {
		s.keys[j.idemKey] = j
	}
	if quarantined {
		s.quarantined = j
	}
	j.slot = true
	s.finishing--
	s.used++
	s.countKind(j.kind, 1, 0)
	s.origins[j.origin]++
}

// attach sets the cancel function of the run of j, and calls it at once if j was told to
// stop before.
func (s *slots) attach(j *job, cancel context.CancelCauseFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j.cancel = cancel
	if j.why != notStopped {
		cancel(j.why.cause())
	}
}

// begin records that the handler of j is about to be called. It returns false if j was told
// to stop before.
func (s *slots) begin(j *job, now time.Time, boot time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j.why != notStopped {
		return false
	}
	j.began, j.notifyAt = now, boot+notifyAfter
	if t := j.h.Timeout; t > 0 {
		j.limit = boot + t
	}
	signal(s.begun)
	return true
}

// number sets the epoch and the number of the start of j, which may have a slot already.
func (s *slots) number(j *job, epoch proto.Seq, attempt uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j.epoch, j.attempt = epoch, attempt
}

// stop tells j to stop; hard: at once. The first reason counts.
func (s *slots) stop(j *job, why stop, hard bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j.why == notStopped {
		j.why = why
		if j.cancel != nil {
			j.cancel(why.cause())
		}
	}
	if hard && !j.killed {
		j.killed = true
		close(j.kill)
	}
}

// release frees the slot of j, whose handler has returned with an output of this size, and
// returns why it was told to stop. The limit of its kind counts it until its end is on disk.
func (s *slots) release(j *job, output int) stop {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.freeSlot(j)
	s.finishing++
	j.ending, j.endBytes = true, output
	s.countKind(j.kind, 0, 1)
	s.endBytes += output
	return j.why
}

func (s *slots) freeSlot(j *job) {
	if !j.slot {
		return
	}
	j.slot = false
	s.used--
	s.countKind(j.kind, -1, 0)
	if s.origins[j.origin]--; s.origins[j.origin] == 0 {
		delete(s.origins, j.origin)
	}
	s.notify()
}

// drop ends the job and returns the tasks that waited for it.
func (s *slots) drop(j *job) (waiters []backlog.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j.slot {
		s.freeSlot(j)
	} else {
		s.finishing--
	}
	if j.ending {
		s.countKind(j.kind, 0, -1)
		s.endBytes -= j.endBytes
	}
	delete(s.jobs, j.key)
	delete(s.writeErrors, j.key)
	if j.idemKey != "" && s.keys[j.idemKey] == j {
		delete(s.keys, j.idemKey)
		waiters = s.waitingForKey[j.idemKey]
		delete(s.waitingForKey, j.idemKey)
	}
	if s.quarantined == j {
		s.quarantined = nil
		waiters = append(waiters, s.waitingForQuarantine...)
		s.waitingForQuarantine = nil
	}
	s.notify()
	return waiters
}

// setWriteError records why the end of j could not be written.
func (s *slots) setWriteError(j *job, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writeErrors[j.key] = err.Error()
}

// setStalled marks a job whose end is refused for a reason of its own, so that it does not
// keep others from running while the outputs of such jobs are few; false unmarks it before a
// retry.
func (s *slots) setStalled(j *job, on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 1
	if on {
		n = -1
		s.notify()
	}
	s.finishing += n
	s.endBytes += n * j.endBytes
	s.stalledBytes -= n * j.endBytes
}

// running returns the jobs with a running handler, in the order of their starts.
func (s *slots) running() []*job {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*job
	for _, j := range s.jobs {
		if j.slot {
			out = append(out, j)
		}
	}
	slices.SortFunc(out, func(a, b *job) int { return a.began.Compare(b.began) })
	return out
}

func (s *slots) halted() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.stopped }

// sleep waits for the duration, the end of ctx or the stop of the node.
func (s *slots) sleep(ctx context.Context, wait time.Duration) {
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-s.halting:
	case <-t.C:
	}
}

// halt stops the start of tasks.
func (s *slots) halt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stopped {
		s.stopped = true
		close(s.halting)
	}
}
