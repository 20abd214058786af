package view

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/wire"
)

// Status summarizes the state of this node.
func (v *Views) Status(ctx context.Context) wire.Status {
	home, owner := v.Outbox.Stats(), v.Inbox.Status()
	s := wire.Status{
		Name: v.Self.Name, ID: v.Self.Peer.String(), Mesh: v.Mesh.String(), Version: v.Version, Started: v.Started,
		Store: v.StoreStats(), Addrs: v.Local.Addrs(), Peers: v.Peers(), Outbox: byName(home.ByState), Inbox: byName(owner.Backlog.ByState),
		Results: v.Outbox.Results(), Dead: home.Dead, Slots: owner.Slots, Busy: owner.Used,
	}
	if m, err := v.Mail.Status(ctx); err == nil {
		s.Mail = &m
	}
	s.Warnings = v.warnings(ctx, &s)
	return s
}

func byName(counts map[proto.TaskState]int) map[string]int {
	out := map[string]int{}
	for state, k := range counts {
		out[state.Name()] = k
	}
	return out
}

// phaseNote tells why this node gets no new work, if it does not run any more or was drained.
func (v *Views) phaseNote() *wire.Note {
	switch v.Local.Phase() {
	case proto.NodeStopping:
		return new(note(wire.NoteStopping, wire.NoteArgs{}))
	case proto.NodeDraining:
		return new(note(wire.NoteDrained, wire.NoteArgs{}))
	}
	return nil
}

// warnings lists what an operator should look at.
func (v *Views) warnings(ctx context.Context, s *wire.Status) []wire.Note {
	w := []wire.Note{}
	add := func(code wire.NoteCode, a wire.NoteArgs) { w = append(w, note(code, a)) }
	if n := v.RevokedNote(); n != nil {
		w = append(w, *n)
	}
	if v.Local.Comparing() {
		add(wire.NoteComparing, wire.NoteArgs{})
	}
	if p := v.phaseNote(); p != nil {
		w = append(w, *p)
	}
	w = append(w, storeWarnings(v.Store, s.Store)...)
	for _, h := range v.Local.Handlers() {
		if p := h.Problem; p != nil {
			add(wire.NoteHandlerProblem, wire.NoteArgs{Kind: h.Kind, Cause: string(p.Code), Detail: p.Detail})
		}
	}
	w = append(w, v.Queues.Alarms(ctx)...)
	for _, l := range v.Queues.LeaseRisks(ctx) {
		w = append(w, riskNote(l))
	}
	w = append(w, v.clockWarnings()...)
	w = append(w, peerClocks(s.Peers)...)
	for _, p := range s.Peers {
		if p.State == "OFFLINE" && p.Queued > 0 {
			w = append(w, waitingNote(p.Queued, p.Name, p.Liveness))
		}
		if p.State == "EXPIRED" {
			add(wire.NoteCertExpired, wire.NoteArgs{Peer: p.Name})
		}
	}
	if list, count := v.Outbox.RefusedResults(1); count > 0 {
		r := list[0]
		add(wire.NoteResultsRefused, wire.NoteArgs{Count: count, Peer: v.Book.NameOf(r.Home), Refusal: r.Code.Name(), Detail: r.Detail, Task: r.ID.String()})
	}
	if n := v.Book.Count(); n >= addressbook.MaxPeers {
		add(wire.NoteBookFull, wire.NoteArgs{Count: n})
	}
	if s.Dead > 0 {
		add(wire.NoteDeadLetters, wire.NoteArgs{Count: s.Dead})
	}
	if m := s.Mail; m != nil && m.Dead > 0 {
		add(wire.NoteDeadMail, wire.NoteArgs{Count: m.Dead, Names: m.DeadIn})
	}
	if until := v.Book.Self().Member.NotAfter; until.Sub(v.Clock.Now()) < renewedBefore {
		add(wire.NoteOwnCertificate, wire.NoteArgs{Time: new(until.UTC())})
	}
	return w
}

const (
	renewedBefore = 28 * 24 * time.Hour // a certificate that expires sooner should have been renewed
	jumpWarnFor   = time.Hour           // how long a jump of the clocks is reported
)

// compactWarnAfter is how many compactions have to fail in a row before that is reported: one
// is tried again after ten minutes.
const compactWarnAfter = 3

func storeWarnings(of *store.Store, s wire.StoreStats) (w []wire.Note) {
	if s.Failed != "" {
		w = append(w, note(wire.NoteStoreFailed, wire.NoteArgs{Detail: s.Failed}))
	}
	if s.Refuses != "" {
		w = append(w, note(s.Refuses, wire.NoteArgs{}))
	}
	if times, last := of.CompactFailure(); times >= compactWarnAfter {
		w = append(w, note(wire.NoteCompactFails, wire.NoteArgs{Count: times, Detail: last.Error()}))
	}
	return w
}

func (v *Views) clockWarnings() (w []wire.Note) {
	now := v.Clock.Now()
	if c := v.ClockDoubt(); c != nil {
		w = append(w, note(wire.NoteClockDoubted, wire.NoteArgs{Clock: c}))
	}
	if at := v.Queues.LastJump(); now.Sub(at) < jumpWarnFor {
		w = append(w, note(wire.NoteClockJumped, wire.NoteArgs{Time: new(at.UTC())}))
	}
	if from := v.Book.Self().Member.NotBefore; from.Sub(now) > proto.Skew {
		w = append(w, note(wire.NoteClockBehind, wire.NoteArgs{Time: new(from.UTC()), Seconds: from.Sub(now).Seconds()}))
	}
	return w
}

// peerClocks states whose clocks differ. If most connected peers' do, this node's is
// probably the wrong one.
func peerClocks(peers []wire.Peer) (w []wire.Note) {
	connected, off := 0, []float64{}
	for _, p := range peers {
		if p.State == "CONNECTED" {
			connected++
		}
		if p.Clock != 0 {
			off = append(off, p.Clock)
			w = append(w, note(wire.NotePeerClock, wire.NoteArgs{Peer: p.Name, Seconds: p.Clock}))
		}
	}
	if len(off) < 2 || 2*len(off) <= connected {
		return w
	}
	slices.Sort(off)
	return []wire.Note{note(wire.NoteOwnClock, wire.NoteArgs{Seconds: -off[len(off)/2], Count: len(off), Of: max(connected, len(off))})}
}

// StoreStats returns the current statistics of the store.
func (v *Views) StoreStats() wire.StoreStats {
	st, c := v.Store.Stats(), v.Store.Counters()
	s := wire.StoreStats{
		Engine: st.Engine, Schema: store.Schema, DiskBytes: st.DiskBytes, LiveBytes: st.LiveBytes, Keys: st.Keys,
		BlobBytes: v.Local.BlobBytes(), LedgerBytes: v.Local.LedgerBytes(), Full: v.Store.Full(), Commits: c.Groups,
	}
	s.FreeBytes, s.Reserve = v.Store.Space()
	switch why := v.Store.Refuses(); {
	case errors.Is(why, store.ErrNoMemory):
		s.Refuses = wire.NoteMemoryFull
	case why != nil:
		s.Refuses = wire.NoteDiskFull
	}
	if err := v.Store.Err(); err != nil {
		s.Failed = err.Error()
	}
	return s
}
