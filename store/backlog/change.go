package backlog

import (
	"context"
	"errors"
	"fmt"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// Bounds of the batches that Add and Change make of many entries.
const (
	batchOps   = 384
	batchBytes = 768 << 10
	changeOps  = 3 + MaxEndedOps // most operations of one change
)

// Add writes new entries in as few batches as possible, and returns an error for
// each: ErrExists, a [FullError], store.ErrFull, store.ErrConflict if a
// requirement of its With did not hold, or the store's failure. It ignores the
// end of ctx once writing has begun.
func (b *Backlog) Add(_ context.Context, news []NewEntry) []error { return b.Begin(news).Wait() }

// A PendingAdd is a set of new entries on their way to the disk.
type PendingAdd struct {
	w       *writer
	pending *store.Pending
}

// Begin is the first half of Add: when it returns the entries are queued to be
// written, in order, behind those of earlier calls. It retains nothing of news.
func (b *Backlog) Begin(news []NewEntry) *PendingAdd {
	w := b.writer(len(news))
	for i := range news {
		n := &news[i]
		val, err := n.encode(w.buf[:0])
		if err != nil {
			w.errs[i] = err
			continue
		}
		if n.Encoded == nil {
			w.buf = val
		}
		if w.changes[i], err = b.reserve(*n, len(val), false); err != nil {
			w.errs[i] = err
			continue
		}
		w.put(i, val, n.With, !n.BypassLimits)
	}
	return &PendingAdd{w: w, pending: w.queue()}
}

// Wait is the second half: it returns once all entries are on disk or refused,
// with an error for each as in Add. It must be called once.
func (a *PendingAdd) Wait() []error {
	defer a.w.close()
	a.w.finish(a.pending.Wait(context.Background()))
	return a.w.errs
}

// Change decides about entries and writes the decisions in as few batches as
// possible. It returns an error for each: ErrNotFound, or the store's failure.
// decide is called once per entry, one after the other, with its index in edits.
// An entry named twice is changed twice, in order.
func (b *Backlog) Change(ctx context.Context, edits []Edit, decide func(i int, r *proto.Record) Action) []error {
	w := b.writer(len(edits))
	defer w.close()
	for from := 0; from < len(edits); {
		n := b.acquireMany(edits[from:], w.changes[from:], w.errs[from:])
		for i := from; i < from+n; i++ {
			s := &w.changes[i]
			if s.e == nil {
				continue
			}
			err := s.decide(edits[i], func(r *proto.Record) Action { return decide(i, r) })
			if err == nil && s.action != Keep {
				w.buf, err = s.encode(w.buf[:0])
			}
			if err != nil || s.action == Keep {
				w.errs[i] = err
				s.Discard()
				continue
			}
			w.put(i, w.buf, nil, false)
		}
		w.write(ctx)
		from += n
	}
	return w.errs
}

// acquireMany marks the first entries of edits busy, all at once so that two
// callers never wait for each other, and returns how many: up to the first key
// that is repeated.
func (b *Backlog) acquireMany(edits []Edit, steps []PendingChange, errs []error) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := distinct(edits)
	for busy := true; busy; {
		busy = false
		for i := range edits[:n] {
			if e := b.entries[edits[i].Key]; e != nil && e.busy {
				busy = true
				b.awaitIdle()
				break
			}
		}
	}
	for i := range edits[:n] {
		e := b.entries[edits[i].Key]
		if e == nil {
			errs[i] = fmt.Errorf("%w: %v", ErrNotFound, edits[i].Key)
			continue
		}
		b.markBusy(e)
		steps[i] = PendingChange{b: b, e: e}
	}
	return n
}

// distinct returns the length of the longest prefix of edits without a repeated
// key.
func distinct(edits []Edit) int {
	if len(edits) < 2 {
		return len(edits)
	}
	seen := make(map[Key]struct{}, len(edits))
	for i := range edits {
		if _, twice := seen[edits[i].Key]; twice {
			return i
		}
		seen[edits[i].Key] = struct{}{}
	}
	return len(edits)
}

// A writer gathers the changes of one call into batches.
type writer struct {
	b       *Backlog
	changes []PendingChange
	errs    []error
	batches []*store.Batch
	members [][]int // indexes of the changes in each batch
	open    [2]int  // the batch that still accepts changes, for old work and new, -1 none
	pooled  *[]byte
	buf     []byte // for encoding
}

func (b *Backlog) writer(n int) *writer {
	p := b.scratch.Get().(*[]byte)
	return &writer{b: b, changes: make([]PendingChange, n), errs: make([]error, n), open: [2]int{-1, -1}, pooled: p, buf: *p}
}

// close returns the buffer to the pool, unless it has grown huge.
func (w *writer) close() {
	if cap(w.buf) <= 64<<10 {
		*w.pooled = w.buf
	}
	w.b.scratch.Put(w.pooled)
}

// put adds change i to a batch: to one of its own if with is set.
func (w *writer) put(i int, val []byte, with func(*store.Batch), newWork bool) {
	kind := 0
	if newWork {
		kind = 1
	}
	at := w.open[kind]
	if with != nil || at < 0 || w.batches[at].Len()+changeOps > batchOps || w.batches[at].Bytes()+len(val) > batchBytes {
		at = len(w.batches)
		batch := w.b.batches.Get().(*store.Batch)
		if newWork {
			batch.NewWork()
		}
		w.batches = append(w.batches, batch)
		w.members = append(w.members, nil)
		if with == nil {
			w.open[kind] = at
		}
	}
	w.changes[i].ops(w.batches[at], val)
	if with != nil {
		with(w.batches[at])
	}
	w.members[at] = append(w.members[at], i)
}

// write commits the batches; memory follows.
func (w *writer) write(ctx context.Context) {
	if len(w.batches) > 0 {
		w.finish(w.queue().Wait(context.WithoutCancel(ctx)))
	}
}

// queue passes the batches to the store; memory follows each once it is on disk.
func (w *writer) queue() *store.Pending {
	for at, batch := range w.batches {
		batch.After(func() { w.applied(w.members[at]) })
	}
	return w.b.store.Queue(w.batches)
}

// finish takes the store's answers and makes the writer ready for further
// batches.
func (w *writer) finish(errs []error) {
	for at, err := range errs {
		if err != nil {
			w.failed(w.members[at], err)
		}
		if !errors.Is(err, store.ErrUnknown) { // otherwise the store may still hold it
			w.batches[at].Reset()
			w.b.batches.Put(w.batches[at])
		}
	}
	w.batches, w.members, w.open = nil, nil, [2]int{-1, -1}
}

func (w *writer) applied(members []int) {
	w.b.mu.Lock()
	defer w.b.mu.Unlock()
	for _, i := range members {
		w.changes[i].apply()
	}
	w.b.wakeWaiters()
}

func (w *writer) failed(members []int, err error) {
	w.b.mu.Lock()
	defer w.b.mu.Unlock()
	for _, i := range members {
		w.errs[i] = err
		w.changes[i].rollback()
	}
	w.b.wakeWaiters()
}
