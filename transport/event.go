package transport

import (
	"context"

	"github.com/balefire/balefire/proto"
)

// An Event is a change that a person who watches the network wants to see.
type Event struct {
	Peer   proto.PeerID // whom it is about; a relay for Reserved and ReservationLost
	Kind   EventKind
	Path   string // multiaddr of the other side that it is about; empty: none
	Detail string // the rest, for people
	Flow   *Flow  // of EventBodyBegan, EventBodyMoves, EventBodyEnded
}

// An EventKind says what changed.
type EventKind int

// What may change.
const (
	EventConnected       EventKind = iota // the first verified connection
	EventDisconnected                     // the last one ended
	EventPath                             // another path is in use: Detail is "old → new"
	EventReserved                         // a relay takes connections for this node
	EventReservationLost                  // it does not any more
	EventPunched                          // a direct path was made through NATs
	EventPunchFailed                      // and was not
	EventBodyBegan                        // a streamed body is on its way
	EventBodyMoves                        // told again while it is
	EventBodyEnded                        // it arrived, or this try did not last
)

var eventNames = [...]string{"connected", "disconnected", "path", "reserved", "reservation_lost", "punched", "punch_failed", "body_began", "body_moves", "body_ended"}

// String returns the kind in lower case, with underscores.
func (k EventKind) String() string {
	if k < 0 || int(k) >= len(eventNames) {
		return "unknown"
	}
	return eventNames[k]
}

// maxEvents bounds the events that wait for the observer.
const maxEvents = 1024

// emit hands e to the observer, in order and later: the caller may hold any
// lock. What an observer cannot take in is dropped.
func (t *Transport) emit(e Event) {
	if t.cfg.Observe == nil {
		return
	}
	select {
	case t.reach.events <- e:
	default:
		t.log.Warn("an event is dropped: its observer is slow", "event", e.Kind, "peer", e.Peer)
	}
}

// eventLoop calls the observer until ctx ends.
func (t *Transport) eventLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-t.reach.events:
			t.cfg.Observe(e)
		}
	}
}
