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

// An unreachablePeer is what this node knows of a peer that is not connected.
type unreachablePeer struct {
	name            string
	self            string    // name of this node
	selfRevoked     [2]string // that this node was revoked, and what to do
	revoked         bool
	blocked         bool          // here
	addrs           int           // known ones
	relays          []string      // where it keeps places, as it said
	connectedRelays []string      // those of them that are connected
	isolated        bool          // this node
	status          gossip.Status // of the peer, as the mesh sees it
	since           time.Time     // of that status
	dial            transport.PeerStatus
	now             time.Time
}

// unreachable gathers what is known of p.
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

// steps are the facts in the order in which they were looked at.
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

// blocker names the one thing that keeps this node from the peer, and what to do. What
// a person decided goes first, then what one of the two said, then what the mesh sees,
// then what the dials met.
func (a unreachablePeer) blocker() (cause, fix string) {
	refused := a.dial.Refused
	switch {
	case a.selfRevoked[0] != "":
		return a.selfRevoked[0], a.selfRevoked[1]
	case a.revoked:
		return a.name + " is no member any more: its certificate was revoked", "invite it again, with a new key"
	case a.blocked:
		return a.name + " is blocked here", "balefire-node peers unblock " + a.name
	case refused != nil && strings.Contains(refused.Reason, identity.ErrNotYet.Error()):
		return fmt.Sprintf("the clocks of this machine and of %s differ too much: %s", a.name, a.refusal()), "set both clocks right"
	case refused != nil && refused.Theirs:
		return a.refusal(), "on " + a.name + ": balefire-node peers show " + a.self
	case refused != nil:
		return a.refusal(), "mend what it says on " + a.name
	case a.isolated:
		return "this node is isolated: it hears from nobody, or the others suspect it", "balefire-node netcheck"
	case a.addrs+len(a.relays) == 0:
		return "no address of " + a.name + " is known", "start it: it tells its addresses when it connects"
	}
	return a.noPath()
}

// hanging says that a connection is there and the mesh does not believe in it; empty:
// it does.
func (a unreachablePeer) hanging() (cause, fix string) {
	if !a.dial.Connected || a.status != gossip.Suspect && a.status != gossip.Dead {
		return "", ""
	}
	return fmt.Sprintf("%s is %s for %s, as the mesh sees it; a connection is still open, and the last byte came over it %s ago", a.name, a.status, a.ago(a.since), a.ago(a.dial.LastSeen)),
		"start " + a.name + ", or look at the network between; it is dialled again as soon as the connection is given up"
}

// redials reports whether this node dials the peer again by itself.
func (a unreachablePeer) redials() bool {
	return a.dial.NextDial > 0 && !a.blocked && !a.revoked && a.selfRevoked[0] == ""
}

// refusal says who of the two does not want the other, why and when.
func (a unreachablePeer) refusal() string {
	r, who, whom := a.dial.Refused, "this node", a.name
	if r.Theirs {
		who, whom = a.name, "this node"
	}
	return fmt.Sprintf("%s refused %s %s ago: %s", who, whom, a.ago(a.dial.FailedAt), oneLine(r.Reason))
}

// noPath says why a peer that may be reached is not.
func (a unreachablePeer) noPath() (cause, fix string) {
	cause = a.name + " cannot be reached: "
	last := a.lastDial()
	look := "start " + a.name + ", or look at the network between; the task is safe and goes by itself"
	switch {
	case a.status == gossip.Left:
		return fmt.Sprintf("%sit was stopped %s ago", cause, a.ago(a.since)), "start " + a.name + "; the task is safe and goes by itself"
	case a.status == gossip.Dead, a.status == gossip.Suspect:
		return fmt.Sprintf("%sit is %s for %s, as the mesh sees it; %s", cause, a.status, a.ago(a.since), last), look
	case len(a.relays) > 0 && len(a.connectedRelays) == 0:
		return fmt.Sprintf("%snone of its relays (%s) is connected here; %s", cause, strings.Join(a.relays, ", "), last), "balefire-node path " + a.relays[0]
	case a.dial.LastError == "":
		return fmt.Sprintf("%s%s", cause, last), ""
	case len(a.connectedRelays) > 0:
		return fmt.Sprintf("%snot directly, and not by its relays (%s); %s", cause, strings.Join(a.connectedRelays, ", "), last), "balefire-node path " + a.name
	}
	return fmt.Sprintf("%snone of its %d addresses answers; %s", cause, a.addrs, last), look
}

// lastDial says how the last try to connect ended, and when the next one is.
func (a unreachablePeer) lastDial() string {
	next := "it is being dialled now"
	if a.dial.NextDial > 0 {
		next = "the next dial is in " + a.dial.NextDial.Round(100*time.Millisecond).String()
	}
	if a.dial.LastError == "" {
		return next
	}
	return fmt.Sprintf("the last try, %s ago, failed: %s; %s", a.ago(a.dial.FailedAt), oneLine(a.dial.LastError), next)
}

// oneLine makes an error of several lines one, and not long.
func oneLine(s string) string { return proto.Clip(strings.Join(strings.Fields(s), " "), maxWhy) }

// maxWhy bounds what of an error is shown, in bytes.
const maxWhy = 300
