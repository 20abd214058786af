package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/balefire/balefire/gossip"
	"github.com/balefire/balefire/ownership"
	"github.com/balefire/balefire/proto"
)

// HandOffQueue gives a queue whose home is here to another home, by default the
// best that is there. Its tasks follow as fast as that answers, and go on meanwhile
// where they run.
func (n *Node) HandOffQueue(ctx context.Context, name, to string) (Queue, error) {
	q, err := n.Queue(ctx, name)
	if err != nil {
		return q, err
	}
	if !q.Here {
		return q, fmt.Errorf("%w: the home of queue %s is %s: hand it over there", ErrRefused, name, q.Home)
	}
	next, err := n.requestedHome(name, to)
	if err != nil {
		return q, err
	}
	if err := n.handOff(ctx, actorPerson, name, next); err != nil {
		return q, err
	}
	return n.Queue(ctx, name)
}

// requestedHome is the next home of a queue by a person's word, empty for the best.
func (n *Node) requestedHome(name, to string) (proto.PeerID, error) {
	if to == "" {
		next, ok := nextHome(n.queues.driver.QueueStates()[name].GetNextHomes(), n.homeCandidates())
		if !ok {
			return next, fmt.Errorf("%w: %s: name one with --to, or wait", ErrRefused, noHome)
		}
		return next, nil
	}
	p, err := n.findPeer(to)
	switch {
	case err != nil:
		return p.Peer, err
	case p.Peer == n.keys.Peer():
		return p.Peer, fmt.Errorf("%w: the home of queue %s is here already", ErrRefused, name)
	case !n.net.Connected(p.Peer):
		return p.Peer, fmt.Errorf("%w: %s is not connected", ErrRefused, p.Label())
	case !n.mayWork(p.Peer):
		return p.Peer, fmt.Errorf("%w: the home of a queue needs the role work, which %s does not have", ErrRefused, p.Label())
	}
	return p.Peer, nil
}

// noHome says why a queue has no next home.
const noHome = "nobody is connected and alive for long enough to be the home"

// handOff gives a queue to its next home, and says who wanted that.
func (n *Node) handOff(ctx context.Context, actor, name string, to proto.PeerID) error {
	if err := n.auditAs(ctx, actor, "queue.handoff", name+" to "+to.String()); err != nil {
		return err
	}
	if err := n.queues.driver.HandOff(ctx, name, to); err != nil {
		return fmt.Errorf("hand over queue %s: %w", name, err)
	}
	return nil
}

// homeCandidates are the members that may be the home of a queue now.
func (n *Node) homeCandidates() []gossip.Member {
	return slices.DeleteFunc(n.gossip.Members(), func(m gossip.Member) bool {
		return !n.mayWork(m.Peer) || !m.Eligible || m.Record == nil || !n.net.Connected(m.Peer)
	})
}

// nextHome chooses who takes a queue over: the first of its list that is there, else
// the one with the highest priority, then the longest uptime, then the least load.
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

// loadOf is the share of a node's slots that is taken.
func loadOf(l *proto.Load) float64 { return float64(l.GetBusy()) / float64(max(l.GetSlots(), 1)) }

// preferredHome is where a queue of node self belongs: with the first of its list that is
// there, and with anybody but a node that drains. Without a list, and while nobody of it
// is there, it stays: ok is false.
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

// moveHomes hands over each queue whose home is here and that belongs elsewhere by its
// list, or because this node drains. It returns those that went, and those that this
// node would not keep if there were anybody.
func (q *queues) moveHomes(ctx context.Context) (went, stay []string, err error) {
	q.moving.Lock()
	defer q.moving.Unlock()
	n, drained := q.node, q.drained.Load()
	states := slices.DeleteFunc(q.ownStates(""), func(s *proto.QueueState) bool { return !drained && len(s.GetNextHomes()) == 0 })
	if len(states) == 0 {
		return nil, nil, nil
	}
	candidates := n.homeCandidates()
	for _, s := range states {
		to, ok := preferredHome(s.GetNextHomes(), n.keys.Peer(), drained, candidates)
		switch {
		case ok:
			if err := n.handOff(ctx, actorSystem, s.GetName(), to); err != nil {
				return went, stay, err
			}
			n.addEvent("queue.handed_over", to, "queue "+s.GetName()+": "+n.peerName(to)+" is its home now", map[string]string{"queue": s.GetName()})
			went = append(went, s.GetName())
		case drained:
			stay = append(stay, s.GetName())
		}
	}
	return went, stay, nil
}

// checkHomes looks now and then where the queues of this node belong.
func (q *queues) checkHomes(ctx context.Context) {
	if q.node.draining.Load() {
		return
	}
	if _, _, err := q.moveHomes(ctx); err != nil && !errors.Is(err, ownership.ErrStopped) && ctx.Err() == nil {
		q.node.log.Warn("a queue could not be handed over", "err", err)
	}
}
