package pairing

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/clock"
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

// A Joiner makes a stopped node a member of a mesh. It creates the node's keys if there
// are none.
type Joiner struct {
	Storage datadir.Config   // of the node
	Net     transport.Config // of the node; the join itself uses any free ports
}

// WithTicket joins the mesh that a ticket invites to. The inviter must be running and
// reachable.
func (j Joiner) WithTicket(ctx context.Context, ticket, name string) (_ Joined, err error) {
	t, err := identity.ParseTicket(ticket)
	if err != nil {
		return Joined{}, fmt.Errorf("join: %w: %w", wire.ErrInvalid, err)
	}
	defer func() {
		if err != nil && t.Expired(j.Net.Clock.Now()) { // by this clock; the inviter goes by its own
			err = fmt.Errorf("%w (by the clock of this machine the ticket expired at %s: if that clock is right, ask for a new one)", err, t.Expires.Format("2006-01-02 15:04 MST"))
		}
	}()
	undo := trackNewFiles(j.Storage.Dir)
	defer func() {
		if err != nil && notJoined(err) {
			undo()
		}
	}()
	return j.join(ctx, name, t.Addrs, func(ctx context.Context, x *joining) (*proto.JoinReply, identity.Mesh, error) {
		if t.Inviter == x.keys.Peer() {
			return nil, identity.Mesh{}, fmt.Errorf("%w: the node that created the ticket has the same key as this one: present the ticket on another machine, or use another folder (--dir), which gets its own key", wire.ErrRefused)
		}
		r := x.request()
		r.TicketId, r.Proof = t.ID[:], identity.JoinProof(t.Secret, x.keys.Peer(), t.Inviter)
		reply, err := x.host.RequestJoin(ctx, t.Addrs, t.Inviter, r)
		if err != nil {
			return nil, identity.Mesh{}, err
		}
		if reply.GetRefusal() != "" {
			return nil, identity.Mesh{}, fmt.Errorf("%w by the inviter: %s", wire.ErrRefused, reply.GetRefusal())
		}
		mesh, err := t.Admits(reply.GetRoot())
		if err != nil {
			err = fmt.Errorf("the inviter answered for another mesh: %w", err)
		}
		return reply, mesh, err
	})
}

// A joining is a node while it joins.
type joining struct {
	Joiner
	keys   *identity.Keys
	member membership
	host   *transport.Transport // a separate one, which serves nothing
}

// join makes the node a member of the mesh that admits it. addrs are further addresses
// of the member that answers.
func (j Joiner) join(ctx context.Context, name string, addrs []string, ask func(context.Context, *joining) (*proto.JoinReply, identity.Mesh, error)) (Joined, error) {
	x, err := j.begin(name)
	if err != nil {
		return Joined{}, fmt.Errorf("join: %w", err)
	}
	dir, err := datadir.Open(j.Storage)
	if err != nil {
		return Joined{}, fmt.Errorf("join: %w", err)
	}
	defer dir.Close()
	reply, mesh, err := x.withHost(ctx, ask)
	if err != nil {
		return Joined{}, fmt.Errorf("join: %w", err)
	}
	joined, err := x.enroll(ctx, dir.Store, mesh, reply, addrs)
	if err != nil {
		return Joined{}, fmt.Errorf("join: %w", err)
	}
	return joined, nil
}

// begin prepares the folder of a node that is in no mesh yet.
func (j Joiner) begin(name string) (*joining, error) {
	keys, _, err := ensureKeys(j.Storage.Dir, j.Net.Clock)
	if err != nil {
		return nil, err
	}
	m, err := readMembership(j.Storage.Dir)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, err
	case len(m.Root) > 0:
		return nil, fmt.Errorf("%w, as %s: use another folder (--dir) for another mesh", ErrPaired, m.Name)
	case name == "":
		name = m.Name
	}
	if key, now := keys.SealingKey(), j.Net.Clock.Now(); fromFuture(key, now) {
		if err := keys.Rotate(key.Suite, now); err != nil {
			return nil, err
		}
	}
	m.Name, err = chooseName(name)
	return &joining{Joiner: j, keys: keys, member: m}, err
}

