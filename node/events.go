package node

import (
	"context"
	"sync"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// maxEvents is how many events of this boot are kept for readers that come late.
const maxEvents = 4096

// An eventLog numbers events and keeps the newest in memory. What has to survive a
// restart is in records and in the audit log.
type eventLog struct {
	clock clock.Clock

	mu   sync.Mutex
	last uint64           // number of the newest
	ring []wire.NodeEvent // the newest maxEvents, by number modulo its length
	more chan struct{}    // closed and replaced with each event
}

func newEventLog(clk clock.Clock) *eventLog {
	return &eventLog{clock: clk, more: make(chan struct{})}
}

// add numbers an event. It never blocks.
func (l *eventLog) add(e wire.NodeEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	e.Seq, e.Time = l.last, l.clock.Now().UTC()
	if len(l.ring) < maxEvents {
		l.ring = append(l.ring, e)
	} else {
		l.ring[(l.last-1)%maxEvents] = e
	}
	close(l.more)
	l.more = make(chan struct{})
}

// after returns up to limit events after seq, and a channel that is closed when there
// are more. A reader whose number is not of this boot begins at the first.
func (l *eventLog) after(seq uint64, limit int) (wire.EventPage, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := wire.EventPage{Items: []wire.NodeEvent{}, Next: seq}
	if seq > l.last {
		seq, p.Next = 0, 0
	}
	first := l.last - uint64(len(l.ring)) + 1
	if seq+1 < first {
		p.Missed = first - seq - 1
		seq = first - 1
	}
	for seq < l.last && len(p.Items) < limit {
		p.Items = append(p.Items, l.ring[seq%maxEvents])
		seq++
		p.Next = seq
	}
	return p, l.more
}

// Events returns the events after a number of this boot, at most limit of them
// (default 256, at most 1000). If there are none it waits for the next one, at most
// for wait. Boot tells a reader that the node has restarted.
func (n *Node) Events(ctx context.Context, after uint64, limit int, wait time.Duration) wire.EventPage {
	if limit <= 0 || limit > 1000 {
		limit = 256
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		p, more := n.events.after(after, limit)
		p.Boot = n.outbox.Boot()
		if len(p.Items) > 0 || p.Missed > 0 || wait <= 0 {
			return p
		}
		select {
		case <-more:
		case <-timer.C:
			return p
		case <-ctx.Done():
			return p
		}
	}
}

// addEvent adds an event about a peer.
func (n *Node) addEvent(kind string, p proto.PeerID, text string, fields map[string]string) {
	e := wire.NodeEvent{Kind: kind, Text: text, Fields: fields}
	if p != (proto.PeerID{}) {
		e.Peer, _ = n.book.Identify(p[:])
	}
	n.events.add(e)
}
