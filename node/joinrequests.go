package node

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/wire"
)

// Limits for nodes that ask to join without a ticket.
const (
	maxJoinRequests = 64
	maxPerOrigin    = 4                // limit per address
	joinRequestTTL  = 10 * time.Minute // lifetime of a request that is not repeated
	acceptedTTL     = time.Hour        // time in which an accepted node must fetch its certificate
	maxStrangers    = 256              // strangers that were reported
)

// joinRequests holds the requests of nodes on the LAN to join without a ticket. They are kept
// in memory only: a node that still wants to join repeats its request.
type joinRequests struct {
	mu        sync.Mutex
	asked     map[proto.PeerID]*joinRequest
	strangers map[proto.PeerID]bool // strangers that were reported by an event
}

type joinRequest struct {
	wire.JoinRequest
	peer     proto.PeerID
	known    *proto.KnownPeer // key record and addresses
	origin   string           // network that the request came from, see transport.Origin
	accepted *wire.AcceptOptions
	until    time.Time
}

func newJoinRequests() *joinRequests {
	return &joinRequests{asked: map[proto.PeerID]*joinRequest{}, strangers: map[proto.PeerID]bool{}}
}

// JoinCode returns the code that two people compare when a node joins without a ticket.
// It is a short form of the node's key with 60 bits, so that finding another key with
// the same code is infeasible.
func JoinCode(p proto.PeerID) string {
	sum := sha256.Sum256(append([]byte("balefire/v1/joincode\x00"), p[:]...))
	code := base32.StdEncoding.EncodeToString(sum[:10])
	return code[:4] + "-" + code[4:8] + "-" + code[8:12]
}

// plainCode normalizes a code typed by a person.
func plainCode(code string) string {
	return strings.ToUpper(strings.NewReplacer("-", "", " ", "").Replace(code))
}

// add records the request of a node and returns it with the decision of a person, if
// any. If there is no room, the oldest request of the same origin is dropped, or the
// oldest of the origin with the most requests. It returns nil if there are too many
// requests.
func (jr *joinRequests) add(from proto.PeerID, origin, addr string, r *proto.JoinRequest, now time.Time) *joinRequest {
	jr.mu.Lock()
	defer jr.mu.Unlock()
	jr.forget(now)
	x := jr.asked[from]
	if x == nil {
		if !jr.evict(origin) {
			return nil
		}
		x = &joinRequest{peer: from, origin: origin, JoinRequest: wire.JoinRequest{ID: from.String(), Code: JoinCode(from), Since: now.UTC()}}
		jr.asked[from] = x
	}
	x.Name, x.From, x.Addrs, x.Last, x.until = r.GetName(), addr, r.GetAddrs(), now.UTC(), now.Add(joinRequestTTL)
	if x.accepted != nil {
		x.until = now.Add(acceptedTTL)
	}
	x.known = &proto.KnownPeer{KeyRecord: r.GetKeyRecord(), Addrs: r.GetAddrs()}
	c := *x
	return &c
}

// evict makes room for a request from origin, if possible. The caller holds mu.
func (jr *joinRequests) evict(origin string) bool {
	count := map[string]int{}
	for _, x := range jr.asked {
		count[x.origin]++
	}
	from := origin
	switch {
	case count[origin] >= maxPerOrigin:
	case len(jr.asked) < maxJoinRequests:
		return true
	default:
		for o, k := range count {
			if k > count[from] {
				from = o
			}
		}
		if from == origin {
			return false
		}
	}
	var oldest *joinRequest
	for _, x := range jr.asked {
		if x.origin == from && x.accepted == nil && (oldest == nil || x.Since.Before(oldest.Since)) {
			oldest = x
		}
	}
	if oldest != nil {
		delete(jr.asked, oldest.peer)
	}
	return oldest != nil
}

func (jr *joinRequests) forget(now time.Time) {
	for p, x := range jr.asked {
		if now.After(x.until) {
			delete(jr.asked, p)
		}
	}
}

func (jr *joinRequests) list(now time.Time) (all []*joinRequest) {
	jr.mu.Lock()
	defer jr.mu.Unlock()
	jr.forget(now)
	for _, x := range jr.asked {
		c := *x
		all = append(all, &c)
	}
	slices.SortFunc(all, func(a, b *joinRequest) int { return cmp.Or(b.Since.Compare(a.Since), strings.Compare(a.ID, b.ID)) })
	return all
}

// accept records that a person accepted a request.
func (jr *joinRequests) accept(p proto.PeerID, o wire.AcceptOptions, until time.Time) {
	jr.mu.Lock()
	defer jr.mu.Unlock()
	if x := jr.asked[p]; x != nil {
		x.accepted, x.until = &o, until
	}
}

func (jr *joinRequests) drop(p proto.PeerID) {
	jr.mu.Lock()
	defer jr.mu.Unlock()
	delete(jr.asked, p)
}

