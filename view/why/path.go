package why

import (
	"strings"
	"time"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/gossip"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/wire"
)

// A reach is what this node knows about the way to a peer.
type reach struct {
	name        string
	self        string     // name of this node
	selfRevoked *wire.Note // nil: this node is a member
	isolated    *wire.Note // nil: this node is not isolated
	revoked     bool
	blocked     bool          // on this node
	addrs       int           // number of known addresses
	relays      []string      // with its reservations, as it announced
	near        []string      // those of its relays that are connected here
	status      gossip.Status // of the peer, according to gossip
	since       time.Time     // of that status
	dial        transport.PeerStatus
	now         time.Time
}

// reach collects what is known about p.
func (e *Explainer) reach(p addressbook.Peer) *reach {
	r := &reach{
		name: p.Label(), self: e.Self.Name, selfRevoked: e.RevokedNote(), revoked: e.Book.Revoked(p.Peer), blocked: p.Blocked,
		dial: e.Statuses()[p.Peer], now: e.Clock.Now(),
	}
	if e.Gossip.Isolated() {
		r.isolated = new(e.IsolatedNote())
	}
	addrs, relays := ways(p, e.Self.Peer)
	r.addrs = len(addrs)
	for _, relay := range relays {
		name := e.Book.NameOf(relay)
		r.relays = append(r.relays, name)
		if e.Net.Connected(relay) {
			r.near = append(r.near, name)
		}
	}
	if m, ok := e.Gossip.Member(p.Peer); ok {
		r.status, r.since = m.Status, r.now.Add(-m.Since)
	}
	return r
}

// ways returns the addresses and the relays of p that do not lead through self.
func ways(p addressbook.Peer, self proto.PeerID) (addrs []string, relays []proto.PeerID) {
	through := "/p2p/" + self.String() + "/p2p-circuit"
	for _, a := range p.Addrs {
		if !strings.Contains(a, through) {
			addrs = append(addrs, a)
		}
	}
	for _, r := range p.Relays {
		if r != self {
			relays = append(relays, r)
		}
	}
	return addrs, relays
}

// unreachable explains why this node does not reach a peer, and when it tries again.
func (w *walk) unreachable(r *reach) {
	w.Steps = append(w.Steps, r.steps()...)
	w.Cause = r.blocker()
	switch {
	case r.forbidden():
		w.Next = nil // nothing is sent to it, whenever an entry is due
	case w.Next == nil:
		w.next(r.dial.NextDial)
	}
}

// forbidden reports whether nothing may be sent to the peer.
func (r *reach) forbidden() bool { return r.selfRevoked != nil || r.revoked || r.blocked }

// hangs states that a connection is open although gossip considers the peer unreachable,
// and reports whether that is so.
func (w *walk) hangs(r *reach) bool {
	if !r.dial.Connected || r.status != gossip.Suspect && r.status != gossip.Dead {
		return false
	}
	w.cause(wire.NoteHanging, wire.NoteArgs{Peer: r.name, State: r.status.String(), Seconds: r.ago(r.since), Dial: &wire.Dialed{Idle: r.ago(r.dial.LastSeen)}})
	return true
}

// ago returns how long ago something was, in seconds.
func (r *reach) ago(t time.Time) float64 { return r.now.Sub(t).Seconds() }

func (r *reach) dialed() *wire.Dialed {
	d := &wire.Dialed{Failed: r.dial.Failed, Next: r.dial.NextDial.Seconds()}
	if r.dial.LastError != "" {
		d.Error, d.Seconds = oneLine(r.dial.LastError), r.ago(r.dial.FailedAt)
	}
	return d
}

// steps returns the facts in the order in which they are checked.
func (r *reach) steps() []wire.Note {
	steps := []wire.Note{{Code: wire.StepAddresses, NoteArgs: wire.NoteArgs{Count: r.addrs}}}
	if len(r.relays) > 0 {
		steps = append(steps, wire.Note{Code: wire.StepRelays, NoteArgs: wire.NoteArgs{Names: r.relays, Count: len(r.near)}})
	}
	if r.status != gossip.Unknown {
		steps = append(steps, wire.Note{Code: wire.StepMember, NoteArgs: wire.NoteArgs{State: r.status.String(), Time: new(r.since.UTC())}})
	}
	if d := r.dial.Clock; d.Abs() >= proto.ClockNoise {
		steps = append(steps, wire.Note{Code: wire.NotePeerClock, NoteArgs: wire.NoteArgs{Peer: r.name, Seconds: d.Round(time.Second).Seconds()}})
	}
	switch {
	case r.dial.Failed > 0:
		steps = append(steps, wire.Note{Code: wire.StepDialsFailed, NoteArgs: wire.NoteArgs{Dial: r.dialed()}})
	case r.dial.LastError != "":
		steps = append(steps, wire.Note{Code: wire.StepConnFailed, NoteArgs: wire.NoteArgs{Dial: r.dialed()}})
	}
	return steps
}

// blocker states why this node does not reach the peer. Decisions of people come first,
// then a refusal by one of the two nodes, then the state according to gossip, then the
// results of the dials.
func (r *reach) blocker() wire.Note {
	about := wire.NoteArgs{Peer: r.name}
	switch {
	case r.selfRevoked != nil:
		return *r.selfRevoked
	case r.revoked:
		return wire.Note{Code: wire.NotePeerRevoked, NoteArgs: about}
	case r.blocked:
		return wire.Note{Code: wire.NotePeerBlocked, NoteArgs: about}
	case r.dial.Refused != nil:
		return r.refusal(r.dial.Refused)
	case r.isolated != nil:
		return *r.isolated
	case r.addrs+len(r.relays) == 0:
		return wire.Note{Code: wire.NoteNoAddress, NoteArgs: about}
	}
	return r.noPath()
}

// refusal states which of the two nodes refused the other, why and when.
func (r *reach) refusal(why *transport.RefusedError) wire.Note {
	n := wire.Note{Code: wire.NoteRefusedHere, NoteArgs: wire.NoteArgs{Peer: r.name, Self: r.self, State: "ours", Seconds: r.ago(r.dial.FailedAt), Detail: oneLine(why.Reason)}}
	if why.Theirs {
		n.Code, n.State = wire.NoteRefusedByPeer, "theirs"
	}
	if why.Code == proto.CodeClock {
		n.Code = wire.NoteClocksDiffer
	}
	return n
}

// noPath states why a peer that nobody blocks cannot be reached.
func (r *reach) noPath() wire.Note {
	a := wire.NoteArgs{Peer: r.name, Dial: r.dialed()}
	a.Dial.Error, _, _ = strings.Cut(a.Dial.Error, "; ") // the steps have all
	code := wire.NoteNoAnswer
	switch {
	case r.status == gossip.Left:
		code, a.Seconds = wire.NotePeerLeft, r.ago(r.since)
	case r.status == gossip.Dead, r.status == gossip.Suspect:
		code, a.State, a.Seconds = wire.NotePeerLost, r.status.String(), r.ago(r.since)
	case len(r.relays) > 0 && len(r.near) == 0:
		code, a.Names = wire.NoteRelaysAway, r.relays
	case r.dial.LastError == "":
		code = wire.NoteDialing
	case len(r.near) > 0:
		code, a.Names = wire.NoteRelaysFail, r.near
	default:
		a.Count = r.addrs
	}
	return wire.Note{Code: code, NoteArgs: a}
}

// oneLine shortens an error of several lines to one line.
func oneLine(s string) string { return proto.CutWords(strings.Join(strings.Fields(s), " "), maxDetail) }

// maxDetail bounds the displayed part of an error, in bytes.
const maxDetail = 300
