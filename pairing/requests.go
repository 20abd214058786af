package pairing

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base32"
	"errors"
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
	maxRequests  = 64
	maxPerOrigin = 4                // limit per address
	requestTTL   = 10 * time.Minute // lifetime of a request that is not repeated
	acceptedTTL  = time.Hour        // time in which an accepted node must fetch its certificate
	maxStrangers = 256              // strangers that were reported
	maxShown     = 4 * maxRequests  // names that were shown
)

// requests holds the requests of nodes on the LAN to join without a ticket. They are kept
// in memory only: a node that still wants to join repeats its request.
type requests struct {
	mu        sync.Mutex
	asked     map[proto.PeerID]*request
	strangers map[proto.PeerID]bool   // strangers that were reported by an event
	shown     map[proto.PeerID]string // the name with which a person was first shown a node; it outlives the request
}

type request struct {
	wire.JoinRequest
	peer     proto.PeerID
	known    *proto.KnownPeer // key record and addresses
	origin   string           // network that the request came from, see transport.Origin
	accepted *wire.AcceptOptions
	until    time.Time
}

func newRequests() *requests {
	return &requests{asked: map[proto.PeerID]*request{}, strangers: map[proto.PeerID]bool{}, shown: map[proto.PeerID]string{}}
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
func (q *requests) add(from proto.PeerID, origin, addr string, r *proto.JoinRequest, now time.Time) *request {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.forget(now)
	x := q.asked[from]
	if x == nil {
		if !q.evict(origin) {
			return nil
		}
		x = &request{peer: from, origin: origin, JoinRequest: wire.JoinRequest{ID: from.String(), Code: JoinCode(from), Since: now.UTC()}}
		q.asked[from] = x
	}
	x.Name, x.From, x.Addrs, x.Last, x.until = r.GetName(), addr, r.GetAddrs(), now.UTC(), now.Add(requestTTL)
	if x.accepted != nil {
		x.until = now.Add(acceptedTTL)
	}
	x.known = &proto.KnownPeer{KeyRecord: r.GetKeyRecord(), Addrs: r.GetAddrs()}
	c := *x
	return &c
}

// evict makes room for a request from origin, if possible. The caller holds mu.
func (q *requests) evict(origin string) bool {
	count := map[string]int{}
	for _, x := range q.asked {
		count[x.origin]++
	}
	from := origin
	switch {
	case count[origin] >= maxPerOrigin:
	case len(q.asked) < maxRequests:
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
	var oldest *request
	for _, x := range q.asked {
		if x.origin == from && x.accepted == nil && (oldest == nil || x.Since.Before(oldest.Since)) {
			oldest = x
		}
	}
	if oldest != nil {
		delete(q.asked, oldest.peer)
	}
	return oldest != nil
}

func (q *requests) forget(now time.Time) {
	for p, x := range q.asked {
		if now.After(x.until) {
			delete(q.asked, p)
		}
	}
}

func (q *requests) list(now time.Time) (all []*request) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.forget(now)
	for _, x := range q.asked {
		c := *x
		all = append(all, &c)
	}
	slices.SortFunc(all, func(a, b *request) int { return cmp.Or(b.Since.Compare(a.Since), strings.Compare(a.ID, b.ID)) })
	return all
}

// find returns the request of the node with a code or an id.
func (q *requests) find(ref string, now time.Time) (*request, error) {
	asking := q.list(now)
	i := slices.IndexFunc(asking, func(x *request) bool { return plainCode(x.Code) == plainCode(ref) || x.ID == ref })
	switch {
	case i >= 0:
		return asking[i], nil
	case slices.ContainsFunc(asking, func(x *request) bool { return x.Name == ref }):
		return nil, fmt.Errorf("%w: %.64q is a name, and any node may choose any name: compare the code with the one that the node shows, and use the code (balefire-node peers pending)", wire.ErrInvalid, ref)
	}
	return nil, fmt.Errorf("%w: no node asks to join with the code %.64q: run balefire-node join --lan on it (balefire-node peers pending)", wire.ErrNotFound, ref)
}

// show notes the name with which a person is shown a node. That person may not look again: a later
// name does not replace it.
func (q *requests) show(x *request) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.shown) >= maxShown {
		clear(q.shown)
	}
	if _, ok := q.shown[x.peer]; !ok {
		q.shown[x.peer] = x.Name
	}
}

