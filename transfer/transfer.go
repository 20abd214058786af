// Package transfer moves bodies that are too large for a message. Each goes over a chunk
// stream to the node that needs it, before the record that refers to it is committed there;
// the sender keeps it until then.
//
//	origin ── DATA ──▶ home ── GRANT ──▶ owner, when the owner asks (Claim.fetch)
//	                   home ◀── ENDED ── owner, before the result counts
//	             old home ── HANDOFF ──▶ new home, before it has the task
//	sender of mail ─ BUNDLE ─▶ home of its box, when that answers NEED_BODY
//
// [Transfers] moves the bodies of queue tasks, and [Receiver] accepts what peers offer.
package transfer

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/balefire/balefire/bodies"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/outbox"
	"github.com/balefire/balefire/ownership"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
)

// Transfers transfers the bodies of queue tasks and of their results. Its methods are safe
// for concurrent use.
type Transfers struct {
	Parts
	jobs chan func(context.Context)

	inbox  *inbox.Inbox
	outbox *outbox.Outbox
	leases *ownership.Driver
	queues Queues
	check  Envelopes
	mail   Mail
	net    Network

	mu           sync.Mutex
	busy         map[transferKey]bool
	fetching     map[proto.TaskID]*bodyFetch // bodies of tasks granted to this node that have not arrived yet
	granted      map[proto.TaskID]string     // file of the body of a task granted to this node, for the run
	ownResults   map[proto.TaskID]string     // file of the result of a run on this node
	ownerResults map[proto.TaskID][]string   // files of results received here, complete or not
	verified     map[proto.TaskID]string     // file of the result that is complete and verified
	corrupt      map[string]int              // failed verifications of a result, by file
	damaged      map[proto.TaskID]bool       // results of runs on this node that the disk no longer has as they were
	places       places
}

// Parts is what transfers work with.
type Parts struct {
	Bodies    *bodies.Store
	Suite     byte // of the bodies that this node seals for itself
	Self      proto.PeerID
	MaxBlob   int64       // bytes of one body
	MaxQueued int         // tasks of queues with a large body that are stored here at once
	Full      func() bool // there is no space for new work
	Clock     clock.Clock
	Logger    *slog.Logger
}

// Queues are the shared queues.
type Queues interface {
	IsHome(queue string, p proto.PeerID) bool
	// WasHomeOf reports whether p is or was a home of the queue that a target names.
	WasHomeOf(target string, p proto.PeerID) bool
	// GrantEnvelope returns the envelope of a task whose home is this node, for its owner.
	GrantEnvelope(id proto.TaskID, owner proto.PeerID) (*proto.Envelope, error)
	// OpenResult opens the result of a lease.
	OpenResult(from proto.PeerID, m *proto.Message) (*proto.Header, *proto.Outcome, error)
	// OpenHandoff opens a task that an old home hands over.
	OpenHandoff(e *proto.Envelope) (inbox.Arrival, ownership.Task, error)
	// Probed takes the answer to a probe of a task whose run has an unknown outcome.
	Probed(ctx context.Context, id proto.TaskID, found handler.ProbeResult, o *proto.Outcome)
}

// Mail is the mail of this node.
type Mail interface {
	// Wants returns NEED_BODY for a mail of a peer that its box would take if its body were here,
	// or whose body a program waits for.
	Wants(ctx context.Context, from proto.PeerID, m proto.OfferedMail, l *proto.Letter) (proto.Code, string)
	// Received says what became of the body of a mail that was offered: it is here, or why it is not.
	Received(from proto.PeerID, m proto.OfferedMail, code proto.Code, detail string)
	// Objects calls yield with each body that a mail needs, and the node that the mail came from;
	// zero is this one.
	Objects(ctx context.Context, yield func(name [32]byte, origin proto.PeerID)) error
}

// A Network sends bodies to peers.
type Network interface {
	SendBody(ctx context.Context, p proto.PeerID, offer *proto.Offer, body transport.BodySource) error
}

// A transferKey identifies one transfer of a body.
type transferKey struct {
	typ  proto.MessageType
	task proto.TaskID
	peer proto.PeerID
}

// A bodyFetch is a granted task that waits for its body before it can wait for a slot.
type bodyFetch struct {
	lease      inbox.Leased
	progressAt time.Duration // monotonic time of the latest progress
}

const (
	maxTransfers = 4096             // transfers that may wait to start; a dropped one is requested again
	fetchScan    = 5 * time.Second  // interval between checks of awaited bodies
	fetchStall   = 5 * time.Minute  // without progress for this long, a body is given up
	fetchRetry   = 30 * time.Second // time until the home may grant such a task to this node again
	arrivalTTL   = time.Minute      // time in which a task must follow its body to keep its place
	sealTries    = 6                // attempts to store a result when there is no space
	sealBackoff  = time.Second      // pause after the first attempt; it doubles each time
	maxCorrupt   = 2                // failed verifications until a result is rejected
	maxVerified  = 4096             // bound of each of the maps verified and corrupt
)

