package gossip

import (
	"context"
	"sync"
	"time"

	"github.com/balefire/balefire/proto"
)

// Bounds of the queue of received messages, in total and per peer, so that no peer can
// crowd out the others.
const (
	maxWaiting         = 1024
	maxWaitingPeer     = 64
	maxWaitingSize     = 4 << 20 // bytes
	maxWaitingSizePeer = maxWaitingSize / 8
)

// An inQueue holds received messages for the goroutine that processes them.
type inQueue struct {
	mu      sync.Mutex
	waiting []inMsg
	byPeer  map[proto.PeerID]usage
	size    int
	wake    chan struct{}
}

// usage is one peer's part of the queue.
type usage struct{ count, size int }

// An inMsg is a message from a peer, or one that it published on the topic.
type inMsg struct {
	from    proto.PeerID
	kind    proto.MessageType // 0: a topic message
	payload []byte
}

func (d *inQueue) init() { d.byPeer, d.wake = make(map[proto.PeerID]usage), make(chan struct{}, 1) }

// put queues g; false: the queue is full.
func (d *inQueue) put(g inMsg) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	its := d.byPeer[g.from]
	its.count, its.size = its.count+1, its.size+len(g.payload)
	if len(d.waiting) >= maxWaiting || its.count > maxWaitingPeer || its.size > maxWaitingSizePeer || d.size+len(g.payload) > maxWaitingSize {
		return false
	}
	d.waiting = append(d.waiting, g)
	d.byPeer[g.from] = its
	d.size += len(g.payload)
	signal(d.wake)
	return true
}

// take returns and removes all queued messages.
func (d *inQueue) take() []inMsg {
	d.mu.Lock()
	defer d.mu.Unlock()
	guests := d.waiting
	d.waiting, d.size = nil, 0
	clear(d.byPeer)
	return guests
}

// Control queues a PROBE or PROBED sent by from itself. It does not block.
func (r *Runner) Control(from proto.PeerID, m *proto.Message) {
	if t := m.GetType(); t != proto.TypeProbe && t != proto.TypeProbed {
		r.met.refused.Inc()
		return
	}
	if !r.in.put(inMsg{from: from, kind: m.GetType(), payload: m.GetPayload()}) {
		r.met.dropped.Inc()
	}
}

// TopicMessage queues a valid message of the topic. It does not block.
func (r *Runner) TopicMessage(author proto.PeerID, data []byte) {
	if author == r.keys.Peer() {
		return
	}
	if !r.in.put(inMsg{from: author, payload: data}) {
		r.met.dropped.Inc()
	}
}

// receiveLoop processes queued messages, one at a time.
func (r *Runner) receiveLoop(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.in.wake:
		}
		for _, g := range r.in.take() {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			r.receive(ctx, g)
		}
	}
}

// receive passes one message to the core. Messages from strangers are dropped.
func (r *Runner) receive(ctx context.Context, g inMsg) {
	if g.kind == 0 {
		r.receiveTopic(ctx, g)
		return
	}
	if !r.verifier.member(g.from) {
		r.met.strangers.Inc()
		return
	}
	var number uint64
	var target proto.PeerID
	var rumors []*proto.Rumor
	var missed bool
	var to []byte
	var err error
	if g.kind == proto.TypeProbe {
		var m proto.Probe
		err = proto.DecodeKnown(g.payload, &m)
		number, to, rumors = m.GetNumber(), m.GetTarget(), m.GetRumors()
	} else {
		var m proto.ProbeReply
		err = proto.DecodeKnown(g.payload, &m)
		number, to, rumors, missed = m.GetNumber(), m.GetTarget(), m.GetRumors(), m.GetMissed()
	}
	if err == nil && len(to) > 0 {
		target, err = proto.PeerIDFrom(to)
	}
	if err != nil {
		r.met.refused.Inc()
		return
	}
	updates, missing := r.verifyRumors(ctx, rumors)
	r.step(func(now time.Duration) []Action {
		if g.kind == proto.TypeProbe {
			return r.core.Probe(now, g.from, number, target, updates)
		}
		return r.core.Reply(now, g.from, number, target, missed, updates)
	})
	if missing {
		r.step(func(now time.Duration) []Action { return r.core.NeedsSync(now, g.from) })
	}
}

// receiveTopic passes a message of the topic to the core.
func (r *Runner) receiveTopic(ctx context.Context, g inMsg) {
	var m proto.Rumors
	if len(g.payload) > proto.MaxControl || proto.DecodeKnown(g.payload, &m) != nil {
		r.met.refused.Inc()
		return
	}
	own := m.GetRumors()[:0]
	for _, rumor := range m.GetRumors() { // Valid has checked this already; repeated for callers that skip it
		s := rumor.GetRecord()
		if s == nil {
			s = rumor.GetAccusation()
		}
		if p, err := proto.PeerIDFrom(s.GetSigner()); rumor.GetRevocation() != nil || err == nil && p == g.from {
			own = append(own, rumor)
		}
	}
	updates, missing := r.verifyRumors(ctx, own)
	if !r.verifier.member(g.from) {
		return // not introduced as a member
	}
	r.step(func(now time.Duration) []Action { return r.core.Updates(now, g.from, updates) })
	if len(m.GetRoot()) == 32 {
		r.compareRoot(g.from, [32]byte(m.GetRoot()))
	}
	if missing {
		r.step(func(now time.Duration) []Action { return r.core.NeedsSync(now, g.from) })
	}
}

// compareRoot compares another node's published root with this node's.
func (r *Runner) compareRoot(from proto.PeerID, root [32]byte) {
	r.step(func(now time.Duration) []Action {
		same := r.root() == root
		r.rootCompared(now, same)
		return r.core.RootReceived(now, from, same)
	})
}
