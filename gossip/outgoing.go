package gossip

import (
	"context"
	"fmt"
	"sync"

	"github.com/balefire/balefire/proto"
)

// Bounds of what waits to go out.
const (
	maxMessages = 1024
	maxUpdates  = 256
	maxEvents   = 4096
)

// outgoing holds what the core asked for until it is done, so that the core never waits
// for the network.
type outgoing struct {
	messages chan outMsg

	mu           sync.Mutex
	updates      []*Update
	root         bool
	events       []Event
	dropped      int           // events that found no room since they were told
	publishReady chan struct{} // news or root wait
	eventsReady  chan struct{} // events wait
}

// A outMsg is a message to one peer.
type outMsg struct {
	to     proto.PeerID
	encode func() (*proto.Message, error)
}

func (o *outgoing) init() {
	o.messages = make(chan outMsg, maxMessages)
	o.publishReady, o.eventsReady = make(chan struct{}, 1), make(chan struct{}, 1)
}

// send queues a letter. Probes are best effort: one that finds no room is lost.
func (o *outgoing) send(l outMsg) {
	select {
	case o.messages <- l:
	default:
	}
}

// publish queues news for the topic; newer of the same takes the place of older.
func (o *outgoing) publish(updates []*Update, root bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.root = o.root || root
next:
	for _, n := range updates {
		for i, old := range o.updates {
			if old.Peer == n.Peer && old.By == n.By {
				o.updates[i] = n
				continue next
			}
		}
		if len(o.updates) < maxUpdates { // else it rides on probes
			o.updates = append(o.updates, n)
		}
	}
	signal(o.publishReady)
}

// take returns what waits for the topic.
func (o *outgoing) take() (updates []*Update, root bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	updates, root = o.updates, o.root
	o.updates, o.root = nil, false
	return updates, root
}

// event queues e. One that finds no room is made up for by tell.
func (o *outgoing) event(e Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.events) < maxEvents {
		o.events = append(o.events, e)
	} else {
		o.dropped++
	}
	signal(o.eventsReady)
}

// deliverEvents passes events on, in order. When some found no room it passes on what is true
// now instead.
func (o *outgoing) deliverEvents(ctx context.Context, to func(Event), now func(missed int) []Event) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-o.eventsReady:
		}
		o.mu.Lock()
		events, missed := o.events, o.dropped
		o.events, o.dropped = nil, 0
		o.mu.Unlock()
		if missed > 0 {
			events = append(events, now(missed)...)
		}
		for _, e := range events {
			to(e)
		}
	}
}

// currentState returns what makes up for events that found no room: how many, and of each
// member what is believed of it now.
func (r *Runner) currentState(missed int) []Event {
	r.log.Warn("events about members were dropped: who hears them is slow", "events", missed)
	events := []Event{{Kind: Alarm, Peer: r.keys.Peer(), Cause: fmt.Sprintf("%d events were dropped: what is true now follows", missed)}}
	for _, m := range r.Members() {
		if m.Status != Unknown {
			events = append(events, Event{Kind: Changed, Peer: m.Peer, From: m.Status, To: m.Status, Incarnation: m.Incarnation, Cause: "as it is now: " + m.Status.String()})
		}
	}
	return events
}
