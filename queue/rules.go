package queue

import (
	"fmt"
	"slices"
	"strings"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

const (
	maxHomes = 32 // limit of proto.QueueState.next_homes
	maxRules = 64 // limit of proto.QueueState.members
)

// change returns a function that applies s, with the names of nodes resolved to ids.
func (qs *Queues) change(s wire.QueueSettings) (func(*proto.QueueState), error) {
	var homes []string
	var rules []*proto.QueueMember
	var err error
	if s.Homes != nil {
		if homes, err = qs.homeOrder(*s.Homes); err != nil {
			return nil, err
		}
	}
	if s.MemberRules != nil {
		if rules, err = qs.memberRules(*s.MemberRules); err != nil {
			return nil, err
		}
	}
	return func(q *proto.QueueState) {
		applySettings(s, q)
		if s.Homes != nil {
			q.NextHomes = homes
		}
		if s.MemberRules != nil {
			q.Members = rules
		}
	}, nil
}

// homeOrder resolves the names of nodes to the ids stored in a queue.
func (qs *Queues) homeOrder(names []string) ([]string, error) {
	if len(names) > maxHomes {
		return nil, fmt.Errorf("%w: homes: %d nodes: at most %d", wire.ErrInvalid, len(names), maxHomes)
	}
	ids := make([]string, len(names))
	for i, name := range names {
		p, err := qs.findPeer(strings.TrimSpace(name))
		if err != nil {
			return nil, fmt.Errorf("homes: %w", err)
		}
		if ids[i] = p.Peer.String(); slices.Contains(ids[:i], ids[i]) {
			return nil, fmt.Errorf("%w: homes: %s is listed twice", wire.ErrInvalid, name)
		}
	}
	return ids, nil
}

func (qs *Queues) memberRules(rules []wire.MemberRule) ([]*proto.QueueMember, error) {
	if len(rules) > maxRules {
		return nil, fmt.Errorf("%w: members: %d nodes: at most %d", wire.ErrInvalid, len(rules), maxRules)
	}
	var out []*proto.QueueMember
	for _, r := range rules {
		p, err := qs.findPeer(strings.TrimSpace(r.Node))
		if err != nil {
			return nil, fmt.Errorf("members: %w", err)
		}
		for _, number := range []int{r.Weight, r.Priority, r.Concurrency} {
			if number < 0 || number > wire.MaxQueueLimit {
				return nil, fmt.Errorf("%w: members: %s: numbers must be from 0 to %d", wire.ErrInvalid, r.Node, wire.MaxQueueLimit)
			}
		}
		m := &proto.QueueMember{
			Peer: p.Peer[:], Weight: uint32(r.Weight), Priority: uint32(r.Priority), Concurrency: uint32(r.Concurrency), Draining: r.Draining,
		}
		if slices.ContainsFunc(out, func(o *proto.QueueMember) bool { return string(o.Peer) == string(m.Peer) }) {
			return nil, fmt.Errorf("%w: members: %s is listed twice", wire.ErrInvalid, r.Node)
		}
		out = append(out, m)
	}
	return out, nil
}

// nodeRules returns the rules of a queue that refer to nodes, with names for display.
func (qs *Queues) nodeRules(s *proto.QueueState) (homes []string, rules []wire.MemberRule) {
	for _, id := range s.GetNextHomes() {
		if p, err := proto.ParsePeerID(id); err == nil {
			id = qs.parts.Book.NameOf(p)
		}
		homes = append(homes, id)
	}
	for _, m := range s.GetMembers() {
		r := wire.MemberRule{Weight: int(m.GetWeight()), Priority: int(m.GetPriority()), Concurrency: int(m.GetConcurrency()), Draining: m.GetDraining()}
		r.Node, _ = qs.parts.Book.Identify(m.GetPeer())
		rules = append(rules, r)
	}
	return homes, rules
}
