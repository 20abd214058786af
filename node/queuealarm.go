package node

import (
	"context"
	"fmt"
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

// homeGone reports whether p, the home of a queue, is lost, and since when.
func (n *Node) homeGone(p proto.PeerID) (state string, since time.Time, gone bool) {
	now := n.cfg.Clock.Now()
	m, known := n.gossip.Member(p)
	_, member := n.book.Member(p)
	switch {
	case p == n.keys.Peer():
		return "", since, false
	case n.book.Revoked(p):
		return "REVOKED", since, true
	case n.net.Connected(p):
		return "", since, false
	case known && (m.Status == gossip.Dead || m.Status == gossip.Left):
		return m.Status.String(), now.Add(-m.Since), true
	case (!known || m.Status == gossip.Unknown || !member) && now.Sub(n.started) > quietStart:
		return gossip.Unknown.String(), n.started, true
	}
	return "", since, false
}

// homeAlarm returns the alarm of a queue, or nil while its home is reachable.
func (n *Node) homeAlarm(ctx context.Context, s *proto.QueueState) *wire.QueueAlarm {
	home, err := proto.PeerIDFrom(s.GetHome())
	if err != nil {
		return nil
	}
	state, since, gone := n.homeGone(home)
	if !gone {
		return nil
	}
	a := &wire.QueueAlarm{Home: n.peerName(home), State: state}
	if !since.IsZero() {
		a.Since = new(since.UTC())
	}
	waiting, err := n.outbox.LiveByTarget(home)
	if err != nil {
		n.log.Warn("could not count the tasks that wait for a home", "home", a.Home, "err", err)
	}
	a.Waiting = waiting[proto.QueuePrefix+s.GetName()]
	held, err := n.queues.driver.Leases(ctx, func(v ownership.LeaseView) bool { return !v.Home && v.Queue == s.GetName() && v.Peer == home }, maxHeld)
	if err == nil {
		a.Held = len(held)
	}
	a.Text = alarmText(a, s.GetName(), n.cfg.Clock.Now())
	a.Fix = fmt.Sprintf("start %s again: then nothing is lost; if it is lost permanently, run on the node that should become the home: balefire-node queue seize %s --from %s --accept-loss", a.Home, s.GetName(), a.Home)
	return a
}

// maxHeld bounds how many leases are counted.
const maxHeld = 1 << 20

// queueAlarms returns the alarms of all queues, sorted by queue name.
func (n *Node) queueAlarms(ctx context.Context) (all []*wire.QueueAlarm) {
	states := n.queues.driver.QueueStates()
	for _, name := range slices.Sorted(maps.Keys(states)) {
		if a := n.homeAlarm(ctx, states[name]); a != nil {
			all = append(all, a)
		}
	}
	return all
}

// alertHome reports when the home of queues is lost and when it is back.
func (q *queues) alertHome(e gossip.Event) {
	gone, was := e.To == gossip.Dead || e.To == gossip.Left, e.From == gossip.Dead || e.From == gossip.Left
	if e.Kind != gossip.Changed || gone == was {
		return
	}
	var names []string
	for name, s := range q.driver.QueueStates() {
		if string(s.GetHome()) == string(e.Peer[:]) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return
	}
	slices.Sort(names)
	kind, text := "queue.home_back", "the home of "+strings.Join(names, ", ")+" is back"
	if gone {
		kind, text = "queue.home_gone", "the home of "+strings.Join(names, ", ")+" is "+strings.ToLower(e.To.String())+": none of their tasks is granted until it is back"
		q.node.log.Warn("the home of queues is lost", "home", q.node.peerName(e.Peer), "queues", names, "state", e.To.String())
	}
	q.node.addEvent(kind, e.Peer, text, map[string]string{"queues": strings.Join(names, ",")})
}

// alarmText describes the alarm to a person.
func alarmText(a *wire.QueueAlarm, queue string, now time.Time) string {
	verb := map[string]string{"DEAD": "has been dead", "LEFT": "has left", "UNKNOWN": "has been silent", "REVOKED": "has been revoked"}[a.State]
	if a.Since != nil {
		ago := now.Sub(*a.Since).Round(time.Second).String()
		if verb += " for " + ago; a.State == "LEFT" {
			verb = "left " + ago + " ago"
		}
	}
	text := fmt.Sprintf("queue %s: its home %s %s, so none of its tasks is granted", queue, a.Home, verb)
	if a.Waiting > 0 {
		text += fmt.Sprintf("; %s for %s", plural(a.Waiting, "task of this node waits", "tasks of this node wait"), a.Home)
	}
	if a.Held > 0 {
		text += fmt.Sprintf("; %d run here or have results waiting here for it", a.Held)
	}
	return text
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
