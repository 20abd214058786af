package transport

import (
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
)

// members knows who is a member and where peers are, from the gate and the directory.
type members struct {
	self  proto.PeerID
	gate  Gate
	dir   Directory // nil: none
	peers *peerTable
}

// registry is a [Gate] that also knows members that are not connected.
type registry interface {
	Member(p proto.PeerID) (identity.Member, bool)
}

// contacts returns the entries of the directory.
func (m *members) contacts() []proto.Contact {
	if m.dir == nil {
		return nil
	}
	return m.dir.Contacts()
}

// isMember reports whether p is known as a member.
func (m *members) isMember(p proto.PeerID) bool {
	if _, ok := m.gate.(registry); ok {
		return m.activeMember(p)
	}
	return m.activeMember(p) && m.peers.connected(p)
}

// activeMember reports whether p, whose hello was accepted, is still a member: not
// blocked, not revoked, its certificate not expired.
func (m *members) activeMember(p proto.PeerID) bool {
	if m.gate.Blocked(p) {
		return false
	}
	r, ok := m.gate.(registry)
	if !ok {
		return true
	}
	_, member := r.Member(p)
	return member
}

// verified reports whether p has completed the hello, is still connected and is a member
// now.
func (m *members) verified(id peer.ID) bool {
	p, err := fromLibp2p(id)
	return err == nil && m.peers.connected(p) && m.activeMember(p)
}

// addrs returns the addresses of a peer in the directory: identify is not told of
// changes, see [hostBus].
func (m *members) addrs(p proto.PeerID) []ma.Multiaddr {
	addrs, _ := parseAddrs(p, m.contact(p).Addrs) // they were checked when they were told
	return addrs
}

// known returns the peers for which the directory has addresses.
func (m *members) known() map[proto.PeerID]bool {
	all := make(map[proto.PeerID]bool)
	for _, c := range m.contacts() {
		all[c.Peer] = true
	}
	return all
}

// isKnown reports whether p is a known member or contact.
func (m *members) isKnown(p proto.PeerID) bool {
	return m.isMember(p) || m.known()[p]
}

// contact returns the directory's entry of p.
func (m *members) contact(p proto.PeerID) proto.Contact {
	for _, c := range m.contacts() {
		if c.Peer == p {
			return c
		}
	}
	return proto.Contact{Peer: p}
}

// revocationOf returns the revocation of p; nil: there is none.
func (m *members) revocationOf(p proto.PeerID) *proto.Signed {
	if j, ok := m.gate.(revocationChecker); ok {
		if r, revoked := j.RevocationOf(p); revoked {
			return r.Signed
		}
	}
	return nil
}

// selfRevoked reports whether this node knows that it was revoked.
func (m *members) selfRevoked() bool { return m.revocationOf(m.self) != nil }