// New returns transfers that wait for their subsystems: see [Transfers.Open] and
// [Transfers.Connect]. They run in [Transfers.Run].
func New(p Parts) *Transfers {
	return &Transfers{
		Parts: p, jobs: make(chan func(context.Context), maxTransfers), busy: map[transferKey]bool{}, fetching: map[proto.TaskID]*bodyFetch{},
		granted: map[proto.TaskID]string{}, ownResults: map[proto.TaskID]string{}, ownerResults: map[proto.TaskID][]string{}, verified: map[proto.TaskID]string{}, corrupt: map[string]int{}, damaged: map[proto.TaskID]bool{},
		places: places{map[proto.TaskID]place{}, map[proto.PeerID]int{}},
	}
}

// Open reads which bodies the leases need, before those run.
func (t *Transfers) Open(in *inbox.Inbox, out *outbox.Outbox, leases *ownership.Driver, q Queues, e Envelopes) {
	t.inbox, t.outbox, t.leases, t.queues, t.check = in, out, leases, q, e
	leases.Results(func(id proto.TaskID, o *proto.Outcome) {
		if name := o.GetObject().File(); name != "" {
			t.ownResults[id] = name
		}
	})
	leases.PendingProbes(func(id proto.TaskID, g *proto.Grant) {
		if h, err := proto.ParseHeader(g.GetEnvelope().GetHeader()); err == nil && h.Streamed() {
			t.granted[id] = h.ObjectFile()
		}
	})
}

// OpenMail sets the mail whose bodies are needed here.
func (t *Transfers) OpenMail(m Mail) { t.mail = m }

// Connect sets the network over which bodies are sent.
func (t *Transfers) Connect(net Network) { t.net = net }

// Run runs transfers until ctx is done.
func (t *Transfers) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	tick := t.Clock.Ticker(fetchScan)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case job := <-t.jobs:
			wg.Go(func() { job(ctx) })
		case <-tick.C:
			t.scan(ctx)
		}
	}
}

// enqueue queues a job and reports whether there was room for it.
func (t *Transfers) enqueue(job func(context.Context)) bool {
	select {
	case t.jobs <- job:
		return true
	default:
		return false
	}
}

// enqueueOnce queues a job unless the same transfer is in progress.
func (t *Transfers) enqueueOnce(e transferKey, job func(context.Context)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.busy[e] {
		return
	}
	t.busy[e] = t.enqueue(func(ctx context.Context) {
		defer func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			delete(t.busy, e)
		}()
		job(ctx)
	})
	if !t.busy[e] {
		delete(t.busy, e)
	}
}

// mark calls refer for each body that a lease needs.
func (t *Transfers) mark(refer func(name string)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, names := range []map[proto.TaskID]string{t.granted, t.ownResults, t.verified} {
		for _, name := range names {
			refer(name)
		}
	}
}

// isGranted reports whether a task with a large body was granted to this node.
func (t *Transfers) isGranted(id proto.TaskID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.granted[id] != ""
}

// Offer sends the body of a task whose home is this node to its owner.
func (t *Transfers) Offer(id proto.TaskID, owner proto.PeerID) {
	t.enqueueOnce(transferKey{proto.TypeGrant, id, owner}, func(ctx context.Context) {
		env, err := t.queues.GrantEnvelope(id, owner)
		if err == nil {
			err = t.send(ctx, owner, proto.TypeGrant, env)
		}
		if err != nil && ctx.Err() == nil {
			t.Logger.Debug("could not send the body of a granted task to its owner", "task", id.String(), "owner", owner, "err", err)
		}
	})
}

// SendBodyFirst sends the body of an envelope to a peer, if it has one, and then calls
// after. It also calls after when the peer refuses the body, because the peer states its
// reason in the answer to the message itself.
func (t *Transfers) SendBodyFirst(to proto.PeerID, typ proto.MessageType, id proto.TaskID, e *proto.Envelope, after func()) {
	h, err := proto.ParseHeader(e.GetHeader())
	if err != nil || !h.Streamed() {
		after()
		return
	}
	t.enqueueOnce(transferKey{typ, id, to}, func(ctx context.Context) {
		err := t.send(ctx, to, typ, e)
		if errors.Is(err, bodies.ErrDamaged) && typ == proto.TypeEnded {
			t.setDamaged(id) // it is sent again without the body
		}
		if _, refused := errors.AsType[*transport.CodeError](err); err == nil || refused {
			after()
		}
		if err != nil && ctx.Err() == nil {
			t.Logger.Debug("could not send a body", "for", typ.String(), "task", id.String(), "to", to, "err", err)
		}
	})
}

