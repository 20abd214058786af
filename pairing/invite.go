package pairing

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/wire"
)

const (
	ticketPrefix  = "ticket/" // in Meta, then the ticket's id
	defaultTicket = time.Hour
)

// LongestTicket is how long a ticket may be valid.
const LongestTicket = 30 * 24 * time.Hour

// An issuedTicket is an open ticket as the inviter stores it.
type issuedTicket struct {
	Secret  [16]byte  `json:"secret"`
	Name    string    `json:"name,omitempty"`
	Roles   []string  `json:"roles,omitempty"`
	Expires time.Time `json:"expires"`
}

func ticketKey(id []byte) []byte { return append([]byte(ticketPrefix), id...) }

// Invite makes a ticket that admits one node, once. This node must be able to issue
// certificates: it needs the mesh's root key or the admin role.
func (p *Pairing) Invite(ctx context.Context, o wire.InviteOptions) (wire.Invitation, error) {
	t, err := p.newTicket(o)
	if err != nil {
		return wire.Invitation{}, err
	}
	b, err := json.Marshal(issuedTicket{Secret: t.Secret, Name: o.Name, Roles: o.Roles, Expires: t.Expires})
	if err != nil {
		return wire.Invitation{}, err
	}
	var batch store.Batch
	batch.PutUntil(store.Meta, ticketKey(t.ID[:]), b, t.Expires)
	if err := p.Store.Apply(ctx, &batch); err != nil {
		return wire.Invitation{}, fmt.Errorf("invite: %w", err)
	}
	roles := o.Roles
	if len(roles) == 0 {
		roles = identity.DefaultRoles()
	}
	return wire.Invitation{Ticket: t.Encode(), QR: identity.QR(t), Expires: t.Expires, Roles: roles, Warnings: p.doubts(o.Name, roles)}, nil
}

// newTicket returns a ticket as requested, with the best addresses that fit.
func (p *Pairing) newTicket(o wire.InviteOptions) (t identity.Ticket, err error) {
	self, ttl := p.Book.Self(), cmp.Or(time.Duration(o.TTL), defaultTicket)
	if o.Name != "" {
		err = checkName(o.Name)
	}
	switch {
	case ttl < 0 || ttl > LongestTicket:
		return t, fmt.Errorf("%w: ttl %s: a ticket is valid for at most %s", wire.ErrInvalid, wire.Duration(ttl), wire.Duration(LongestTicket))
	case err != nil:
		return t, err
	case o.Name == self.Name:
		return t, fmt.Errorf("%w: %s is the name of this node: give the new one another --name", wire.ErrInvalid, o.Name)
	}
	if _, err := p.issue(identity.Member{Peer: self.Peer, Name: self.Name, Roles: o.Roles}); err != nil {
		return t, err
	}
	addrs := p.net.Addrs()
	if len(addrs) == 0 {
		return t, fmt.Errorf("%w: this node listens on no address that others could use: set net.listen or net.announce", wire.ErrRefused)
	}
	t = identity.NewTicket(p.Mesh, self.Peer, addrs, p.Clock.Now().Add(ttl))
	for t.Encode() == "" && len(t.Addrs) > 1 {
		t.Addrs = t.Addrs[:len(t.Addrs)-1]
	}
	return t, nil
}

// doubts returns what may be a mistake in an invitation.
func (p *Pairing) doubts(name string, roles []string) (all []wire.Note) {
	if name != "" && p.freeName(name, proto.PeerID{}) != nil {
		all = append(all, wire.Note{Code: wire.NoteNameKnown, NoteArgs: wire.NoteArgs{Peer: name}})
	}
	for _, role := range roles {
		if !p.Book.RoleKnown(role) {
			all = append(all, wire.Note{Code: wire.NoteRoleUnused, NoteArgs: wire.NoteArgs{Detail: role, Names: identity.MeshRoles()}})
		}
	}
	return all
}
