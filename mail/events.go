package mail

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
)

// MaxEvents is how many events of this start are kept, and MaxStale how many of settlements that
// did not count: then the older half of those is dropped.
const (
	MaxEvents = 4096
	MaxStale  = 512
)

// The kinds of events of mail.
const (
	EventAccepted  = "accepted"  // it is in its box
	EventSent      = "sent"      // it is in the spool for a box on another node
	EventDelivered = "delivered" // it was leased to a reader
	EventRetry     = "retry"     // a delivery failed or was given back
	EventDone      = "done"      // it was acknowledged; of a spool: the node of the box has it
	EventDead      = "dead"      // it became a dead letter
	EventExpired   = "expired"   // its time to live is over
	EventCancelled = "cancelled" // it was purged, sent back, or its box was removed
	EventDropped   = "dropped"   // the retention of a topic took it
	EventRefused   = "refused"   // its box refused it, for now or for good
	EventStale     = "stale"     // it was settled after somebody else was given it
	EventBlocked   = "blocked"   // a dead letter blocks the mails with its key
	EventUnblocked = "unblocked" // they go on, because too many keys are blocked
	EventRescued   = "rescued"   // low was served only because so many had passed it
)

// An Event is something that happened to a mail in a box or a spool of this node.
type Event struct {
	Number  uint64 // from 1 in each start
	At      time.Time
	Kind    string
	Box     string // its name in the ledger; "": it is gone
	Sub     string
	Seq     uint64       // 0: it is about no single mail, or about one that was not taken
	ID      proto.MailID // zero: it is not known any more
	Peer    proto.PeerID // of a refusal: the other node
	Attempt int          // of a delivery
	Text    string       // the reader, or the reason

	place  box.Place // of the letter with the id
	length int
}

// reports are what people and senders are told.
type reports struct {
	events
	bouncing *sync.WaitGroup // goroutines that tell senders of ends that no checkpoint has; of the goroutine of Run, as what follows
	telling  telling
}

// events numbers what happens and keeps the newest.
type events struct {
	mu   sync.Mutex
	last uint64
	ring []Event       // by number modulo its length
	late []Event       // those of EventStale
	more chan struct{} // closed with the next event; nil: nobody waits
}

func (l *events) add(e Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	e.Number = l.last
	if len(l.ring) < MaxEvents {
		l.ring = append(l.ring, e)
	} else {
		l.ring[(l.last-1)%MaxEvents] = e
	}
	if e.Kind == EventStale {
		if len(l.late) == MaxStale {
			l.late = slices.Delete(l.late, 0, MaxStale/2)
		}
		l.late = append(l.late, e)
	}
	if l.more != nil {
		close(l.more)
		l.more = nil
	}
}

// after returns the events after a number that want selects, at most limit of them, the number
// to go on with, how many before were dropped, and a channel that is closed when there are more.
func (l *events) after(number uint64, limit int, want func(*Event) bool) (list []Event, next, missed uint64, more <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if next = number; number > l.last {
		next = 0
	}
	if oldest := l.last - uint64(len(l.ring)); next < oldest {
		missed, next = oldest-next, oldest
	}
	for next < l.last && len(list) < limit {
		e := &l.ring[next%MaxEvents]
		if next++; want(e) {
			list = append(list, *e)
		}
	}
	if l.more == nil {
		l.more = make(chan struct{})
	}
	return list, next, missed, l.more
}

// Events returns the events after a number, at most limit of those that want selects, the
// number to go on with, and how many before were dropped. A number that is not of this start
// counts as 0. More is closed when something happens.
func (b *Broker) Events(number uint64, limit int, want func(*Event) bool) (list []Event, next, missed uint64, more <-chan struct{}) {
	list, next, missed, more = b.reports.after(number, limit, want)
	for i := range list {
		b.identify(&list[i])
	}
	return list, next, missed, more
}

// Stale returns the newest settlements that did not count, the oldest first.
func (b *Broker) Stale() []Event {
	b.reports.mu.Lock()
	list := slices.Clone(b.reports.late)
	b.reports.mu.Unlock()
	for i := range list {
		b.identify(&list[i])
	}
	return list
}

