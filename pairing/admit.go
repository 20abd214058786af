package pairing

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// maxIntroduced is how many peers a join reply names: the new node learns the others
// by meeting them.
const maxIntroduced = 64

// Join answers a node that wants to become a member: it is admitted once, under the
// ticket's name or the one that it asks for. A member is renewed.
func (p *Pairing) Join(ctx context.Context, from proto.PeerID, r *proto.JoinRequest) *proto.JoinReply {
	answer := p.admit
	switch {
	case r.GetCertificate() != nil:
		answer = p.renew
	case len(r.GetTicketId()) == 0:
		answer = p.requestJoin
	}
	reply, err := answer(ctx, from, r)
	if err != nil {
		p.Logger.Warn("a node was not admitted", "peer", from, "reason", err)
		reply = &proto.JoinReply{Refusal: proto.Clip(err.Error(), 256)}
		if errors.Is(err, errTicketDoubted) {
			reply.WaitMs = uint32(doubtedRetry.Milliseconds())
		}
		return reply
	}
	if !reply.GetPending() {
		p.Logger.Info("a node was admitted", "peer", from)
	}
	return reply
}

var (
	errTicket        = errors.New("the ticket is not valid: it was used before, has expired or was issued by another node; ask for a new one")
	errTicketDoubted = errors.New("the ticket may have expired, but the clock of this node is doubted: present the same ticket again later")
)

// doubtedRetry is when a node should present its ticket again.
const doubtedRetry = 5 * time.Second

// admit uses up the ticket of a node and stores the node as a member, both or neither:
// if two nodes show the same ticket at once, only one is admitted.
func (p *Pairing) admit(ctx context.Context, from proto.PeerID, r *proto.JoinRequest) (*proto.JoinReply, error) {
	key, raw, t, err := p.ticket(from, r)
	if err != nil {
		return nil, err
	}
	member := identity.Member{Peer: from, Name: cmp.Or(t.Name, r.GetName()), Roles: t.Roles}
	reply, err := p.enroll(ctx, member, &proto.KnownPeer{KeyRecord: r.GetKeyRecord(), Addrs: r.GetAddrs()}, func(b *store.Batch) {
		b.RequireEqual(store.Meta, key, raw)
		b.Delete(store.Meta, key)
	})
	if errors.Is(err, store.ErrConflict) {
		err = errTicket
	}
	return reply, err
}

// ticket returns the record of the ticket that from proves to hold, if it is still
// valid.
func (p *Pairing) ticket(from proto.PeerID, r *proto.JoinRequest) (key, raw []byte, t issuedTicket, err error) {
	key = ticketKey(r.GetTicketId())
	raw, err = p.Store.Get(store.Meta, key)
	switch {
	case err != nil || json.Unmarshal(raw, &t) != nil || !identity.CheckJoinProof(t.Secret, from, p.Keys.Peer(), r.GetProof()):
		err = errTicket
	case p.Clock.Now().After(t.Expires) && p.Clock.Doubted():
		err = errTicketDoubted
	case p.Clock.Now().After(t.Expires):
		err = errTicket
	}
	return key, raw, t, err
}

// HoldsTicket reports whether from proves that it holds a valid ticket, or one that is not
// refused because the clock is doubted.
func (p *Pairing) HoldsTicket(from proto.PeerID, r *proto.JoinRequest) bool {
	_, _, _, err := p.ticket(from, r)
	return err == nil || errors.Is(err, errTicketDoubted)
}

// enroll issues the certificate of m, stores m as a member together with what also adds
// to the batch, and answers it. A name is checked and assigned in one step.
func (p *Pairing) enroll(ctx context.Context, m identity.Member, known *proto.KnownPeer, also func(*store.Batch)) (*proto.JoinReply, error) {
	p.admitting.Lock()
	defer p.admitting.Unlock()
	if err := checkName(m.Name); err != nil {
		return nil, err
	}
	if err := p.freeName(m.Name, m.Peer); err != nil {
		return nil, err
	}
	var err error
	if known.Certificate, err = p.issue(m); err != nil {
		return nil, err
	}
	if err := p.Book.LearnWith(ctx, known, also); err != nil {
		return nil, err
	}
	return p.introduceAll(m.Peer, known.Certificate), nil
}

// freeName refuses a name that another node has.
func (p *Pairing) freeName(name string, who proto.PeerID) error {
	if has, err := p.Book.Find(name); err == nil && has.Peer != who || errors.Is(err, addressbook.ErrAmbiguous) {
		return fmt.Errorf("the name %s is taken: join with another --name", name)
	}
	return nil
}

// introduceAll answers a new node with its certificate and the peers that are known
// here, this node first.
func (p *Pairing) introduceAll(who proto.PeerID, cert *proto.Signed) *proto.JoinReply {
	self := p.Book.Introduce(p.Keys.Peer())
	self.Addrs = p.net.Addrs()
	reply := &proto.JoinReply{Certificate: cert, Root: p.Mesh.Root, Peers: []*proto.KnownPeer{self}}
	for _, x := range p.Book.List() {
		if _, member := p.Book.Member(x.Peer); member && x.Peer != who && len(reply.Peers) < maxIntroduced {
			if k := x.Known(); k != nil {
				reply.Peers = append(reply.Peers, k)
			}
		}
	}
	return reply
}
