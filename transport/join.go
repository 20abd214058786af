package transport

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/admit"
)

// joinTimeout limits a join at the inviter, which verifies, writes and signs.
const joinTimeout = 20 * time.Second

// joins handles requests to join: those of others at this node, and those of this node at a
// member.
type joins struct {
	cfg    Config
	met    *metrics
	group  *taskGroup
	peers  *peerTable
	rates  *rates
	dialer *dialer
}

// handle handles a join stream, the only thing besides a hello that is served to a
// stranger, once per connection. Members also use it to request a renewal.
func (j *joins) handle(raw network.Stream) {
	c := j.peers.connOf(raw)
	if c == nil || !c.verified() && c.greeting.joining.Swap(true) {
		j.met.refused.Inc()
		raw.Reset()
		return
	}
	ok := j.group.start(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, joinTimeout)
		defer cancel()
		defer raw.Reset()
		s := newStream(raw, raw, c, proto.MaxControl, j.cfg.Timing)
		defer s.unblock(ctx)()
		j.rates.streamEnded(c.peer, "join", j.serve(ctx, s))
		if !c.verified() {
			raw.Conn().Close()
		}
	})
	if !ok {
		raw.Reset()
	}
}

func (j *joins) serve(ctx context.Context, s *stream) error {
	c := s.conn
	reading, cancel := context.WithTimeout(ctx, j.cfg.Timing.Hello)
	defer cancel()
	stop := s.unblock(reading)
	b, err := s.expect(proto.TypeJoin)
	stop()
	if err != nil {
		return err
	}
	c.greeting.gotMessage.Store(true)
	r := new(proto.JoinRequest)
	if err := proto.DecodeKnown(b, r); err != nil {
		return err
	}
	if !j.mayJoin(c, r) {
		j.met.refused.Inc()
		return answerJoin(s, &proto.JoinReply{Refusal: reasonManyJoins, WaitMs: uint32(joinRetryAfter.Milliseconds())})
	}
	reply := &proto.JoinReply{Refusal: "joining from another network than this member's requires a ticket: ask for one"}
	if mayRequestJoin(r, c.verified(), j.cfg.Sockets != nil || onLocalNetwork(c.raw.RemoteMultiaddr(), ownNetworks())) {
		reply = j.cfg.Joiner.Join(ctx, c.peer, r)
	}
	return answerJoin(s, reply)
}

// A TicketChecker is a [Joiner] that reports, at the cost of one lookup, whether a node
// holds a valid ticket, so that requests of others do not delay it.
type TicketChecker interface {
	HoldsTicket(from proto.PeerID, r *proto.JoinRequest) bool
}

// mayJoin reports whether a request is handled now. Strangers are limited by address,
// since a new key costs nothing.
func (j *joins) mayJoin(c *conn, r *proto.JoinRequest) bool {
	if k, ok := j.cfg.Joiner.(TicketChecker); ok && len(r.GetTicketId()) > 0 && k.HoldsTicket(c.peer, r) {
		c.greeting.hasTicket.Store(true)
		return true
	}
	return j.rates.allow(c.peer, admit.Join) && (c.verified() || j.rates.allowAddress(c))
}

// reasonManyJoins is the refusal when too many nodes ask to join, and joinRetryAfter is
// when they should ask again.
const (
	reasonManyJoins = "too many join requests at once: try again in ten seconds; the ticket is still valid"
	joinRetryAfter  = 2 * time.Second
)

func answerJoin(s *stream, reply *proto.JoinReply) error {
	reply.Refusal = proto.Clip(reply.GetRefusal(), maxReason)
	b, err := proto.Encode(nil, reply)
	if err != nil {
		return err
	}
	if err := s.send(&proto.Message{Type: proto.TypeJoined, Payload: b}); err != nil {
		return err
	}
	s.CloseWrite()
	_, err = s.rd.NextRaw() // until the joiner has read it and closed
	return err
}

// mayRequestJoin reports whether r is handled: it contains a ticket, is a member's
// request for renewal, or comes from the local network.
func mayRequestJoin(r *proto.JoinRequest, member, near bool) bool {
	return len(r.GetTicketId()) > 0 || member || near
}

// onLocalNetwork reports whether remote, the address of a connection, is on a network of
// this machine: a private address, or in one of own. Only there can an operator who
// admits a node without a ticket identify it.
func onLocalNetwork(remote ma.Multiaddr, own []*net.IPNet) bool {
	if isCircuit(remote) {
		return false
	}
	ip, err := manet.ToIP(remote)
	if err != nil {
		return false
	}
	return manet.IsPrivateAddr(remote) || slices.ContainsFunc(own, func(n *net.IPNet) bool { return n.Contains(ip) })
}

// ownNetworks returns the networks in which this machine has an address.
func ownNetworks() (own []*net.IPNet) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok {
			own = append(own, n)
		}
	}
	return own
}

// ErrNoPlace is returned when a member closes each connection of a node that asks to join,
// because others occupy the places that it has for nodes that are no members.
var ErrNoPlace = errors.New("the other node has no place at the moment for nodes that are not members yet: try again; a ticket is still valid")

// RequestJoin asks a member for membership, at one of addrs: the inviter of a ticket or,
// without one, a member found by [Transport.FindMeshes], where an operator decides and
// the reply is pending until then. It waits for Run and needs no membership. The
// connection is closed afterwards: the next one starts with a hello. If too many ask, a
// node with a ticket waits for its turn until ctx is done; without a ticket the reply is
// a refusal, or the error [ErrNoPlace].
func (t *Transport) RequestJoin(ctx context.Context, addrs []string, inviter proto.PeerID, r *proto.JoinRequest) (*proto.JoinReply, error) {
	return t.joins.request(ctx, addrs, inviter, r)
}

