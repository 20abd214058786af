package view

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/gossip"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/wire"
)

// Members lists all known members, this node first, then by name.
func (v *Views) Members() []wire.Member {
	status := v.Statuses()
	known := map[proto.PeerID]gossip.Member{}
	for _, m := range v.Gossip.Members() {
		known[m.Peer] = m
	}
	out := []wire.Member{v.selfMember()}
	for _, p := range v.Book.List() {
		if _, ok := v.Book.Member(p.Peer); ok {
			out = append(out, v.memberView(p, known[p.Peer], status[p.Peer]))
		}
	}
	return out
}

// Statuses returns the connections to the peers.
func (v *Views) Statuses() map[proto.PeerID]transport.PeerStatus {
	all := map[proto.PeerID]transport.PeerStatus{}
	for _, s := range v.Net.Peers() {
		all[s.Peer] = s
	}
	return all
}

// Member returns one member by name or id.
func (v *Views) Member(ref string) (wire.Member, error) {
	p, err := v.Book.Find(ref)
	if err != nil {
		return wire.Member{}, err
	}
	for _, m := range v.Members() {
		if m.ID == p.Peer.String() {
			return m, nil
		}
	}
	return wire.Member{}, fmt.Errorf("%w: %s is currently not a member", wire.ErrNotFound, p.Label())
}

func (v *Views) selfMember() wire.Member {
	own := v.Local.Record()
	m := wire.Member{
		Name: v.Self.Name, ID: v.Self.Peer.String(), Self: true, State: gossip.Alive.String(), Eligible: !v.Gossip.SelfPaused() && own.State == proto.NodeRunning,
		Boot: v.Outbox.Boot(), Phase: phase(own.State), Started: &own.Started, Priority: own.Priority, Load: loadView(own.Load),
		Labels: own.Labels, Kinds: own.Kinds, Roles: v.Self.Roles, Version: own.Version, Connected: true,
	}
	for _, r := range own.Relays {
		m.Relays = append(m.Relays, v.Book.NameOf(r))
	}
	return m
}

func (v *Views) memberView(p addressbook.Peer, g gossip.Member, s transport.PeerStatus) wire.Member {
	m := wire.Member{
		Name: p.Label(), ID: p.Peer.String(), State: g.Status.String(), Eligible: g.Eligible, Accusers: len(g.Accusers),
		Incarnation: g.Incarnation, Boot: p.Boot, Roles: p.Member.Roles, Connected: s.Connected,
	}
	if s.Connected {
		m.Path = "direct"
		if !s.Direct {
			m.Path = "relayed"
		}
	}
	if g.Since > 0 && g.Status != gossip.Unknown {
		m.Since = new(v.Clock.Now().Add(-g.Since).UTC())
	}
	r := g.Record
	if r == nil {
		return m
	}
	m.Phase, m.Started, m.Priority, m.Load = phase(r.GetState()), new(proto.Time(r.GetStartedMs())), r.GetPriority(), loadView(r.GetLoad())
	m.Labels, m.Kinds, m.Version = r.GetLabels(), r.GetKinds(), r.GetVersion()
	for _, b := range r.GetRelays() {
		name, _ := v.Book.Identify(b)
		m.Relays = append(m.Relays, name)
	}
	return m
}

func phase(s proto.NodeState) string { return strings.TrimPrefix(s.String(), "NODE_STATE_") }

func loadView(l *proto.Load) *wire.Load {
	if l == nil {
		return nil
	}
	return &wire.Load{
		CPU: float64(l.GetCpuPermille()) / 1000, Memory: float64(l.GetMemoryPermille()) / 1000,
		Slots: int(l.GetSlots()), Busy: int(l.GetBusy()), Waiting: int(l.GetWaiting()),
	}
}

// MeshSummary summarizes the state of the mesh.
func (v *Views) MeshSummary(ctx context.Context) wire.MeshSummary {
	g := v.Gossip.Summary()
	s := wire.MeshSummary{
		Mesh: v.Mesh.String(), States: map[string]int{}, Isolated: g.Isolated, Paused: g.SelfPaused, LocalHealth: g.Health,
		Root: hex.EncodeToString(g.Root[:6]), Refuted: int(g.Counts.Refutations), Suppressed: int(g.Counts.Suppressed), Risks: []wire.Note{},
	}
	s.Accusers = v.accusers()
	dead := countMembers(&s, v.Members())
	s.Leases = v.Queues.LeaseRisks(ctx)
	for _, l := range s.Leases {
		s.Risks = append(s.Risks, riskNote(l))
	}
	s.Risks = append(s.Risks, v.meshRisks(&s, dead)...)
	return s
}

// countMembers counts members in s and returns the names of the dead ones. A connection to one
// of these, which may take half a minute to close, is no path.
func countMembers(s *wire.MeshSummary, members []wire.Member) (dead []string) {
	for _, m := range members {
		s.Members++
		s.States[m.State]++
		switch {
		case m.State == gossip.Dead.String():
			dead = append(dead, m.Name)
		case m.Self:
		case m.Path == "direct":
			s.Direct++
		case m.Connected:
			s.Relayed++
		}
	}
	s.Connected = s.Direct + s.Relayed
	slices.Sort(dead)
	return dead
}

// meshRisks lists what an operator should look at in the mesh.
func (v *Views) meshRisks(s *wire.MeshSummary, dead []string) (risks []wire.Note) {
	if n := v.RevokedNote(); n != nil {
		return append(risks, *n) // everything else follows from it
	}
	if p := v.phaseNote(); p != nil {
		risks = append(risks, *p)
	}
	if s.Isolated {
		risks = append(risks, v.IsolatedNote())
	} else if s.Paused {
		risks = append(risks, v.probesNote())
	}
	if len(dead) > 0 {
		risks = append(risks, note(wire.NoteMembersDead, wire.NoteArgs{Count: len(dead), Names: dead}))
	}
	for _, name := range dead {
		if p, err := v.Book.Find(name); err == nil {
			if w := v.Outbox.Waiting(p.Peer); w > 0 {
				risks = append(risks, waitingNote(w, name, gossip.Dead.String()))
			}
		}
	}
	if k := s.States[gossip.Dead.String()]; s.Members > 2 && k*2 >= s.Members {
		risks = append(risks, note(wire.NotePartition, wire.NoteArgs{Count: k, Of: s.Members}))
	}
	return risks
}
