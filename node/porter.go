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

// A porter brings the bodies of tasks of queues, and of their results, that are too
// large for a message. Each goes over a chunk stream to whoever needs it, before the
// record that says that it has it; who offered it keeps it until then.
//
//	origin ── DATA ──▶ home ── GRANT ──▶ owner, when that asks (Claim.fetch)
//	                   home ◀── ENDED ── owner, before the result counts
//	             old home ── HANDOFF ──▶ new home, before that has the task
type porter struct {
	node *Node
	jobs chan func(context.Context)

	mu     sync.Mutex
	busy   map[errand]bool
	awaits map[proto.TaskID]*awaited      // bodies of what was granted to this node
	ours   map[proto.TaskID]bool          // tasks granted to this node whose body is here for that
	own    map[proto.TaskID]string        // results of runs here, by file
	ends   map[proto.TaskID][]string      // results of others that came here, whole or not, by file
	looked map[proto.TaskID]string        // those that are whole and right
	spoilt map[string]int                 // results that were not what they say, by file
	held   map[proto.TaskID]bool          // tasks in custody of a queue here
	coming map[proto.TaskID]time.Duration // tasks whose body comes, or came at that monotonic time
}

// An errand is a body on its way.
type errand struct {
	typ  proto.MessageType
	task proto.TaskID
	peer proto.PeerID
}

// An awaited body is that of a task that waits here for a slot.
type awaited struct {
	lease inbox.Leased
	queue string
	moved time.Duration // bytes came last, monotonic
}

const (
	maxErrands   = 4096             // that may wait to be begun; what finds no place is said again
	porterScan   = 5 * time.Second  // between two looks at what is awaited
	fetchStall   = 5 * time.Minute  // a body of which nothing comes for so long is awaited no more
	fetchAgain   = 30 * time.Second // after which its home may grant such a task to this node again
	comingFor    = time.Minute      // a task follows its body within this, or holds no place
	packTries    = 6                // to keep a result for which there is no room
	packPause    = time.Second      // after the first of them; it doubles
	maxSpoilt    = 2                // times that a result may turn out to be another
	maxRemembers = 4096             // results of others that were looked through
)

func newPorter(n *Node) *porter {
	return &porter{
		node: n, jobs: make(chan func(context.Context), maxErrands), busy: map[errand]bool{}, awaits: map[proto.TaskID]*awaited{},
		ours: map[proto.TaskID]bool{}, own: map[proto.TaskID]string{}, ends: map[proto.TaskID][]string{}, looked: map[proto.TaskID]string{}, spoilt: map[string]int{},
		held: map[proto.TaskID]bool{}, coming: map[proto.TaskID]time.Duration{},
	}
}

// open learns which bodies the room needs. The room does not run yet.
func (p *porter) open() {
	room := p.node.queues.driver
	room.Results(func(id proto.TaskID, o *proto.Outcome) {
		if key := o.GetBodyKey(); len(key) > 0 {
			p.own[id] = leasedBlob(id, key)
		}
	})
	room.PendingProbes(func(id proto.TaskID) { p.ours[id] = true })
}

// run does errands until ctx is done.
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

// send has a job done soon, if there is room for one.
func (p *porter) send(job func(context.Context)) bool {
	select {
	case p.jobs <- job:
		return true
	default:
		return false
	}
}

// once has a job done unless the same errand is under way.
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

// taskOf returns the task whose lease a file is about; granted: it is its body, else a
// result.
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

// keeps reports whether a file is one that a lease needs: a sweep must leave it.
func (p *porter) keeps(name string) bool {
	id, granted, ok := taskOf(name)
	p.mu.Lock()
	defer p.mu.Unlock()
	return ok && (granted && p.ours[id] || !granted && (p.own[id] == name || p.looked[id] == name))
}

// given reports whether nobody awaits the rest of a body any more: of a task that this
// node does not have any more, or of a result of one that has ended here.
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

// Offer offers the body of a task whose cell is here to its owner.
func (p *porter) Offer(id proto.TaskID, owner proto.PeerID) {
	p.once(errand{proto.TypeGrant, id, owner}, func(ctx context.Context) {
		env, err := custody{p.node}.Envelope(id, owner)
		if err == nil {
			err = p.carry(ctx, owner, proto.TypeGrant, env, inbox.BodyName(id))
		}
		if err != nil && ctx.Err() == nil {
			p.node.log.Debug("the body of a granted task could not be brought to its owner", "task", id.String(), "owner", owner, "err", err)
		}
	})
}

// SendBodyFirst brings the body of an envelope to a peer, if it has one, and then calls after:
// also when the peer wants no body, for it says why in answer to the message itself.
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
			p.node.log.Debug("a body could not be brought", "for", t.String(), "task", id.String(), "to", to, "err", err)
		}
	})
}

func (p *porter) carry(ctx context.Context, to proto.PeerID, t proto.MessageType, e *proto.Envelope, name string) error {
	return bodyFiles{p.node}.Send(ctx, to, &proto.Offer{Type: t, Envelope: e}, name)
}

// Forget lets the result of a run here go that is not needed any more. If this node is
// the home of its task too the outbox has it now.
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

// discard removes a body that nobody needs here, whole or in part, unless it is needed
// again by then.
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
			p.node.log.Debug("a body that nobody needs is left to the sweep", "blob", name, "err", err)
		}
	})
}

// scan gives back what waits in vain for its body, and asks again for the others.
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
		id, why := a.lease.ID, fmt.Sprintf("nothing of its body came for %s", fetchStall)
		if a.lease.Asked { // its handler cannot be asked without it
			p.stop(id)
			p.node.queues.Probed(ctx, id, inbox.Unknown, new(proto.Outcome))
			continue
		}
		err := p.node.queues.driver.Return(ctx, id, why, uint64(fetchAgain.Milliseconds()))
		if err != nil && !errors.Is(err, ownership.ErrStopped) && ctx.Err() == nil {
			p.node.log.Warn("a task whose body does not come could not be given back", "task", id.String(), "err", err)
		}
		p.stop(id)
	}
}