// request is [Transport.RequestJoin].
func (j *joins) request(ctx context.Context, addrs []string, inviter proto.PeerID, r *proto.JoinRequest) (*proto.JoinReply, error) {
	j.peers.setJoining(inviter, 1)
	defer j.peers.setJoining(inviter, -1)
	var full error // how it was turned away last
	for wait := joinPause; ; wait = min(2*wait, maxJoinWait) {
		reply, err := j.joinAt(ctx, addrs, inviter, r)
		turn := wait
		switch {
		case errors.Is(err, ErrNoPlace) && len(r.GetTicketId()) > 0:
			full = err
		case err != nil && full != nil && ctx.Err() != nil: // the time ended in an attempt
			return nil, full
		case err != nil || reply.GetWaitMs() == 0 || len(r.GetTicketId()) == 0:
			return reply, err
		default:
			turn = min(time.Duration(reply.GetWaitMs())*time.Millisecond, maxJoinWait)
		}
		if !clock.Pause(ctx, turn/2+rand.N(turn)) || !timeLeft(ctx, joinPause) {
			return reply, err
		}
	}
}

// joinAt asks until there is an answer.
func (j *joins) joinAt(ctx context.Context, addrs []string, inviter proto.PeerID, r *proto.JoinRequest) (*proto.JoinReply, error) {
	reply, again, err := j.joinOnce(ctx, addrs, inviter, r)
	for try := 1; try < joinTries && again && !atLimit(err) && clock.Pause(ctx, joinPause); try++ {
		reply, again, err = j.joinOnce(ctx, addrs, inviter, r)
	}
	if atLimit(err) {
		err = ErrNoPlace
	}
	if err != nil {
		return nil, fmt.Errorf("join through %s: %w", inviter, err)
	}
	return reply, nil
}

// atLimit reports whether the other side closed the connection because it has too many.
func atLimit(err error) bool {
	c, ok := errors.AsType[*network.ConnError](err)
	return ok && c.Remote && c.ErrorCode == network.ConnRateLimited
}

// timeLeft reports whether ctx has at least d left.
func timeLeft(ctx context.Context, d time.Duration) bool {
	end, limited := ctx.Deadline()
	return !limited || time.Until(end) > d
}

// maxJoinWait bounds how long a member may make others wait before they ask again.
const maxJoinWait = 10 * time.Second

// joinTries is how many times a join is attempted. A member that saw this node on the LAN
// sends it a hello, and closes that connection when it is refused; and a member that has
// just started listens for a moment before it admits anyone.
const (
	joinTries    = 3
	joinPause    = 300 * time.Millisecond
	joinFastFail = 2 * time.Second // a later failure means that the member is unreachable
)

// joinOnce asks on one connection. again: the connection, not the member, is the reason
// for a missing answer.
func (j *joins) joinOnce(ctx context.Context, addrs []string, inviter proto.PeerID, r *proto.JoinRequest) (reply *proto.JoinReply, again bool, err error) {
	began := time.Now()
	if err := j.dialer.dialHost(ctx, inviter, addrs); err != nil {
		return nil, time.Since(began) < joinFastFail, err
	}
	c := j.peers.nextConn(inviter, nil)
	if c == nil {
		return nil, true, errors.New("it closed the connection")
	}
	defer c.raw.Close()
	reply, asked, err := j.ask(ctx, c, r)
	return reply, err != nil && (c.inbound || !asked), err
}

// RequestRenewal asks a connected admin to renew the certificate in r.
func (t *Transport) RequestRenewal(ctx context.Context, admin proto.PeerID, r *proto.JoinRequest) (*proto.JoinReply, error) {
	return t.joins.renew(ctx, admin, r)
}

// renew is [Transport.RequestRenewal].
func (j *joins) renew(ctx context.Context, admin proto.PeerID, r *proto.JoinRequest) (*proto.JoinReply, error) {
	c := j.peers.best(admin)
	if c == nil {
		return nil, fmt.Errorf("renewal by %s: %w", admin, ErrNotConnected)
	}
	reply, _, err := j.ask(ctx, c, r)
	if err != nil {
		return nil, fmt.Errorf("renewal by %s: %w", admin, err)
	}
	return reply, nil
}

// ask asks on a connection; asked reports whether the other side may have received
// the request.
func (j *joins) ask(ctx context.Context, c *conn, r *proto.JoinRequest) (reply *proto.JoinReply, asked bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	b, err := proto.Encode(nil, r)
	if err != nil {
		return nil, true, err
	}
	s, err := openStream(ctx, c, streamJoin, proto.MaxFrame, j.cfg.Timing)
	if err != nil {
		return nil, false, err
	}
	defer s.Close()
	defer s.unblock(ctx)()
	if _, err := s.rw.Read(nil); err != nil { // completes the negotiation: the other side serves joins
		return nil, false, err
	}
	if err := s.send(&proto.Message{Type: proto.TypeJoin, Payload: b}); err != nil {
		return nil, true, err
	}
	if b, err = s.expect(proto.TypeJoined); err != nil {
		return nil, true, err
	}
	reply = new(proto.JoinReply)
	return reply, true, proto.DecodeKnown(b, reply)
}
