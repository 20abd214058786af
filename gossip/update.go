package gossip

import (
	"time"

	"github.com/balefire/balefire/proto"
)

// Status is what this node believes of another.
type Status uint8

// A node that was introduced, and never heard of since this start, is UNKNOWN.
const (
	Unknown Status = iota
	Alive
	Suspect // did not answer; can still refute
	Dead    // nobody refuted in time
	Left    // said that it stops
)

var statusNames = [...]string{"UNKNOWN", "ALIVE", "SUSPECT", "DEAD", "LEFT"}

// String returns the word for people and metrics.
func (s Status) String() string {
	if int(s) < len(statusNames) {
		return statusNames[s]
	}
	return "UNKNOWN"
}

// liveness returns what the wire calls s. Who left is as gone as the dead.
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

// Update is one statement about a node whose signature holds: a record of the node
// itself, or an accusation by another. It is never changed once it was made.
type Update struct {
	Peer        proto.PeerID // whom it is about
	By          proto.PeerID // who says it: Peer itself, or the accuser
	Incarnation uint64
	Liveness    proto.Liveness    // of an accusation: SUSPECT or DEAD; 0: this is a record
	Record      *proto.NodeRecord // of a record
	Rumor       *proto.Rumor      // the signed form, to be handed on
}

func (n *Update) accuses() bool { return n.Liveness != proto.LivenessUnspecified }

// A Signer signs what the core decides to say.
type Signer interface {
	// Record returns the node's own record as it is now.
	Record(incarnation, revision uint64) *Update
	// Accuse returns the node's statement that another did not answer.
	Accuse(p proto.PeerID, incarnation uint64, l proto.Liveness) *Update
}

// ActionKind says what an action asks for.
type ActionKind uint8

// What the core asks its holder to do.
const (
	DoProbe   ActionKind = iota // send a Probe to Peer
	DoReply                     // send a ProbeReply to Peer
	DoPublish                   // publish News on the topic
	DoRoot                      // publish the root of the digest
	DoSync                      // exchange digests with Peer
	DoEvent                     // tell whoever listens of Event
)

// An Action is something to be done. Of its fields those that Do needs are set.
type Action struct {
	Kind    ActionKind
	Missed  bool // of a reply: the helper did not hear from Target
	Peer    proto.PeerID
	Target  proto.PeerID // of a probe that a helper makes, and of its reply; zero: Peer itself
	Number  uint64
	Updates []*Update
	Event   *Event
}

// EventKind says what happened to a member.
type EventKind uint8

// Kinds of events.
const (
	Changed    EventKind = iota // its status is another
	Eligible                    // it may have new work again: the time after its return is over
	Suppressed                  // it flapped within that time, which begins anew
	Described                   // its record changed in something that matters
	Pruned                      // it was dead for long and is forgotten
	Refuted                     // this node was accused, and answered
	Isolation                   // this node takes itself for isolated, or no longer: see On
	Alarm                       // somebody said what cannot be true: see Cause
)

var eventKindNames = [...]string{"changed", "eligible", "suppressed", "described", "pruned", "refuted", "isolated", "alarm"}

// String returns the word for people.
func (w EventKind) String() string {
	if int(w) < len(eventKindNames) {
		return eventKindNames[w]
	}
	return "unknown"
}

// An Event is something that people and other rooms may want to know.
type Event struct {
	Kind        EventKind
	Peer        proto.PeerID
	From, To    Status
	On          bool // of Cut
	Incarnation uint64
	By          proto.PeerID  // who said it; zero: this node found it
	After       time.Duration // of Changed to Alive or Dead: since the status before began
	Cause       string        // for people
}
