package gossip

import (
	"slices"

	"github.com/balefire/balefire/proto"
)

// A replyPart holds all that a reply contains about one node or one revocation. Both
// share the key space that an exchange walks in order.
type replyPart struct {
	key    proto.PeerID
	rumors []*proto.Rumor
	wanted bool
}

// reply encodes an answer, together with the revocations that the asker is missing or
// that only it has, in key order. It stops before the first part that does not fit; the
// asker continues after the last key in it.
func (r *Runner) reply(ask *Ask, ans *Answer, ended [][32]byte, root [32]byte) *proto.SyncReply {
	m := &proto.SyncReply{More: ans.More, Root: root[:]}
	size := proto.Size(m)
	for _, p := range r.replyParts(ask, ans, ended) {
		for _, rumor := range p.rumors {
			size += proto.Size(rumor) + 8
		}
		if p.wanted {
			size += len(p.key) + 2
		}
		if size > maxTopic || len(m.Rumors)+len(p.rumors) > proto.MaxRumors || len(m.Wanted) >= proto.MaxRumors {
			m.More = true
			break
		}
		m.Rumors = append(m.Rumors, p.rumors...)
		if p.wanted {
			m.Wanted = append(m.Wanted, p.key[:])
		}
	}
	return m
}

// replyParts returns the contents of a reply, in key order.
func (r *Runner) replyParts(ask *Ask, ans *Answer, ended [][32]byte) []*replyPart {
	var parts []*replyPart
	of := make(map[proto.PeerID]*replyPart)
	at := func(key proto.PeerID) *replyPart {
		p := of[key]
		if p == nil {
			p = &replyPart{key: key}
			of[key] = p
			parts = append(parts, p)
		}
		return p
	}
	known := make(map[proto.PeerID]bool, len(ask.Lines))
	for _, l := range ask.Lines {
		known[l.Peer] = true
	}
	for _, n := range ans.Updates {
		rumor := n.Rumor
		if !known[n.Peer] {
			rumor = r.withIntroduction(n)
		}
		p := at(n.Peer)
		p.rumors = append(p.rumors, rumor)
	}
	for _, id := range ans.Wanted {
		at(id).wanted = true
	}
	until := maxPeerID
	if ans.More {
		until = ans.lastKey() // the asker continues after it
	}
	missing, unknown := r.revoked.diff(ask, ended)
	for _, e := range missing {
		if id := proto.PeerID(e.ID()); id.Compare(until) <= 0 {
			p := at(id)
			p.rumors = append(p.rumors, &proto.Rumor{Revocation: e.Signed})
		}
	}
	if _, keeps := r.dir.(Revoker); keeps {
		for _, id := range unknown {
			if proto.PeerID(id).Compare(until) <= 0 {
				at(id).wanted = true
			}
		}
	}
	slices.SortFunc(parts, func(a, b *replyPart) int { return a.key.Compare(b.key) })
	return parts
}
