package view

import (
	"cmp"

	"github.com/balefire/balefire/gossip"
	"github.com/balefire/balefire/wire"
)

func note(code wire.NoteCode, a wire.NoteArgs) wire.Note { return wire.Note{Code: code, NoteArgs: a} }

// RevokedNote states that this node was revoked; nil: no revocation of it is known here.
func (v *Views) RevokedNote() *wire.Note {
	r, revoked := v.Book.RevocationOf(v.Self.Peer)
	if !revoked {
		return nil
	}
	a := wire.NoteArgs{Time: new(r.At.UTC())}
	if r.Admin() {
		a.Peer = v.Book.NameOf(r.Issuer.Peer)
	}
	return new(note(wire.NoteSelfRevoked, a))
}

// IsolatedNote states why this node considers itself isolated.
func (v *Views) IsolatedNote() wire.Note {
	return note(wire.NoteIsolated, wire.NoteArgs{Names: v.accusers()})
}

// PausedNote states why this node grants only to itself.
func (v *Views) PausedNote() wire.Note {
	if s := v.Gossip.Summary(); !s.Isolated {
		return note(wire.NoteSelfPaused, wire.NoteArgs{Count: s.Health, Of: maxHealth})
	}
	return note(wire.NoteSelfPaused, wire.NoteArgs{Names: v.accusers()})
}

// maxHealth is the worst local health.
const maxHealth = 8

func (v *Views) probesNote() wire.Note {
	return note(wire.NoteProbesFail, wire.NoteArgs{Count: v.Gossip.Summary().Health, Of: maxHealth})
}

// accusers names the members that report that this node does not answer.
func (v *Views) accusers() (names []string) {
	for _, p := range v.Gossip.Accusers() {
		names = append(names, cmp.Or(v.Book.NameOf(p), p.String()))
	}
	return names
}

// ClockDoubt returns why the wall clock is doubted; nil: it is not.
func (v *Views) ClockDoubt() *wire.ClockDoubt {
	s := v.Guard.State()
	if !s.Doubted {
		return nil
	}
	return &wire.ClockDoubt{Off: s.Off.Seconds(), Stopped: s.Stopped, Denied: s.Denied, Outside: s.Outside, Left: s.Left.Seconds()}
}

func riskNote(r wire.LeaseRisk) wire.Note {
	return note(wire.NoteLeaseRisk, wire.NoteArgs{Peer: r.Owner, State: r.State, Count: r.Tasks, Held: r.Once})
}

// waitingNote states what waits for an unreachable peer.
func waitingNote(n int, name, liveness string) wire.Note {
	state := "OFFLINE"
	if liveness == gossip.Dead.String() {
		state = liveness
	}
	return note(wire.NoteTasksWait, wire.NoteArgs{Peer: name, State: state, Count: n})
}
