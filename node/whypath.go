package node

import (
	"fmt"
	"strings"
	"time"

	"github.com/balefire/balefire/addressbook"
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
	blocked         bool          // blocked on this node
	addrs           int           // number of known addresses
	relays          []string      // relays with its reservations, as it announced
	connectedRelays []string      // those of its relays that are connected here
	isolated        bool          // this node is isolated
	status          gossip.Status // of the peer, according to gossip
	since           time.Time     // of that status
	dial            transport.PeerStatus
	now             time.Time
}

// unreachable collects what is known about p.
func (n *Node) unreachable(p addressbook.Peer) unreachablePeer {
	a := unreachablePeer{
		name: p.Label(), self: n.self.Name, revoked: n.book.Revoked(p.Peer), blocked: p.Blocked, addrs: len(p.Addrs), isolated: n.gossip.Isolated(),
		dial: n.Statuses()[p.Peer], now: n.cfg.Clock.Now(),
	}
	a.selfRevoked[0], a.selfRevoked[1] = n.SelfRevoked()
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
func (u unreachablePeer) steps() []string {
	steps := []string{fmt.Sprintf("address: %d known", u.addrs)}
	if len(u.relays) > 0 {
		steps = append(steps, fmt.Sprintf("relays: %s, of which %d are connected here", strings.Join(u.relays, ", "), len(u.connectedRelays)))
	}
	if u.status != gossip.Unknown {
		steps = append(steps, fmt.Sprintf("member: %s since %s", u.status, u.since.UTC().Format(time.RFC3339)))
	}
	switch {
	case u.dial.Failed > 0:
		steps = append(steps, fmt.Sprintf("dial: %d failed in a row, the last %s ago: %s", u.dial.Failed, u.ago(u.dial.FailedAt), oneLine(u.dial.LastError)))
	case u.dial.LastError != "":
		steps = append(steps, fmt.Sprintf("connection: it failed %s ago: %s", u.ago(u.dial.FailedAt), oneLine(u.dial.LastError)))
	}
	return steps
}

func (u unreachablePeer) ago(t time.Time) string { return u.now.Sub(t).Round(time.Second).String() }

// blocker explains why this node does not reach the peer, and what to do. Decisions of
// people come first, then a refusal by one of the two nodes, then the state according to
// gossip, then the results of the dials.
func (u unreachablePeer) blocker() (cause, fix string) {
	refused := u.dial.Refused
	switch {
	case u.selfRevoked[0] != "":
		return u.selfRevoked[0], u.selfRevoked[1]
	case u.revoked:
		return u.name + " is no longer a member: its certificate was revoked", "invite it again, with a new key"
	case u.blocked:
		return u.name + " is blocked here", "balefire-node peers unblock " + u.name
	case refused != nil && strings.Contains(refused.Reason, identity.ErrNotYet.Error()):
		return fmt.Sprintf("the clocks of this machine and of %s differ too much: %s", u.name, u.refusal()), "correct both clocks"
	case refused != nil && refused.Theirs:
		return u.refusal(), "on " + u.name + ": balefire-node peers show " + u.self
	case refused != nil:
		return u.refusal(), "fix the stated problem on " + u.name
	case u.isolated:
		return "this node is isolated: it receives nothing from any member, or other members suspect it", "balefire-node netcheck"
	case u.addrs+len(u.relays) == 0:
		return "no address of " + u.name + " is known", "start it: it announces its addresses when it connects"
	}
	return u.noPath()
}

// hanging explains that a connection is open although gossip considers the peer
// unreachable; both results are empty if it does not.
func (u unreachablePeer) hanging() (cause, fix string) {
	if !u.dial.Connected || u.status != gossip.Suspect && u.status != gossip.Dead {
		return "", ""
	}
	return fmt.Sprintf("%s has been %s for %s according to gossip; a connection is still open, and its last byte arrived %s ago", u.name, u.status, u.ago(u.since), u.ago(u.dial.LastSeen)),
		"start " + u.name + " or check the network in between; it is dialed again as soon as the connection is given up"
}

// redials reports whether this node dials the peer again automatically.
func (u unreachablePeer) redials() bool {
	return u.dial.NextDial > 0 && !u.blocked && !u.revoked && u.selfRevoked[0] == ""
}

// refusal describes which of the two nodes refused the other, why and when.
func (u unreachablePeer) refusal() string {
	r, who, whom := u.dial.Refused, "this node", u.name
	if r.Theirs {
		who, whom = u.name, "this node"
	}
	return fmt.Sprintf("%s refused %s %s ago: %s", who, whom, u.ago(u.dial.FailedAt), oneLine(r.Reason))
}

// noPath explains why a peer that is not blocked cannot be reached.
func (u unreachablePeer) noPath() (cause, fix string) {
	cause = u.name + " cannot be reached: "
	last := u.lastDial()
	look := "start " + u.name + " or check the network in between; the task is safe and will be sent automatically"
	switch {
	case u.status == gossip.Left:
		return fmt.Sprintf("%sit was stopped %s ago", cause, u.ago(u.since)), "start " + u.name + "; the task is safe and will be sent automatically"
	case u.status == gossip.Dead, u.status == gossip.Suspect:
		return fmt.Sprintf("%sit has been %s for %s according to gossip; %s", cause, u.status, u.ago(u.since), last), look
	case len(u.relays) > 0 && len(u.connectedRelays) == 0:
		return fmt.Sprintf("%snone of its relays (%s) is connected here; %s", cause, strings.Join(u.relays, ", "), last), "balefire-node path " + u.relays[0]
	case u.dial.LastError == "":
		return fmt.Sprintf("%s%s", cause, last), ""
	case len(u.connectedRelays) > 0:
		return fmt.Sprintf("%sneither directly nor through its relays (%s); %s", cause, strings.Join(u.connectedRelays, ", "), last), "balefire-node path " + u.name
	}
	return fmt.Sprintf("%snone of its %d addresses answers; %s", cause, u.addrs, last), look
}

// lastDial describes the result of the latest dial and the time of the next one.
func (u unreachablePeer) lastDial() string {
	next := "it is being dialed now"
	if u.dial.NextDial > 0 {
		next = "the next dial is in " + u.dial.NextDial.Round(100*time.Millisecond).String()
	}
	if u.dial.LastError == "" {
		return next
	}
	return fmt.Sprintf("the last attempt, %s ago, failed: %s; %s", u.ago(u.dial.FailedAt), oneLine(u.dial.LastError), next)
}

// oneLine shortens an error of several lines to one line.
func oneLine(s string) string { return proto.Clip(strings.Join(strings.Fields(s), " "), maxWhy) }

// maxWhy bounds the displayed part of an error, in bytes.
const maxWhy = 300
