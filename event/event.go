// Package event keeps the newest events of a node in memory, numbered, for readers that
// follow them. What has to survive a restart is in records and in the audit.
package event

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// maxEvents is how many events of this boot are kept for readers that come late.
const maxEvents = 4096

// A Log holds events. Its methods are safe for concurrent use.
type Log struct {
	Boot  uint64                             // number of this start of the node; set before the first reader
	Name  func(key []byte) (name, id string) // of a peer; set before the first event of one
	clock clock.Clock

	mu   sync.Mutex
	last uint64           // number of the newest
	ring []wire.NodeEvent // the newest maxEvents, by number modulo its length
	more chan struct{}    // closed and replaced with each event
}

// New returns an empty log.
func New(clk clock.Clock) *Log {
	return &Log{clock: clk, more: make(chan struct{})}
}

// add numbers an event.
func (l *Log) add(e wire.NodeEvent) {
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
func (l *Log) after(seq uint64, limit int) (wire.EventPage, <-chan struct{}) {
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

// Read returns the events after a number of this boot, at most limit of them
// (default 256, at most 1000). If there are none it waits for the next one, at most
// for wait. Boot tells a reader that the node has restarted.
func (l *Log) Read(ctx context.Context, after uint64, limit int, wait time.Duration) wire.EventPage {
	if limit <= 0 || limit > 1000 {
		limit = 256
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		p, more := l.after(after, limit)
		p.Boot = l.Boot
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

// An AddFunc adds an event: see [Log.Add].
type AddFunc func(kind string, p proto.PeerID, fields map[string]string)

// Add adds an event, about a peer unless p is zero, with the fields that are not empty. It
// never blocks.
func (l *Log) Add(kind string, p proto.PeerID, fields map[string]string) {
	maps.DeleteFunc(fields, func(_, value string) bool { return value == "" })
	e := wire.NodeEvent{Kind: kind, Fields: fields}
	if p != (proto.PeerID{}) {
		e.Peer, _ = l.Name(p[:])
	}
	l.add(e)
}
