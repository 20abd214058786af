package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/balefire/balefire/audit"
	"github.com/balefire/balefire/gossip"
	"github.com/balefire/balefire/ownership"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// HandOff hands a queue whose home is here over to another home, by default the
// best candidate. Its tasks follow as fast as the new home answers, and keep running
// meanwhile.
func (qs *Queues) HandOff(ctx context.Context, name, to string) (wire.Queue, error) {
	if err := checkMovable(name); err != nil {
		return wire.Queue{}, err
	}
	q, err := qs.Get(ctx, name)
	if err != nil {
		return q, err
	}
	if !q.Here {
		return q, fmt.Errorf("%w: the home of queue %s is %s: hand the queue over there", wire.ErrRefused, name, q.Home)
	}
	next, err := qs.requestedHome(name, to)
	if err != nil {
		return q, err
	}
	if err := qs.handOff(ctx, qs.cfg.Audit, name, next); err != nil {
		return q, err
	}
	return qs.Get(ctx, name)
}

// requestedHome returns the next home of a queue that a person named, or the best
// candidate if the name is empty.
func (qs *Queues) requestedHome(name, to string) (proto.PeerID, error) {
	if to == "" {
		next, ok := nextHome(qs.Driver.QueueStates()[name].GetNextHomes(), qs.Candidates())
		if !ok {
			return next, fmt.Errorf("%w: %s: name one with --to, or wait", wire.ErrRefused, noHome)
		}
		return next, nil
	}
	p, err := qs.findPeer(to)
	switch {
	case err != nil:
		return p.Peer, err
	case p.Peer == qs.self:
		return p.Peer, fmt.Errorf("%w: this node is already the home of queue %s", wire.ErrRefused, name)
	case !qs.net.Connected(p.Peer):
		return p.Peer, fmt.Errorf("%w: %s is not connected", wire.ErrRefused, p.Label())
	case !qs.mayWork(p.Peer):
		return p.Peer, fmt.Errorf("%w: the home of a queue needs the role work, which %s does not have", wire.ErrRefused, p.Label())
	}
	return p.Peer, nil
}

// noHome explains why a queue has no next home.
const noHome = "no connected member has been alive long enough to become the home"

// handOff hands a queue, or another name, over to its next home, and records who asked for that.
func (qs *Queues) handOff(ctx context.Context, record audit.RecordFunc, name string, to proto.PeerID) error {
	action := "queue.handoff"
	if !proto.NamesQueue(name) {
		action = "title.handoff"
	}
	if err := record(ctx, action, name+" to "+to.String()); err != nil {
		return err
	}
	if err := qs.Driver.HandOff(ctx, name, to); err != nil {
		return fmt.Errorf("hand over %s: %w", proto.TitleText(name), err)
	}
	return nil
}

// Candidates returns the members that may be the home of a queue now.
func (qs *Queues) Candidates() []gossip.Member {
	return qs.candidates(qs.gossip.Members(), qs.net.Connected)
}

// candidates returns those of all that may be the home of a queue now.
func (qs *Queues) candidates(all []gossip.Member, connected func(proto.PeerID) bool) []gossip.Member {
	return slices.DeleteFunc(all, func(m gossip.Member) bool {
		return !qs.mayWork(m.Peer) || !m.Eligible || m.Record == nil || !connected(m.Peer)
	})
}

// nextHome chooses the member that takes a queue over: the first available one of its
// list, otherwise the one with the highest priority, then the longest uptime, then the
// least load.
func nextHome(order []string, candidates []gossip.Member) (best proto.PeerID, ok bool) {
	for _, id := range order {
		for _, m := range candidates {
			if m.Peer.String() == id {
				return m.Peer, true
			}
		}
	}
	if len(candidates) == 0 {
		return best, false
	}
	return slices.MinFunc(candidates, func(a, b gossip.Member) int {
		x, y := a.Record, b.Record
		return cmp.Or(
			cmp.Compare(y.GetPriority(), x.GetPriority()),
			cmp.Compare(x.GetStartedMs(), y.GetStartedMs()),
			cmp.Compare(loadOf(x.GetLoad()), loadOf(y.GetLoad())),
			a.Peer.Compare(b.Peer))
	}).Peer, true
}

