package gossip

import (
	"context"
	"fmt"
	"sync"

	"github.com/balefire/balefire/proto"
)

// Bounds of what waits to go out.
const (
	maxLetters = 1024
	maxSpread  = 256
	maxEvents  = 4096
)

// outgoing holds what the core asked for until it is done, so that the core never waits
// for the network.
type outgoing struct {
	letters chan letter

	mu     sync.Mutex
	news   []*News
	root   bool
	events []Event
	missed int           // events that found no room since they were told
	spread chan struct{} // news or root wait
	happen chan struct{} // events wait
}

// A letter is a message to one peer.
type letter struct {
	to      proto.PeerID
	message func() (*proto.Message, error)
}

func (o *outgoing) init() {
	o.letters = make(chan letter, maxLetters)
	o.spread, o.happen = make(chan struct{}, 1), make(chan struct{}, 1)
}

// send queues a letter. Probes are best effort: one that finds no room is lost.
func (o *outgoing) send(l letter) {
	select {
	case o.letters <- l:
	default:
	}
}

// publish queues news for the topic; newer of the same takes the place of older.
func (o *outgoing) publish(news []*News, root bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.root = o.root || root
next:
	for _, n := range news {
		for i, old := range o.news {
			if old.Peer == n.Peer && old.By == n.By {
				o.news[i] = n
				continue next
			}
		}
		if len(o.news) < maxSpread { // else it rides on probes
			o.news = append(o.news, n)
		}
	}
	signal(o.spread)
}

// take returns what waits for the topic.
func (o *outgoing) take() (news []*News, root bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	news, root = o.news, o.root
	o.news, o.root = nil, false
	return news, root
}

// event queues e. One that finds no room is made up for by tell.
func (o *outgoing) event(e Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.events) < maxEvents {
		o.events = append(o.events, e)
	} else {
		o.missed++
	}
	signal(o.happen)
}

// tell passes events on, in order. When some found no room it passes on what is true
// now instead.
func (o *outgoing) tell(ctx context.Context, to func(Event), now func(missed int) []Event) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-o.happen:
		}
		o.mu.Lock()
		events, missed := o.events, o.missed
		o.events, o.missed = nil, 0
		o.mu.Unlock()
		if missed > 0 {
			events = append(events, now(missed)...)
		}
		for _, e := range events {
			to(e)
		}
	}
}

// instead returns what makes up for events that found no room: how many, and of each
// member what is believed of it now.
func (r *Room) instead(missed int) []Event {
	r.log.Warn("events about members were dropped: who hears them is slow", "events", missed)
	events := []Event{{What: Alarm, Peer: r.keys.Peer(), Cause: fmt.Sprintf("%d events were dropped: what is true now follows", missed)}}
	for _, m := range r.Members() {
		if m.Status != Unknown {
			events = append(events, Event{What: Changed, Peer: m.Peer, From: m.Status, To: m.Status, Incarnation: m.Incarnation, Cause: "as it is now: " + m.Status.String()})
		}
	}
	return events
}
