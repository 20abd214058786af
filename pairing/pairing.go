// Package pairing makes nodes members of a mesh and keeps them members: it issues
// tickets, admits a node that holds one or that a person accepts, replaces keys and
// certificates before they expire, and revokes members. A ticket admits one node, once;
// a revoked member stays out, even if the store of this node is restored from an older
// copy.
//
//	the member                                   the new node
//	Invite ──── ticket, carried by a person ───▶ Joiner.WithTicket
//	Answer ◀─── proof of the ticket ──────────── │
//	   └─────── certificate, known peers ──────▶ membership file, address book
//
//	Accept ◀─── code, compared by a person ───── Joiner.OnLAN
package pairing

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/audit"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/event"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/wire"
)

// Parts are what a Pairing works with. All are required.
type Parts struct {
	Dir    string // the folder of the node
	Keys   *identity.Keys
	Mesh   identity.Mesh
	Book   *addressbook.Book
	Store  *store.Store // open tickets, and whether this node was restored
	Clock  clock.Clock
	Logger *slog.Logger
	// Audit records an action of the caller in ctx.
	Audit audit.RecordFunc
	// PeerClock receives the clock of a peer whose own certificate, which is not revoked, is
	// refused because of this node's clock: nothing of it may be taken as right.
	PeerClock func(time.Time)
	// Event reports what happened to a peer, or to this node if p is zero.
	Event event.AddFunc
}

// Network is what a Pairing needs of the transport.
type Network interface {
	// Addrs returns the multiaddrs of this node, the best first.
	Addrs() []string
	// Origin returns the network and the address from which p is connected.
	Origin(p proto.PeerID) (network, addr string)
	Connected(p proto.PeerID) bool
	// Want opens a connection to p and keeps it open.
	Want(p proto.PeerID)
	Disconnect(p proto.PeerID)
	// RequestRenewal asks a connected admin for a new certificate.
	RequestRenewal(ctx context.Context, admin proto.PeerID, r *proto.JoinRequest) (*proto.JoinReply, error)
	// BroadcastHello sends the current certificate and key record to all peers.
	BroadcastHello()
}

// Gossip spreads changes of the membership.
type Gossip interface {
	// Revoke stores a revocation, by [Directory.Revoke], and spreads it.
	Revoke(ctx context.Context, s *proto.Signed) error
	// Compare exchanges revocations with a member.
	Compare(ctx context.Context, p proto.PeerID) error
	// Forgotten removes what is known about the liveness of p.
	Forgotten(p proto.PeerID)
}

// An Outbox knows how many tasks and results wait for a peer.
type Outbox interface{ Waiting(p proto.PeerID) int }

// An Inbox knows how many tasks of a peer are here and have not ended.
type Inbox interface{ Unfinished(p proto.PeerID) int }

// A Pairing admits members and keeps this node one. Its methods are safe for concurrent
// use.
type Pairing struct {
	Parts
	net    Network
	gossip Gossip
	outbox Outbox
	inbox  Inbox

	revocations    *revocationLog
	requests       *requests
	admitting      sync.Mutex    // held while a node is admitted
	comparing      atomic.Bool   // only admins are admitted: see compare
	adminConnected chan struct{} // holds a token when an admin has connected: see keepIdentity
}

// New returns the pairing of the node with the given parts. The book knows all stored
// revocations then. Before anything else is called, [Pairing.Connect] must be.
func New(parts Parts) (*Pairing, error) {
	p := &Pairing{Parts: parts, revocations: newRevocationLog(parts.Dir), requests: newRequests(), adminConnected: make(chan struct{}, 1)}
	if err := p.revocations.reconcile(context.Background(), p.Book, p.Logger); err != nil {
		return nil, err
	}
	return p, p.openCompare()
}

// Connect adds the subsystems that are opened after New.
func (p *Pairing) Connect(net Network, gossip Gossip, outbox Outbox, inbox Inbox) {
	p.net, p.gossip, p.outbox, p.inbox = net, gossip, outbox, inbox
}

// Run renews keys and certificate of this node until ctx is done, and compares
// revocations after a restore.
func (p *Pairing) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { p.keepIdentity(ctx); return nil })
	g.Go(func() error { return p.compare(ctx) })
	return g.Wait()
}

// root returns the root key of the mesh if it is in this node's folder, otherwise nil.
func (p *Pairing) root() *identity.Root {
	if root, err := identity.LoadRoot(filepath.Join(p.Dir, datadir.Identity)); err == nil && root.Mesh().ID == p.Mesh.ID {
		return root
	}
	return nil
}

// issue signs a certificate with the root key if it is here, otherwise as an admin.
func (p *Pairing) issue(m identity.Member) (cert *proto.Signed, err error) {
	now, self := p.Clock.Now(), p.Book.Self().Member
	if root := p.root(); root != nil {
		cert, err = root.IssueMember(m, now)
	} else if self.HasRole(identity.RoleAdmin) {
		cert, err = p.Keys.IssueMember(p.Mesh, self.Cert, m, now)
	} else {
		return nil, fmt.Errorf("%w: this node may not admit others: run this on the node that began the mesh, or on one with the admin role", wire.ErrDenied)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", wire.ErrInvalid, err)
	}
	return cert, nil
}

// checkName refuses what cannot be the name of a node.
func checkName(name string) error {
	if !identity.IsLabel(name) {
		return fmt.Errorf("%w: name %.80q: use 1-63 of a-z 0-9 and -, starting and ending with a letter or digit", wire.ErrInvalid, name)
	}
	return nil
}
