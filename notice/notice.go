// Package notice exchanges the messages about tasks that need no answer and may be lost: that
// a task has started, that a node has room again for what it refused, and which of the tasks
// that it accepted a node no longer knows.
package notice

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/event"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/outbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
)

// A Network sends on ctl streams.
type Network interface {
	SendCtl(to proto.PeerID, m *proto.Message) error
	ConnectedPeers() []proto.PeerID
	// Offend takes note of bytes that no correct node sends.
	Offend(p proto.PeerID, err error)
}

// Parts is what notices work with. All are required.
type Parts struct {
	Keys      *identity.Keys
	Book      *addressbook.Book
	Verifier  *identity.Verifier
	Inbox     *inbox.Inbox
	Outbox    *outbox.Outbox
	Lease     func(context.Context, proto.TaskID) (owner proto.PeerID, epoch proto.Seq, err error) // the newest of a task of a queue; zero: none
	RetryMail func(context.Context, proto.PeerID, proto.Code)                                      // retries what a peer refused with a code
	Full      func() bool                                                                          // there is no space for new work
	Event     event.AddFunc                                                                        // reports what a peer did
	Clock     clock.Clock
	Logger    *slog.Logger
}

// Notices sends and handles notices. Its methods are safe for concurrent use.
type Notices struct {
	Parts
	net     Network
	queue   chan message
	lookups chan lookupMessage // LOOKUP and LOOKUP_REPLY
	asked   map[proto.PeerID]lookupState

	mu        sync.Mutex
	refused   map[proto.PeerID]bool          // for lack of room
	forgotten map[proto.TaskID]time.Duration // when a report that its target does not know it counted, by Boot
}

// New returns notices that wait for their network: see [Notices.Connect].
func New(p Parts) *Notices {
	return &Notices{
		Parts: p, refused: map[proto.PeerID]bool{}, forgotten: map[proto.TaskID]time.Duration{}, queue: make(chan message, maxQueued),
		lookups: make(chan lookupMessage, 64), asked: map[proto.PeerID]lookupState{},
	}
}

// Connect sets the network, before anything is sent.
func (n *Notices) Connect(net Network) { n.net = net }

// Run handles what arrives and sends what is due until ctx is done.
func (n *Notices) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return n.handle(ctx) })
	g.Go(func() error { n.runReady(ctx); return nil })
	g.Go(func() error { n.runLookups(ctx); return nil })
	return g.Wait()
}

// send sends a notice, which may be lost, and reports whether it was given to the network.
func (n *Notices) send(to proto.PeerID, typ proto.MessageType, notice proto.Body) (sent bool) {
	payload, err := proto.Encode(nil, notice)
	if err == nil {
		err = n.net.SendCtl(to, &proto.Message{Type: typ, Payload: payload, Timestamp: n.Clock.Now().UnixNano()})
	}
	if err != nil && !errors.Is(err, transport.ErrNotConnected) {
		n.Logger.Debug("could not send a notice", "type", typ.String(), "peer", to, "err", err)
	}
	return err == nil
}

// A message is a notice of a peer: a task has started, or the peer can accept more. It is
// stored by another goroutine so that it does not delay the heartbeat.
type message struct {
	from     proto.PeerID
	receipts *proto.Receipts
	ready    *proto.Ready // nil: the notice contains receipts
}

const maxQueued = 256

// Started receives an owner's notice that a task of this node is running.
func (n *Notices) Started(from proto.PeerID, r *proto.Receipts) {
	select {
	case n.queue <- message{from: from, receipts: r}:
	default: // dropping it is harmless: the result will follow
	}
}

// SendStarted tells a home that its task is running: the origin or, for a lease, the
// home of the queue, which tells the origin. It is best effort: there is no answer and
// no retry.
func (n *Notices) SendStarted(s inbox.Started) {
	to := s.Origin
	if !s.Home.IsZero() {
		to = s.Home
	}
	n.notifyStarted(to, &proto.Receipts{Receipts: n.Keys.Receipts([][]byte{s.Statement.Append(nil)})})
}

func (n *Notices) notifyStarted(to proto.PeerID, receipts *proto.Receipts) {
	if to == n.Keys.Peer() {
		n.Started(to, receipts)
		return
	}
	n.send(to, proto.TypeStarted, receipts)
}

// verifyReceipts returns the receipts with valid signatures, because a stored receipt serves as
// proof.
func (n *Notices) verifyReceipts(list []*proto.Receipt) []*proto.Receipt {
	return slices.DeleteFunc(list, func(rc *proto.Receipt) bool {
		_, err := identity.VerifyReceipt(n.Verifier, rc)
		return err != nil
	})
}

func (n *Notices) handle(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case s := <-n.queue:
			if s.ready != nil {
				n.retryRefused(ctx, s.from, s.ready)
				continue
			}
			receipts := n.verifyReceipts(s.receipts.GetReceipts())
			n.Outbox.Started(ctx, s.from, receipts)
			n.forwardStarted(ctx, s.from, receipts)
		}
	}
}

// forwardStarted forwards an owner's notice of the start to the origins of tasks of queues
// whose home is this node. It drops notices that are not from the owner of the newest
// lease.
func (n *Notices) forwardStarted(ctx context.Context, from proto.PeerID, receipts []*proto.Receipt) {
	for _, rc := range receipts {
		s, err := proto.ParseStatement(rc.GetStatement())
		if err != nil || s.Fact != proto.FactStarted || s.Node != from {
			continue
		}
		r, err := n.Inbox.Get(s.Task)
		if err != nil || r.GetQueue() == "" || r.GetState().Terminal() {
			continue
		}
		owner, epoch, err := n.Lease(ctx, s.Task)
		origin, malformed := proto.PeerIDFrom(r.GetPeer())
		if err != nil || malformed != nil || owner != from || epoch != s.Epoch {
			continue
		}
		one := []*proto.Receipt{rc}
		if origin == n.Keys.Peer() {
			n.Outbox.Started(ctx, origin, one)
			continue
		}
		n.notifyStarted(origin, &proto.Receipts{Receipts: one})
	}
}
