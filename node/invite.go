package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/wire"
)

const (
	ticketPrefix  = "ticket/" // in Meta, then the ticket's id
	defaultTicket = time.Hour
	longestTicket = 30 * 24 * time.Hour
)

// An issuedTicket is an open ticket as the inviter stores it.
type issuedTicket struct {
	Secret  [16]byte  `json:"secret"`
	Name    string    `json:"name,omitempty"`
	Roles   []string  `json:"roles,omitempty"`
	Expires time.Time `json:"expires"`
}

// Invite makes a ticket that admits one node, once. This node must be able to issue
// certificates: it needs the mesh's root key or the admin role.
func (n *Node) Invite(ctx context.Context, o wire.InviteOptions) (wire.Invitation, error) {
	ttl := cmp.Or(o.TTL, defaultTicket)
	switch {
	case ttl < 0 || ttl > longestTicket:
		return wire.Invitation{}, fmt.Errorf("%w: ttl %s: a ticket is valid for at most 30 days", wire.ErrInvalid, ttl)
	case o.Name != "" && !nameRE.MatchString(o.Name):
		return wire.Invitation{}, fmt.Errorf("%w: name %.80q: use 1-63 of a-z 0-9 and -", wire.ErrInvalid, o.Name)
	}
	if o.Name == n.self.Name {
		return wire.Invitation{}, fmt.Errorf("%w: %s is the name of this node: give the new one another --name", wire.ErrInvalid, o.Name)
	}
	if _, err := n.issue(identity.Member{Peer: n.keys.Peer(), Name: n.self.Name, Roles: o.Roles}); err != nil {
		return wire.Invitation{}, err
	}
	addrs := n.reachable()
	if len(addrs) == 0 {
		return wire.Invitation{}, fmt.Errorf("%w: this node listens on no address that others could use: set net.listen or net.announce", wire.ErrRefused)
	}
	t := identity.NewTicket(n.mesh, n.keys.Peer(), addrs, n.cfg.Clock.Now().Add(ttl))
	for t.Encode() == "" && len(t.Addrs) > 1 { // the best ones that fit
		t.Addrs = t.Addrs[:len(t.Addrs)-1]
	}
	b, err := json.Marshal(issuedTicket{Secret: t.Secret, Name: o.Name, Roles: o.Roles, Expires: t.Expires})
	if err != nil {
		return wire.Invitation{}, err
	}
	var batch store.Batch
	batch.PutUntil(store.Meta, ticketKey(t.ID[:]), b, t.Expires)
	if err := n.storage.Store.Apply(ctx, &batch); err != nil {
		return wire.Invitation{}, fmt.Errorf("invite: %w", err)
	}
	roles := o.Roles
	if len(roles) == 0 {
		roles = identity.DefaultRoles()
	}
	inv := wire.Invitation{Ticket: t.Encode(), QR: identity.QR(t), Expires: t.Expires, Roles: roles}
	if o.Name != "" && n.freeName(o.Name, proto.PeerID{}) != nil {
		inv.Warning = fmt.Sprintf("%s is the name of a known node: this ticket admits only that node; for another machine choose another --name", o.Name)
	}
	for _, role := range roles {
		if !n.roleIsKnown(role) {
			inv.Warning = strings.TrimPrefix(fmt.Sprintf("%s; no member has the role %s; the mesh itself uses %s, any other role counts only in allow lists", inv.Warning, role, strings.Join(identity.MeshRoles(), ", ")), "; ")
		}
	}
	return inv, nil
}

// issue signs a certificate with the root key if it is here, otherwise as an admin.
func (n *Node) issue(m identity.Member) (*proto.Signed, error) {
	now := n.cfg.Clock.Now()
	if root, err := identity.LoadRoot(filepath.Join(n.cfg.Dir, datadir.Identity)); err == nil && root.Mesh().ID == n.mesh.ID {
		cert, err := root.IssueMember(m, now)
		return cert, invalid(err)
	}
	self := n.book.Self().Member
	if !self.HasRole(identity.RoleAdmin) {
		return nil, fmt.Errorf("%w: this node may not admit others: run this on the node that began the mesh, or on one with the admin role", wire.ErrDenied)
	}
	cert, err := n.keys.IssueMember(n.mesh, self.Cert, m, now)
	return cert, invalid(err)
}

func invalid(err error) error {
	if err != nil {
		return fmt.Errorf("%w: %w", wire.ErrInvalid, err)
	}
	return nil
}

// Join answers a node that holds a ticket: it is admitted once, under the ticket's
// name or the one that it asks for. A member is renewed.
func (n *Node) Join(ctx context.Context, from proto.PeerID, r *proto.JoinRequest) *proto.JoinReply {
	answer := n.admit
	if r.GetCertificate() != nil {
		answer = n.renew
	}
	reply, err := answer(ctx, from, r)
	if err != nil {
		n.log.Warn("a node was not admitted", "peer", from, "reason", err)
		return &proto.JoinReply{Refusal: proto.Clip(err.Error(), 256)}
	}
	if !reply.GetPending() {
		n.log.Info("a node was admitted", "peer", from)
	}
	return reply
}

