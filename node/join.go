package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/wire"
)

// A Joined is the outcome of a join.
type Joined struct {
	Name    string `json:"name"`
	ID      string `json:"id"`
	Mesh    string `json:"mesh"`
	Inviter string `json:"inviter"`
	Peers   int    `json:"peers"`
}

// Join makes the stopped node in cfg.Dir a member of the mesh that a ticket invites
// to. It creates the node's keys if there are none. The inviter must be running and
// reachable.
func Join(ctx context.Context, cfg Config, ticket, name string) (_ Joined, err error) {
	cfg = cfg.withDefaults()
	t, err := identity.ParseTicket(ticket)
	if err != nil {
		return Joined{}, fmt.Errorf("join: %w: %w", wire.ErrInvalid, err)
	}
	if t.Expired(cfg.Clock.Now()) {
		return Joined{}, fmt.Errorf("join: %w: the ticket expired at %s: ask for a new one", wire.ErrRefused, t.Expires.Format("2006-01-02 15:04 MST"))
	}
	undo := trackNewFiles(cfg.Dir)
	defer func() {
		if err != nil && notJoined(err) {
			undo()
		}
	}()
	keys, _, err := ensureKeys(cfg.Dir, cfg.Clock)
	if err != nil {
		return Joined{}, fmt.Errorf("join: %w", err)
	}
	m, err := readMembership(cfg.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Joined{}, fmt.Errorf("join: %w", err)
	}
	if len(m.Root) > 0 {
		return Joined{}, fmt.Errorf("join: %w, as %s: use another folder (--dir) for another mesh", ErrPaired, m.Name)
	}
	if name == "" {
		name = m.Name
	}
	if m.Name, err = chooseName(name); err != nil {
		return Joined{}, fmt.Errorf("join: %w", err)
	}
	j := joiner{cfg: cfg, keys: keys, ticket: t}
	return j.join(ctx, m)
}

var portRE = regexp.MustCompile(`/(tcp|udp)/(\d+)`)

// atPorts returns addrs with the ports of listen, where the node will listen once it
// runs. Addresses that listen has no port for are left out.
func atPorts(addrs, listen []string) (at []string) {
	ports := map[string]string{}
	if listen == nil {
		ports["tcp"], ports["udp"] = "4001", "4001"
	}
	for _, l := range listen {
		if m := portRE.FindStringSubmatch(l); m != nil && ports[m[1]] == "" {
			ports[m[1]] = m[2]
		}
	}
	for _, a := range addrs {
		m := portRE.FindStringSubmatchIndex(a)
		if m == nil {
			continue
		}
		if p := ports[a[m[2]:m[3]]]; p != "" && p != "0" {
			at = append(at, a[:m[4]]+p+a[m[5]:])
		}
	}
	return at
}

// trackNewFiles remembers what is in the folder of a new node. If there is no node in
// it yet, undo removes everything that was added since.
func trackNewFiles(dir string) (undo func()) {
	before := map[string]bool{}
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		before[e.Name()] = true
	}
	missing := errors.Is(err, fs.ErrNotExist)
	if err != nil && !missing || before[datadir.Identity] || before[datadir.Store] {
		return func() {}
	}
	return func() {
		now, _ := os.ReadDir(dir)
		for _, e := range now {
			if !before[e.Name()] {
				_ = os.RemoveAll(filepath.Join(dir, e.Name()))
			}
		}
		if missing {
			_ = os.Remove(dir)
		}
	}
}

// notJoined reports whether a join that failed with err left nothing at the inviter:
// it was not reached, or it refused. Otherwise the inviter may know the key of this
// node, which is kept.
func notJoined(err error) bool {
	return errors.Is(err, wire.ErrRefused) || errors.Is(err, transport.ErrUnreached)
}

// A joiner is a node that joins a mesh.
type joiner struct {
	cfg    Config
	keys   *identity.Keys
	ticket identity.Ticket
}

func (j *joiner) join(ctx context.Context, m membership) (Joined, error) {
	st, err := datadir.Open(j.cfg.Storage())
	if err != nil {
		return Joined{}, fmt.Errorf("join: %w", err)
	}
	defer st.Close()
	reply, err := j.ask(ctx, m.Name)
	if err != nil {
		return Joined{}, fmt.Errorf("join: %w", err)
	}
	if reply.GetRefusal() != "" {
		return Joined{}, fmt.Errorf("join: %w by the inviter: %s", wire.ErrRefused, reply.GetRefusal())
	}
	mesh, err := j.ticket.Admits(reply.GetRoot())
	if err != nil {
		return Joined{}, fmt.Errorf("join: the inviter answered for another mesh: %w", err)
	}
	return j.enroll(ctx, st.Store, m, mesh, reply)
}

