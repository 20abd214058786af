package pairing

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/wire"
)

// askEvery is the interval between two join requests of a node on the LAN.
const askEvery = 2 * time.Second

// LANOptions describe which mesh a node on the LAN wants to join.
type LANOptions struct {
	Name string // the requested name; default the machine's
	Code string // of the one member to ask, see [JoinCode]; empty: every member that is found
	// Agree is asked before the mesh of a member that Code does not name is joined:
	// the first to answer on a LAN is not known to be the right one.
	Agree    func(code, mesh string) error
	Progress func(string) // gets messages for people
}

// OnLAN joins a mesh that is found on the LAN, without a ticket. It asks until a person
// accepts the node there, or ctx is done.
func (j Joiner) OnLAN(ctx context.Context, o LANOptions) (Joined, error) {
	j.Net.MDNS = true
	l := lanJoiner{LANOptions: o, reported: map[proto.PeerID]bool{}}
	return j.join(ctx, o.Name, nil, l.ask)
}

// A lanJoiner asks the members that it finds on the LAN.
type lanJoiner struct {
	LANOptions
	*joining
	reported map[proto.PeerID]bool // members that a person was told about
	full     error                 // the last member that was asked had no place for strangers
}

// ask returns the first reply that admits this node.
func (l *lanJoiner) ask(ctx context.Context, x *joining) (*proto.JoinReply, identity.Mesh, error) {
	l.joining = x
	l.Progress(fmt.Sprintf("searching the LAN; this node's code is %s", JoinCode(x.keys.Peer())))
	found := x.host.FindMeshes(ctx)
	members := map[proto.PeerID][]string{}
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, identity.Mesh{}, l.timedOut(ctx, len(members))
		case f, ok := <-found:
			if !ok {
				return nil, identity.Mesh{}, errors.New("the LAN cannot be searched: no interface supports multicast")
			}
			if l.mayAsk(f.Peer) {
				members[f.Peer] = f.Addrs
			}
		case <-tick.C:
		}
		for p, addrs := range members {
			reply, mesh, err := l.askOne(ctx, p, addrs)
			if err == nil && reply != nil {
				return reply, mesh, l.confirm(p, mesh)
			}
		}
	}
}

// mayAsk reports whether p may be asked.
func (o LANOptions) mayAsk(p proto.PeerID) bool {
	return o.Code == "" || plainCode(o.Code) == plainCode(JoinCode(p))
}

// confirm returns why the mesh of p is not joined after all.
func (o LANOptions) confirm(p proto.PeerID, mesh identity.Mesh) error {
	if o.Code != "" {
		return nil
	}
	if o.Agree == nil {
		return fmt.Errorf("%w: nobody compared the code of %s, %s", wire.ErrRefused, p, JoinCode(p))
	}
	return o.Agree(JoinCode(p), mesh.ID.String())
}

// askOne asks one member. A nil reply without an error means not yet.
func (l *lanJoiner) askOne(ctx context.Context, p proto.PeerID, addrs []string) (*proto.JoinReply, identity.Mesh, error) {
	asking, cancel := context.WithTimeout(ctx, 5*askEvery)
	defer cancel()
	reply, err := l.host.RequestJoin(asking, addrs, p, l.request())
	if l.full = nil; errors.Is(err, transport.ErrNoPlace) {
		l.full = err
	}
	if err != nil {
		return nil, identity.Mesh{}, err
	}
	return l.answered(p, reply)
}

// answered handles the reply of one member.
func (l *lanJoiner) answered(p proto.PeerID, reply *proto.JoinReply) (*proto.JoinReply, identity.Mesh, error) {
	switch {
	case reply.GetRefusal() != "":
		l.tellOnce(p, fmt.Sprintf("%s refuses: %s", p, reply.GetRefusal()))
		return nil, identity.Mesh{}, wire.ErrRefused
	case reply.GetPending():
		l.tellOnce(p, fmt.Sprintf("asked %s (code %s); there, a person runs: balefire-node peers accept %s", p, JoinCode(p), JoinCode(l.keys.Peer())))
		return nil, identity.Mesh{}, nil
	}
	mesh, err := identity.NewMesh(reply.GetRoot())
	return reply, mesh, err
}

// tellOnce tells a person something about a member, once.
func (l *lanJoiner) tellOnce(p proto.PeerID, text string) {
	if !l.reported[p] {
		l.reported[p] = true
		l.Progress(text)
	}
}

// timedOut returns what a person can do when the time is over, or the error of ctx.
func (l *lanJoiner) timedOut(ctx context.Context, members int) error {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return ctx.Err()
	}
	if l.full != nil && len(l.reported) == 0 {
		return &timeoutError{l.full.Error()}
	}
	if members == 0 {
		return &timeoutError{"nobody on the LAN answered: is a member's node running there, with net.mdns on? A ticket works everywhere: balefire-node invite, on the member"}
	}
	return &timeoutError{"nobody admitted this node: on a member, run balefire-node peers accept " + JoinCode(l.keys.Peer())}
}

// A timeoutError is a deadline that was exceeded, with a message of its own.
type timeoutError struct{ text string }

func (e *timeoutError) Error() string { return e.text }

func (e *timeoutError) Unwrap() error { return context.DeadlineExceeded }
