package outbox

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"sync"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// linkPrefix precedes a peer's id in Meta. The value is the highest sequence of
// tasks that may have been sent to the peer:
//
//	up 1 | boot 8 | counter 8
//
// While up is 1, every task may have been sent. The value is written when the
// link comes up and goes down, before the first frame and after the last, so that
// "never sent" is known after a restart without a write for each task.
const linkPrefix = "link"

// links records which peers are linked and what may have been sent.
type links struct {
	mu       *sync.Mutex
	boot     uint64
	restored uint64 // tasks of starts up to this one may have been sent, even if nothing is recorded
	peers    map[proto.PeerID]*link
}

type link struct {
	count int       // open links: briefly more than one when one replaces another
	sent  proto.Seq // highest sequence that may ever have been sent
}

func linkKey(p proto.PeerID) []byte { return append([]byte(linkPrefix), p[:]...) }

// readLinks reads the state of earlier starts. A link that was up when the node
// died may have sent everything until then.
func readLinks(s *store.Store, boot uint64) (links, error) {
	ls := links{mu: new(sync.Mutex), boot: boot, peers: map[proto.PeerID]*link{}}
	var err error
	if ls.restored, err = readNumber(s, restoredKey); err != nil {
		return ls, err
	}
	for p, err := range s.All(store.Meta, []byte(linkPrefix), store.PrefixEnd([]byte(linkPrefix))) {
		if err != nil {
			return ls, fmt.Errorf("read what was sent: %w", err)
		}
		id, err := proto.PeerIDFrom(p.Key[len(linkPrefix):])
		if err != nil || len(p.Val) != 17 {
			return ls, fmt.Errorf("read what was sent: %w: key %x", store.ErrCorrupt, p.Key)
		}
		l := &link{sent: proto.Seq{Boot: binary.BigEndian.Uint64(p.Val[1:]), Counter: binary.BigEndian.Uint64(p.Val[9:])}}
		if p.Val[0] != 0 {
			l.sent = proto.Seq{Boot: boot - 1, Counter: math.MaxUint64}
		}
		ls.peers[id] = l
	}
	return ls, nil
}

// linkUp records durably that tasks may be sent to p from now on.
func (o *Outbox) linkUp(ctx context.Context, p proto.PeerID) error {
	o.links.mu.Lock()
	l := o.links.peers[p]
	if l == nil {
		l = new(link)
		o.links.peers[p] = l
	}
	l.count++
	sent := l.sent
	o.links.mu.Unlock()
	if err := o.writeLink(ctx, p, true, sent); err != nil {
		o.links.mu.Lock()
		l.count--
		o.links.mu.Unlock()
		return fmt.Errorf("record that the link to %s is up: %w", p.Short(), err)
	}
	return nil
}

// linkDown records the highest sequence sent, once the last link to p is down.
func (o *Outbox) linkDown(p proto.PeerID) {
	o.links.mu.Lock()
	l := o.links.peers[p]
	l.count--
	last, sent := l.count == 0, l.sent
	o.links.mu.Unlock()
	if !last {
		return
	}
	o.submitted.forget(p)
	if err := o.writeLink(context.Background(), p, false, sent); err != nil {
		// The stored value is "up", which errs on the safe side.
		o.cfg.Logger.Warn("cannot record that a link is down", "peer", p, "err", err)
	}
}

func (o *Outbox) writeLink(ctx context.Context, p proto.PeerID, up bool, sent proto.Seq) error {
	val := make([]byte, 1, 17)
	if up {
		val[0] = 1
	}
	val = binary.BigEndian.AppendUint64(val, sent.Boot)
	val = binary.BigEndian.AppendUint64(val, sent.Counter)
	var b store.Batch
	b.Put(store.Meta, linkKey(p), val)
	return o.store.Apply(ctx, &b)
}

// noteSending records the highest sequence that is about to be sent to p.
func (ls *links) noteSending(p proto.PeerID, seq proto.Seq) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if l := ls.peers[p]; l != nil && l.sent.Compare(seq) < 0 {
		l.sent = seq
	}
}

// up reports whether a link to p is open.
func (ls *links) up(p proto.PeerID) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l := ls.peers[p]
	return l != nil && l.count > 0
}

// maybeSentBefore reports whether an earlier start may have sent the task with
// this sequence to p.
func (ls *links) maybeSentBefore(p proto.PeerID, seq proto.Seq) bool {
	switch {
	case seq.Boot >= ls.boot:
		return false
	case seq.Boot <= ls.restored:
		return true
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l := ls.peers[p]
	return l != nil && seq.Compare(l.sent) <= 0
}