// firstSeen reports whether p has not been reported before.
func (jr *joinRequests) firstSeen(p proto.PeerID) bool {
	jr.mu.Lock()
	defer jr.mu.Unlock()
	if jr.strangers[p] {
		return false
	}
	if len(jr.strangers) >= maxStrangers {
		clear(jr.strangers)
	}
	jr.strangers[p] = true
	return true
}

// strangerSeen handles the discovery of a node on the LAN that is not a member.
func (n *Node) strangerSeen(s transport.Stranger) {
	if !n.joinRequests.firstSeen(s.Peer) {
		return
	}
	text := "found a node on the LAN that is not a member of this mesh: " + s.Peer.String()
	if s.Joins {
		text = "found a node on the LAN that belongs to no mesh: " + s.Peer.String() + ", code " + JoinCode(s.Peer)
	}
	n.addEvent("lan.stranger", s.Peer, text, map[string]string{"addrs": strings.Join(s.Addrs, " ")})
}

// requestJoin handles a request to join without a ticket: a person decides about it.
func (n *Node) requestJoin(ctx context.Context, from proto.PeerID, r *proto.JoinRequest) (*proto.JoinReply, error) {
	if _, err := n.issue(identity.Member{Peer: n.keys.Peer(), Name: n.self.Name}); err != nil {
		return nil, fmt.Errorf("this member may not admit others: ask another one")
	}
	if !nameRE.MatchString(r.GetName()) {
		return nil, fmt.Errorf("name %.80q: use 1-63 of a-z 0-9 and -", r.GetName())
	}
	origin, addr := n.net.Origin(from)
	x := n.joinRequests.add(from, origin, addr, r, n.cfg.Clock.Now())
	switch {
	case x == nil:
		return nil, fmt.Errorf("%d nodes are already asking to join: try again later", maxJoinRequests)
	case x.accepted == nil:
		if x.Since.Equal(x.Last) {
			n.addEvent("lan.wish", from, fmt.Sprintf("%s asks to join, code %s: balefire-node peers accept %s", x.Name, x.Code, x.Code), nil)
		}
		return &proto.JoinReply{Pending: true}, nil
	}
	reply, err := n.admitAccepted(ctx, from, cmp.Or(x.accepted.Name, x.Name), x.accepted.Roles, x.known)
	if err == nil {
		n.joinRequests.drop(from)
	}
	return reply, err
}

// JoinRequests lists the nodes on the LAN that ask to join, the newest first, because that is
// the one that a person has just started.
func (n *Node) JoinRequests(ctx context.Context) []wire.JoinRequest {
	out := []wire.JoinRequest{}
	for _, x := range n.joinRequests.list(n.cfg.Clock.Now()) {
		if x.accepted == nil {
			out = append(out, x.JoinRequest)
		}
	}
	return out
}

// Accept admits a node that asks to join. The node fetches its certificate when it
// repeats its request, within seconds. ref is its code or its complete id; a name does
// not suffice, because any node may choose any name.
func (n *Node) Accept(ctx context.Context, ref string, o wire.AcceptOptions) (wire.Peer, error) {
	if o.Name != "" && !nameRE.MatchString(o.Name) {
		return wire.Peer{}, fmt.Errorf("%w: name %.80q: use 1-63 of a-z 0-9 and -", wire.ErrInvalid, o.Name)
	}
	asking := n.joinRequests.list(n.cfg.Clock.Now())
	i := slices.IndexFunc(asking, func(x *joinRequest) bool { return plainCode(x.Code) == plainCode(ref) || x.ID == ref })
	switch {
	case i < 0 && slices.ContainsFunc(asking, func(x *joinRequest) bool { return x.Name == ref }):
		return wire.Peer{}, fmt.Errorf("%w: %.64q is a name, and any node may choose any name: compare the code with the one that the node shows, and use the code (balefire-node peers pending)", wire.ErrInvalid, ref)
	case i < 0:
		return wire.Peer{}, fmt.Errorf("%w: no node asks to join with the code %.64q: run balefire-node join --lan on it (balefire-node peers pending)", wire.ErrNotFound, ref)
	}
	x := asking[i]
	if len(o.Roles) == 0 {
		o.Roles = identity.DefaultRoles()
	}
	name := cmp.Or(o.Name, x.Name)
	if err := n.freeName(name, x.peer); err != nil {
		return wire.Peer{}, fmt.Errorf("%w: %w", wire.ErrRefused, err)
	}
	if _, err := n.issue(identity.Member{Peer: x.peer, Name: name, Roles: o.Roles}); err != nil {
		return wire.Peer{}, err
	}
	n.joinRequests.accept(x.peer, o, n.cfg.Clock.Now().Add(acceptedTTL))
	if err := n.audit(ctx, "peer.accept", x.ID); err != nil {
		return wire.Peer{}, err
	}
	return wire.Peer{Name: name, ID: x.ID, State: "ACCEPTED", Roles: o.Roles, Addrs: x.Addrs}, nil
}
