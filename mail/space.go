package mail

import (
	"bytes"
	"context"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/balefire/balefire/mail/box"
)

// space is what decides which space of the ledger is given back: see the package comment.
type space struct {
	saved  savedLog
	dead   deadLetters
	moving moving
	needed atomic.Int64 // bytes of the records that the last checkpoint needs, or the start did
	moved  atomic.Int64 // bytes of the MOVE records of this start
}

// A savedLog is what the newest checkpoint has.
type savedLog struct {
	index   uint64
	records int64 // applied since, but for those that only say how long the broker has run
	bytes   int64 // of those
	at      time.Duration
	running bool // one is being written
}

// moving is the moving of the mail of sparse segments.
type moving struct {
	sparse  map[uint64]bool // by first index; nil: none
	damaged map[uint64]bool // segments with a record that cannot be read: they stay
	at      box.Cursor      // where the search for their records goes on
	due     int64           // of the next batch, box.Now.Mono
	running bool            // a batch is being read or written
}

const (
	sparsePart = 4         // a segment of which one part in so many is needed stays
	moveLook   = 4096      // records that are looked at for one batch
	moveBytes  = 256 << 10 // bytes of records after which a batch is complete
	moveRate   = 10 << 20  // bytes of records a second
	moveEvery  = 10        // milliseconds between two batches, at least
)

// The failpoints of what gives back the space of the ledger, at which a test build exits.
const (
	PointSave     = "mail/save"     // the state is copied, its checkpoint is not on disk
	PointSaved    = "mail/saved"    // the checkpoint is on disk, no segment is given back
	PointReleased = "mail/released" // segments are given back, the mail of sparse ones is not moved
	PointMove     = "mail/move"     // records of sparse segments are read, and not written again
	PointMoved    = "mail/moved"    // they are, and no checkpoint has their new places
)

// Space returns how many bytes of the ledger are records that were needed at the last
// checkpoint, or at the start, and how many were written since the start to move records.
func (b *Broker) Space() (needed, moved int64) { return b.space.needed.Load(), b.space.moved.Load() }

// checkpointDue writes a checkpoint in the background if one is due. The newest batch must
// be applied to its end: a start replays the batches after it. The state is written to
// memory first: meanwhile nothing is served. It goes to disk when the senders of the mails that have
// ended in it were told; a broker that stops before leaves that to its next start.
func (b *Broker) checkpointDue(ctx context.Context) {
	now := b.cfg.Clock.Boot()
	if !b.started || b.saved.running || len(b.out.Bounces) > 0 || b.saved.records == 0 || b.last.Load() == b.saved.index {
		return
	}
	if b.saved.records < b.cfg.CheckpointRecords && b.saved.bytes < b.cfg.CheckpointBytes && now-b.saved.at < b.cfg.CheckpointEvery {
		return
	}
	b.saved.at = now
	var image bytes.Buffer
	if err := b.state.Save(&image); err != nil {
		b.cfg.Logger.Error("the state of the boxes cannot be saved", "why", err)
		return
	}
	needed := b.neededBytes()
	index, records, size := b.last.Load(), b.saved.records, b.saved.bytes
	b.saved.running = true
	told := b.reports.bouncing
	b.reports.bouncing = new(sync.WaitGroup)
	b.waiting.Go(func() {
		if told.Wait(); ctx.Err() != nil {
			return
		}
		err := b.save(index, image.Bytes())
		var sparse map[uint64]bool
		if err != nil {
			b.cfg.Logger.Warn("no checkpoint of the mail was written", "why", err)
		} else {
			sparse = b.release(needed)
			_ = b.cfg.Fail(PointReleased) // nothing can fail any more
		}
		_ = b.do(func(box.Now) { // if the broker has ended, nobody asks
			if b.saved.running = false; err == nil {
				b.saved.index, b.saved.records, b.saved.bytes = index, b.saved.records-records, b.saved.bytes-size
				b.moving.begin(sparse)
			}
		})
	})
}

// save writes a checkpoint.
func (b *Broker) save(index uint64, image []byte) error {
	err := b.cfg.Fail(PointSave)
	if err == nil {
		err = b.log.Checkpoint(index, func(w io.Writer) error {
			_, err := w.Write(image)
			return err
		})
	}
	if err == nil {
		err = b.cfg.Fail(PointSaved)
	}
	return err
}

