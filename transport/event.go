package transport

import (
	"context"
	"log/slog"

	"github.com/balefire/balefire/proto"
)

// An Event is a change of the network for operators.
type Event struct {
	Peer   proto.PeerID // the subject; a relay for EventReserved and EventReservationLost
	Kind   EventKind
	Path   string // multiaddr of the other side; empty: none
	Detail string // human-readable
	Flow   *Flow  // of EventBodyBegan, EventBodyMoves, EventBodyEnded
}

// An EventKind is the kind of an event.
type EventKind int

// Kinds of events.
const (
	EventConnected       EventKind = iota // the first verified connection
	EventDisconnected                     // the last verified connection closed
	EventPath                             // the path in use changed: Detail is the one before
	EventReserved                         // a relay accepts connections for this node
	EventReservationLost                  // it no longer does
	EventPunched                          // a direct path through NATs was established
	EventPunchFailed                      // establishing one failed
	EventBodyBegan                        // the transfer of a streamed body started
	EventBodyMoves                        // progress, reported repeatedly
	EventBodyEnded                        // it arrived, or this attempt ended
)

var eventNames = [...]string{"connected", "disconnected", "path", "reserved", "reservation_lost", "punched", "punch_failed", "body_began", "body_moves", "body_ended"}

// String returns the kind in lower case, with underscores.
func (k EventKind) String() string {
	if k < 0 || int(k) >= len(eventNames) {
		return "unknown"
	}
	return eventNames[k]
}

// maxEvents bounds the events queued for the observer.
const maxEvents = 1024

// An eventQueue has the events that the observer has not seen yet.
type eventQueue struct {
	observe func(Event) // nil: nobody
	log     *slog.Logger
	queue   chan Event
}

func newEventQueue(cfg Config) *eventQueue {
	return &eventQueue{observe: cfg.Observe, log: cfg.Logger, queue: make(chan Event, maxEvents)}
}

// emit queues e for the observer, in order: the caller may hold any lock. Events are
// dropped when the queue is full.
func (q *eventQueue) emit(e Event) {
	if q.observe == nil {
		return
	}
	select {
	case q.queue <- e:
	default:
		q.log.Warn("event dropped: the observer is slow", "event", e.Kind, "peer", e.Peer)
	}
}

// run calls the observer until ctx is done.
func (q *eventQueue) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-q.queue:
			q.observe(e)
		}
	}
}