func (t *Transfers) send(ctx context.Context, to proto.PeerID, typ proto.MessageType, e *proto.Envelope) error {
	h, err := proto.ParseHeader(e.GetHeader())
	if err != nil {
		return err
	}
	return t.Send(ctx, to, &proto.Offer{Type: typ, Envelope: e}, h.ObjectFile())
}

func (t *Transfers) setDamaged(id proto.TaskID) {
	t.Logger.Error("the result of a run is damaged on the disk", "task", id.String())
	t.mu.Lock()
	defer t.mu.Unlock()
	t.damaged[id] = true
}

// Object returns the name and the size of the result of a run on this node, or its
// outcome without it if it is damaged.
func (t *Transfers) Object(id proto.TaskID, o *proto.Outcome) (name [32]byte, size int64, lost *proto.Outcome) {
	t.mu.Lock()
	damaged := t.damaged[id]
	t.mu.Unlock()
	m, err := t.Bodies.Manifest(o.GetObject().File())
	if err != nil || damaged {
		return name, 0, damagedOutcome(o)
	}
	return m.Name(), m.Size, nil
}

// damagedOutcome is the outcome of a run whose result is lost (I9).
func damagedOutcome(o *proto.Outcome) *proto.Outcome {
	sum := sha256.Sum256(nil)
	return &proto.Outcome{
		State: proto.DeadLetter, Cause: proto.TaskResultDamaged, BodyDigest: sum[:], BootId: o.GetBootId(), LeaseToken: o.GetLeaseToken(),
		EpochBoot: o.GetEpochBoot(), EpochCounter: o.GetEpochCounter(), StartedMs: o.GetStartedMs(), FinishedMs: o.GetFinishedMs(),
	}
}

// Forget removes the result of a run on this node that is no longer needed. If this node
// is also the home of the task, the outbox refers to it now.
func (t *Transfers) Forget(id proto.TaskID, o *proto.Outcome) {
	name := o.GetObject().File()
	if name == "" {
		return
	}
	t.mu.Lock()
	if t.ownResults[id] == name {
		delete(t.ownResults, id)
		delete(t.damaged, id)
	}
	t.mu.Unlock()
	t.Bodies.Drop(name)
}

// scan returns to their homes the tasks whose body does not arrive, and requests the
// other awaited bodies again.
func (t *Transfers) scan(ctx context.Context) {
	now := t.Clock.Mono()
	var stalled []*bodyFetch
	t.mu.Lock()
	for id, a := range t.fetching {
		if now-a.progressAt >= fetchStall {
			stalled = append(stalled, a)
			continue
		}
		t.enqueue(func(context.Context) { t.leases.Fetch(id, true) })
	}
	for id, p := range t.places.all {
		if !p.queued && p.since > 0 && now-p.since > arrivalTTL {
			t.places.drop(id)
		}
	}
	if len(t.verified) > maxVerified {
		clear(t.verified)
	}
	if len(t.corrupt) > maxVerified {
		clear(t.corrupt)
	}
	t.mu.Unlock()
	for _, a := range stalled {
		id, why := a.lease.ID, fmt.Sprintf("no bytes of its body arrived for %s", fetchStall)
		if a.lease.Interrupted != nil { // its handler cannot be probed without the body
			t.Stop(id)
			t.queues.Probed(ctx, id, handler.Unknown, new(proto.Outcome))
			continue
		}
		err := t.leases.Return(ctx, id, why, uint64(fetchRetry.Milliseconds()))
		if err != nil && !errors.Is(err, ownership.ErrStopped) && ctx.Err() == nil {
			t.Logger.Warn("could not return a task whose body does not arrive", "task", id.String(), "err", err)
		}
		t.Stop(id)
	}
}

// Load returns a sealed body that fits into a frame.
func (t *Transfers) Load(name string) ([]byte, error) {
	return t.Bodies.Get(name, proto.MaxSealed)
}

// Send sends an object and returns once it is durable at the peer.
func (t *Transfers) Send(ctx context.Context, to proto.PeerID, offer *proto.Offer, name string) error {
	src, err := t.Bodies.Source(name)
	if err != nil {
		return err
	}
	defer src.Close()
	offer.Manifest = src.Manifest.Append(nil)
	if to != t.Self {
		return t.net.SendBody(ctx, to, offer, src)
	}
	_, reply := Receiver{t}.Offer(ctx, to, offer, &src.Manifest) // it is here already
	if reply.GetCode() != proto.CodeOK {
		return &transport.CodeError{Code: reply.GetCode(), Detail: reply.GetDetail(), State: reply.GetState()}
	}
	return nil
}
