package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/balefire/balefire/datadir"
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

// JoinLAN makes the stopped node in cfg.Dir a member of a mesh that is found on the
// LAN, without a ticket. It asks until a person accepts it there, or ctx is done.
func JoinLAN(ctx context.Context, cfg Config, o LANOptions) (Joined, error) {
	cfg = cfg.withDefaults()
	keys, _, err := ensureKeys(cfg.Dir, cfg.Clock)
	if err != nil {
		return Joined{}, fmt.Errorf("join: %w", err)
	}
	m, err := readMembership(cfg.Dir)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return Joined{}, fmt.Errorf("join: %w", err)
	case len(m.Root) > 0:
		return Joined{}, fmt.Errorf("join: %w, as %s: use another folder (--dir) for another mesh", ErrPaired, m.Name)
	case o.Name == "":
		o.Name = m.Name
	}
	if m.Name, err = chooseName(o.Name); err != nil {
		return Joined{}, fmt.Errorf("join: %w", err)
	}
	st, err := datadir.Open(cfg.Storage())
	if err != nil {
		return Joined{}, fmt.Errorf("join: %w", err)
	}
	defer st.Close()
	l := lanJoiner{cfg: cfg, keys: keys, name: m.Name, o: o, reported: map[proto.PeerID]bool{}}
	reply, mesh, err := l.ask(ctx)
	if err != nil {
		return Joined{}, fmt.Errorf("join: %w", err)
	}
	j := joiner{cfg: cfg, keys: keys}
	return j.enroll(ctx, st.Store, m, mesh, reply)
}

// A lanJoiner asks the members that it finds on the LAN.
type lanJoiner struct {
	cfg      Config
	keys     *identity.Keys
	name     string
	o        LANOptions
	host     *transport.Transport
	reported map[proto.PeerID]bool // members that a person was told about
}

// ask returns the first reply that admits this node.
func (l *lanJoiner) ask(ctx context.Context) (*proto.JoinReply, identity.Mesh, error) {
	cfg := transportConfig(l.cfg)
	cfg.MDNS, cfg.AnyPort = true, true
	var err error
	if l.host, err = transport.New(l.keys, unpairedHost{}, unpairedHost{}, cfg); err != nil {
		return nil, identity.Mesh{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- l.host.Run(ctx) }()
	defer func() { cancel(); <-done }()
	l.o.Progress(fmt.Sprintf("searching the LAN; this node's code is %s", JoinCode(l.keys.Peer())))
	found := l.host.FindMeshes(ctx)
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
			if l.o.mayAsk(f.Peer) {
				members[f.Peer] = f.Addrs
			}
		case <-tick.C:
		}
		for p, addrs := range members {
			reply, mesh, err := l.askOne(ctx, p, addrs)
			if err == nil && reply != nil {
				return reply, mesh, l.o.confirm(p, mesh)
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
		return fmt.Errorf("%w: nobody compared the code of %s, %s", wire.ErrRefused, p.Short(), JoinCode(p))
	}
	return o.Agree(JoinCode(p), mesh.ID.String())
}

// askOne asks one member. A nil reply without an error means not yet.
func (l *lanJoiner) askOne(ctx context.Context, p proto.PeerID, addrs []string) (*proto.JoinReply, identity.Mesh, error) {
	asking, cancel := context.WithTimeout(ctx, 5*askEvery)
	defer cancel()
	reply, err := l.host.RequestJoin(asking, addrs, p, &proto.JoinRequest{Name: l.name, KeyRecord: l.keys.KeyRecord(), Addrs: atPorts(l.host.Addrs(), l.cfg.Net.Listen)})
	switch {
	case err != nil:
		return nil, identity.Mesh{}, err
	case reply.GetRefusal() != "":
		l.tellOnce(p, fmt.Sprintf("%s refuses: %s", p.Short(), reply.GetRefusal()))
		return nil, identity.Mesh{}, wire.ErrRefused
	case reply.GetPending():
		l.tellOnce(p, fmt.Sprintf("asked %s (code %s); there, a person runs: balefire-node peers accept %s", p.Short(), JoinCode(p), JoinCode(l.keys.Peer())))
		return nil, identity.Mesh{}, nil
	}
	mesh, err := identity.NewMesh(reply.GetRoot())
	return reply, mesh, err
}

// tellOnce tells a person something about a member, once.
func (l *lanJoiner) tellOnce(p proto.PeerID, text string) {
	if !l.reported[p] {
		l.reported[p] = true
		l.o.Progress(text)
	}
}

// timedOut returns what a person can do when the time is over, or the error of ctx.
func (l *lanJoiner) timedOut(ctx context.Context, members int) error {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return ctx.Err()
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
