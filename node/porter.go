package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/ownership"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/blob"
	"github.com/balefire/balefire/transport"
)

// A porter transfers the bodies of queue tasks and of their results that are too large
// for a message. Each goes over a chunk stream to the node that needs it, before the
// record that refers to it is committed there; the sender keeps it until then.
//
//	origin ── DATA ──▶ home ── GRANT ──▶ owner, when the owner asks (Claim.fetch)
//	                   home ◀── ENDED ── owner, before the result counts
//	             old home ── HANDOFF ──▶ new home, before it has the task
type porter struct {
	node *Node
	jobs chan func(context.Context)

	mu     sync.Mutex
	busy   map[errand]bool
	awaits map[proto.TaskID]*awaited      // bodies of tasks granted to this node, still to come
	ours   map[proto.TaskID]bool          // tasks granted to this node whose body is stored here for the run
	own    map[proto.TaskID]string        // file of the result of a run on this node
	ends   map[proto.TaskID][]string      // files of results received here, complete or not
	looked map[proto.TaskID]string        // file of the result that is complete and verified
	spoilt map[string]int                 // failed verifications of a result, by file
	held   map[proto.TaskID]bool          // tasks of queues with a large body stored here
	coming map[proto.TaskID]time.Duration // 0: the body is arriving; else the monotonic time of its arrival
}

// An errand identifies one transfer of a body.
type errand struct {
	typ  proto.MessageType
	task proto.TaskID
	peer proto.PeerID
}

// An awaited is a granted task that waits for its body before it can wait for a slot.
type awaited struct {
	lease inbox.Leased
	queue string
	moved time.Duration // monotonic time of the latest progress
}

const (
	maxErrands   = 4096             // transfers that may wait to start; a dropped one is requested again
	porterScan   = 5 * time.Second  // interval between checks of awaited bodies
	fetchStall   = 5 * time.Minute  // without progress for this long, a body is given up
	fetchAgain   = 30 * time.Second // time until the home may grant such a task to this node again
	comingFor    = time.Minute      // time in which a task must follow its body to keep its place
	packTries    = 6                // attempts to store a result when there is no space
	packPause    = time.Second      // pause after the first attempt; it doubles each time
	maxSpoilt    = 2                // failed verifications until a result is rejected
	maxRemembers = 4096             // bound of each of the maps looked and spoilt
)

func newPorter(n *Node) *porter {
	return &porter{
		node: n, jobs: make(chan func(context.Context), maxErrands), busy: map[errand]bool{}, awaits: map[proto.TaskID]*awaited{},
		ours: map[proto.TaskID]bool{}, own: map[proto.TaskID]string{}, ends: map[proto.TaskID][]string{}, looked: map[proto.TaskID]string{}, spoilt: map[string]int{},
		held: map[proto.TaskID]bool{}, coming: map[proto.TaskID]time.Duration{},
	}
}

// open reads which bodies the ownership subsystem needs, before that runs.
func (p *porter) open() {
	room := p.node.queues.driver
	room.Results(func(id proto.TaskID, o *proto.Outcome) {
		if key := o.GetBodyKey(); len(key) > 0 {
			p.own[id] = leasedBlob(id, key)
		}
	})
	room.PendingProbes(func(id proto.TaskID) { p.ours[id] = true })
}

// run runs transfers until ctx is done.
func (p *porter) run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	tick := time.NewTicker(porterScan)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case job := <-p.jobs:
			wg.Go(func() { job(ctx) })
		case <-tick.C:
			p.scan(ctx)
		}
	}
}

// send queues a job and reports whether there was room for it.
func (p *porter) send(job func(context.Context)) bool {
	select {
	case p.jobs <- job:
		return true
	default:
		return false
	}
}

// once queues a job unless the same transfer is in progress.
func (p *porter) once(e errand, job func(context.Context)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busy[e] {
		return
	}
	p.busy[e] = p.send(func(ctx context.Context) {
		defer func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			delete(p.busy, e)
		}()
		job(ctx)
	})
	if !p.busy[e] {
		delete(p.busy, e)
	}
}

// taskOf returns the task to whose lease a file belongs. granted is true for the body of
// the task and false for a result.
func taskOf(name string) (id proto.TaskID, granted, ok bool) {
	text, granted := strings.CutPrefix(name, grantedPrefix)
	if !granted {
		if text, ok = strings.CutPrefix(name, leasedPrefix); !ok {
			return id, false, false
		}
	}
	id, err := proto.ParseTaskID(text[:min(len(text), len(id.String()))])
	return id, granted, err == nil
}

// keeps reports whether a lease needs the file, so that a sweep must keep it.
func (p *porter) keeps(name string) bool {
	id, granted, ok := taskOf(name)
	p.mu.Lock()
	defer p.mu.Unlock()
	return ok && (granted && p.ours[id] || !granted && (p.own[id] == name || p.looked[id] == name))
}

