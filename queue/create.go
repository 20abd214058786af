package queue

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
	audited map[string]bool // names that this node has signed for others, and that are in the audit
}

type adminRequest struct {
	of     proto.PeerID
	answer chan *proto.QueueAnswer // buffer of one
}

// mayConfirm returns nil if this node, as an admin, may sign that p is a home.
func (qs *Queues) mayConfirm(p proto.PeerID) error {
	m, member := qs.parts.Book.Member(p)
	switch {
	case !qs.parts.Book.Self().Member.HasRole(identity.RoleAdmin):
		return errors.New("it is not an admin")
	case !member || !m.HasRole(identity.RoleWork):
		return errors.New("a home needs the role work")
	}
	return nil
}

// mayMake returns nil if this node, as an admin, may sign the creation of a queue by p.
func (qs *Queues) mayMake(p proto.PeerID) error {
	err := qs.mayConfirm(p)
	switch {
	case err != nil:
		return err
	case !inbox.Allowed(qs.cfg.MadeBy, p, qs.parts.Members):
		return errors.New("the setting queues.made_by of this admin does not name it")
	}
	return nil
}

// queueDeed returns the deed by which this node creates a queue or another name, signed by
// a connected admin. It returns nil if this node is an admin itself, which signs later.
func (qs *Queues) queueDeed(ctx context.Context, name string) (*proto.Signed, error) {
	self := qs.parts.Book.Self().Member
	if !self.HasRole(identity.RoleWork) {
		return nil, fmt.Errorf("%w: the home of %s needs the role work, which this node does not have", wire.ErrDenied, proto.TitleText(name))
	}
	if self.HasRole(identity.RoleAdmin) {
		return nil, nil
	}
	return qs.askAdmins(ctx, name, 1, map[proto.PeerID]bool{})
}

// askAdmins asks the connected admins one by one to sign that this node is the home of a
// queue. It leaves out those that are silent, and adds who did not answer.
func (qs *Queues) askAdmins(ctx context.Context, name string, generation uint64, silent map[proto.PeerID]bool) (*proto.Signed, error) {
	var refusals []string
	for _, p := range qs.parts.Book.List() {
		if !p.Member.HasRole(identity.RoleAdmin) || p.Peer == qs.self || silent[p.Peer] || !qs.net.Connected(p.Peer) {
			continue
		}
		a, err := qs.askAdmin(ctx, p.Peer, &proto.QueueAsk{Queue: name, Generation: generation})
		switch {
		case err != nil:
			return nil, err
		case a == nil:
			silent[p.Peer] = true
			refusals = append(refusals, p.Label()+" did not answer")
		case a.GetDeed() == nil:
			refusals = append(refusals, p.Label()+": "+a.GetReason())
		default:
			return a.GetDeed(), nil
		}
	}
	if len(refusals) > 0 {
		return nil, fmt.Errorf("%w: no admin signs the creation of %s on this node: %s", wire.ErrRefused, proto.TitleText(name), strings.Join(refusals, "; "))
	}
	if !proto.NamesQueue(name) {
		return nil, fmt.Errorf("%w: an admin must sign the creation of %s, and this node is not one: connect to an admin and retry", wire.ErrNoAdmin, name)
	}
	return nil, fmt.Errorf("%w: an admin must sign the creation of queue %s, and this node is not one: connect to an admin and retry, or use --wait; or run on an admin: balefire-node queue set %s --home here, and then balefire-node queue handoff %s --to %s", wire.ErrNoAdmin, name, name, name, qs.parts.Book.NameOf(qs.self))
}

