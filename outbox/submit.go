package outbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/backlog"
)

// A Draft is a sealed envelope that is not yet signed, with the record that this
// node keeps about it. It belongs to the outbox once it is submitted.
type Draft struct {
	// Envelope holds header, body and wrapped key. Its body is empty if
	// Record.BodyBlob names the blob that holds it, which must be durable by then.
	Envelope *proto.Envelope
	Leaf     [32]byte     // identity.EnvelopeLeaf, over the body wherever it is
	Key      [32]byte     // the content key
	Header   proto.Header // as encoded in the envelope
	// Record holds what users query: kind, class, keys, due time, target, labels.
	// The outbox fills in state, peer, sequence and times. An IdempotencyKey
	// requires a RequestDigest; a RedriveOf takes over the key of the first task. A
	// caller that took the times of the header long before submitting the draft
	// records that with [Outbox.Stamp].
	Record *proto.Record
}

// A job is one draft on its way to the store.
type job struct {
	draft       *Draft
	part        backlog.Part
	extra       func(*store.Batch)
	entry       backlog.NewEntry // what is written
	unsigned    proto.Unsigned   // its encoding without the signature
	cached      *submitted       // as the sender has it; nil: it reads it back
	existing    *proto.TaskID
	encoding    *[]byte // buffer of unsigned, to be reused
	reservedKey bool    // an idempotency key is reserved
	err         error
	call        *call
}

// A call is what one caller waits for.
type call struct {
	left atomic.Int32  // jobs without an answer
	done chan struct{} // receives one token when there are none left
}

func newBuffer() any { return new([]byte) }

func newCall() any { return &call{done: make(chan struct{}, 1)} }

func (c *call) answered() {
	if c.left.Add(-1) == 0 {
		c.done <- struct{}{}
	}
}

// Submit makes a task durable. It returns once its record is fsynced, which with
// the task's own signature is the receipt "stored". existing is not nil if the
// same request was submitted before with its idempotency key: no second task was
// created. The errors are ErrFull, ErrKeyConflict, ErrClosed, store.ErrFull and
// the store's failure; then nothing was written and the sequence is released. If
// ctx ends first the outcome is unknown (store.ErrUnknown).
//
// also, if not nil, adds the caller's operations and requirements to the task's own
// batch: both are written or neither is. If the task existed, what also added is not
// written. If a requirement of also does not hold, Submit returns store.ErrConflict.
// also is called at most once, on the goroutine that signs and commits, perhaps after
// ctx has ended and Submit has returned; it must be quick and must not call the outbox.
//
// It needs a running [Outbox.Run].
func (o *Outbox) Submit(ctx context.Context, d *Draft, also func(*store.Batch)) (existing *proto.TaskID, err error) {
	j := &job{draft: d, part: backlog.PartTask, extra: also}
	if err := o.enqueue(ctx, []*job{j}); err != nil {
		return nil, err
	}
	return j.existing, j.err
}

// SubmitMany submits many tasks at once and returns an error for each. A task
// that already existed has a nil error and the id of the first one in existing.
func (o *Outbox) SubmitMany(ctx context.Context, drafts []*Draft) (existing []*proto.TaskID, errs []error) {
	jobs := make([]*job, len(drafts))
	for i, d := range drafts {
		jobs[i] = &job{draft: d, part: backlog.PartTask}
	}
	existing, errs = make([]*proto.TaskID, len(drafts)), make([]error, len(drafts))
	err := o.enqueue(ctx, jobs)
	for i, j := range jobs {
		if err != nil {
			errs[i] = err
			continue
		}
		existing[i], errs[i] = j.existing, j.err
	}
	return existing, errs
}

// PutResult makes the result of a task that ran here durable, for the home that
// the draft is addressed to. also, if not nil, adds the caller's operations to
// the same batch, so that the end of the task and its result are one atomic step.
// It also succeeds while the outbox or the disk is full.
func (o *Outbox) PutResult(ctx context.Context, d *Draft, also func(*store.Batch)) error {
	j := &job{draft: d, part: backlog.PartResult, extra: also}
	if err := o.enqueue(ctx, []*job{j}); err != nil {
		return err
	}
	return j.err
}

// enqueue queues jobs and waits until they are answered.
func (o *Outbox) enqueue(ctx context.Context, jobs []*job) error {
	c := o.calls.Get().(*call)
	ready := 0
	for _, j := range jobs {
		if j.err = o.prepare(j); j.err != nil {
			o.releaseJob(j)
			continue
		}
		j.call = c
		ready++
	}
	c.left.Store(int32(ready))
	if ready > 0 && !o.queue.push(jobs) {
		for _, j := range jobs {
			if j.err == nil {
				o.releaseJob(j)
			}
		}
		return ErrClosed
	}
	if ready > 0 && !c.await(ctx) {
		return fmt.Errorf("outbox: %w: %w", store.ErrUnknown, ctx.Err()) // answering still uses the call
	}
	o.calls.Put(c)
	return nil
}

// await waits until all jobs are answered. It returns false if ctx is done first.
func (c *call) await(ctx context.Context) bool {
	ended := ctx.Done()
	if ended == nil {
		<-c.done
		return true
	}
	select {
	case <-c.done:
		return true
	case <-ended:
		return false
	}
}