// identify sets the id of the mail, as long as its letter can be read.
func (b *Broker) identify(e *Event) {
	if !e.ID.IsZero() || e.length == 0 {
		return
	}
	m, _, err := b.mailAt(e.place, e.length)
	if err != nil {
		return
	}
	if l, err := proto.ParseLetter(m.Letter); err == nil {
		e.ID = l.ID
	}
}

// note adds an event of a box.
func (b *Broker) note(id box.BoxID, sub box.SubID, e Event) {
	e.Box, e.Sub = b.state.Path(id, sub)
	e.At = b.cfg.Clock.Now()
	b.reports.add(e)
	if b.cfg.Logger.Enabled(context.Background(), slog.LevelDebug) {
		b.identify(&e)
		e.log(b.cfg.Logger)
	}
}

// log logs the event, with the keys that apply.
func (e *Event) log(l *slog.Logger) {
	keys := []any{"event", "mail." + e.Kind, "box", e.Box}
	if !e.ID.IsZero() {
		keys = append(keys, "mail_id", e.ID.String())
	}
	if e.Sub != "" {
		keys = append(keys, "subscription", e.Sub)
	}
	if e.Seq > 0 {
		keys = append(keys, "seq", e.Seq)
	}
	if !e.Peer.IsZero() {
		keys = append(keys, "peer", e.Peer.Short())
	}
	if e.Kind == EventDelivered {
		keys = append(keys, "attempt", e.Attempt, "reader", e.Text)
	} else if e.Text != "" {
		keys = append(keys, "err", e.Text)
	}
	l.Debug("mail", keys...)
}

// noteApplied adds the events of what a record did.
func (b *Broker) noteApplied(results []box.Result, ends []box.End) {
	for _, r := range results {
		if r.Code == proto.CodeOK && !r.Duplicate && r.Seq > 0 {
			kind := EventAccepted
			if name, _ := b.state.Path(r.Box, 0); strings.HasPrefix(name, box.SpoolPrefix) {
				kind = EventSent
			}
			b.note(r.Box, 0, Event{Kind: kind, Seq: r.Seq, ID: r.ID})
		}
	}
	for _, e := range ends {
		text := ""
		if e.State != box.Done {
			text = e.Cause.String()
			if e.Reason != "" {
				text += ": " + firstLine(e.Reason)
			}
		}
		b.note(e.Box, e.Sub, Event{Kind: strings.ToLower(e.State.String()), Seq: e.Seq, Text: text, place: e.Place, length: e.Length})
	}
}

// noteEvent adds an event of the state.
func (b *Broker) noteEvent(e box.Event) {
	kinds := [...]string{box.EventStale: EventStale, box.EventRescued: EventRescued, box.EventBlocked: EventBlocked, box.EventUnblocked: EventUnblocked, box.EventRetry: EventRetry, box.EventRead: EventDone}
	x := Event{Kind: kinds[e.Kind], Seq: e.Seq, Text: firstLine(e.Text)}
	if k, ok := b.state.Record(e.Box, e.Seq); ok {
		x.place, x.length = k.Place, k.Length
	}
	b.note(e.Box, e.Sub, x)
	if name, _ := b.state.Path(e.Box, 0); e.Kind == box.EventRetry && name != "" {
		b.cfg.Observer.Retried(name, e.Cause)
	}
}

// noteSent tells of a mail of this node, if it was stored.
func (b *Broker) noteSent(letter []byte, r box.Result) {
	if r.Code == proto.CodeOK && !r.Duplicate && len(letter) > 1 {
		b.cfg.Observer.Sent(proto.Class(letter[1]))
	}
}

// noteRefused adds the events of what a box did not take of a bundle.
func (b *Broker) noteRefused(a *Arrival) {
	id, ok := b.state.Find(a.chain.Box)
	if !ok {
		return
	}
	for i := range a.mails {
		x := &a.mails[i]
		if x.code == proto.CodeOK || x.code == proto.CodeBusy || x.code == proto.CodeNeedBody {
			continue
		}
		e := Event{Kind: EventRefused, Peer: a.chain.Origin, Text: x.code.Name() + ": " + x.detail}
		if l, err := proto.ParseLetter(x.letter); err == nil {
			e.ID = l.ID
		}
		b.note(id, 0, e)
	}
}
