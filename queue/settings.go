package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/ownership"
	"github.com/balefire/balefire/ownership/dispatch"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// Set changes the settings of a queue whose home is this node, or creates the
// queue.
func (qs *Queues) Set(ctx context.Context, name string, s wire.QueueSettings) (wire.Queue, error) {
	if err := qs.checkQueue(name, s); err != nil {
		return wire.Queue{}, err
	}
	change, err := qs.change(s)
	if err != nil {
		return wire.Queue{}, err
	}
	var deed *proto.Signed
	if qs.Driver.QueueStates()[name] == nil {
		if deed, err = qs.queueDeed(ctx, name); err != nil {
			return wire.Queue{}, fmt.Errorf("queue set: %w", err)
		}
	}
	switch err := qs.Driver.CreateQueue(ctx, name, deed, change); {
	case errors.Is(err, ownership.ErrNameTaken):
		return wire.Queue{}, fmt.Errorf("queue set: %w: %w", wire.ErrRefused, err)
	case err != nil:
		return wire.Queue{}, fmt.Errorf("queue set: %w", err)
	}
	if err := qs.cfg.Audit(ctx, "queue.set", name); err != nil {
		return wire.Queue{}, err
	}
	return qs.Get(ctx, name)
}

// checkName checks the name of a queue.
func checkName(name string) error {
	switch reserved := proto.ReservedPrefix(name); {
	case reserved != "":
		return fmt.Errorf("%w: queue %.80q: %s is not for queues: choose a name without it", wire.ErrInvalid, name, reserved)
	case !proto.ValidQueue(name):
		return fmt.Errorf("%w: queue %.80q: use 1-63 of a-z 0-9 . _ -", wire.ErrInvalid, name)
	}
	return nil
}

// checkQueue checks whether a queue can be set here, and what it would be set to.
func (qs *Queues) checkQueue(name string, s wire.QueueSettings) error {
	state := qs.Driver.QueueStates()[name]
	self := qs.self
	switch err := checkName(name); {
	case err != nil:
		return err
	case !(s.Home == "" || s.Home == "here"):
		return fmt.Errorf("%w: home %.60q: must be here; use queue handoff to move it to another node", wire.ErrInvalid, s.Home)
	case state == nil && s.Home == "":
		_, err := qs.HomeOf(name)
		return err
	case state != nil && string(state.GetHome()) != string(self[:]):
		home, _ := qs.parts.Book.Identify(state.GetHome())
		return fmt.Errorf("%w: the home of queue %s is %s: set it there", wire.ErrRefused, name, home)
	}
	return checkSettings(s)
}

// checkSettings checks the settings that do not name nodes.
func checkSettings(s wire.QueueSettings) error {
	bad := func(format string, a ...any) error {
		return fmt.Errorf("%w: %s", wire.ErrInvalid, fmt.Sprintf(format, a...))
	}
	switch {
	case s.OnLostLease != nil && !slices.Contains([]string{"", "continue", "stop"}, *s.OnLostLease):
		return bad("on_lost_lease %.20q: must be continue or stop", *s.OnLostLease)
	case s.Lanes != nil && !slices.Contains([]string{wire.LanesOrigin, wire.LanesShared}, *s.Lanes):
		return bad("lanes %.20q: must be origin or shared", *s.Lanes)
	case badLimit(s.Concurrency) || badLimit(s.NodeConcurrency):
		return bad("concurrency and node_concurrency must be from 0 to %d", wire.MaxQueueLimit)
	case s.LeaseMs != nil && *s.LeaseMs != 0 && (*s.LeaseMs < 5000 || *s.LeaseMs > 3_600_000):
		return bad("a lease must last from 5 seconds to an hour")
	}
	if s.Strategy != nil {
		if _, err := dispatch.New(*s.Strategy); err != nil {
			return bad("strategy %.40q: must be one of %s", *s.Strategy, strings.Join(dispatch.Names(), ", "))
		}
	}
	for _, list := range []*[]string{s.Labels, s.Allow} {
		if list != nil && !proto.ValidLabels(*list) {
			return bad("labels and allow may have at most 32 entries of 1 to 128 bytes")
		}
	}
	if s.Allow != nil {
		if err := inbox.CheckAllow(*s.Allow); err != nil {
			return bad("%v", err)
		}
	}
	if s.Kinds != nil {
		for _, k := range *s.Kinds {
			if len(*s.Kinds) > 64 || !proto.ValidKind(k.Kind) || badLimit(&k.Concurrency) || badLimit(&k.NodeConcurrency) {
				return bad("at most 64 limits of kinds are allowed, each with a valid kind and numbers from 0 to %d", wire.MaxQueueLimit)
			}
		}
	}
	return nil
}

func badLimit(n *int) bool { return n != nil && (*n < 0 || *n > wire.MaxQueueLimit) }

// applySettings applies s to the state of a queue.
func applySettings(s wire.QueueSettings, q *proto.QueueState) {
	number := func(to *uint32, v *int) {
		if v != nil {
			*to = uint32(*v)
		}
	}
	number(&q.Concurrency, s.Concurrency)
	number(&q.NodeConcurrency, s.NodeConcurrency)
	number(&q.LeaseMs, s.LeaseMs)
	if s.Strategy != nil {
		q.Strategy = *s.Strategy
	}
	if s.Paused != nil {
		q.Paused = *s.Paused
	}
	if s.Draining != nil {
		q.Draining = *s.Draining
	}
	if s.Labels != nil {
		q.Labels = *s.Labels
	}
	if s.Allow != nil {
		q.Allow = *s.Allow
	}
	if s.OnLostLease != nil {
		q.OnLostLease = *s.OnLostLease
	}
	if s.Lanes != nil {
		q.SharedLanes = *s.Lanes == wire.LanesShared
	}
	if s.Kinds != nil {
		q.Kinds = nil
		for _, k := range *s.Kinds {
			q.Kinds = append(q.Kinds, &proto.KindLimit{Kind: k.Kind, Concurrency: uint32(k.Concurrency), NodeConcurrency: uint32(k.NodeConcurrency)})
		}
	}
}