// loadOf is the share of a node's slots that is in use.
func loadOf(l *proto.Load) float64 { return float64(l.GetBusy()) / float64(max(l.GetSlots(), 1)) }

// preferredHome is where a queue of node self belongs: with the first available node
// of its list or, if self drains, with any other node. Without a list, and while no
// node of it is available, the queue stays: ok is false.
func preferredHome(order []string, self proto.PeerID, drained bool, candidates []gossip.Member) (to proto.PeerID, ok bool) {
	if drained {
		return nextHome(order, candidates)
	}
	if at := slices.Index(order, self.String()); at >= 0 {
		order = order[:at]
	}
	for _, id := range order {
		for _, m := range candidates {
			if m.Peer.String() == id {
				return m.Peer, true
			}
		}
	}
	return to, false
}

// moveHomes hands over each queue whose home is here and that belongs elsewhere, by
// its list or because this node drains. It returns those that it handed over, and
// those that it would not keep if there were a candidate.
func (qs *Queues) moveHomes(ctx context.Context) (moved, kept []string, err error) {
	qs.moving.Lock()
	defer qs.moving.Unlock()
	drained := qs.drained.Load()
	states := slices.DeleteFunc(qs.OwnStates(), func(s *proto.QueueState) bool { return !drained && len(s.GetNextHomes()) == 0 })
	if len(states) == 0 {
		return nil, nil, nil
	}
	candidates := qs.Candidates()
	for _, s := range states {
		to, ok := preferredHome(s.GetNextHomes(), qs.self, drained, candidates)
		switch {
		case ok:
			if err := qs.handOff(ctx, qs.cfg.AuditSystem, s.GetName(), to); err != nil {
				return moved, kept, err
			}
			qs.cfg.Event(wire.EventHandedOver, to, map[string]string{"queue": s.GetName()})
			moved = append(moved, s.GetName())
		case drained:
			kept = append(kept, s.GetName())
		}
	}
	return moved, kept, nil
}

// checkHomes moves the queues of this node to where they belong. It is called from
// time to time.
func (qs *Queues) checkHomes(ctx context.Context) {
	if qs.parts.Stopping() {
		return
	}
	if _, _, err := qs.moveHomes(ctx); err != nil && !errors.Is(err, ownership.ErrStopped) && ctx.Err() == nil {
		qs.cfg.Logger.Warn("a queue could not be handed over", "err", err)
	}
}

// Seize makes this node, an admin, the home of a queue whose home, from, is
// permanently lost or does not do what it should. State that only that node has is lost
// until it comes back: then, or at once if it is connected, it hands the state over.
func (qs *Queues) Seize(ctx context.Context, name, from string) (wire.Queue, error) {
	if err := checkMovable(name); err != nil {
		return wire.Queue{}, err
	}
	q, err := qs.Get(ctx, name)
	if err != nil {
		return q, err
	}
	if err := qs.seize(ctx, "queue.seize", qs.Driver.QueueStates()[name], from); err != nil {
		return q, err
	}
	return qs.Get(ctx, name)
}

// seize makes this node the home of a queue, or of another name, whose home is from.
func (qs *Queues) seize(ctx context.Context, action string, s *proto.QueueState, from string) error {
	name, home := proto.TitleText(s.GetName()), proto.PeerID(s.GetHome())
	p, err := qs.findPeer(from)
	if from == home.String() { // this node may have forgotten it
		p.Peer, err = home, nil
	}
	switch {
	case err != nil:
		return err
	case home == qs.self:
		return fmt.Errorf("%w: this node already is the home of %s", wire.ErrRefused, name)
	case home != p.Peer:
		return fmt.Errorf("%w: the home of %s is %s, not %s", wire.ErrRefused, name, qs.parts.Book.NameOf(home), p.Label())
	case !qs.mayWork(qs.self):
		return fmt.Errorf("%w: the home of %s needs the role work, which this node does not have", wire.ErrDenied, name)
	}
	if err := qs.cfg.Audit(ctx, action, s.GetName()+" from "+p.Peer.String()); err != nil {
		return err
	}
	if err := qs.Driver.Seize(ctx, s.GetName(), p.Peer); err != nil {
		return fmt.Errorf("seize %s: %w", name, err)
	}
	return nil
}
