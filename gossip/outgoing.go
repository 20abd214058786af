package gossip

import (
	"context"
	"fmt"
	"sync"

	"github.com/balefire/balefire/proto"
)

// Bounds of the outgoing queues.
const (
	maxMessages = 1024
	maxUpdates  = 256
	maxEvents   = 4096
)

// outgoing queues what the core requested, so that the core never waits for the network.
type outgoing struct {
	messages chan outMsg

	mu           sync.Mutex
	updates      []*Update
	root         bool
	events       []Event
	dropped      int           // events dropped since the last delivery
	publishReady chan struct{} // updates or root are queued
	eventsReady  chan struct{} // events are queued
}

// An outMsg is a message to one peer.
type outMsg struct {
	to     proto.PeerID
	encode func() (*proto.Message, error)
}

func (o *outgoing) init() {
	o.messages = make(chan outMsg, maxMessages)
	o.publishReady, o.eventsReady = make(chan struct{}, 1), make(chan struct{}, 1)
}

// send queues a message. Probes are best effort: one that does not fit is dropped.
func (o *outgoing) send(l outMsg) {
	select {
	case o.messages <- l:
	default:
	}
}

// publish queues updates for the topic; a newer one replaces an older one by the same
// signer about the same node.
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
		if len(o.updates) < maxUpdates { // otherwise it is only piggybacked on probes
			o.updates = append(o.updates, n)
		}
	}
	signal(o.publishReady)
}

// take returns and removes what is queued for the topic.
func (o *outgoing) take() (updates []*Update, root bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	updates, root = o.updates, o.root
	o.updates, o.root = nil, false
	return updates, root
}

// event queues e. A dropped event is compensated for by deliverEvents.
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

// deliverEvents passes events to to, in order. If some were dropped, it also passes the
// current state.
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

// currentState returns events that replace dropped ones: an alarm with their number, and
// the current status of each member.
func (r *Runner) currentState(missed int) []Event {
	r.log.Warn("membership events dropped: the receiver is slow", "events", missed)
	events := []Event{{Kind: Alarm, Peer: r.keys.Peer(), Cause: fmt.Sprintf("%d events were dropped: the current state follows", missed)}}
	for _, m := range r.Members() {
		if m.Status != Unknown {
			events = append(events, Event{Kind: Changed, Peer: m.Peer, From: m.Status, To: m.Status, Incarnation: m.Incarnation, Cause: "current state: " + m.Status.String()})
		}
	}
	return events
}
