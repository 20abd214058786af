package queue

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/balefire/balefire/gossip"
	"github.com/balefire/balefire/ownership"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// quietStart is how long a node that has just started waits for a known home before it
// reports it as lost.
const quietStart = time.Minute

// HomeGone reports whether p, the home of a queue, is lost, and since when.
func (qs *Queues) HomeGone(p proto.PeerID) (state string, since time.Time, gone bool) {
	now := qs.cfg.Clock.Now()
	m, known := qs.gossip.Member(p)
	_, member := qs.parts.Book.Member(p)
	switch {
	case p == qs.self:
		return "", since, false
	case qs.parts.Book.Revoked(p):
		return "REVOKED", since, true
	case qs.net.Connected(p):
		return "", since, false
	case known && (m.Status == gossip.Dead || m.Status == gossip.Left):
		return m.Status.String(), now.Add(-m.Since), true
	case (!known || m.Status == gossip.Unknown || !member) && now.Sub(qs.cfg.Started) > quietStart:
		since = qs.cfg.Started
		if died := now.Add(-m.Since); known && m.Status == gossip.Unknown && died.After(since) { // it was pruned
			since = died
		}
		return gossip.Unknown.String(), since, true
	}
	return "", since, false
}

// Alarm returns the alarm of a queue, or nil while its home is reachable.
func (qs *Queues) Alarm(ctx context.Context, s *proto.QueueState) *wire.Note {
	home, err := proto.PeerIDFrom(s.GetHome())
	if err != nil {
		return nil
	}
	state, since, gone := qs.HomeGone(home)
	if !gone {
		return nil
	}
	a := &wire.Note{Code: wire.NoteQueueHomeLost, NoteArgs: wire.NoteArgs{Queue: s.GetName(), Peer: qs.parts.Book.NameOf(home), State: state}}
	if !since.IsZero() {
		a.Seconds = qs.cfg.Clock.Now().Sub(since).Seconds()
	}
	waiting, err := qs.parts.Outbox.LiveByTarget(home)
	if err != nil {
		qs.cfg.Logger.Warn("could not count the tasks that wait for a home", "home", a.Peer, "err", err)
	}
	a.Count = waiting[proto.QueueTarget(s.GetName())]
	held, err := qs.Driver.Leases(ctx, func(v ownership.LeaseView) bool { return !v.Home && v.Queue == s.GetName() && v.Peer == home }, maxHeld)
	if err == nil {
		a.Held = len(held)
	}
	return a
}

// maxHeld bounds how many leases are counted.
const maxHeld = 1 << 20

// Alarms returns the alarms of all queues, sorted by queue name.
func (qs *Queues) Alarms(ctx context.Context) (all []wire.Note) {
	states := qs.Driver.QueueStates()
	for _, name := range slices.Sorted(maps.Keys(states)) {
		if a := qs.Alarm(ctx, states[name]); a != nil {
			all = append(all, *a)
		}
	}
	return all
}

// alertHome reports when the home of queues is lost and when it is back.
func (qs *Queues) alertHome(e gossip.Event) {
	gone, was := e.To == gossip.Dead || e.To == gossip.Left, e.From == gossip.Dead || e.From == gossip.Left
	if e.Kind != gossip.Changed || gone == was {
		return
	}
	var names []string
	for name, s := range qs.Driver.QueueStates() {
		if string(s.GetHome()) == string(e.Peer[:]) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return
	}
	slices.Sort(names)
	kind, fields := wire.EventHomeBack, map[string]string{"queues": strings.Join(names, ",")}
	if gone {
		kind, fields["state"] = wire.EventHomeGone, e.To.String()
		qs.cfg.Logger.Warn("the home of queues is lost", "home", qs.parts.Book.NameOf(e.Peer), "queues", names, "state", e.To.String())
	}
	qs.cfg.Event(kind, e.Peer, fields)
}
