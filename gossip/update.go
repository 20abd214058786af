package gossip

import (
	"github.com/balefire/balefire/proto"
)

// Status is this node's view of another.
type Status uint8

// A node that was introduced but not heard from since this start is UNKNOWN.
const (
	Unknown Status = iota
	Alive
	Suspect // did not answer; can still refute
	Dead    // not refuted in time
	Left    // announced that it stops
)

var statusNames = [...]string{"UNKNOWN", "ALIVE", "SUSPECT", "DEAD", "LEFT"}

// String returns the name used in output and metrics.
func (s Status) String() string {
	if int(s) < len(statusNames) {
		return statusNames[s]
	}
	return "UNKNOWN"
}

// liveness returns the wire form of s. A node that left counts as dead.
func (s Status) liveness() proto.Liveness {
	switch s {
	case Alive:
		return proto.Alive
	case Suspect:
		return proto.Suspect
	case Dead, Left:
		return proto.Dead
	}
	return proto.LivenessUnspecified
}

// An Update is one verified statement about a node: a record signed by the node itself,
// or an accusation by another. It is immutable.
type Update struct {
	Peer        proto.PeerID // the subject
	By          proto.PeerID // the signer: Peer itself, or the accuser
	Incarnation uint64
	Liveness    proto.Liveness    // SUSPECT or DEAD for an accusation; 0 for a record
	Record      *proto.NodeRecord // nil for an accusation
	Rumor       *proto.Rumor      // the signed form, for forwarding
}

func (n *Update) accuses() bool { return n.Liveness != proto.LivenessUnspecified }

// A Signer signs the core's statements.
type Signer interface {
	// Record returns the node's own current record.
	Record(incarnation, revision uint64) *Update
	// Accuse returns the node's statement that another did not answer.
	Accuse(p proto.PeerID, incarnation uint64, l proto.Liveness) *Update
}

// ActionKind is the kind of an action.
type ActionKind uint8

// Actions that the core requests.
const (
	DoProbe   ActionKind = iota // send a Probe to Peer
	DoReply                     // send a ProbeReply to Peer
	DoPublish                   // publish News on the topic
	DoRoot                      // publish the root of the digest
	DoSync                      // exchange digests with Peer
	DoEvent                     // report Event
)

// An Action is a request of the core. Only the fields that its kind needs are set.
type Action struct {
	Kind    ActionKind
	Missed  bool // in a reply: Target did not answer the helper
	Peer    proto.PeerID
	Target  proto.PeerID // of an indirect probe and its reply; zero: Peer itself
	Number  uint64
	Updates []*Update
	Event   *Event
}

// EventKind is the kind of an event.
type EventKind uint8

// Kinds of events.
const (
	Changed    EventKind = iota // its status changed
	Eligible                    // it may receive new work again: its recovery time is over
	Suppressed                  // it flapped during its recovery time, which restarts
	Described                   // its record changed, other than in load and measurements
	Pruned                      // it was dead for PruneAge and is forgotten
	Refuted                     // this node was accused and refuted it
	Isolation                   // this node became isolated, or stopped being so: see On
	Alarm                       // something needs attention: see Cause
)

var eventKindNames = [...]string{"changed", "eligible", "suppressed", "described", "pruned", "refuted", "isolated", "alarm"}

// String returns the name used in output.
func (w EventKind) String() string {
	if int(w) < len(eventKindNames) {
		return eventKindNames[w]
	}
	return "unknown"
}

// An Event reports a change to operators and other subsystems.
type Event struct {
	Kind        EventKind
	Peer        proto.PeerID
	From, To    Status
	On          bool // of Isolation
	Incarnation uint64
	By          proto.PeerID // the signer; zero: this node itself
	Cause       string       // human-readable
}
