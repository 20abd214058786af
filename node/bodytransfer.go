package node

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/balefire/balefire/bodies"
	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/ownership"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/queue"
	"github.com/balefire/balefire/transport"
)

// A bodyTransfer transfers the bodies of queue tasks and of their results that are too large
// for a message. Each goes over a chunk stream to the node that needs it, before the
// record that refers to it is committed there; the sender keeps it until then.
//
//	origin ── DATA ──▶ home ── GRANT ──▶ owner, when the owner asks (Claim.fetch)
//	                   home ◀── ENDED ── owner, before the result counts
//	             old home ── HANDOFF ──▶ new home, before it has the task
type bodyTransfer struct {
	node *Node
	jobs chan func(context.Context)

	mu           sync.Mutex
	busy         map[transferKey]bool
	fetching     map[proto.TaskID]*bodyFetch    // bodies of tasks granted to this node that have not arrived yet
	granted      map[proto.TaskID]string        // file of the body of a task granted to this node, for the run
	ownResults   map[proto.TaskID]string        // file of the result of a run on this node
	ownerResults map[proto.TaskID][]string      // files of results received here, complete or not
	verified     map[proto.TaskID]string        // file of the result that is complete and verified
	corrupt      map[string]int                 // failed verifications of a result, by file
	damaged      map[proto.TaskID]bool          // results of runs on this node that the disk no longer has as they were
	queued       map[proto.TaskID]bool          // tasks of queues with a large body stored here
	arriving     map[proto.TaskID]time.Duration // 0: the body is arriving; else the monotonic time of its arrival
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
	queue      string
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

func newBodyTransfer(n *Node) *bodyTransfer {
	return &bodyTransfer{
		node: n, jobs: make(chan func(context.Context), maxTransfers), busy: map[transferKey]bool{}, fetching: map[proto.TaskID]*bodyFetch{},
		granted: map[proto.TaskID]string{}, ownResults: map[proto.TaskID]string{}, ownerResults: map[proto.TaskID][]string{}, verified: map[proto.TaskID]string{}, corrupt: map[string]int{}, damaged: map[proto.TaskID]bool{},
		queued: map[proto.TaskID]bool{}, arriving: map[proto.TaskID]time.Duration{},
	}
}

// open reads which bodies the ownership subsystem needs, before that runs.
func (bt *bodyTransfer) open() {
	driver := bt.node.Queues.Driver
	driver.Results(func(id proto.TaskID, o *proto.Outcome) {
		if name := fileOf(o.GetObject()); name != "" {
			bt.ownResults[id] = name
		}
	})
	driver.PendingProbes(func(id proto.TaskID, g *proto.Grant) {
		if h, err := proto.ParseHeader(g.GetEnvelope().GetHeader()); err == nil && h.Streamed() {
			bt.granted[id] = objectOf(&h)
		}
	})
}

// run runs transfers until ctx is done.
func (bt *bodyTransfer) run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	tick := time.NewTicker(fetchScan)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case job := <-bt.jobs:
			wg.Go(func() { job(ctx) })
		case <-tick.C:
			bt.scan(ctx)
		}
	}
}

// enqueue queues a job and reports whether there was room for it.
func (bt *bodyTransfer) enqueue(job func(context.Context)) bool {
	select {
	case bt.jobs <- job:
		return true
	default:
		return false
	}
}

// enqueueOnce queues a job unless the same transfer is in progress.
func (bt *bodyTransfer) enqueueOnce(e transferKey, job func(context.Context)) {
	bt.mu.Lock()
	defer bt.mu.Unlock()
	if bt.busy[e] {
		return
	}
	bt.busy[e] = bt.enqueue(func(ctx context.Context) {
		defer func() {
			bt.mu.Lock()
			defer bt.mu.Unlock()
			delete(bt.busy, e)
		}()
		job(ctx)
	})
	if !bt.busy[e] {
		delete(bt.busy, e)
	}
}

// mark calls refer for each body that a lease needs.
func (bt *bodyTransfer) mark(refer func(name string)) {
	bt.mu.Lock()
	defer bt.mu.Unlock()
	for _, names := range []map[proto.TaskID]string{bt.granted, bt.ownResults, bt.verified} {
		for _, name := range names {
			refer(name)
		}
	}
}

// isGranted reports whether a task with a large body was granted to this node.
func (bt *bodyTransfer) isGranted(id proto.TaskID) bool {
	bt.mu.Lock()
	defer bt.mu.Unlock()
	return bt.granted[id] != ""
}

// Offer sends the body of a task whose home is this node to its owner.
func (bt *bodyTransfer) Offer(id proto.TaskID, owner proto.PeerID) {
	bt.enqueueOnce(transferKey{proto.TypeGrant, id, owner}, func(ctx context.Context) {
		env, err := (queue.Custody{Queues: bt.node.Queues}).Envelope(id, owner)
		if err == nil {
			err = bt.send(ctx, owner, proto.TypeGrant, env)
		}
		if err != nil && ctx.Err() == nil {
			bt.node.log.Debug("could not send the body of a granted task to its owner", "task", id.String(), "owner", owner, "err", err)
		}
	})
}

