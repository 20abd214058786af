package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/ownership"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/queue"
	"github.com/balefire/balefire/store/blob"
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
	granted      map[proto.TaskID]bool          // tasks granted to this node whose body is stored here for the run
	ownResults   map[proto.TaskID]string        // file of the result of a run on this node
	ownerResults map[proto.TaskID][]string      // files of results received here, complete or not
	verified     map[proto.TaskID]string        // file of the result that is complete and verified
	corrupt      map[string]int                 // failed verifications of a result, by file
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
		granted: map[proto.TaskID]bool{}, ownResults: map[proto.TaskID]string{}, ownerResults: map[proto.TaskID][]string{}, verified: map[proto.TaskID]string{}, corrupt: map[string]int{},
		queued: map[proto.TaskID]bool{}, arriving: map[proto.TaskID]time.Duration{},
	}
}

// open reads which bodies the ownership subsystem needs, before that runs.
func (bt *bodyTransfer) open() {
	driver := bt.node.queues.Driver
	driver.Results(func(id proto.TaskID, o *proto.Outcome) {
		if key := o.GetBodyKey(); len(key) > 0 {
			bt.ownResults[id] = leasedBlob(id, key)
		}
	})
	driver.PendingProbes(func(id proto.TaskID) { bt.granted[id] = true })
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

// taskOfBlob returns the task to whose lease a file belongs. granted is true for the body of
// the task and false for a result.
func taskOfBlob(name string) (id proto.TaskID, granted, ok bool) {
	text, granted := strings.CutPrefix(name, grantedPrefix)
	if !granted {
		if text, ok = strings.CutPrefix(name, leasedPrefix); !ok {
			return id, false, false
		}
	}
	id, err := proto.ParseTaskID(text[:min(len(text), len(id.String()))])
	return id, granted, err == nil
}

// inUse reports whether a lease needs the file, so that a sweep must keep it.
func (bt *bodyTransfer) inUse(name string) bool {
	id, granted, ok := taskOfBlob(name)
	bt.mu.Lock()
	defer bt.mu.Unlock()
	return ok && (granted && bt.granted[id] || !granted && (bt.ownResults[id] == name || bt.verified[id] == name))
}

// abandoned reports whether the rest of a body is no longer awaited: the task is no longer
// on this node, or the result belongs to a task that has ended here.
func (bt *bodyTransfer) abandoned(name string) bool {
	id, granted, ok := taskOfBlob(name)
	if !ok {
		return false
	}
	if granted {
		return !bt.inUse(name)
	}
	return !bt.node.inbox.Holds(inbox.BodyName(id))
}

// Offer sends the body of a task whose home is this node to its owner.
func (bt *bodyTransfer) Offer(id proto.TaskID, owner proto.PeerID) {
	bt.enqueueOnce(transferKey{proto.TypeGrant, id, owner}, func(ctx context.Context) {
		env, err := (queue.Custody{Queues: bt.node.queues}).Envelope(id, owner)
		if err == nil {
			err = bt.send(ctx, owner, proto.TypeGrant, env, inbox.BodyName(id))
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
	name := inbox.BodyName(id)
	if t == proto.TypeEnded {
		bt.mu.Lock()
		name = bt.ownResults[id]
		bt.mu.Unlock()
	}
	bt.enqueueOnce(transferKey{t, id, to}, func(ctx context.Context) {
		err := bt.send(ctx, to, t, e, name)
		if _, refused := errors.AsType[*transport.CodeError](err); err == nil || refused {
			after()
		}
		if err != nil && ctx.Err() == nil {
			bt.node.log.Debug("could not send a body", "for", t.String(), "task", id.String(), "to", to, "err", err)
		}
	})
}

func (bt *bodyTransfer) send(ctx context.Context, to proto.PeerID, t proto.MessageType, e *proto.Envelope, name string) error {
	return outboxBodies{bt.node}.Send(ctx, to, &proto.Offer{Type: t, Envelope: e}, name)
}

// Forget removes the result of a run on this node that is no longer needed. If this node
// is also the home of the task, the outbox has it now.
func (bt *bodyTransfer) Forget(id proto.TaskID, o *proto.Outcome) {
	key := o.GetBodyKey()
	if len(key) == 0 {
		return
	}
	name := leasedBlob(id, key)
	bt.mu.Lock()
	if bt.ownResults[id] == name {
		delete(bt.ownResults, id)
	}
	bt.mu.Unlock()
	if !bt.node.outbox.HasPendingResult(id) {
		bt.node.bodyGC.drop(name)
	}
}

// discard removes a complete or partial body, unless it is needed again by then.
func (bt *bodyTransfer) discard(name string) {
	bt.enqueue(func(ctx context.Context) {
		if bt.inUse(name) {
			return
		}
		err := bt.node.storage.Blobs.Delete(name)
		if err == nil || errors.Is(err, blob.ErrNotFound) {
			err = bt.node.dropProgress(ctx, name)
		}
		if err != nil {
			bt.node.log.Debug("could not remove an unneeded body; the sweep will", "blob", name, "err", err)
		}
	})
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
		bt.enqueue(func(context.Context) { bt.node.queues.Driver.Fetch(id, true) })
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
			bt.node.queues.Probed(ctx, id, handler.Unknown, new(proto.Outcome))
			continue
		}
		err := bt.node.queues.Driver.Return(ctx, id, why, uint64(fetchRetry.Milliseconds()))
		if err != nil && !errors.Is(err, ownership.ErrStopped) && ctx.Err() == nil {
			bt.node.log.Warn("could not return a task whose body does not arrive", "task", id.String(), "err", err)
		}
		bt.Stop(id)
	}
}
