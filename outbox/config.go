package outbox

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/backlog"
	"github.com/balefire/balefire/store/idempotency"
)

// What callers test for with errors.Is.
var (
	// ErrFull refuses new tasks. The error is a *backlog.FullError with the limits,
	// unless the limit reached is the number of idempotency keys.
	ErrFull = backlog.ErrFull
	// ErrNotFound means that this node knows no task with this id.
	ErrNotFound = backlog.ErrNotFound
	// ErrKeyConflict refuses a task whose idempotency key belongs to another
	// request.
	ErrKeyConflict = errors.New("outbox: the idempotency key belongs to another request; use another key, or send the same request")
	// ErrClosed means that the outbox has stopped; nothing was written.
	ErrClosed = errors.New("outbox: stopped")
	// ErrEnded means that a task has already ended and cannot be changed.
	ErrEnded = errors.New("outbox: the task has ended")
	// ErrBadAck closes a link whose peer acknowledges a frame that was not sent, or
	// signs a statement other than the expected one.
	ErrBadAck = errors.New("outbox: bad acknowledgement")
)

// A Signer signs the tasks of a group.
type Signer interface {
	// SignGroup signs 1 to proto.MaxGroup leaves with one signature.
	SignGroup(leaves [][32]byte) (sig []byte, proofs []identity.Proof)
}

// Bodies stores the sealed bodies that are too large for a record.
type Bodies interface {
	// Load returns a body that fits into a frame.
	Load(blob string) ([]byte, error)
	// Send streams a body to the peer and returns once the peer has it durable.
	// An error that is a [BodyRefusal] is the peer's word, as in an Ack; after
	// any other it is tried again.
	Send(ctx context.Context, to proto.PeerID, offer *proto.Offer, blob string) error
}

// A BodyRefusal is the error for a body that the peer refuses, with the reason.
type BodyRefusal interface {
	error
	Refusal() *proto.Refusal
}

// Retention sets how long ended tasks are kept. The zero value of each field
// means its default.
type Retention struct {
	DoneFor time.Duration // succeeded and cancelled tasks; default 24 h
	MaxDone int           // at most this many of them; default 50 000
	DeadFor time.Duration // dead letters; default 30 days
	MaxDead int           // at most this many of them; default 10 000

	// Archive writes the dead letters beyond those bounds to a safe place before
	// they are deleted; see backlog.FileArchive. Without it they are kept.
	Archive func(context.Context, []backlog.Archived) error
	// Archived is called with the number of dead letters archived and deleted.
	Archived func(n int)
}

// Config tunes an outbox. The zero value of each field means its default.
type Config struct {
	Mesh     proto.MeshID       // of the receipts
	Verifier *identity.Verifier // default: a new one

	MaxPending  int                // tasks that have not ended; default 100 000
	MaxBytes    int64              // total size of those tasks in the store; default 256 MiB
	MaxAttempts int                // deliveries that failed at the peer itself; default 10
	RunLimit    time.Duration      // longest run: how long after not_after a late result is still awaited; default 24 h
	ResultFor   time.Duration      // how long after not_after a result is offered to its home; default 30 days
	Keys        idempotency.Limits // of idempotency keys; each is also kept while its task is live
	Retention   Retention

	Bodies Bodies // default: none, large bodies cannot be sent
	// WasHome reports whether from is, or was, the home of the queue that a task was
	// sent to. The queue may have moved, even while the result was on its way.
	// Default: always false.
	WasHome func(target string, from proto.PeerID) bool

	// Rewrap wraps the key of an envelope for the current key of its target, after
	// BAD_KEY. Without it the wrapped key stays as it is.
	Rewrap func(*proto.Stored) (*proto.Envelope, error)
	// Reseal seals a task again with the sequence and the times of its record. It
	// calls done once the envelope is written or discarded. Without Reseal, a task
	// that its target has forgotten, or whose times were wrong, waits until it
	// expires.
	Reseal func(st *proto.Stored) (d *Draft, done func(), err error)

	// Changed is called after every durable change of a task of this home. It must
	// be quick and must not retain or modify r.
	Changed func(id proto.TaskID, r *proto.Record)
	// Ended adds the caller's operations to the batch in which a task of this home
	// ends, however it ends: at most [backlog.MaxEndedOps] small puts and deletes and
	// no requirements, under the rules of [backlog.Config.Ended]. For a task whose
	// late result counts after all it is called a second time, with the new state. A
	// task that moves to another queue ends too: r.MovesTo names the queue. Ended
	// must not call the outbox.
	Ended func(id proto.TaskID, r *proto.Record, b *store.Batch)
	// Event reports that the home of a task that ran here refuses its result, does not
	// count it, or did not get it in time. It must be quick.
	Event func(kind string, home proto.PeerID, fields map[string]string)
	// Unneeded is called for the body of a result that its home has: no record
	// refers to it any more. It must be quick.
	Unneeded func(blob string)
	// Progress is called while Open reads, with the number of entries read so far.
	Progress func(entries int)

	Clock  clock.Clock  // default clock.System()
	Logger *slog.Logger // default: none
}

func (c Config) withDefaults() Config {
	if c.Verifier == nil {
		c.Verifier = identity.NewVerifier()
	}
	c.MaxPending = cmp.Or(c.MaxPending, 100_000)
	c.MaxBytes = cmp.Or(c.MaxBytes, 256<<20)
	c.MaxAttempts = cmp.Or(c.MaxAttempts, 10)
	c.RunLimit = cmp.Or(c.RunLimit, 24*time.Hour)
	c.ResultFor = cmp.Or(c.ResultFor, 30*24*time.Hour)
	if c.Bodies == nil {
		c.Bodies = noBodies{}
	}
	if c.Changed == nil {
		c.Changed = func(proto.TaskID, *proto.Record) {}
	}
	if c.Ended == nil {
		c.Ended = func(proto.TaskID, *proto.Record, *store.Batch) {}
	}
	if c.Event == nil {
		c.Event = func(string, proto.PeerID, map[string]string) {}
	}
	if c.Unneeded == nil {
		c.Unneeded = func(string) {}
	}
	if c.Clock.IsZero() {
		c.Clock = clock.System()
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// noBodies is the default for Config.Bodies.
type noBodies struct{}

var errNoBodies = errors.New("outbox: large bodies are not configured")

// Load returns a body that fits into a frame.
func (noBodies) Load(string) ([]byte, error) { return nil, errNoBodies }

// Send streams a body to the peer and returns once the peer has stored it
// durably. An error that is a [BodyRefusal] is the peer's answer, as in an Ack;
// after any other error the send is retried.
func (noBodies) Send(context.Context, proto.PeerID, *proto.Offer, string) error { return errNoBodies }
