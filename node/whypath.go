package node

import (
	"fmt"
	"strings"
	"time"

	"github.com/balefire/balefire/gossip"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
)

// An unreachablePeer collects what this node knows about a peer that is not connected.
type unreachablePeer struct {
	name            string
	self            string    // name of this node
	selfRevoked     [2]string // set if this node was revoked: the fact and what to do
	revoked         bool
	blocked         bool          // here
	addrs           int           // known ones
	relays          []string      // relays with its reservations, as it announced
	connectedRelays []string      // those of its relays that are connected here
	isolated        bool          // this node
	status          gossip.Status // of the peer, according to gossip
	since           time.Time     // of that status
	dial            transport.PeerStatus
	now             time.Time
}

// unreachable collects what is known about p.
func (n *Node) unreachable(p transport.Peer) unreachablePeer {
	a := unreachablePeer{
		name: p.Label(), self: n.self.Name, revoked: n.book.Revoked(p.Peer), blocked: p.Blocked, addrs: len(p.Addrs), isolated: n.gossip.Isolated(),
		dial: n.statuses()[p.Peer], now: n.cfg.Clock.Now(),
	}
	a.selfRevoked[0], a.selfRevoked[1] = n.selfRevoked()
	for _, r := range p.Relays {
		name := n.peerName(r)
		a.relays = append(a.relays, name)
		if r == n.keys.Peer() || n.net.Connected(r) {
			a.connectedRelays = append(a.connectedRelays, name)
		}
	}
	if m, ok := n.gossip.Member(p.Peer); ok {
		a.status, a.since = m.Status, a.now.Add(-m.Since)
	}
	return a
}

// steps returns the facts in the order in which they were checked.
func (a unreachablePeer) steps() []string {
	steps := []string{fmt.Sprintf("address: %d known", a.addrs)}
	if len(a.relays) > 0 {
		steps = append(steps, fmt.Sprintf("relays: %s, of which %d are connected here", strings.Join(a.relays, ", "), len(a.connectedRelays)))
	}
	if a.status != gossip.Unknown {
		steps = append(steps, fmt.Sprintf("member: %s since %s", a.status, a.since.UTC().Format(time.RFC3339)))
	}
	switch {
	case a.dial.Failed > 0:
		steps = append(steps, fmt.Sprintf("dial: %d failed in a row, the last %s ago: %s", a.dial.Failed, a.ago(a.dial.FailedAt), oneLine(a.dial.LastError)))
	case a.dial.LastError != "":
		steps = append(steps, fmt.Sprintf("connection: it failed %s ago: %s", a.ago(a.dial.FailedAt), oneLine(a.dial.LastError)))
	}
	return steps
}

func (a unreachablePeer) ago(t time.Time) string { return a.now.Sub(t).Round(time.Second).String() }

// blocker explains why this node does not reach the peer, and what to do. Decisions of
// people come first, then a refusal by one of the two nodes, then the state according to
// gossip, then the results of the dials.
func (a unreachablePeer) blocker() (cause, fix string) {
	refused := a.dial.Refused
	switch {
	case a.selfRevoked[0] != "":
		return a.selfRevoked[0], a.selfRevoked[1]
	case a.revoked:
		return a.name + " is no longer a member: its certificate was revoked", "invite it again, with a new key"
	case a.blocked:
		return a.name + " is blocked here", "balefire-node peers unblock " + a.name
	case refused != nil && strings.Contains(refused.Reason, identity.ErrNotYet.Error()):
		return fmt.Sprintf("the clocks of this machine and of %s differ too much: %s", a.name, a.refusal()), "correct both clocks"
	case refused != nil && refused.Theirs:
		return a.refusal(), "on " + a.name + ": balefire-node peers show " + a.self
	case refused != nil:
		return a.refusal(), "fix the stated problem on " + a.name
	case a.isolated:
		return "this node is isolated: it receives nothing from any member, or other members suspect it", "balefire-node netcheck"
	case a.addrs+len(a.relays) == 0:
		return "no address of " + a.name + " is known", "start it: it announces its addresses when it connects"
	}
	return a.noPath()
}

// hanging explains that a connection is open although gossip considers the peer
// unreachable; both results are empty if it does not.
func (a unreachablePeer) hanging() (cause, fix string) {
	if !a.dial.Connected || a.status != gossip.Suspect && a.status != gossip.Dead {
		return "", ""
	}
	return fmt.Sprintf("%s has been %s for %s according to gossip; a connection is still open, and its last byte arrived %s ago", a.name, a.status, a.ago(a.since), a.ago(a.dial.LastSeen)),
		"start " + a.name + " or check the network in between; it is dialed again as soon as the connection is given up"
}

// redials reports whether this node dials the peer again automatically.
func (a unreachablePeer) redials() bool {
	return a.dial.NextDial > 0 && !a.blocked && !a.revoked && a.selfRevoked[0] == ""
}

// refusal describes which of the two nodes refused the other, why and when.
func (a unreachablePeer) refusal() string {
	r, who, whom := a.dial.Refused, "this node", a.name
	if r.Theirs {
		who, whom = a.name, "this node"
	}
	return fmt.Sprintf("%s refused %s %s ago: %s", who, whom, a.ago(a.dial.FailedAt), oneLine(r.Reason))
}

// noPath explains why a peer that is not blocked cannot be reached.
func (a unreachablePeer) noPath() (cause, fix string) {
	cause = a.name + " cannot be reached: "
	last := a.lastDial()
	look := "start " + a.name + " or check the network in between; the task is safe and will be sent automatically"
	switch {
	case a.status == gossip.Left:
		return fmt.Sprintf("%sit was stopped %s ago", cause, a.ago(a.since)), "start " + a.name + "; the task is safe and will be sent automatically"
	case a.status == gossip.Dead, a.status == gossip.Suspect:
		return fmt.Sprintf("%sit has been %s for %s according to gossip; %s", cause, a.status, a.ago(a.since), last), look
	case len(a.relays) > 0 && len(a.connectedRelays) == 0:
		return fmt.Sprintf("%snone of its relays (%s) is connected here; %s", cause, strings.Join(a.relays, ", "), last), "balefire-node path " + a.relays[0]
	case a.dial.LastError == "":
		return fmt.Sprintf("%s%s", cause, last), ""
	case len(a.connectedRelays) > 0:
		return fmt.Sprintf("%sneither directly nor through its relays (%s); %s", cause, strings.Join(a.connectedRelays, ", "), last), "balefire-node path " + a.name
	}
	return fmt.Sprintf("%snone of its %d addresses answers; %s", cause, a.addrs, last), look
}

// lastDial describes the result of the latest dial and the time of the next one.
func (a unreachablePeer) lastDial() string {
	next := "it is being dialed now"
	if a.dial.NextDial > 0 {
		next = "the next dial is in " + a.dial.NextDial.Round(100*time.Millisecond).String()
	}
	if a.dial.LastError == "" {
		return next
	}
	return fmt.Sprintf("the last attempt, %s ago, failed: %s; %s", a.ago(a.dial.FailedAt), oneLine(a.dial.LastError), next)
}

// oneLine shortens an error of several lines to one line.
func oneLine(s string) string { return proto.Clip(strings.Join(strings.Fields(s), " "), maxWhy) }

// maxWhy bounds the displayed part of an error, in bytes.
const maxWhy = 300
