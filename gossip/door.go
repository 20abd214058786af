package gossip

import (
	"context"
	"sync"
	"time"

	"github.com/balefire/balefire/proto"
)

// What waits to be heard is bounded in all and for each peer, so that no one of them
// keeps the others from being heard.
const (
	maxWaiting         = 1024
	maxWaitingPeer     = 64
	maxWaitingSize     = 4 << 20 // bytes
	maxWaitingSizePeer = maxWaitingSize / 8
)

// door is where messages wait for the one goroutine that listens.
type door struct {
	mu      sync.Mutex
	waiting []guest
	of      map[proto.PeerID]share
	size    int
	knock   chan struct{}
}

// A share is what of all that waits is of one peer.
type share struct{ count, size int }

// A guest is a message: of a peer, or of the topic by its author.
type guest struct {
	from  proto.PeerID
	kind  proto.MessageType // 0: of the topic
	bytes []byte
}

func (d *door) init() { d.of, d.knock = make(map[proto.PeerID]share), make(chan struct{}, 1) }

// enter lets g wait; false: there are too many.
func (d *door) enter(g guest) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	its := d.of[g.from]
	its.count, its.size = its.count+1, its.size+len(g.bytes)
	if len(d.waiting) >= maxWaiting || its.count > maxWaitingPeer || its.size > maxWaitingSizePeer || d.size+len(g.bytes) > maxWaitingSize {
		return false
	}
	d.waiting = append(d.waiting, g)
	d.of[g.from] = its
	d.size += len(g.bytes)
	signal(d.knock)
	return true
}

// all returns who waits.
func (d *door) all() []guest {
	d.mu.Lock()
	defer d.mu.Unlock()
	guests := d.waiting
	d.waiting, d.size = nil, 0
	clear(d.of)
	return guests
}

// Control takes a PROBE or PROBED that from itself sent. It does not block.
func (r *Room) Control(from proto.PeerID, m *proto.Message) {
	if t := m.GetType(); t != proto.TypeProbe && t != proto.TypeProbed {
		r.met.refused.Inc()
		return
	}
	if !r.door.enter(guest{from: from, kind: m.GetType(), bytes: m.GetPayload()}) {
		r.met.dropped.Inc()
	}
}

// Heard takes a message of the topic that is valid. It does not block.
func (r *Room) Heard(author proto.PeerID, data []byte) {
	if author == r.keys.Peer() {
		return
	}
	if !r.door.enter(guest{from: author, bytes: data}) {
		r.met.dropped.Inc()
	}
}

// listen hears who waits at the door, one after another.
func (r *Room) listen(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.door.knock:
		}
		for _, g := range r.door.all() {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			r.hear(ctx, g)
		}
	}
}

// hear gives one message to the core. Only members are heard.
func (r *Room) hear(ctx context.Context, g guest) {
	if g.kind == 0 {
		r.hearTopic(ctx, g)
		return
	}
	if !r.ears.member(g.from, nil) {
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
		err = proto.DecodeKnown(g.bytes, &m)
		number, to, rumors = m.GetNumber(), m.GetTarget(), m.GetRumors()
	} else {
		var m proto.ProbeReply
		err = proto.DecodeKnown(g.bytes, &m)
		number, to, rumors, missed = m.GetNumber(), m.GetTarget(), m.GetRumors(), m.GetMissed()
	}
	if err == nil && len(to) > 0 {
		target, err = proto.PeerIDFrom(to)
	}
	if err != nil {
		r.met.refused.Inc()
		return
	}
	news, lacking := r.believe(ctx, rumors)
	r.step(func(now time.Duration) []Action {
		if g.kind == proto.TypeProbe {
			return r.core.Probe(now, g.from, number, target, news)
		}
		return r.core.Reply(now, g.from, number, target, missed, news)
	})
	if lacking {
		r.step(func(now time.Duration) []Action { return r.core.Lacking(now, g.from) })
	}
}

// hearTopic gives a message of the topic to the core.
func (r *Room) hearTopic(ctx context.Context, g guest) {
	var m proto.Rumors
	if len(g.bytes) > proto.MaxControl || proto.DecodeKnown(g.bytes, &m) != nil {
		r.met.refused.Inc()
		return
	}
	own := m.GetRumors()[:0]
	for _, rumor := range m.GetRumors() { // what Valid lets through; said again for who asks without it
		s := rumor.GetRecord()
		if s == nil {
			s = rumor.GetAccusation()
		}
		if p, err := proto.PeerIDFrom(s.GetSigner()); rumor.GetRevocation() != nil || err == nil && p == g.from {
			own = append(own, rumor)
		}
	}
	news, lacking := r.believe(ctx, own)
	if !r.ears.member(g.from, nil) {
		return // its introduction did not convince
	}
	r.step(func(now time.Duration) []Action { return r.core.Heard(now, g.from, news) })
	if len(m.GetRoot()) == 32 {
		r.rooted(g.from, [32]byte(m.GetRoot()))
	}
	if lacking {
		r.step(func(now time.Duration) []Action { return r.core.Lacking(now, g.from) })
	}
}

// rooted compares a root that another published with this node's.
func (r *Room) rooted(from proto.PeerID, root [32]byte) {
	r.step(func(now time.Duration) []Action {
		same := r.root() == root
		r.compared(now, same)
		return r.core.Rooted(now, from, same)
	})
}
