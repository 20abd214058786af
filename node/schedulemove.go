package node

import (
	"context"
	"fmt"
	"slices"

	"github.com/balefire/balefire/proto"
)

// offer offers a schedule to the new home of its queue, which has one alone: until
// that has answered nobody else is offered it. One that was removed meanwhile is taken
// back so: that home may have it.
func (s *schedules) offer(m *proto.Schedule) {
	home, err := proto.PeerIDFrom(m.Going)
	c := s.node.cfg.Clock
	if err != nil || c.Boot()-s.sent[scheduleID{m.Queue, m.Name}] < scheduleResend && s.sent[scheduleID{m.Queue, m.Name}] > 0 {
		return
	}
	s.sent[scheduleID{m.Queue, m.Name}] = max(c.Boot(), 1)
	out := copySchedule(m)
	out.Going = nil
	ownershipSender{s.node}.Post(home, proto.TypeSchedule, out)
}

// receive takes a message about a schedule.
func (s *schedules) receive(from proto.PeerID, m *proto.Message) error {
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
		if err := checkSchedule(r); err != nil || r.FiringMs != 0 || len(r.Going) > 0 || r.Generation < 2 {
			return badForm("it is no schedule that is handed over: %v", err)
		}
		in = func() { s.accept(from, r) }
	}
	s.enqueue(in)
	return nil
}

// enqueue has in run between two looks.
func (s *schedules) enqueue(in func()) {
	select {
	case s.requests <- in:
	default: // it is said again
	}
}

// receiveRetraction takes the word that a schedule which was handed over is removed.
func (s *schedules) receiveRetraction(from proto.PeerID, m *proto.Schedule) error {
	if !queueRE.MatchString(m.Queue) || !queueRE.MatchString(m.Name) || m.Generation < 2 {
		return badForm("it is no schedule that was handed over")
	}
	s.enqueue(func() { s.retract(from, m) })
	return nil
}

// retract removes a schedule that from has handed over, or notes that it is not to be
// taken any more. The home that it went on to is told, and from is answered when that
// has. What a person added since is another's.
func (s *schedules) retract(from proto.PeerID, m *proto.Schedule) {
	if !wasQueueHome(s.node.queues.driver.QueueStates()[m.Queue], from) {
		return
	}
	old := s.all[scheduleID{m.Queue, m.Name}]
	its := sameSchedule(old, m) && old.Generation >= m.Generation && isDelegate(old, from)
	gone := &proto.Schedule{Queue: m.Queue, Name: m.Name, Generation: m.Generation, BornMs: m.BornMs, Gone: true}
	switch {
	case old == nil && s.full():
		return
	case its && !old.Gone:
		gone = tombstone(old)
		gone.Going = old.Going
	case its && len(old.Went) > 0:
		gone = tombstone(old)
		gone.Going = old.Went
	case old == nil, old.Gone && old.Generation < m.Generation:
	case old.Gone && len(old.Going) > 0 && sameSchedule(old, m): // who has it is being told
		return
	default:
		gone = nil
	}
	if gone != nil {
		if err := s.put(context.Background(), gone); err != nil {
			s.node.log.Warn("a schedule that its old home has removed is still kept here", "err", err)
			return
		}
	}
	if its && !old.Gone {
		s.node.addEvent("schedule.removed", from, fmt.Sprintf("schedule %s of queue %s was removed where it came from", m.Name, m.Queue), nil)
	}
	if len(gone.GetGoing()) == 0 {
		s.confirm(from, m)
	}
}

// sameSchedule reports whether two are one schedule, which was added once. What went through
// a node of an older version has lost when that was.
func sameSchedule(a, b *proto.Schedule) bool {
	return a != nil && (a.BornMs == b.BornMs || a.BornMs == 0 || b.BornMs == 0)
}

// confirm says that m is here, or that it is gone.
func (s *schedules) confirm(to proto.PeerID, m *proto.Schedule) {
	ownershipSender{s.node}.Post(to, proto.TypeScheduled, &proto.Scheduled{Queue: m.Queue, Name: m.Name, Generation: m.Generation, Gone: m.Gone})
}

// accept keeps a schedule that an old home hands over. Who handed it over vouches for
// it: a handler must allow each of them, for one could have changed what it asks for.
func (s *schedules) accept(from proto.PeerID, m *proto.Schedule) {
	id := scheduleID{m.Queue, m.Name}
	if !wasQueueHome(s.node.queues.driver.QueueStates()[m.Queue], from) {
		return // word of the queue is on its way, or it is no old home: then it may say so again for ever
	}
	old, self := s.all[id], s.node.keys.Peer()
	same := sameSchedule(old, m)
	switch {
	case same && old.Generation >= m.Generation: // a copy
	case same && old.Gone && len(old.Going) > 0 && isDelegate(m, self): // it was removed here while it was on its way
	case old != nil && old.Gone && !same && m.BornMs < old.BornMs && isDelegate(m, self): // another was added here since, and removed
	case old != nil && !old.Gone && !same && len(old.Going) > 0:
		return // until that is at its new home
	case old != nil && !old.Gone && len(old.Going) == 0:
		s.node.addEvent("schedule.dropped", from, fmt.Sprintf("schedule %s of queue %s came from an old home, and there is one of that name here", m.Name, m.Queue), nil)
	case old == nil && s.full(), len(m.Vouchers) >= maxDelegates && !isDelegate(m, from):
		s.node.log.Warn("a schedule is not taken: there are as many here as may be, or it came through too many hands", "queue", m.Queue, "schedule", m.Name)
		return
	default:
		m.Vouchers = append(slices.DeleteFunc(m.Vouchers, func(v []byte) bool { return string(v) == string(from[:]) }), from[:])
		if err := s.put(context.Background(), m); err != nil {
			s.node.log.Warn("a schedule could not be taken", "err", err)
			return
		}
	}
	s.confirm(from, m)
}

// wasQueueHome reports whether p is, or once was, the home of a queue: the deeds that are kept
// were checked.
func wasQueueHome(q *proto.QueueState, p proto.PeerID) bool {
	return string(q.GetHome()) == string(p[:]) || slices.ContainsFunc(q.GetDeeds(), func(x *proto.Signed) bool {
		d := new(proto.Deed)
		return proto.DecodeKnown(x.GetDetails(), d) == nil && (string(d.From) == string(p[:]) || string(d.To) == string(p[:]))
	})
}

func isDelegate(m *proto.Schedule, p proto.PeerID) bool {
	return slices.ContainsFunc(m.Vouchers, func(v []byte) bool { return string(v) == string(p[:]) })
}

// confirmed notes that the new home has a schedule, or has taken back what it had of it.
func (s *schedules) confirmed(from proto.PeerID, r *proto.Scheduled) {
	m := s.all[scheduleID{r.Queue, r.Name}]
	if m == nil || string(m.Going) != string(from[:]) || m.Generation != r.Generation || m.Gone && !r.Gone {
		return
	}
	over := tombstone(m)
	if !m.Gone {
		over.Went = m.Going
	}
	if err := s.put(context.Background(), over); err != nil {
		s.node.log.Warn("a schedule that moved is still kept here", "err", err)
	}
}

// tombstone is what is kept of one that is gone.
func tombstone(m *proto.Schedule) *proto.Schedule {
	return &proto.Schedule{Queue: m.Queue, Name: m.Name, Generation: m.Generation, BornMs: m.BornMs, Vouchers: m.Vouchers, Gone: true}
}
