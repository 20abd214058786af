package outbox

import (
	"cmp"
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

// A Draft is a sealed envelope that is not yet signed, with what this node keeps
// about it. It belongs to the outbox once it is handed over.
type Draft struct {
	// Envelope holds header, body and slot. Its body is empty when Record.BodyBlob
	// names the blob that holds it, which must be durable by then.
	Envelope *proto.Envelope
	Leaf     [32]byte     // identity.EnvelopeLeaf, over the body wherever it is
	Key      [32]byte     // the content key
	Header   proto.Header // as it is encoded in the envelope
	// Record says what people ask for: kind, class, keys, due, target, labels. The
	// outbox fills state, peer, sequence and times. A RequestDigest must be there
	// with an IdempotencyKey; a RedriveOf takes the key over from the first task.
	// Who took the times of the header long before it hands the draft over says when
	// with [Outbox.Stamp].
	Record *proto.Record
}

// A job is one draft on its way into the store.
type job struct {
	draft       *Draft
	part        backlog.Part
	extra       func(*store.Batch)
	entry       backlog.NewEntry // what is written
	unsigned    proto.Unsigned   // its encoding, but for the signature
	initial     *proto.Record    // as it was, when somebody else may change the draft's
	existing    *proto.TaskID
	encoding    *[]byte // of unsigned, to be used again
	reservedKey bool    // the place of an idempotency key
	err         error
	call        *call
}

// A call is what one caller waits for.
type call struct {
	left atomic.Int32  // jobs without an answer
	done chan struct{} // gets one token when there are none
}

func newCall() any { return &call{done: make(chan struct{}, 1)} }

func (c *call) answered() {
	if c.left.Add(-1) == 0 {
		c.done <- struct{}{}
	}
}

// Submit makes a task durable. It returns once its record is fsynced, which with
// the task's own signature is the receipt "stored". existing is not nil when the
// same request was submitted before with its idempotency key: no second task was
// made. The errors are ErrFull, ErrKeyConflict, ErrClosed, store.ErrFull and the
// store's failure; then nothing was written and the sequence is given back. When
// ctx ends first the outcome is unknown (store.ErrUnknown).
//
// It needs a running [Outbox.Run].
func (o *Outbox) Submit(ctx context.Context, d *Draft) (existing *proto.TaskID, err error) {
	j := &job{draft: d, part: backlog.PartTask}
	if err := o.enqueue(ctx, []*job{j}); err != nil {
		return nil, err
	}
	return j.existing, j.err
}

// SubmitMany submits many tasks at once and returns an error for each; a task
// that was there already has a nil error and the id of the first in existing.
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
// the draft is addressed to. also adds the caller's operations to the same batch,
// so that the end of the task and its result are one step; nil for none. It
// passes when the outbox or the disk is full.
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
		return fmt.Errorf("outbox: %w: %w", store.ErrUnknown, ctx.Err()) // the call is still theirs who answer
	}
	o.calls.Put(c)
	return nil
}

// await waits until all jobs are answered and reports whether they were before ctx
// was done.
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

// releaseJob drops the sequence of a task that was never written, and the place of
// its key.
func (o *Outbox) releaseJob(j *job) {
	if j.part == backlog.PartTask {
		o.DropSeq(j.draft.Header.Target, j.draft.Header.Seq)
	}
	if j.reservedKey {
		o.keys.Release("")
	}
}

// prepare fills the record of a job and encodes what does not hang on the
// signature. It runs in the goroutine of the caller, so that the one that signs
// and commits has little left to do for each task.
func (o *Outbox) prepare(j *job) (err error) {
	h, r := &j.draft.Header, j.draft.Record
	r.State = proto.Pending
	r.Peer = h.Target[:]
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
		r.AddEvent(&proto.Event{TimeMs: h.Created, State: r.State, Cause: "submitted"})
		if r.IdempotencyKey != "" {
			if j.reservedKey, err = o.reserveKey(r); err != nil {
				return err
			}
		}
		if r.IdempotencyKey != "" || len(r.RedriveOf) > 0 {
			j.entry.With = o.bindKey(h.ID, r)
		}
	}
	j.encoding = o.encodings.Get().(*[]byte)
	if j.unsigned, err = proto.EncodeUnsigned(*j.encoding, j.entry.Stored); err != nil {
		return fmt.Errorf("outbox: encode %v: %w", j.entry.Key, err)
	}
	return nil
}

// maxKeptEncoding is the largest buffer that is kept for the next task.
const maxKeptEncoding = 16 << 10

// A group is jobs that were signed together, on their way to the disk.
type group struct {
	o      *Outbox
	jobs   []*job
	adding *backlog.PendingAdd
	errs   []error // once it is written
}

// beginGroup signs jobs together and hands them to the store.
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
		if j.part == backlog.PartTask && o.links.up(j.draft.Header.Target) {
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

// cacheSubmitted keeps a task for the lane that will send it. From then on the lane
// may change its record.
func (o *Outbox) cacheSubmitted(j *job, sig []byte, proof identity.Proof) {
	env := j.draft.Envelope
	env.Signature, env.Index, env.Path = sig, proof.Index, slices.Clone(proof.Path) // which is one piece with the others'
	j.initial = initialRecord(j.draft.Record)
	o.submitted.put(j.entry.Key, j.entry.Stored)
}

// answer tells the caller of a job how it went.
func (o *Outbox) answer(j *job, err error) {
	if j.reservedKey {
		o.settleKey(err == nil)
	}
	if err != nil && j.part == backlog.PartTask {
		o.submitted.take(j.entry.Key)
		if errors.Is(err, store.ErrConflict) {
			j.existing, err = o.keyOwner(j.draft.Record)
		}
		if !errors.Is(err, store.ErrFailed) { // of that the outcome is unknown
			o.DropSeq(j.draft.Header.Target, j.draft.Header.Seq)
		}
	} else if err == nil && j.part == backlog.PartTask {
		o.changed(j.entry.Key, cmp.Or(j.initial, j.draft.Record))
	}
	if err == nil {
		o.stamps.note(j.draft.Record) // again: the entries may have been looked at meanwhile
	}
	j.err = err
	j.call.answered()
}

// initialRecord is r as it was at birth: a lane may have it already, and changes its state,
// events and receipts. What is copied here nobody changes.
func initialRecord(r *proto.Record) *proto.Record {
	return &proto.Record{
		State: proto.Pending, Class: r.Class, Peer: r.Peer, Kind: r.Kind, Target: r.Target,
		SeqBoot: r.SeqBoot, SeqCounter: r.SeqCounter, CreatedMs: r.CreatedMs, NotAfterMs: r.NotAfterMs,
		IdempotencyKey: r.IdempotencyKey, OrderingKey: r.OrderingKey, Labels: r.Labels, RedriveOf: r.RedriveOf,
		Traceparent: r.Traceparent,
	}
}
