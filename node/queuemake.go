package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

const (
	adminTimeout     = 5 * time.Second // timeout for the answer of one admin
	maxAdminRequests = 64              // limit of open questions to admins
)

// adminRequests holds the open questions of this node to admins.
type adminRequests struct {
	mu      sync.Mutex
	last    uint64
	open    map[uint64]*adminRequest
	confirm time.Duration // monotonic time of the latest request to confirm homes
}

type adminRequest struct {
	of     proto.PeerID
	answer chan *proto.QueueAnswer // buffer of one
}

// mayMake returns nil if this node, as an admin, may sign the creation of a queue by p.
func (n *Node) mayMake(p proto.PeerID) error {
	m, member := n.book.Member(p)
	switch {
	case !n.book.Self().Member.HasRole(identity.RoleAdmin):
		return errors.New("it is not an admin")
	case !member || !m.HasRole(identity.RoleWork):
		return errors.New("the home of a queue needs the role work")
	case !inbox.Allowed(n.cfg.Queues.MadeBy, p, inboxMembers{n.book}):
		return errors.New("the setting queues.made_by of this admin does not name it")
	}
	return nil
}

// queueDeed returns the deed by which this node creates a queue, signed by a connected
// admin. It returns nil if this node is an admin itself, which signs later.
func (n *Node) queueDeed(ctx context.Context, name string) (*proto.Signed, error) {
	self := n.book.Self().Member
	if !self.HasRole(identity.RoleWork) {
		return nil, fmt.Errorf("%w: the home of a queue needs the role work, which this node does not have", wire.ErrDenied)
	}
	if self.HasRole(identity.RoleAdmin) {
		return nil, nil
	}
	return n.askAdmins(ctx, name, 1)
}

// askAdmins asks the connected admins one by one to sign that this node is the home of a
// queue.
func (n *Node) askAdmins(ctx context.Context, name string, generation uint64) (*proto.Signed, error) {
	var refusals []string
	for _, p := range n.book.List() {
		if !p.Member.HasRole(identity.RoleAdmin) || p.Peer == n.keys.Peer() || !n.net.Connected(p.Peer) {
			continue
		}
		a, err := n.askAdmin(ctx, p.Peer, &proto.QueueAsk{Queue: name, Generation: generation})
		switch {
		case err != nil:
			return nil, err
		case a == nil:
			refusals = append(refusals, p.Label()+" did not answer")
		case a.GetDeed() == nil:
			refusals = append(refusals, p.Label()+": "+a.GetReason())
		default:
			return a.GetDeed(), nil
		}
	}
	if len(refusals) > 0 {
		return nil, fmt.Errorf("%w: no admin signs the creation of queue %s on this node: %s", wire.ErrRefused, name, strings.Join(refusals, "; "))
	}
	return nil, fmt.Errorf("%w: an admin must sign the creation of queue %s, and this node is not one: connect to an admin and retry, or use --wait; or run on an admin: balefire-node queue set %s --home here, and then balefire-node queue handoff %s --to %s", wire.ErrNoAdmin, name, name, name, n.self.Name)
}

// askAdmin sends one question to one admin and returns nil if no answer arrives in time.
func (n *Node) askAdmin(ctx context.Context, to proto.PeerID, ask *proto.QueueAsk) (*proto.QueueAnswer, error) {
	qs, x := &n.queues.admins, &adminRequest{of: to, answer: make(chan *proto.QueueAnswer, 1)}
	qs.mu.Lock()
	if len(qs.open) >= maxAdminRequests {
		qs.mu.Unlock()
		return nil, fmt.Errorf("%w: too many queues are being created", wire.ErrRefused)
	}
	if qs.open == nil {
		qs.open = map[uint64]*adminRequest{}
	}
	qs.last++
	ask.Number = qs.last
	qs.open[ask.Number] = x
	qs.mu.Unlock()
	defer func() {
		qs.mu.Lock()
		defer qs.mu.Unlock()
		delete(qs.open, ask.Number)
	}()
	ownershipSender{n}.Post(to, proto.TypeQueueAsk, ask)
	timer := time.NewTimer(adminTimeout)
	defer timer.Stop()
	select {
	case a := <-x.answer:
		return a, nil
	case <-timer.C:
		return nil, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// receiveQueueAsk answers a member that asks this node, as an admin, for a signature, or
// processes the answer of an admin.
func (n *Node) receiveQueueAsk(from proto.PeerID, m *proto.Message) error {
	if m.GetType() == proto.TypeQueueAnswer {
		a := new(proto.QueueAnswer)
		if err := proto.DecodeKnown(m.GetPayload(), a); err != nil {
			return err
		}
		qs := &n.queues.admins
		qs.mu.Lock()
		defer qs.mu.Unlock()
		if x := qs.open[a.GetNumber()]; x != nil && x.of == from {
			delete(qs.open, a.GetNumber())
			x.answer <- a
		}
		return nil
	}
	ask := new(proto.QueueAsk)
	if err := proto.DecodeKnown(m.GetPayload(), ask); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	answer := &proto.QueueAnswer{Number: ask.GetNumber()}
	deed, err := n.signFor(ctx, from, ask)
	if answer.Deed = deed; err != nil {
		answer.Reason = proto.Clip(err.Error(), proto.MaxReason)
	}
	ownershipSender{n}.Post(from, proto.TypeQueueAnswer, answer)
	return nil
}

// signFor signs, as an admin, what a member asks for.
func (n *Node) signFor(ctx context.Context, from proto.PeerID, ask *proto.QueueAsk) (*proto.Signed, error) {
	switch err := n.mayMake(from); {
	case err != nil:
		return nil, err
	case !queueRE.MatchString(ask.GetQueue()):
		return nil, fmt.Errorf("%.80q is not a valid queue name", ask.GetQueue())
	case ask.GetGeneration() > 1:
		return n.queues.driver.Confirm(ctx, ask.GetQueue(), ask.GetGeneration(), from)
	}
	deed, err := n.queues.driver.SignCreation(ctx, ask.GetQueue(), from)
	if err != nil {
		return nil, err
	}
	return deed, n.auditAs(ctx, actorSystem, "queue.sign", ask.GetQueue()+" made by "+from.String())
}

// confirmEvery is the interval at which admins are asked to confirm homes.
const confirmEvery = time.Minute

// confirmHomes asks an admin to confirm the queues whose home is here and whose home has
// changed often since the latest confirmation, because their chain of deeds would exceed
// the limit of a queue state.
func (q *queues) confirmHomes(ctx context.Context) {
	n := q.node
	now := max(n.cfg.Clock.Mono(), 1)
	if q.admins.confirm > 0 && now-q.admins.confirm < confirmEvery {
		return
	}
	q.admins.confirm = now
	all, err := q.driver.Unconfirmed(ctx)
	if err != nil || len(all) == 0 {
		return
	}
	for name, generation := range all {
		var deed *proto.Signed
		var err error
		if self := n.keys.Peer(); n.mayMake(self) == nil {
			deed, err = q.driver.Confirm(ctx, name, generation, self)
		} else {
			deed, err = n.askAdmins(ctx, name, generation)
		}
		if err == nil {
			err = q.driver.Confirmed(ctx, name, deed)
		}
		if err != nil && ctx.Err() == nil {
			n.log.Info("no admin has confirmed the home of a queue yet; further handoffs need that", "queue", name, "err", err)
		}
	}
}