// neededBytes returns how many bytes of each segment are records that are needed.
func (b *Broker) neededBytes() map[uint64]int64 {
	needed, newest, all := make(map[uint64]int64), b.last.Load(), int64(0)
	for _, k := range b.state.Places(box.Cursor{}) {
		needed[segmentOf(k.Place, newest)] += int64(k.Length)
		all += int64(k.Length)
	}
	b.space.needed.Store(all)
	return needed
}

// release gives back the segments of which nothing is needed, and returns the oldest of those
// of which little is. What is moved between two checkpoints takes space until the second.
func (b *Broker) release(needed map[uint64]int64) (sparse map[uint64]bool) {
	room := b.cfg.CheckpointBytes / 2
	b.log.Release(func(segment uint64, size int64) bool {
		n := needed[segment]
		if n > 0 && n < size/sparsePart && room > 0 {
			if sparse == nil {
				sparse = map[uint64]bool{}
			}
			sparse[segment] = true
			room -= n
		}
		return n > 0
	})
	return sparse
}

// begin begins to move what is in sparse segments.
func (m *moving) begin(sparse map[uint64]bool) {
	m.sparse, m.at = sparse, box.Cursor{}
	for segment := range m.damaged {
		delete(m.sparse, segment)
	}
}

// A move is a record that is to be moved.
type move struct {
	box.Kept
	rec []byte // MOVE
	err error  // the record cannot be read
}

// moveDue moves the next records of sparse segments, if it is time. They are read in the
// background.
func (b *Broker) moveDue(now box.Now) {
	m := &b.moving
	if m.sparse == nil || m.running || now.Mono < m.due {
		return
	}
	batch, size := b.nextMoves()
	m.due = now.Mono + max(moveEvery, size*1000/moveRate)
	if len(batch) == 0 {
		return
	}
	m.running = true
	b.waiting.Go(func() {
		b.readMoves(batch, size)
		_ = b.do(func(box.Now) { b.move(batch) }) // if the broker has ended, nothing is moved
	})
}

// nextMoves returns the next records of sparse segments, and the bytes of them.
func (b *Broker) nextMoves() (batch []move, size int64) {
	m, newest, looked := &b.moving, b.last.Load(), 0
	for at, k := range b.state.Places(m.at) {
		if looked++; looked > moveLook || size >= moveBytes {
			m.at = at
			return batch, size
		}
		if m.sparse[segmentOf(k.Place, newest)] {
			batch = append(batch, move{Kept: k})
			size += int64(k.Length)
		}
	}
	m.sparse = nil // these were the last ones
	return batch, size
}

// readMoves reads records, and makes MOVE records of them.
func (b *Broker) readMoves(batch []move, size int64) {
	buf := make([]byte, 0, int(size)+len(batch)*mailOverhead)
	var rec []byte
	for i := range batch {
		x := &batch[i]
		if rec, x.err = b.read(x.Place, x.Length, rec[:0]); x.err != nil {
			continue
		}
		start := len(buf)
		if buf, x.err = box.AppendMove(buf, x.Seq, rec); x.err == nil {
			x.rec = buf[start:len(buf):len(buf)]
		}
	}
}

// move queues MOVE records. They are not synced: until a checkpoint has the new places on disk,
// the old ones are there.
func (b *Broker) move(batch []move) {
	m, newest := &b.moving, b.last.Load()
	if b.cfg.Fail(PointMove) != nil {
		m.running, m.sparse = false, nil
		return
	}
	queued := b.queued.len()
	for _, x := range batch {
		is, ok := b.state.Record(x.Box, x.Seq)
		switch {
		case !ok || is.Place != x.Place: // it has ended
		case x.err != nil:
			m.keep(segmentOf(x.Place, newest))
			name, _ := b.state.Path(x.Box, 0)
			b.cfg.Logger.Error("a mail cannot be read, and its segment of the ledger stays", "box", name, "seq", x.Seq, "why", x.err)
		default:
			b.space.moved.Add(int64(len(x.rec)))
			b.queue(x.rec, false, true, nil)
		}
	}
	if b.queued.len() == queued {
		m.running = false
		return
	}
	b.queued.last().done = func(_ box.Result, err error) {
		if m.running = false; err != nil { // the disk is full
			m.sparse = nil
			return
		}
		_ = b.cfg.Fail(PointMoved) // nothing can fail any more
	}
}

// keep has a segment stay, in which a record cannot be read.
func (m *moving) keep(segment uint64) {
	if m.damaged == nil {
		m.damaged = map[uint64]bool{}
	}
	m.damaged[segment] = true
	delete(m.sparse, segment)
}