// SendBodyFirst sends the body of an envelope to a peer, if it has one, and then calls
// after. It also calls after when the peer refuses the body, because the peer states its
// reason in the answer to the message itself.
func (bt *bodyTransfer) SendBodyFirst(to proto.PeerID, t proto.MessageType, id proto.TaskID, e *proto.Envelope, after func()) {
	h, err := proto.ParseHeader(e.GetHeader())
	if err != nil || !h.Streamed() {
		after()
		return
	}
	bt.enqueueOnce(transferKey{t, id, to}, func(ctx context.Context) {
		err := bt.send(ctx, to, t, e)
		if errors.Is(err, bodies.ErrDamaged) && t == proto.TypeEnded {
			bt.setDamaged(id) // it is sent again without the body
		}
		if _, refused := errors.AsType[*transport.CodeError](err); err == nil || refused {
			after()
		}
		if err != nil && ctx.Err() == nil {
			bt.node.log.Debug("could not send a body", "for", t.String(), "task", id.String(), "to", to, "err", err)
		}
	})
}

func (bt *bodyTransfer) send(ctx context.Context, to proto.PeerID, t proto.MessageType, e *proto.Envelope) error {
	h, err := proto.ParseHeader(e.GetHeader())
	if err != nil {
		return err
	}
	return outboxBodies{bt.node}.Send(ctx, to, &proto.Offer{Type: t, Envelope: e}, objectOf(&h))
}

func (bt *bodyTransfer) setDamaged(id proto.TaskID) {
	bt.node.log.Error("the result of a run is damaged on the disk", "task", id.String())
	bt.mu.Lock()
	defer bt.mu.Unlock()
	bt.damaged[id] = true
}

// Object returns the name and the size of the result of a run on this node, or its
// outcome without it if it is damaged.
func (bt *bodyTransfer) Object(id proto.TaskID, o *proto.Outcome) (name [32]byte, size int64, lost *proto.Outcome) {
	bt.mu.Lock()
	damaged := bt.damaged[id]
	bt.mu.Unlock()
	m, err := bt.node.storage.Blobs.Manifest(fileOf(o.GetObject()))
	if err != nil || damaged {
		return name, 0, damagedOutcome(o)
	}
	return m.Name(), m.Size, nil
}

// damagedOutcome is the outcome of a run whose result is lost (I9).
func damagedOutcome(o *proto.Outcome) *proto.Outcome {
	sum := sha256.Sum256(nil)
	return &proto.Outcome{
		State: proto.DeadLetter, Reason: damagedReason, BodyDigest: sum[:], BootId: o.GetBootId(), LeaseToken: o.GetLeaseToken(),
		EpochBoot: o.GetEpochBoot(), EpochCounter: o.GetEpochCounter(), StartedMs: o.GetStartedMs(), FinishedMs: o.GetFinishedMs(),
	}
}

const damagedReason = "its result does not match its digest (I9)"

// Forget removes the result of a run on this node that is no longer needed. If this node
// is also the home of the task, the outbox refers to it now.
func (bt *bodyTransfer) Forget(id proto.TaskID, o *proto.Outcome) {
	name := fileOf(o.GetObject())
	if name == "" {
		return
	}
	bt.mu.Lock()
	if bt.ownResults[id] == name {
		delete(bt.ownResults, id)
		delete(bt.damaged, id)
	}
	bt.mu.Unlock()
	bt.node.storage.Blobs.Drop(name)
}

// scan returns to their homes the tasks whose body does not arrive, and requests the
// other awaited bodies again.
func (bt *bodyTransfer) scan(ctx context.Context) {
	now := bt.node.cfg.Clock.Mono()
	var stalled []*bodyFetch
	bt.mu.Lock()
	for id, a := range bt.fetching {
		if now-a.progressAt >= fetchStall {
			stalled = append(stalled, a)
			continue
		}
		bt.enqueue(func(context.Context) { bt.node.Queues.Driver.Fetch(id, true) })
	}
	for id, since := range bt.arriving {
		if since > 0 && now-since > arrivalTTL {
			delete(bt.arriving, id)
		}
	}
	if len(bt.verified) > maxVerified {
		clear(bt.verified)
	}
	if len(bt.corrupt) > maxVerified {
		clear(bt.corrupt)
	}
	bt.mu.Unlock()
	for _, a := range stalled {
		id, why := a.lease.ID, fmt.Sprintf("no bytes of its body arrived for %s", fetchStall)
		if a.lease.ProbeOnly { // its handler cannot be probed without the body
			bt.Stop(id)
			bt.node.Queues.Probed(ctx, id, handler.Unknown, new(proto.Outcome))
			continue
		}
		err := bt.node.Queues.Driver.Return(ctx, id, why, uint64(fetchRetry.Milliseconds()))
		if err != nil && !errors.Is(err, ownership.ErrStopped) && ctx.Err() == nil {
			bt.node.log.Warn("could not return a task whose body does not arrive", "task", id.String(), "err", err)
		}
		bt.Stop(id)
	}
}
