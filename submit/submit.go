// Package submit makes what this node sends: a task from a request, and the result of a task
// that ran here. Each is sealed for its recipient and on disk before its maker goes on; the
// outbox sends it.
//
//	Request ──▶ check ──▶ recipient ──▶ seal ──▶ outbox   a new task
//	inbox.Finished ─────▶ receipts ───▶ seal ──▶ outbox   its result, in one batch with its end
package submit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/outbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/wire"
)

// The failpoints of this package, at which Parts.Fail is called.
const (
	PointSealed = "submit/sealed" // the tasks are not on disk
	PointStored = "submit/stored" // the tasks are on disk, the caller has no answer yet
	PointResult = "result/sealed" // a task has ended, its end and its result are not on disk
)

// A Submitter makes tasks and results and gives them to the outbox. Its methods are safe for
// concurrent use.
type Submitter struct {
	Parts
	names    *nameCache
	receipts *identity.ReceiptSigner
}

// Parts is what a submitter works with.
type Parts struct {
	Sealing
	Keys     *identity.Keys
	Mesh     proto.MeshID
	Outbox   *outbox.Outbox
	HomeOf   func(queue string) (proto.PeerID, error)
	Want     func(proto.PeerID) // a connection to the peer
	Draining func() bool        // new work is refused
	MaxBody  int64              // bytes of a body in a request
	Fail     func(point string) error
	Clock    clock.Clock
	Logger   *slog.Logger
}

// A Request is a request of a program, with what the node itself adds.
type Request struct {
	wire.Request
	Of        proto.TaskID // the ended task that it repeats; zero: none
	KeyDigest []byte       // of the original request, to which its key is bound, if different
	Delegates [][]byte     // homes that its schedule passed through

	Object       *proto.BodyRef // the body of that task, if it is an object
	ObjectSize   uint64         // of the plain body, in bytes
	ObjectDigest []byte         // likewise
}

// New returns a submitter.
func New(p Parts) *Submitter {
	return &Submitter{Parts: p, names: newNameCache(), receipts: identity.NewReceiptSigner(p.Keys)}
}

// Submit accepts a task. When it returns, the task is on disk here and cannot be lost (I1).
func (s *Submitter) Submit(ctx context.Context, r *Request) (wire.Submitted, error) {
	d, to, err := s.draft(ctx, r)
	if err != nil {
		return wire.Submitted{}, err
	}
	out := newSubmitted(d, to) // before the outbox has the draft: it changes its record
	if err := s.Fail(PointSealed); err != nil {
		return s.finish(d, out, nil, err)
	}
	existing, err := s.Outbox.Submit(ctx, d, nil)
	_ = s.Fail(PointStored) // the task is on disk: nothing can fail any more
	return s.finish(d, out, existing, err)
}

// SubmitMany submits many tasks with as few commits as possible. Each has its own result
// or error.
func (s *Submitter) SubmitMany(ctx context.Context, rs []wire.Request) ([]wire.Submitted, []error) {
	out, errs := make([]wire.Submitted, len(rs)), make([]error, len(rs))
	drafts, at := make([]*outbox.Draft, 0, len(rs)), make([]int, 0, len(rs))
	for i := range rs {
		d, to, err := s.draft(ctx, &Request{Request: rs[i]})
		if err != nil {
			errs[i] = err
			continue
		}
		drafts, at = append(drafts, d), append(at, i)
		out[i] = newSubmitted(d, to)
	}
	existing := make([]*proto.TaskID, len(drafts))
	var failed []error
	if err := s.Fail(PointSealed); err != nil {
		failed = slices.Repeat([]error{err}, len(drafts))
	} else {
		existing, failed = s.Outbox.SubmitMany(ctx, drafts)
		_ = s.Fail(PointStored) // the tasks are on disk: nothing can fail any more
	}
	for j, i := range at {
		out[i], errs[i] = s.finish(drafts[j], out[i], existing[j], failed[j])
	}
	return out, errs
}

// SubmitFor submits a task of a schedule that passed through the given homes.
func (s *Submitter) SubmitFor(ctx context.Context, r wire.Request, delegates [][]byte) (wire.Submitted, error) {
	return s.Submit(ctx, &Request{Request: r, Delegates: delegates})
}

// CheckRequest returns why a request would be refused, whatever its target.
func (s *Submitter) CheckRequest(r *wire.Request) error {
	_, _, err := s.checkRequest(r)
	return err
}

// finish returns the result of storing a draft. out is the result for a new task.
func (s *Submitter) finish(d *outbox.Draft, out wire.Submitted, existing *proto.TaskID, err error) (wire.Submitted, error) {
	s.unpin(d.Record.GetBodyBlob(), err)
	if err != nil {
		return out, submitError(err)
	}
	if existing != nil {
		out = s.Existing(*existing, out)
		s.Bodies.Drop(d.Record.GetBodyBlob())
	}
	if to := d.Header.Target; to != s.Keys.Peer() {
		s.Want(to)
	}
	return out, nil
}

func newSubmitted(d *outbox.Draft, to *addressbook.Peer) wire.Submitted {
	s := wire.Submitted{
		ID: d.Header.ID.String(), State: proto.Pending.Name(),
		Target: to.Name, NotAfter: proto.Time(d.Header.NotAfter), Due: proto.TimeOrNil(d.Record.GetDueMs()),
	}
	if s.Target == "" {
		s.Target = to.Peer.Short()
	}
	return s
}

// Existing turns the result of a submit whose key was used before into that of the
// first task.
func (s *Submitter) Existing(id proto.TaskID, out wire.Submitted) wire.Submitted {
	out.ID, out.Known = id.String(), true
	rec, err := s.Outbox.Get(id)
	if err != nil { // a key outlives the record of a finished task
		out.State = ""
		return out
	}
	out.State, out.NotAfter, out.Due = rec.GetState().Name(), proto.Time(rec.GetNotAfterMs()), proto.TimeOrNil(rec.GetDueMs())
	return out
}

func submitError(err error) error {
	switch {
	case errors.Is(err, outbox.ErrKeyConflict):
		return fmt.Errorf("%w%s", wire.ErrKeyConflict, strings.TrimPrefix(err.Error(), outbox.ErrKeyConflict.Error()))
	case errors.Is(err, outbox.ErrFull), errors.Is(err, store.ErrFull):
		return fmt.Errorf("submit: %w: %w", wire.ErrFull, err)
	case errors.Is(err, outbox.ErrClosed), errors.Is(err, store.ErrClosed):
		return fmt.Errorf("submit: %w: %w", wire.ErrDraining, err)
	}
	return fmt.Errorf("submit: %w", err)
}
