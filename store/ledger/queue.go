package ledger

import (
	"context"
	"fmt"

	"github.com/balefire/balefire/store"
)

// An Entry is what is queued. It is written whole or not at all.
type Entry struct {
	Data    []byte // at most [Config.MaxBatch] - 48 bytes; must not change until it is answered
	Relaxed bool   // answered before the sync, if its batch has only relaxed entries
	NewWork bool   // refused with [store.ErrFull] when there is no room for new work

	// After is called once, by the committer, in the order in which entries were
	// queued: with the index of the batch and the place of the entry, or with the
	// reason why it was not written. It must be quick and must not wait for the
	// ledger. It is not called if Queue was called after Close. Nil: none.
	After func(index uint64, p Place, err error)
}

// A Place is where the data of an entry is in the log.
type Place struct {
	Segment uint64 // first index of the segment
	Offset  uint32 // of the data, from the start of the segment, bytes
	Length  uint32 // of the data, bytes
}

// A Pending is the answer to one call of Queue.
type Pending struct {
	l   *Ledger
	r   *request // nil: err is the answer
	err error
}

// Queue queues es and returns at once. Entries that one goroutine queues are
// written in that order. The entries of one call that fit into one batch are in one
// batch: after a crash all of them are there, or none. The ledger owns es until they
// are answered. The queue has no limit: who does not wait for answers limits what
// is queued.
func (l *Ledger) Queue(es []Entry) *Pending {
	r := l.requests.Get().(*request)
	r.entries = es
	for i := range es {
		r.size += entryHead + len(es[i].Data)
	}
	if !l.queue.Push(r) {
		l.recycle(r)
		return &Pending{err: store.ErrClosed}
	}
	return &Pending{l: l, r: r}
}

// Wait returns nil once all entries are on disk, or written if their batch was
// relaxed. Otherwise the error is that of the first entry that is not:
//
//   - [store.ErrFull], [store.ErrTooLarge], [store.ErrClosed]: it was not written
//   - [store.ErrFailed]: the log failed; whether it was written is unknown
//   - [store.ErrUnknown]: ctx ended first; it will be written, or refused
func (p *Pending) Wait(ctx context.Context) error {
	if p.r == nil {
		return p.err
	}
	select {
	case <-p.r.done:
		p.err = p.r.err
		p.l.recycle(p.r)
	case <-ctx.Done():
		p.err = fmt.Errorf("%w: %w", store.ErrUnknown, ctx.Err())
	}
	p.r = nil
	return p.err
}

// A request is one call of Queue.
type request struct {
	entries []Entry
	size    int           // bytes that the entries need in a batch
	next    int           // committer: the first entry that is not answered
	sync    bool          // there are no entries: what was written is to be synced
	err     error         // the first one
	done    chan struct{} // receives one token when err is final
}

func newRequest() any { return &request{done: make(chan struct{}, 1)} }

// recycle returns r, which is answered, to the pool.
func (l *Ledger) recycle(r *request) {
	*r = request{done: r.done}
	l.requests.Put(r)
}