// given reports whether the rest of a body is no longer awaited: the task is no longer
// on this node, or the result belongs to a task that has ended here.
func (p *porter) given(name string) bool {
	id, granted, ok := taskOf(name)
	if !ok {
		return false
	}
	if granted {
		return !p.keeps(name)
	}
	return !p.node.inbox.Holds(inbox.BodyName(id))
}

// Offer sends the body of a task whose home is this node to its owner.
func (p *porter) Offer(id proto.TaskID, owner proto.PeerID) {
	p.once(errand{proto.TypeGrant, id, owner}, func(ctx context.Context) {
		env, err := custody{p.node}.Envelope(id, owner)
		if err == nil {
			err = p.carry(ctx, owner, proto.TypeGrant, env, inbox.BodyName(id))
		}
		if err != nil && ctx.Err() == nil {
			p.node.log.Debug("could not send the body of a granted task to its owner", "task", id.String(), "owner", owner, "err", err)
		}
	})
}

// SendBodyFirst sends the body of an envelope to a peer, if it has one, and then calls
// after. It also calls after when the peer refuses the body, because the peer states its
// reason in the answer to the message itself.
func (p *porter) SendBodyFirst(to proto.PeerID, t proto.MessageType, id proto.TaskID, e *proto.Envelope, after func()) {
	h, err := proto.ParseHeader(e.GetHeader())
	if err != nil || !h.Streamed() {
		after()
		return
	}
	name := inbox.BodyName(id)
	if t == proto.TypeEnded {
		p.mu.Lock()
		name = p.own[id]
		p.mu.Unlock()
	}
	p.once(errand{t, id, to}, func(ctx context.Context) {
		err := p.carry(ctx, to, t, e, name)
		if _, refused := errors.AsType[*transport.CodeError](err); err == nil || refused {
			after()
		}
		if err != nil && ctx.Err() == nil {
			p.node.log.Debug("could not send a body", "for", t.String(), "task", id.String(), "to", to, "err", err)
		}
	})
}

func (p *porter) carry(ctx context.Context, to proto.PeerID, t proto.MessageType, e *proto.Envelope, name string) error {
	return bodyFiles{p.node}.Send(ctx, to, &proto.Offer{Type: t, Envelope: e}, name)
}

// Forget removes the result of a run on this node that is no longer needed. If this node
// is also the home of the task, the outbox has it now.
func (p *porter) Forget(id proto.TaskID, o *proto.Outcome) {
	key := o.GetBodyKey()
	if len(key) == 0 {
		return
	}
	name := leasedBlob(id, key)
	p.mu.Lock()
	if p.own[id] == name {
		delete(p.own, id)
	}
	p.mu.Unlock()
	if !p.node.outbox.HasPendingResult(id) {
		p.node.house.drop(name)
	}
}

// discard removes a complete or partial body, unless it is needed again by then.
func (p *porter) discard(name string) {
	p.send(func(ctx context.Context) {
		if p.keeps(name) {
			return
		}
		err := p.node.ground.blobs.Delete(name)
		if err == nil || errors.Is(err, blob.ErrNotFound) {
			err = p.node.forgetProgress(ctx, name)
		}
		if err != nil {
			p.node.log.Debug("could not remove an unneeded body; the sweep will", "blob", name, "err", err)
		}
	})
}

// scan returns tasks whose body does not arrive to their homes, and requests the other
// awaited bodies again.
func (p *porter) scan(ctx context.Context) {
	now := p.node.cfg.Clock.Mono()
	var stalled []*awaited
	p.mu.Lock()
	for id, a := range p.awaits {
		if now-a.moved >= fetchStall {
			stalled = append(stalled, a)
			continue
		}
		p.send(func(context.Context) { p.node.queues.driver.Fetch(id, true) })
	}
	for id, since := range p.coming {
		if since > 0 && now-since > comingFor {
			delete(p.coming, id)
		}
	}
	if len(p.looked) > maxRemembers {
		clear(p.looked)
	}
	if len(p.spoilt) > maxRemembers {
		clear(p.spoilt)
	}
	p.mu.Unlock()
	for _, a := range stalled {
		id, why := a.lease.ID, fmt.Sprintf("no bytes of its body arrived for %s", fetchStall)
		if a.lease.ProbeOnly { // its handler cannot be probed without the body
			p.stop(id)
			p.node.queues.Probed(ctx, id, inbox.Unknown, new(proto.Outcome))
			continue
		}
		err := p.node.queues.driver.Return(ctx, id, why, uint64(fetchAgain.Milliseconds()))
		if err != nil && !errors.Is(err, ownership.ErrStopped) && ctx.Err() == nil {
			p.node.log.Warn("could not return a task whose body does not arrive", "task", id.String(), "err", err)
		}
		p.stop(id)
	}
}