// askAdmin sends one question to one admin and returns nil if no answer arrives in time.
func (qs *Queues) askAdmin(ctx context.Context, to proto.PeerID, ask *proto.QueueAsk) (*proto.QueueAnswer, error) {
	ar, x := &qs.admins, &adminRequest{of: to, answer: make(chan *proto.QueueAnswer, 1)}
	ar.mu.Lock()
	if len(ar.open) >= maxAdminRequests {
		ar.mu.Unlock()
		return nil, fmt.Errorf("%w: too many names are being created", wire.ErrRefused)
	}
	if ar.open == nil {
		ar.open = map[uint64]*adminRequest{}
	}
	ar.last++
	ask.Number = ar.last
	ar.open[ask.Number] = x
	ar.mu.Unlock()
	defer func() {
		ar.mu.Lock()
		defer ar.mu.Unlock()
		delete(ar.open, ask.Number)
	}()
	qs.Post(to, proto.TypeQueueAsk, ask)
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
func (qs *Queues) receiveQueueAsk(from proto.PeerID, m *proto.Message) error {
	if m.GetType() == proto.TypeQueueAnswer {
		a := new(proto.QueueAnswer)
		if err := proto.DecodeKnown(m.GetPayload(), a); err != nil {
			return err
		}
		ar := &qs.admins
		ar.mu.Lock()
		defer ar.mu.Unlock()
		if x := ar.open[a.GetNumber()]; x != nil && x.of == from {
			delete(ar.open, a.GetNumber())
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
	deed, err := qs.signFor(ctx, from, ask)
	if answer.Deed = deed; err != nil {
		answer.Reason = proto.Clip(err.Error(), proto.MaxReason)
	}
	qs.Post(from, proto.TypeQueueAnswer, answer)
	return nil
}

// signFor signs, as an admin, what a member asks for.
func (qs *Queues) signFor(ctx context.Context, from proto.PeerID, ask *proto.QueueAsk) (*proto.Signed, error) {
	may := qs.mayMake
	if ask.GetGeneration() > 1 {
		may = qs.mayConfirm
	}
	switch err := may(from); {
	case err != nil:
		return nil, err
	case !validTitle(ask.GetQueue()):
		return nil, fmt.Errorf("%.80q is not a valid name of a queue, mailbox or topic", ask.GetQueue())
	case ask.GetGeneration() > 1:
		return qs.Driver.Confirm(ctx, ask.GetQueue(), ask.GetGeneration(), from)
	}
	deed, err := qs.Driver.SignCreation(ctx, ask.GetQueue(), from)
	if err == nil {
		err = qs.auditCreation(ctx, ask.GetQueue(), from)
	}
	if err != nil {
		return nil, err
	}
	return deed, nil
}

// auditCreation records that this node has signed that p made a name: once for each name in a
// start of the node, however often p asks, and before p gets the deed.
func (qs *Queues) auditCreation(ctx context.Context, name string, p proto.PeerID) error {
	ar := &qs.admins
	ar.mu.Lock()
	audited := ar.audited[name]
	ar.mu.Unlock()
	if audited {
		return nil
	}
	if err := qs.cfg.AuditSystem(ctx, "queue.sign", name+" made by "+p.String()); err != nil {
		return err
	}
	ar.mu.Lock()
	defer ar.mu.Unlock()
	if ar.audited == nil {
		ar.audited = map[string]bool{}
	}
	ar.audited[name] = true
	return nil
}

// confirmEvery is the interval at which admins are asked to confirm homes.
const confirmEvery = 10 * time.Second

// confirmHomes asks admins to confirm the queues whose home is here and that were handed on
// since the latest confirmation, until ctx ends. Then no former home can take them back, and
// their chains of deeds stay short.
func (qs *Queues) confirmHomes(ctx context.Context) {
	tick := time.NewTicker(confirmEvery)
	defer tick.Stop()
	for {
		qs.confirmAll(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// confirmAll asks once for each queue, until no admin answers.
func (qs *Queues) confirmAll(ctx context.Context) {
	all, err := qs.Driver.Unconfirmed(ctx)
	if err != nil {
		return
	}
	silent := map[proto.PeerID]bool{}
	for name, generation := range all {
		var deed *proto.Signed
		if self := qs.self; qs.mayConfirm(self) == nil {
			deed, err = qs.Driver.Confirm(ctx, name, generation, self)
		} else {
			deed, err = qs.askAdmins(ctx, name, generation, silent)
		}
		if err == nil {
			err = qs.Driver.Confirmed(ctx, name, deed)
		}
		if err != nil && ctx.Err() == nil {
			qs.cfg.Logger.Debug("no admin has confirmed the home of a queue yet; will retry", "queue", name, "err", err)
		}
		if errors.Is(err, wire.ErrNoAdmin) || ctx.Err() != nil {
			return
		}
	}
}