// withHost runs the host while do asks for membership.
func (x *joining) withHost(ctx context.Context, do func(context.Context, *joining) (*proto.JoinReply, identity.Mesh, error)) (*proto.JoinReply, identity.Mesh, error) {
	cfg := x.Net
	cfg.AnyPort = true // another node of this machine may use the usual ones
	var err error
	if x.host, err = transport.New(x.keys, unpaired{}, unpaired{}, cfg); err != nil {
		return nil, identity.Mesh{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- x.host.Run(ctx) }()
	defer func() { cancel(); <-done }()
	return do(ctx, x)
}

// request returns the request of this node, without a ticket.
func (x *joining) request() *proto.JoinRequest {
	return &proto.JoinRequest{Name: x.member.Name, KeyRecord: x.keys.KeyRecord(), Addrs: atPorts(x.host.Addrs(), x.Net.Listen)}
}

// enroll stores the answer of a mesh.
func (x *joining) enroll(ctx context.Context, st *store.Store, mesh identity.Mesh, reply *proto.JoinReply, addrs []string) (Joined, error) {
	self, err := mesh.VerifyMember(reply.GetCertificate(), x.Net.Clock.Now())
	if errors.Is(err, identity.ErrNotYet) { // it is as late as that
		behind := self.NotBefore.Sub(x.Net.Clock.Now())
		x.Net.Clock = clock.WithOffset(x.Net.Clock, func() time.Duration { return behind })
		self, err = mesh.VerifyMember(reply.GetCertificate(), x.Net.Clock.Now())
	}
	if err != nil || self.Peer != x.keys.Peer() {
		return Joined{}, fmt.Errorf("the certificate does not admit this node: %w", err)
	}
	met, err := x.learnPeers(ctx, st, mesh, reply, addrs)
	if err != nil {
		return Joined{}, err
	}
	x.member.Name, x.member.Root = self.Name, mesh.Root
	if x.member.Certificate, err = proto.Encode(nil, reply.GetCertificate()); err != nil {
		return Joined{}, err
	}
	if err := x.member.write(x.Storage.Dir); err != nil {
		return Joined{}, err
	}
	return Joined{Name: self.Name, ID: self.Peer.String(), Mesh: mesh.ID.String(), Inviter: met[0], Peers: len(met)}, nil
}

// learnPeers stores the peers that the inviter introduces, itself first.
func (x *joining) learnPeers(ctx context.Context, s *store.Store, mesh identity.Mesh, reply *proto.JoinReply, addrs []string) (names []string, err error) {
	book, err := addressbook.Open(s, mesh, x.keys, reply.GetCertificate(), x.Net.Clock, transport.Multiaddrs{})
	if err != nil {
		return nil, err
	}
	for i, k := range reply.GetPeers() {
		if i == 0 { // the addresses of the ticket have just worked
			k.Addrs = append(k.Addrs, addrs...)
		}
		err := book.Learn(ctx, k)
		member, verr := mesh.VerifyMember(k.GetCertificate(), x.Net.Clock.Now())
		switch {
		case err == nil && verr == nil:
			names = append(names, member.Name)
		case i == 0:
			return nil, fmt.Errorf("the inviter's own record: %w", errors.Join(err, verr))
		default:
			x.Net.Logger.Warn("the inviter introduced a peer without a valid certificate", "err", errors.Join(err, verr))
		}
	}
	if len(names) == 0 {
		return nil, errors.New("the inviter did not introduce itself")
	}
	return names, nil
}

// An unpaired node has not joined yet: it sends nothing and accepts nothing.
type unpaired struct{}

func (unpaired) Hello() *proto.Hello                           { return nil }
func (unpaired) Admit(*proto.Hello, proto.PeerID) error        { return ErrUnpaired }
func (unpaired) Blocked(proto.PeerID) bool                     { return false }
func (unpaired) Linked(context.Context, *transport.Link) error { return ErrUnpaired }
func (unpaired) Started(proto.PeerID, *proto.Receipts)         {}
func (unpaired) Receive(context.Context, proto.PeerID, []*proto.Message) (transport.Answer, error) {
	return transport.Answer{}, ErrUnpaired
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