// checkShown returns an error if a person was shown x with another name.
func (q *requests) checkShown(x *request) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if name, ok := q.shown[x.peer]; ok && name != x.Name {
		return fmt.Errorf("%w: the node %s was shown as %s and now asks for the name %s: compare its code again (balefire-node peers pending), and give it a name with --name", wire.ErrRefused, x.Code, name, x.Name)
	}
	return nil
}

// accept records that a person accepted a request.
func (q *requests) accept(p proto.PeerID, o wire.AcceptOptions, until time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if x := q.asked[p]; x != nil {
		x.accepted, x.until = &o, until
	}
}

func (q *requests) drop(p proto.PeerID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.asked, p)
}

// firstSeen reports whether p has not been reported before.
func (q *requests) firstSeen(p proto.PeerID) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.strangers[p] {
		return false
	}
	if len(q.strangers) >= maxStrangers {
		clear(q.strangers)
	}
	q.strangers[p] = true
	return true
}

// StrangerSeen handles the discovery of a node on the LAN that is not a member.
func (p *Pairing) StrangerSeen(s transport.Stranger) {
	if !p.requests.firstSeen(s.Peer) {
		return
	}
	fields := map[string]string{"addrs": strings.Join(s.Addrs, " "), "id": s.Peer.String()}
	if s.Joins {
		fields["code"] = JoinCode(s.Peer)
	} else if s.Reason != "" {
		fields["detail"] = strings.Join(strings.Fields(s.Reason), " ")
	}
	p.Event(wire.EventLANStranger, s.Peer, fields)
}

// requestJoin handles a request to join without a ticket: a person decides about it.
func (p *Pairing) requestJoin(ctx context.Context, from proto.PeerID, r *proto.JoinRequest) (*proto.JoinReply, error) {
	self := p.Book.Self()
	if _, err := p.issue(identity.Member{Peer: self.Peer, Name: self.Name}); err != nil {
		return nil, errors.New("this member may not admit others: ask another one")
	}
	if err := checkName(r.GetName()); err != nil {
		return nil, err
	}
	network, addr := p.net.Origin(from)
	x := p.requests.add(from, network, addr, r, p.Clock.Now())
	switch {
	case x == nil:
		return nil, fmt.Errorf("%d nodes are already asking to join: try again later", maxRequests)
	case x.accepted == nil:
		if x.Since.Equal(x.Last) {
			p.requests.show(x)
			p.Event(wire.EventJoinRequest, from, map[string]string{"name": x.Name, "code": x.Code})
		}
		return &proto.JoinReply{Pending: true}, nil
	}
	reply, err := p.enroll(ctx, identity.Member{Peer: from, Name: x.accepted.Name, Roles: x.accepted.Roles}, x.known, nil)
	if err == nil {
		p.requests.drop(from)
	}
	return reply, err
}

// Requests lists the nodes on the LAN that ask to join, the newest first, because that
// is the one that a person has just started.
func (p *Pairing) Requests() []wire.JoinRequest {
	out := []wire.JoinRequest{}
	for _, x := range p.requests.list(p.Clock.Now()) {
		if x.accepted == nil {
			p.requests.show(x)
			out = append(out, x.JoinRequest)
		}
	}
	return out
}

// Accept admits a node that asks to join. The node fetches its certificate when it
// repeats its request, within seconds. ref is its code or its complete id; a name does
// not suffice, because any node may choose any name.
func (p *Pairing) Accept(ctx context.Context, ref string, o wire.AcceptOptions) (wire.Peer, error) {
	x, err := p.requests.find(ref, p.Clock.Now())
	if err != nil {
		return wire.Peer{}, err
	}
	if len(o.Roles) == 0 {
		o.Roles = identity.DefaultRoles()
	}
	if o.Name == "" {
		if err := p.requests.checkShown(x); err != nil {
			return wire.Peer{}, err
		}
		o.Name = x.Name // a later request may state another one
	}
	if err := checkName(o.Name); err != nil {
		return wire.Peer{}, err
	}
	if err := p.freeName(o.Name, x.peer); err != nil {
		return wire.Peer{}, fmt.Errorf("%w: %w", wire.ErrRefused, err)
	}
	if _, err := p.issue(identity.Member{Peer: x.peer, Name: o.Name, Roles: o.Roles}); err != nil {
		return wire.Peer{}, err
	}
	p.requests.accept(x.peer, o, p.Clock.Now().Add(acceptedTTL))
	if err := p.Audit(ctx, "peer.accept", x.ID); err != nil {
		return wire.Peer{}, err
	}
	return wire.Peer{Name: o.Name, ID: x.ID, State: "ACCEPTED", Roles: o.Roles, Addrs: x.Addrs}, nil
}