var errTicket = errors.New("the ticket is not valid: it was used before, has expired or was issued by another node; ask for a new one")

func (n *Node) admit(ctx context.Context, from proto.PeerID, r *proto.JoinRequest) (*proto.JoinReply, error) {
	if len(r.GetTicketId()) == 0 {
		return n.requestJoin(ctx, from, r)
	}
	key, raw, t, ok := n.ticket(from, r)
	if !ok {
		return nil, errTicket
	}
	n.admitting.Lock() // a name is checked and assigned in one step
	defer n.admitting.Unlock()
	name := cmp.Or(t.Name, r.GetName())
	if !nameRE.MatchString(name) {
		return nil, fmt.Errorf("name %.80q: use 1-63 of a-z 0-9 and -", name)
	}
	if err := n.freeName(name, from); err != nil {
		return nil, err
	}
	cert, err := n.issue(identity.Member{Peer: from, Name: name, Roles: t.Roles})
	if err != nil {
		return nil, err
	}
	known := &proto.KnownPeer{Certificate: cert, KeyRecord: r.GetKeyRecord(), Addrs: r.GetAddrs()}
	return n.useTicket(ctx, from, key, raw, known)
}

// ticket returns the record of the ticket that from proves to hold, if it is still
// valid.
func (n *Node) ticket(from proto.PeerID, r *proto.JoinRequest) (key, raw []byte, t issuedTicket, ok bool) {
	key = ticketKey(r.GetTicketId())
	raw, err := n.storage.Store.Get(store.Meta, key)
	if err != nil || json.Unmarshal(raw, &t) != nil {
		return nil, nil, issuedTicket{}, false
	}
	ok = identity.CheckJoinProof(t.Secret, from, n.keys.Peer(), r.GetProof()) && !n.cfg.Clock.Now().After(t.Expires)
	return key, raw, t, ok
}

// HoldsTicket reports whether from proves that it holds a valid ticket.
func (n *Node) HoldsTicket(from proto.PeerID, r *proto.JoinRequest) bool {
	_, _, _, ok := n.ticket(from, r)
	return ok
}

// freeName refuses a name that another node has.
func (n *Node) freeName(name string, who proto.PeerID) error {
	if p, err := n.book.Find(name); err == nil && p.Peer != who || errors.Is(err, transport.ErrAmbiguous) || name == n.self.Name {
		return fmt.Errorf("the name %s is taken: join with another --name", name)
	}
	return nil
}

// admitAccepted admits a node that a person accepted without a ticket.
func (n *Node) admitAccepted(ctx context.Context, from proto.PeerID, name string, roles []string, known *proto.KnownPeer) (*proto.JoinReply, error) {
	n.admitting.Lock()
	defer n.admitting.Unlock()
	if err := n.freeName(name, from); err != nil {
		return nil, err
	}
	cert, err := n.issue(identity.Member{Peer: from, Name: name, Roles: roles})
	if err != nil {
		return nil, err
	}
	known.Certificate = cert
	if err := n.book.Learn(ctx, known); err != nil {
		return nil, err
	}
	return n.introduceAll(from, cert), nil
}

// useTicket uses up the ticket and stores the peer, both or neither; if two nodes show
// the same ticket at once, only one is admitted.
func (n *Node) useTicket(ctx context.Context, who proto.PeerID, key, raw []byte, known *proto.KnownPeer) (*proto.JoinReply, error) {
	err := n.book.LearnWith(ctx, known, func(b *store.Batch) {
		b.RequireEqual(store.Meta, key, raw)
		b.Delete(store.Meta, key)
	})
	switch {
	case errors.Is(err, store.ErrConflict):
		return nil, errTicket
	case err != nil:
		return nil, err
	}
	return n.introduceAll(who, known.Certificate), nil
}

// introduceAll answers a new node with its certificate and the peers that are known
// here, this node first.
func (n *Node) introduceAll(who proto.PeerID, cert *proto.Signed) *proto.JoinReply {
	reply := &proto.JoinReply{Certificate: cert, Root: n.mesh.Root}
	reply.Peers = append(reply.Peers, &proto.KnownPeer{Certificate: n.book.Self().Member.Cert, KeyRecord: n.keys.KeyRecord(), Addrs: n.reachable()})
	for _, p := range n.book.List() {
		if _, member := n.book.Member(p.Peer); member && p.Peer != who && len(reply.Peers) < maxIntroduced {
			if k := p.Known(); k != nil {
				reply.Peers = append(reply.Peers, k)
			}
		}
	}
	return reply
}

// maxIntroduced is how many peers a join reply names: the new node learns the others
// by meeting them.
const maxIntroduced = 64

// reachable returns the addresses that others may try, best first: announced ones,
// then real interfaces, loopback last.
func (n *Node) reachable() []string {
	addrs := append(slices.Clone(n.cfg.Net.Announce), n.net.Addrs()...)
	slices.SortStableFunc(addrs, func(a, b string) int { return loopback(a) - loopback(b) })
	return slices.Compact(addrs)
}

func ticketKey(id []byte) []byte { return append([]byte(ticketPrefix), id...) }