// releaseJob drops the sequence of a task that was not written, and its key
// reservation.
func (o *Outbox) releaseJob(j *job) {
	if j.part == backlog.PartTask {
		o.DropSeq(j.draft.Header.Target, j.draft.Header.Seq)
	}
	if j.reservedKey {
		o.keys.Release("")
	}
}

// prepare fills in the record of a job and encodes everything that does not
// depend on the signature. It runs in the caller's goroutine, to leave little
// work per task for the goroutine that signs and commits.
func (o *Outbox) prepare(j *job) (err error) {
	h, r := &j.draft.Header, j.draft.Record
	r.State = proto.Pending
	r.Peer = bytes.Clone(h.Target[:]) // the record outlives the draft and its envelope
	r.SeqBoot, r.SeqCounter = h.Seq.Boot, h.Seq.Counter
	r.CreatedMs, r.NotAfterMs = h.Created, h.NotAfter
	r.Attempts = 0
	if r.StampMachine == 0 {
		o.Stamp(r)
	}
	o.stamps.note(r)
	j.entry = backlog.NewEntry{
		Key:          backlog.Key{ID: h.ID, Part: j.part},
		Stored:       &proto.Stored{Envelope: j.draft.Envelope, Record: r, Key: j.draft.Key[:]},
		BypassLimits: j.part != backlog.PartTask,
		With:         j.extra,
	}
	if j.part == backlog.PartTask {
		r.AddEvent(&proto.Event{TimeMs: h.Created, State: r.State, Cause: proto.TaskSubmitted})
		if r.IdempotencyKey != "" {
			if j.reservedKey, err = o.reserveKey(r); err != nil {
				return err
			}
		}
		if r.IdempotencyKey != "" || len(r.RedriveOf) > 0 {
			j.entry.With = o.bindKey(h.ID, r, j.extra)
		}
	}
	j.encoding = o.encodings.Get().(*[]byte)
	if j.unsigned, err = proto.EncodeUnsigned(*j.encoding, j.entry.Stored); err != nil {
		return fmt.Errorf("outbox: encode %v: %w", j.entry.Key, err)
	}
	return nil
}

// maxKeptEncoding is the largest buffer kept for the next task.
const maxKeptEncoding = 16 << 10

// A group is jobs that were signed together, on their way to the disk.
type group struct {
	o      *Outbox
	jobs   []*job
	adding *backlog.PendingAdd
	errs   []error // once it is written
}

// beginGroup signs jobs together and passes them to the store.
func (o *Outbox) beginGroup(jobs []*job) pendingGroup {
	leaves := make([][32]byte, len(jobs))
	for i, j := range jobs {
		leaves[i] = j.draft.Leaf
	}
	sig, proofs := o.sign.SignGroup(leaves)
	news := make([]backlog.NewEntry, len(jobs))
	buf := o.queue.buf[:0]
	for i, j := range jobs {
		from := len(buf)
		buf = j.unsigned.Append(buf, proofs[i].Path, proofs[i].Index, sig)
		j.entry.Encoded = buf[from:len(buf):len(buf)]
		if b := j.unsigned.Buffer(); cap(b) <= maxKeptEncoding {
			*j.encoding = b
			o.encodings.Put(j.encoding)
		}
		if o.links.up(j.draft.Header.Target) {
			o.cacheSubmitted(j, sig, proofs[i])
		}
		news[i] = j.entry
	}
	if o.queue.buf = buf; cap(buf) > maxKeptBuf {
		o.queue.buf = nil
	}
	return &group{o: o, jobs: slices.Clone(jobs), adding: o.backlog.Begin(news)}
}

func (g *group) size() int { return len(g.jobs) }

func (g *group) wait() { g.errs = g.adding.Wait() }

func (g *group) answer() {
	for i, err := range g.errs {
		g.o.answer(g.jobs[i], err)
	}
}

// cacheSubmitted caches a task or a result for the sender, which may change its record
// once the job is answered.
func (o *Outbox) cacheSubmitted(j *job, sig []byte, proof identity.Proof) {
	env := j.draft.Envelope
	env.Signature, env.Index, env.Path = sig, proof.Index, slices.Clone(proof.Path) // shares its array with the others'
	j.cached = &submitted{Stored: j.entry.Stored}
	o.submitted.put(j.entry.Key, j.cached)
}

// answer reports the outcome of a job to its caller.
func (o *Outbox) answer(j *job, err error) {
	if j.reservedKey {
		o.settleKey(err == nil)
	}
	if err != nil {
		o.submitted.take(j.entry.Key)
	}
	if err != nil && j.part == backlog.PartTask {
		if errors.Is(err, store.ErrConflict) {
			j.existing, err = o.onConflict(j, err)
		}
		if !errors.Is(err, store.ErrFailed) { // after which the outcome is unknown
			o.DropSeq(j.draft.Header.Target, j.draft.Header.Seq)
		}
	} else if err == nil && j.part == backlog.PartTask {
		o.changed(j.entry.Key, j.draft.Record)
	}
	if err == nil {
		o.stamps.note(j.draft.Record) // again: restamp may have scanned the entries meanwhile
	}
	if j.cached != nil {
		j.cached.answered.Store(true)
	}
	j.err = err
	j.call.answered()
}