// enroll stores the answer of a mesh.
func (j *joiner) enroll(ctx context.Context, st *store.Store, m membership, mesh identity.Mesh, reply *proto.JoinReply) (Joined, error) {
	self, err := mesh.VerifyMember(reply.GetCertificate(), j.cfg.Clock.Now())
	if err != nil || self.Peer != j.keys.Peer() {
		return Joined{}, fmt.Errorf("join: the certificate does not admit this node: %w", err)
	}
	met, err := j.learnPeers(ctx, st, mesh, reply)
	if err != nil {
		return Joined{}, fmt.Errorf("join: %w", err)
	}
	m.Name, m.Root = self.Name, mesh.Root
	if m.Certificate, err = proto.Encode(nil, reply.GetCertificate()); err != nil {
		return Joined{}, err
	}
	if err := m.write(j.cfg.Dir); err != nil {
		return Joined{}, fmt.Errorf("join: %w", err)
	}
	return Joined{Name: self.Name, ID: self.Peer.String(), Mesh: mesh.ID.String(), Inviter: met[0], Peers: len(met)}, nil
}

// ask shows the ticket to the inviter over a separate host.
func (j *joiner) ask(ctx context.Context, name string) (*proto.JoinReply, error) {
	cfg := transportConfig(j.cfg)
	cfg.AnyPort = true // another node of this machine may use the usual ones
	host, err := transport.New(j.keys, unpairedHost{}, unpairedHost{}, cfg)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- host.Run(ctx) }()
	defer func() { cancel(); <-done }()
	return host.RequestJoin(ctx, j.ticket.Addrs, j.ticket.Inviter, &proto.JoinRequest{
		TicketId: j.ticket.ID[:], Proof: identity.JoinProof(j.ticket.Secret, j.keys.Peer(), j.ticket.Inviter),
		Name: name, KeyRecord: j.keys.KeyRecord(), Addrs: atPorts(host.Addrs(), j.cfg.Net.Listen),
	})
}

// learnPeers stores the peers that the inviter introduces, itself first.
func (j *joiner) learnPeers(ctx context.Context, s *store.Store, mesh identity.Mesh, reply *proto.JoinReply) (names []string, err error) {
	book, err := transport.OpenBook(s, mesh, j.keys, reply.GetCertificate(), j.cfg.Clock)
	if err != nil {
		return nil, err
	}
	for i, k := range reply.GetPeers() {
		if i == 0 { // the addresses of the ticket have just worked
			k.Addrs = append(k.Addrs, j.ticket.Addrs...)
		}
		err := book.Learn(ctx, k)
		member, verr := mesh.VerifyMember(k.GetCertificate(), j.cfg.Clock.Now())
		switch {
		case err == nil && verr == nil:
			names = append(names, member.Name)
		case i == 0:
			return nil, fmt.Errorf("the inviter's own record: %w", errors.Join(err, verr))
		default:
			j.cfg.Logger.Warn("the inviter introduced a peer without a valid certificate", "err", errors.Join(err, verr))
		}
	}
	if len(names) == 0 {
		return nil, errors.New("the inviter did not introduce itself")
	}
	return names, nil
}

// An unpairedHost is a node before it has joined: it sends nothing and accepts
// nothing.
type unpairedHost struct{}

func (unpairedHost) Hello() *proto.Hello                           { return nil }
func (unpairedHost) Admit(*proto.Hello, proto.PeerID) error        { return ErrUnpaired }
func (unpairedHost) Blocked(proto.PeerID) bool                     { return false }
func (unpairedHost) Linked(context.Context, *transport.Link) error { return ErrUnpaired }
func (unpairedHost) Started(proto.PeerID, *proto.Receipts)         {}
func (unpairedHost) Receive(context.Context, proto.PeerID, []*proto.Message) (transport.Answer, error) {
	return transport.Answer{}, ErrUnpaired
}

// loopback returns 1 for an address of the machine itself, otherwise 0.
func loopback(addr string) int {
	if strings.HasPrefix(addr, "/ip4/127.") || strings.HasPrefix(addr, "/ip6/::1/") {
		return 1
	}
	return 0
}

// transportConfig returns the transport settings of the node's configuration.
func transportConfig(cfg Config) transport.Config {
	c := transport.Config{Listen: cfg.Net.Listen, Announce: cfg.Net.Announce, Clock: cfg.Clock, Logger: cfg.Logger}
	if cfg.Simulated.Transport != nil {
		cfg.Simulated.Transport(&c)
	}
	return c
}
