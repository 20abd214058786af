package outbox

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/backlog"
	"github.com/balefire/balefire/store/idempotency"
)

// What callers test for with errors.Is.
var (
	// ErrFull refuses new tasks; the error is a *backlog.FullError with the limits,
	// unless it is for the number of idempotency keys.
	ErrFull = backlog.ErrFull
	// ErrNotFound says that no task of this id is known here.
	ErrNotFound = backlog.ErrNotFound
	// ErrKeyConflict refuses a task whose idempotency key belongs to another request.
	ErrKeyConflict = errors.New("outbox: the idempotency key belongs to another request; take another key, or send the same request")
	// ErrClosed says that the outbox has stopped; nothing was written.
	ErrClosed = errors.New("outbox: stopped")
	// ErrEnded says that a task has ended already and cannot be changed.
	ErrEnded = errors.New("outbox: the task has ended")
	// ErrBadAck ends a link whose other side answers what was not asked, or signs
	// what it did not state.
	ErrBadAck = errors.New("outbox: bad acknowledgement")
)

// A Signer signs what leaves together.
type Signer interface {
	// SignGroup signs 1 to proto.MaxGroup leaves with one signature.
	SignGroup(leaves [][32]byte) (sig []byte, proofs []identity.Proof)
}

// Bodies holds the sealed bodies that are too large for a record.
type Bodies interface {
	// Load returns a body that fits into a frame.
	Load(blob string) ([]byte, error)
	// Send streams a body to the peer and returns once the peer has it durable.
	// An error that is a [BodyRefusal] is the peer's word, as in an Ack; after
	// any other it is tried again.
	Send(ctx context.Context, to proto.PeerID, offer *proto.Offer, blob string) error
}

// A BodyRefusal is the error of a body that the peer does not take, and why.
type BodyRefusal interface {
	error
	Refusal() *proto.Refusal
}

// Retention says how long ended tasks are kept. The zero value of each field
// means its default.
type Retention struct {
	DoneFor time.Duration // succeeded and cancelled tasks; default 24 h
	MaxDone int           // and so many of them; default 50 000
	DeadFor time.Duration // dead letters; default 30 days
	MaxDead int           // and so many of them; default 10 000

	// Archive takes the dead letters beyond those bounds to a safe place before
	// they are deleted; see backlog.FileArchive. Without it they stay.
	Archive func(context.Context, []backlog.Archived) error
	// Archived is told after so many were archived and deleted.
	Archived func(n int)
}

// Config tunes an outbox. The zero value of each field means its default.
type Config struct {
	Mesh     proto.MeshID       // of the receipts
	Verifier *identity.Verifier // default: one of its own

	MaxPending  int                // tasks that have not ended; default 100 000
	MaxBytes    int64              // bytes of them in the store; default 256 MiB
	MaxAttempts int                // deliveries that the peer itself failed at; default 10
	BaseBackoff time.Duration      // after the first failed delivery; default 1 s
	MaxBackoff  time.Duration      // between two deliveries; default 5 min
	RunLimit    time.Duration      // longest run that a late result is awaited for after not_after; default 24 h
	ResultFor   time.Duration      // results are offered to their home so long after not_after; default 30 days
	Keys        idempotency.Limits // of idempotency keys; each is also kept while its task lives
	Retention   Retention

	Bodies Bodies // default: none, large bodies cannot be sent
	// WasHome reports whether from is, or was, the home of the queue that a task was sent
	// to: the queue may have moved since, also while the result was on its way. Default:
	// nobody was.
	WasHome func(target string, from proto.PeerID) bool
	Sealing
	// Changed is told of every change of a task of this home, after it is durable.
	// It must be quick and must not keep or change r.
	Changed func(id proto.TaskID, r *proto.Record)
	Results ResultHooks
	// Progress is called while Open reads, with the entries read so far.
	Progress func(entries int)

	Clock  clock.Clock    // default clock.System()
	Rand   func() float64 // in [0, 1), for jitter; default math/rand
	Logger *slog.Logger   // default: none
}

// Sealing changes what was sealed before. It does without what is nil.
type Sealing struct {
	// Rewrap makes an envelope readable for the current key of its target, after
	// BAD_KEY. Without it the slot stays.
	Rewrap func(*proto.Stored) (*proto.Envelope, error)
	// Reseal seals a task anew, with the sequence and the times of its record. done is
	// called when it is written, or will not be. Without it a task that its target has
	// forgotten, or whose times were wrong, waits for its time.
	Reseal func(st *proto.Stored) (d *Draft, done func(), err error)
}

// ResultHooks are told of results of tasks that ran here. They must be quick.
type ResultHooks struct {
	// Unneeded is told of the body of a result that its home has: no record names
	// it any more.
	Unneeded func(blob string)
	// Refused is told of a result that its home refuses, and with over that it has
	// become a dead letter.
	Refused func(id proto.TaskID, home proto.PeerID, r *proto.Refusal, over bool)
	// Stale is told of a result that its home has noted, but does not count: the task
	// had ended, or was granted anew.
	Stale func(id proto.TaskID, home proto.PeerID, r *proto.Refusal)
	// Lost is told of a result that became a dead letter because its time was over.
	Lost func(id proto.TaskID, home proto.PeerID, reason string)
}

func (h ResultHooks) withDefaults() ResultHooks {
	if h.Unneeded == nil {
		h.Unneeded = func(string) {}
	}
	if h.Refused == nil {
		h.Refused = func(proto.TaskID, proto.PeerID, *proto.Refusal, bool) {}
	}
	if h.Stale == nil {
		h.Stale = func(proto.TaskID, proto.PeerID, *proto.Refusal) {}
	}
	if h.Lost == nil {
		h.Lost = func(proto.TaskID, proto.PeerID, string) {}
	}
	return h
}

func (c Config) withDefaults() Config {
	if c.Verifier == nil {
		c.Verifier = identity.NewVerifier()
	}
	c.MaxPending = cmp.Or(c.MaxPending, 100_000)
	c.MaxBytes = cmp.Or(c.MaxBytes, 256<<20)
	c.MaxAttempts = cmp.Or(c.MaxAttempts, 10)
	c.BaseBackoff = cmp.Or(c.BaseBackoff, time.Second)
	c.MaxBackoff = cmp.Or(c.MaxBackoff, 5*time.Minute)
	c.RunLimit = cmp.Or(c.RunLimit, 24*time.Hour)
	c.ResultFor = cmp.Or(c.ResultFor, 30*24*time.Hour)
	if c.Bodies == nil {
		c.Bodies = noBodies{}
	}
	if c.Changed == nil {
		c.Changed = func(proto.TaskID, *proto.Record) {}
	}
	c.Results = c.Results.withDefaults()
	if c.Clock.IsZero() {
		c.Clock = clock.System()
	}
	if c.Rand == nil {
		c.Rand = rand.Float64
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// noBodies stands in where no bodies were given.
type noBodies struct{}

var errNoBodies = errors.New("outbox: there is no place for large bodies")

func (noBodies) Load(string) ([]byte, error) { return nil, errNoBodies }

func (noBodies) Send(context.Context, proto.PeerID, *proto.Offer, string) error { return errNoBodies }
