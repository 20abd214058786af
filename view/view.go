package view

import (
	"context"
	"io"
	"time"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/gossip"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/outbox"
	"github.com/balefire/balefire/ownership"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/wire"
)

// Parts are the subsystems that the views read.
type Parts struct {
	Keys   *identity.Keys
	Book   *addressbook.Book
	Net    *transport.Transport
	Gossip *gossip.Runner
	Outbox *outbox.Outbox
	Inbox  *inbox.Inbox
	Leases *ownership.Driver
	Store  *store.Store
	Guard  *clock.Guard // of the wall clock
	Queues Queues
	Mail   Mail
	Local  Local
}

// Mail counts the mail of this node.
type Mail interface {
	Status(ctx context.Context) (wire.MailStatus, error)
}

// Queues reports what is wrong with the shared queues.
type Queues interface {
	Alarms(ctx context.Context) []wire.Note
	LeaseRisks(ctx context.Context) []wire.LeaseRisk
	// LastJump returns when the clocks last jumped; zero: not since the start.
	LastJump() time.Time
}

// Local reports what only the node itself knows.
type Local struct {
	Record      func() gossip.Self    // what it announces
	Addrs       func() []string       // its multiaddrs, the best first
	Relays      func() []proto.PeerID // the members that it may ask for a reservation
	Handlers    func() []wire.Handler // its handlers by kind
	Phase       func() proto.NodeState
	Comparing   func() bool  // it was restored and admits only admins
	BlobBytes   func() int64 // size of the files with bodies
	LedgerBytes func() int64 // size of the ledger, in which mail is kept
	Result      func(*proto.Record) (io.ReadCloser, error)
}

// Config has the settings that the views show. Each is the node's own.
type Config struct {
	Self    identity.Member
	Mesh    proto.MeshID
	Version string
	Started time.Time
	Clock   clock.Clock
	DHT     bool // it takes part in the hash table
	PortMap bool // it asked the router for a port mapping
	Reserve int  // number of relays to reserve at
}

// Views answers what a node knows. Its methods are safe for concurrent use.
type Views struct {
	Parts
	Config
	verifier *identity.Verifier
}

// New returns the views of the given subsystems.
func New(p Parts, cfg Config) *Views {
	return &Views{Parts: p, Config: cfg, verifier: identity.NewVerifier()}
}
