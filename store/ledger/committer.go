package ledger

import (
	"fmt"
	"runtime"
	"time"

	"github.com/balefire/balefire/store"
)

// A committer is the one goroutine that writes the log. It gathers a group of
// entries from the queue, writes it as one batch, answers, and starts over.
type committer struct {
	l     *Ledger
	timer *time.Timer

	seg  *segment // the last one
	tail tail     // where the next batch goes

	dirty      bool          // something written was not synced
	dirtyAt    time.Duration // since when, monotonic
	dirtyBytes int           // how much

	pending []*request // taken from the queue; those before at are answered
	at      int

	group   []part
	size    int   // bytes of the batch of the group, without padding
	count   int   // entries that are written
	durable bool  // the group is to be synced
	full    error // why new work is refused

	committed time.Duration // when the last group was answered, monotonic
}

// pacedFrom is the number of entries in a batch beyond which the next one keeps its distance.
const pacedFrom = 16

// A part is the entries of one request that are in the group.
type part struct {
	r        *request
	from, to int
}

func (c *committer) run() {
	defer c.timer.Stop()
	for c.wait() {
		if c.count > pacedFrom {
			until := c.committed + c.l.cfg.Pace
			if c.dirty {
				until = min(until, c.dirtyAt+c.l.cfg.SyncEvery)
			}
			time.Sleep(until - c.l.cfg.Clock.Mono()) // not at all if that is over
		}
		c.gather()
		c.commit()
		c.committed = c.l.cfg.Clock.Mono()
		if len(c.group) > 1 {
			runtime.Gosched() // lets the answered callers queue again: groups get larger
		}
		if c.dirty && (c.dirtyBytes >= maxUnsynced || c.l.cfg.Clock.Mono()-c.dirtyAt >= c.l.cfg.SyncEvery) {
			_ = c.sync() // who queues next is told
		}
	}
	if c.dirty {
		_ = c.sync() // Close returns the failure
	}
}

// wait blocks until there is a request, and meanwhile syncs what is relaxed when its
// time has come. It returns false once the queue is closed and empty.
func (c *committer) wait() bool {
	for c.at == len(c.pending) {
		var closed bool
		if closed = c.refill(); len(c.pending) > 0 {
			break
		}
		if closed {
			return false
		}
		var due <-chan time.Time
		if c.dirty && c.l.Err() == nil {
			c.timer.Reset(c.dirtyAt + c.l.cfg.SyncEvery - c.l.cfg.Clock.Mono())
			due = c.timer.C
		}
		select {
		case <-c.l.queue.Wake:
		case <-due:
			_ = c.sync() // who queues next is told
		}
	}
	return true
}

// refill takes what queued. All requests taken before must be answered or in the
// group.
func (c *committer) refill() (closed bool) {
	clear(c.pending)
	c.pending, closed = c.l.queue.Take(c.pending)
	c.at = 0
	return closed
}

// gather makes a group of what queued, up to the limits of a batch.
func (c *committer) gather() {
	clear(c.group)
	c.group, c.size, c.count, c.durable = c.group[:0], batchHead, 0, false
	c.full = c.l.Refuses()
	for {
		if c.at == len(c.pending) {
			if c.refill(); len(c.pending) == 0 {
				return
			}
		}
		r := c.pending[c.at]
		if !c.admit(r) {
			return
		}
		c.at++
	}
}

// admit adds entries of r to the group and reports whether all are in.
func (c *committer) admit(r *request) bool {
	whole := batchHead+r.size <= c.l.cfg.MaxBatch && len(r.entries) <= MaxEntries
	if whole && (c.size+r.size > c.l.cfg.MaxBatch || c.count+len(r.entries) > MaxEntries) {
		return false // it fits into the next batch
	}
	p := part{r, r.next, r.next}
	c.durable = c.durable || r.sync
	for ; p.to < len(r.entries); p.to++ {
		e := &r.entries[p.to]
		if c.refusal(e) != nil {
			continue
		}
		n := entryHead + len(e.Data)
		if c.size+n > c.l.cfg.MaxBatch || c.count == MaxEntries {
			break
		}
		c.size += n
		c.count++
		c.durable = c.durable || !e.Relaxed
	}
	r.next = p.to
	c.group = append(c.group, p)
	return p.to == len(r.entries)
}

// refusal returns why e is not written, nil if it is.
func (c *committer) refusal(e *Entry) error {
	if most := c.l.cfg.MaxBatch - batchHead - entryHead; len(e.Data) > most {
		return fmt.Errorf("%w: an entry of %d bytes, limit %d", store.ErrTooLarge, len(e.Data), most)
	}
	if e.NewWork {
		return c.full
	}
	return nil
}

