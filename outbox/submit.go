package outbox

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync/atomic"

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
	Record *proto.Record
}

// A job is one draft on its way into the store.
type job struct {
	draft    *Draft
	part     backlog.Part
	also     func(*store.Batch)
	existing *proto.TaskID
	err      error
	call     *call
}

// A call is what one caller waits for.
type call struct {
	left atomic.Int32 // jobs without an answer
	done chan struct{}
}

func (c *call) answered() {
	if c.left.Add(-1) == 0 {
		close(c.done)
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
	if err := o.hand(ctx, []*job{j}); err != nil {
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
	err := o.hand(ctx, jobs)
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
	j := &job{draft: d, part: backlog.PartResult, also: also}
	if err := o.hand(ctx, []*job{j}); err != nil {
		return err
	}
	return j.err
}

// hand queues jobs and waits until they are answered.
func (o *Outbox) hand(ctx context.Context, jobs []*job) error {
	if len(jobs) == 0 {
		return nil
	}
	c := &call{done: make(chan struct{})}
	c.left.Store(int32(len(jobs)))
	for _, j := range jobs {
		j.call = c
	}
	if !o.intake.push(jobs) {
		o.giveBack(jobs)
		return ErrClosed
	}
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("outbox: %w: %w", store.ErrUnknown, ctx.Err())
	}
}

// giveBack drops the sequences of tasks that were never written.
func (o *Outbox) giveBack(jobs []*job) {
	for _, j := range jobs {
		if j.part == backlog.PartTask {
			o.DropSeq(j.draft.Header.Target, j.draft.Header.Seq)
		}
	}
}

// commitGroup signs jobs together, writes them and answers each.
func (o *Outbox) commitGroup(jobs []*job) {
	leaves := make([][32]byte, len(jobs))
	for i, j := range jobs {
		leaves[i] = j.draft.Leaf
	}
	sig, proofs := o.sign.SignGroup(leaves)
	news := make([]backlog.New, len(jobs))
	for i, j := range jobs {
		env := j.draft.Envelope
		env.Signature, env.Index, env.Path = sig, proofs[i].Index, proofs[i].Path
		news[i] = o.entryOf(j)
		if j.part == backlog.PartTask && o.links.up(j.draft.Header.Target) {
			o.fresh.put(news[i].Key, news[i].Stored)
		}
	}
	for i, err := range o.backlog.Add(context.Background(), news) {
		o.answer(jobs[i], news[i].Key, err)
	}
}

// entryOf fills the record of a job and makes the entry that is written.
func (o *Outbox) entryOf(j *job) backlog.New {
	h, r := &j.draft.Header, j.draft.Record
	r.State = proto.TaskState_TASK_STATE_PENDING
	r.Peer = h.Target[:]
	r.SeqBoot, r.SeqCounter = h.Seq.Boot, h.Seq.Counter
	r.CreatedMs, r.NotAfterMs = h.Created, h.NotAfter
	r.Attempts = 0
	n := backlog.New{
		Key:    backlog.Key{ID: h.ID, Part: j.part},
		Stored: &proto.Stored{Envelope: j.draft.Envelope, Record: r, Key: j.draft.Key[:]},
		Vital:  j.part != backlog.PartTask,
		With:   j.also,
	}
	if j.part == backlog.PartTask {
		r.AddEvent(&proto.Event{TimeMs: h.Created, State: r.State, Cause: "submitted"})
		if r.IdempotencyKey != "" {
			n.With = o.claimKey(h.ID, r)
		}
	}
	return n
}

// keyRecord is where an idempotency key is kept: the id of its task and the
// digest of its request.
func keyRecord(key string) []byte {
	sum := sha256.Sum256([]byte(key))
	return append([]byte("k"), sum[:]...)
}

// claimKey binds an idempotency key to a task, in the task's own batch.
func (o *Outbox) claimKey(id proto.TaskID, r *proto.Record) func(*store.Batch) {
	until := o.cfg.Clock.Now().Add(o.cfg.KeyFor)
	return func(b *store.Batch) {
		k := keyRecord(r.IdempotencyKey)
		if len(r.RedriveOf) == 0 {
			b.RequireAbsent(store.Dedup, k)
		}
		b.PutUntil(store.Dedup, k, append(id[:], r.RequestDigest...), until)
	}
}

// answer tells the caller of a job how it went.
func (o *Outbox) answer(j *job, k backlog.Key, err error) {
	r := j.draft.Record
	if err != nil && j.part == backlog.PartTask {
		o.fresh.take(k)
		if errors.Is(err, store.ErrConflict) {
			j.existing, err = o.keyOwner(r)
		}
		if !errors.Is(err, store.ErrFailed) { // of that the outcome is unknown
			o.DropSeq(j.draft.Header.Target, j.draft.Header.Seq)
		}
	} else if err == nil && j.part == backlog.PartTask {
		o.changed(k, born(r))
	}
	j.err = err
	j.call.answered()
}

// born is r as it was at birth: a lane may have it already, and changes its state,
// events and receipts. What is copied here nobody changes.
func born(r *proto.Record) *proto.Record {
	return &proto.Record{
		State: proto.TaskState_TASK_STATE_PENDING, Class: r.Class, Peer: r.Peer, Kind: r.Kind, Target: r.Target,
		SeqBoot: r.SeqBoot, SeqCounter: r.SeqCounter, CreatedMs: r.CreatedMs, NotAfterMs: r.NotAfterMs,
		IdempotencyKey: r.IdempotencyKey, OrderingKey: r.OrderingKey, Labels: r.Labels, RedriveOf: r.RedriveOf,
	}
}

// keyOwner returns the task that an idempotency key belongs to, or
// ErrKeyConflict.
func (o *Outbox) keyOwner(r *proto.Record) (*proto.TaskID, error) {
	val, err := o.store.Get(store.Dedup, keyRecord(r.IdempotencyKey))
	if err != nil {
		return nil, fmt.Errorf("look up the idempotency key: %w; send the request again", err)
	}
	if len(val) < len(proto.TaskID{}) {
		return nil, fmt.Errorf("look up the idempotency key: %w: %d bytes", store.ErrCorrupt, len(val))
	}
	id := proto.TaskID(val[:16])
	if string(val[16:]) != string(r.RequestDigest) {
		return nil, fmt.Errorf("%w (task %s)", ErrKeyConflict, id)
	}
	return &id, nil
}
