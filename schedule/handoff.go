package schedule

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// offer offers a schedule to the new home of its queue. Until that home has answered, no
// other node gets the offer, so that a schedule is at one home only. For a removed
// schedule, it withdraws the earlier offer, which that home may have accepted.
func (s *Scheduler) offer(m *proto.Schedule) {
	home, err := proto.PeerIDFrom(m.Going)
	c := s.cfg.Clock
	if err != nil || c.Boot()-s.sent[scheduleID{m.Queue, m.Name}] < resendEvery && s.sent[scheduleID{m.Queue, m.Name}] > 0 {
		return
	}
	s.sent[scheduleID{m.Queue, m.Name}] = max(c.Boot(), 1)
	out := proto.Clone(m)
	out.Going = nil
	s.parts.Post(home, proto.TypeSchedule, out)
}

// Receive processes a message about a schedule.
func (s *Scheduler) Receive(from proto.PeerID, m *proto.Message) error {
	var in func()
	if m.GetType() == proto.TypeScheduled {
		r := new(proto.Scheduled)
		if err := proto.DecodeKnown(m.GetPayload(), r); err != nil {
			return err
		}
		in = func() { s.confirmed(from, r) }
	} else {
		r := new(proto.Schedule)
		if err := proto.DecodeKnown(m.GetPayload(), r); err != nil {
			return err
		}
		if r.Gone {
			return s.receiveRetraction(from, r)
		}
		if err := check(r); err != nil || r.FiringMs != 0 || len(r.Going) > 0 || r.Generation < 2 {
			return fmt.Errorf("not a valid handoff of a schedule: %w", err)
		}
		in = func() { s.accept(from, r) }
	}
	s.enqueue(in)
	return nil
}

// enqueue queues in to run between two ticks.
func (s *Scheduler) enqueue(in func()) {
	select {
	case s.requests <- in:
	default: // the sender repeats it
	}
}

// receiveRetraction processes the message that a handed-over schedule was removed.
func (s *Scheduler) receiveRetraction(from proto.PeerID, m *proto.Schedule) error {
	if !proto.ValidQueue(m.Queue) || !proto.ValidQueue(m.Name) || m.Generation < 2 {
		return errors.New("not a schedule that was handed over")
	}
	s.enqueue(func() { s.retract(from, m) })
	return nil
}

// retract removes a schedule that from has handed over, or records that it must not be
// accepted any more. If the schedule has moved on, its next home is informed first and
// from is answered when that home has answered. A schedule that a person added since is
// a different one and stays.
func (s *Scheduler) retract(from proto.PeerID, m *proto.Schedule) {
	if !s.parts.Queues.WasHome(m.Queue, from) {
		return
	}
	old := s.all[scheduleID{m.Queue, m.Name}]
	matches := sameSchedule(old, m) && old.Generation >= m.Generation && isDelegate(old, from)
	gone := &proto.Schedule{Queue: m.Queue, Name: m.Name, Generation: m.Generation, BornMs: m.BornMs, Gone: true}
	switch {
	case old == nil && s.full():
		return
	case matches && !old.Gone:
		gone = tombstone(old)
		gone.Going = old.Going
	case matches && len(old.Went) > 0:
		gone = tombstone(old)
		gone.Going = old.Went
	case old == nil, old.Gone && old.Generation < m.Generation:
	case old.Gone && len(old.Going) > 0 && sameSchedule(old, m): // its new home is being informed
		return
	default:
		gone = nil
	}
	if gone != nil {
		if err := s.put(context.Background(), gone); err != nil {
			s.cfg.Logger.Warn("could not remove a schedule that its old home has removed", "err", err)
			return
		}
	}
	if matches && !old.Gone {
		s.parts.Event(wire.EventScheduleRemoved, from, map[string]string{"queue": m.Queue, "schedule": m.Name})
	}
	if len(gone.GetGoing()) == 0 {
		s.confirm(from, m)
	}
}

// sameSchedule reports whether a and b are the same schedule, added once.
func sameSchedule(a, b *proto.Schedule) bool {
	return a != nil && a.BornMs == b.BornMs
}

// confirm confirms that m is stored here, or that it is gone.
func (s *Scheduler) confirm(to proto.PeerID, m *proto.Schedule) {
	s.parts.Post(to, proto.TypeScheduled, &proto.Scheduled{Queue: m.Queue, Name: m.Name, Generation: m.Generation, Gone: m.Gone})
}

// accept accepts a schedule that an old home hands over. The sender becomes one of its
// delegates: a handler must allow each of them, because each could have changed the
// schedule.
func (s *Scheduler) accept(from proto.PeerID, m *proto.Schedule) {
	id := scheduleID{m.Queue, m.Name}
	if !s.parts.Queues.WasHome(m.Queue, from) {
		return // this node does not know yet that from was a home, or it never was; a repeated offer is harmless
	}
	old, self := s.all[id], s.cfg.Self
	same := sameSchedule(old, m)
	switch {
	case same && old.Generation >= m.Generation: // a copy
	case same && old.Gone && len(old.Going) > 0 && isDelegate(m, self): // removed here while it was moving
	case old != nil && old.Gone && !same && m.BornMs < old.BornMs && isDelegate(m, self): // another one was added here since and removed
	case old != nil && !old.Gone && !same && len(old.Going) > 0:
		return // wait until that one is at its new home
	case old != nil && !old.Gone && len(old.Going) == 0:
		s.parts.Event(wire.EventScheduleDropped, from, map[string]string{"queue": m.Queue, "schedule": m.Name})
	case old == nil && s.full(), len(m.Delegates) >= maxDelegates && !isDelegate(m, from):
		s.cfg.Logger.Warn("schedule refused: this node has the maximum number of schedules, or it passed through too many homes", "queue", m.Queue, "schedule", m.Name)
		return
	default:
		m.Delegates = append(slices.DeleteFunc(m.Delegates, func(v []byte) bool { return string(v) == string(from[:]) }), from[:])
		if err := s.put(context.Background(), m); err != nil {
			s.cfg.Logger.Warn("could not store a schedule", "err", err)
			return
		}
	}
	s.confirm(from, m)
}

func isDelegate(m *proto.Schedule, p proto.PeerID) bool {
	return slices.ContainsFunc(m.Delegates, func(v []byte) bool { return string(v) == string(p[:]) })
}

// confirmed records that the new home has a schedule, or has removed its copy of it.
func (s *Scheduler) confirmed(from proto.PeerID, r *proto.Scheduled) {
	m := s.all[scheduleID{r.Queue, r.Name}]
	if m == nil || string(m.Going) != string(from[:]) || m.Generation != r.Generation || m.Gone && !r.Gone {
		return
	}
	over := tombstone(m)
	if !m.Gone {
		over.Went = m.Going
	}
	if err := s.put(context.Background(), over); err != nil {
		s.cfg.Logger.Warn("could not remove a schedule that moved", "err", err)
	}
}

// tombstone returns the record that remains of a removed schedule.
func tombstone(m *proto.Schedule) *proto.Schedule {
	return &proto.Schedule{Queue: m.Queue, Name: m.Name, Generation: m.Generation, BornMs: m.BornMs, Delegates: m.Delegates, Gone: true}
}