// commit writes the group and answers it.
func (c *committer) commit() {
	err, began := c.l.Err(), c.l.cfg.Clock.Mono()
	if err == nil && c.count > 0 {
		err = c.write()
	}
	if err == nil && c.durable && c.dirty {
		err = c.sync()
	}
	place := c.tail.off - int64(padded(c.size)) + batchHead
	if err == nil && c.count > 0 {
		c.seg.end.Store(c.tail.off)
		c.l.last.Store(c.tail.last)
		c.l.cfg.Committed(c.l.cfg.Clock.Mono() - began)
	}
	for _, p := range c.group {
		for i := p.from; i < p.to; i++ {
			e := &p.r.entries[i]
			refused := c.refusal(e)
			if refused == nil && err == nil {
				place += entryHead
				at := Place{c.seg.first, uint32(place), uint32(len(e.Data))}
				place += int64(at.Length)
				if e.After != nil {
					e.After(c.tail.last, at, nil) // from the last one on, the entries are the caller's again
				}
				continue
			}
			if refused == nil || err != nil && c.l.Err() != nil {
				refused = err
			}
			if p.r.err == nil {
				p.r.err = refused
			}
			if e.After != nil {
				e.After(0, Place{}, refused)
			}
		}
		if p.r.sync && p.r.err == nil {
			p.r.err = err
		}
		if p.to == len(p.r.entries) {
			p.r.done <- struct{}{}
		}
	}
}

// write writes the group as one batch.
func (c *committer) write() error {
	size := int64(padded(c.size))
	if c.tail.ended || c.tail.off+size+batchHead > c.seg.size {
		if err := c.roll(); err != nil {
			return err
		}
	}
	h := batchHeader{kind: KindEntries, length: uint32(c.size), count: uint16(c.count), index: c.tail.last + 1, time: c.l.cfg.Clock.Now().UnixMilli()}
	n := c.extent(c.tail.off, size)
	buf := c.l.ring.reserve(n)
	at := batchHead
	for _, p := range c.group {
		for i := p.from; i < p.to; i++ {
			if e := &p.r.entries[i]; c.refusal(e) == nil {
				at = putEntry(buf, at, e.Data)
			}
		}
	}
	off := c.tail.off
	if err := c.put(&h, buf); err != nil {
		return err
	}
	c.l.ring.publish(c.seg.first, off, int(size))
	c.l.counters.entries.Add(uint64(c.count))
	return nil
}

// extent returns how many bytes are written at off for a batch of size bytes: at
// least a header of zeros behind it, and whole pages, so that the system need not
// read one to write a part of it.
func (c *committer) extent(off, size int64) int {
	return int(copySize(off+size, c.seg.size) - off)
}

// put completes the batch at the start of buf, whose entries are there, and writes
// buf at the tail.
func (c *committer) put(h *batchHeader, buf []byte) error {
	if !c.dirty {
		h.flags |= flagSynced
	}
	size := h.size()
	clear(buf[h.length:])
	h.put(buf)
	crc := c.l.id.seal(c.tail.crc, buf[:size])
	if _, err := c.seg.file.WriteAt(buf, c.tail.off); err != nil {
		return c.l.fail(fmt.Errorf("write %s: %w", c.seg.path, err))
	}
	if !c.dirty {
		c.dirty, c.dirtyAt, c.dirtyBytes = true, c.l.cfg.Clock.Mono(), 0
	}
	c.dirtyBytes += len(buf)
	c.tail = tail{off: c.tail.off + int64(size), last: h.index, crc: crc, ended: h.kind == segmentEnd}
	c.l.counters.batches.Add(1)
	return nil
}

// sync makes all that was written durable.
func (c *committer) sync() error {
	if err := c.l.Err(); err != nil {
		return err
	}
	if err := c.l.cfg.Fail(PointWritten); err != nil {
		return c.l.fail(err)
	}
	if err := c.seg.file.Sync(); err != nil {
		return c.l.fail(fmt.Errorf("sync %s: %w", c.seg.path, err))
	}
	c.dirty = false
	c.l.counters.syncs.Add(1)
	c.l.synced.Store(c.tail.last)
	return nil
}

// roll completes the segment and begins the next one. Without a file for it nothing
// is changed.
func (c *committer) roll() error {
	spare, err := c.l.spares.take()
	if err != nil {
		return fmt.Errorf("%w: %w", store.ErrNoDisk, err)
	}
	if !c.tail.ended {
		h := batchHeader{kind: segmentEnd, length: batchHead, index: c.tail.last, time: c.l.cfg.Clock.Now().UnixMilli()}
		if err := c.put(&h, make([]byte, c.extent(c.tail.off, batchHead))); err != nil {
			return err
		}
		if err := c.sync(); err != nil {
			return err
		}
		c.seg.end.Store(c.tail.off)
	}
	seg, err := beginSegment(c.l.cfg.fs, c.l.dir, spare, segmentHeader{id: c.l.id, first: c.tail.last + 1, prev: c.tail.crc})
	if err != nil {
		return c.l.fail(fmt.Errorf("begin a segment: %w", err))
	}
	c.l.segments.add(seg)
	c.seg, c.tail.off, c.tail.ended = seg, segmentHead, false
	return nil
}
