package inbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/backlog"
)

// noteDelay is how long the start of a repeatable handler waits to be written. A run that
// ends earlier is written with its end, in one record.
const noteDelay = 2 * time.Millisecond

// A noteState is what has become of the record of a start.
type noteState byte

const (
	noteWritten noteState = iota // it is on disk, or is written with the end
	noteWaiting                  // it waits to be written
	noteWriting                  // it is being written
)

// startEarly reports whether the handler of j may be called before its start is on disk. The
// handler must be repeatable, the disk above its reserve, and the task must not be what
// kills the process: it was not running at a crash, and was not here at an unclean stop
// after which it has not been started.
func (in *Inbox) startEarly(j *job) bool {
	return j.h.OnCrash == OnCrashRetry && j.rec.Mode != proto.AtMostOnce && j.rec.Abandons == 0 && !in.doubtful(j.rec) && !in.diskFull()
}

// doubtful reports whether the record of a start of a task may have been lost: it was here
// at an unclean stop, and has not been started since.
func (in *Inbox) doubtful(r *proto.Record) bool {
	return r.Mode != proto.AtMostOnce && !in.boots.has(r.BootId)
}

// startCause returns the cause of a start of j.
func (in *Inbox) startCause(j *job) proto.TaskCause {
	if j.h.OnCrash == OnCrashRetry && j.rec.Abandons == 0 && in.doubtful(j.rec) { // an abandon tells of the stop
		return proto.TaskRestarted
	}
	return 0
}

// unrecorded reports whether a task that ends without a start on record may have run before
// an unclean stop.
func (in *Inbox) unrecorded(j *job) bool {
	return j.h != nil && j.h.OnCrash == OnCrashRetry && in.doubtful(j.rec)
}

// addStart records the start of j in r, if r was read again before the start was written.
func (in *Inbox) addStart(j *job, r *proto.Record) {
	if j.unwritten && r != j.rec {
		startRecord(r, in.cfg.BootID, j.started, 0)
	}
}

// edit returns an edit of the task of j, which spares the read of its record if possible.
func (j *job) edit() backlog.Edit {
	if j.stale {
		return backlog.Edit{Key: j.key}
	}
	return backlog.Edit{Key: j.key, Record: j.rec, Version: j.version}
}

// addNotes has the starts of jobs written soon.
func (s *slots) addNotes(jobs []*job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, j := range jobs {
		j.note = noteWaiting
	}
	s.notes = append(s.notes, jobs...)
	signal(s.noteAdded)
}

// takeNotes returns the jobs whose starts are to be written now.
func (s *slots) takeNotes() (jobs []*job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, j := range s.notes {
		if j.note == noteWaiting {
			j.note = noteWriting
			jobs = append(jobs, j)
		}
	}
	clear(s.notes)
	s.notes = s.notes[:0]
	return jobs
}

// wroteNote ends the write of the start of j.
func (s *slots) wroteNote(j *job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j.note = noteWritten
	if j.noted != nil {
		close(j.noted)
	}
}

// settleNote returns once the start of j is not being written. One that was not written yet
// is left to the end of the run.
func (s *slots) settleNote(j *job) {
	s.mu.Lock()
	if j.note != noteWriting {
		j.note = noteWritten
		s.mu.Unlock()
		return
	}
	j.noted = make(chan struct{})
	s.mu.Unlock()
	<-j.noted
}

// writeNotes writes the starts of runs that last, until ctx ends.
func (rn *runner) writeNotes(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-rn.slots.noteAdded:
		}
		clock.Pause(ctx, noteDelay)
		rn.writeTaken(ctx, rn.slots.takeNotes())
	}
}

// writeTaken writes the starts of jobs.
func (rn *runner) writeTaken(ctx context.Context, jobs []*job) {
	edits := make([]backlog.Edit, len(jobs))
	for i, j := range jobs {
		edits[i] = j.edit()
	}
	records := make([]*proto.Record, len(jobs))
	errs := rn.queue.Change(ctx, edits, func(i int, r *proto.Record) backlog.Action {
		rn.addStart(jobs[i], r)
		records[i] = r
		return backlog.Write
	})
	for i, j := range jobs {
		if errs[i] == nil {
			j.stale, j.version, j.unwritten = j.stale || records[i] != j.rec, j.version+1, false
			rn.changed(j.key.ID, records[i])
		} else if !errors.Is(errs[i], backlog.ErrNotFound) {
			rn.fail(fmt.Errorf("write a start: %w", errs[i]))
		}
		rn.slots.wroteNote(j)
	}
}

// maxBoots is how many starts of the node without an unclean stop are remembered. A task of
// an older one is treated as if it had been here at an unclean stop.
const maxBoots = 64

// bootMark is how many bytes of the id of a boot are in the record of a task that was not
// started yet. If two boots share them, a task may be started early once more.
const bootMark = 4

var bootsKey = []byte("inbox/boots")

// bootLog holds the starts of this node since the last unclean stop, the newest last. On
// disk, in Meta, it is preceded by 1 after a clean stop, and by 0 before.
type bootLog []proto.BootID

// has reports whether the boot with this id, or with an id that begins with it, is in l.
func (l bootLog) has(id []byte) bool {
	return len(id) >= bootMark && slices.ContainsFunc(l, func(b proto.BootID) bool { return bytes.Equal(b[:bootMark], id[:bootMark]) })
}

// loadBoots reads the starts before this one, and adds this one.
func (in *Inbox) loadBoots() error {
	b, err := in.store.Get(store.Meta, bootsKey)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	if len(b) > 0 && b[0] == 1 {
		for b = b[1:]; len(b) >= len(proto.BootID{}); b = b[len(proto.BootID{}):] {
			in.boots = append(in.boots, proto.BootID(b[:len(proto.BootID{})]))
		}
	}
	in.boots = append(in.boots[max(len(in.boots)-maxBoots+1, 0):], in.cfg.BootID)
	return nil
}

// saveBoots writes the starts since the last unclean stop; clean: this one has ended.
func (in *Inbox) saveBoots(clean bool) error {
	val := []byte{0}
	if clean {
		val[0] = 1
	}
	for _, id := range in.boots {
		val = append(val, id[:]...)
	}
	var b store.Batch
	b.Put(store.Meta, bootsKey, val)
	return in.store.Apply(context.Background(), &b)
}
