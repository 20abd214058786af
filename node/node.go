package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/audit"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/event"
	"github.com/balefire/balefire/executor"
	"github.com/balefire/balefire/gossip"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/mailbox"
	"github.com/balefire/balefire/notice"
	"github.com/balefire/balefire/outbox"
	"github.com/balefire/balefire/pairing"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/queue"
	"github.com/balefire/balefire/receive"
	"github.com/balefire/balefire/schedule"
	"github.com/balefire/balefire/submit"
	"github.com/balefire/balefire/submit/redrive"
	"github.com/balefire/balefire/transfer"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/view"
	"github.com/balefire/balefire/view/why"
	"github.com/balefire/balefire/wire"
)

// A Node is one machine in the mesh. Its methods are safe for concurrent use.
type Node struct {
	Views     *view.Views         // what the node shows to a person
	Explainer *why.Explainer      // what blocks a task, a mail, a peer, a queue or a box
	Pairing   *pairing.Pairing    // membership of this node and of others
	Queues    *queue.Queues       // shared queues
	Schedules *schedule.Scheduler // of the queues whose home is this node
	Handlers  *executor.Executor  // of the tasks that this node runs
	Redriver  *redrive.Redriver   // repeats tasks as new ones
	Mail      *mailbox.Boxes      // mailboxes and topics
	Events    *event.Log          // of this boot
	Audit     audit.Recorder      // of what callers do

	cfg     Config
	log     *slog.Logger
	storage *datadir.Dir

	keys *identity.Keys
	mesh identity.Mesh
	self identity.Member

	book   *addressbook.Book
	net    *transport.Transport
	gossip *gossip.Runner
	outbox *outbox.Outbox
	inbox  *inbox.Inbox

	submitter *submit.Submitter
	sealer    *identity.Sealer
	verifier  *identity.Verifier
	registry  *prometheus.Registry

	metrics   *taskMetrics
	frames    *receive.Receiver
	notices   *notice.Notices
	transfers *transfer.Transfers

	guard    *clock.Guard // of the wall clock
	started  time.Time
	running  atomic.Bool
	draining atomic.Bool // new work is refused
}

// New opens the node in cfg.Dir: its keys, its store and every subsystem with its stored
// state. It starts nothing: see [Node.Run]. A node that is not run must be closed.
func New(cfg Config) (_ *Node, err error) {
	if cfg, err = cfg.prepared(); err != nil {
		return nil, fmt.Errorf("open node: %w", err)
	}
	own, err := pairing.Load(cfg.Dir, cfg.Clock.Now())
	if err != nil {
		return nil, fmt.Errorf("open node: %w", err)
	}
	guard := clock.NewGuard(cfg.Clock)
	guard.Bound(own.Bounds())
	guard.Hold(true) // until resumeClock
	cfg.Clock = guard.Clock()
	n := &Node{cfg: cfg, guard: guard, log: cfg.Logger, registry: prometheus.NewRegistry()}
	n.keys, n.mesh, n.self = own.Keys, own.Mesh, own.Self
	if h := cfg.Logger.Handler(); h != slog.DiscardHandler {
		cfg.Logger = slog.New(peerNamer{h, n.nameInLog})
		n.cfg.Logger, n.log = cfg.Logger, cfg.Logger
	}
	n.metrics, n.Events = newTaskMetrics(n), event.New(cfg.Clock)
	n.sealer, n.verifier = identity.NewSealer(cfg.Clock), identity.NewVerifier()
	storage := cfg.Storage()
	storage.Registerer, storage.OnFull = n.registry, n.reportFull
	if n.storage, err = datadir.Open(storage); err != nil {
		return nil, fmt.Errorf("open node: %w", err)
	}
	if err = n.resumeClock(); err != nil {
		return nil, errors.Join(fmt.Errorf("open node: %w", err), n.Close())
	}
	n.started = cfg.Clock.Now() // announced with the first message
	if err = n.openSubsystems(); err != nil {
		return nil, errors.Join(fmt.Errorf("open node: %w", err), n.Close())
	}
	return n, nil
}

// openSubsystems opens the subsystems in the order of their dependencies.
func (n *Node) openSubsystems() (err error) {
	s := n.storage.Store
	if n.book, err = addressbook.Open(s, n.mesh, n.keys, n.self.Cert, n.cfg.Clock, transport.Multiaddrs{}); err != nil {
		return err
	}
	n.Events.Name, n.Audit = n.book.Identify, audit.Recorder{Journal: n.storage.Audit, Boot: func() uint64 { return n.outbox.Boot() }}
	n.transfers = transfer.New(n.transferParts())
	if n.Pairing, err = pairing.New(n.pairingParts()); err != nil {
		return err
	}
	if n.outbox, err = outbox.Open(s, n.keys, n.outboxConfig()); err != nil {
		return err
	}
	n.submitter = submit.New(n.submitParts())
	if n.Redriver, err = redrive.Open(redrive.Parts{Submitter: n.submitter, Audit: n.Audit.Record}); err != nil {
		return err
	}
	n.book.SetBoot(n.outbox.Boot(), n.outbox.BootID())
	n.Events.Boot = n.outbox.Boot()
	if n.inbox, err = inbox.Open(s, n.inboxParts(), n.inboxConfig()); err != nil {
		return err
	}
	n.openReceivers()
	if err = n.openHandlers(); err != nil {
		return err
	}
	if err = n.openQueues(); err != nil {
		return err
	}
	if err = n.openSchedules(); err != nil {
		return err
	}
	if n.Mail, err = openMail(n); err != nil {
		return err
	}
	n.transfers.OpenMail(n.Mail)
	if err = n.transfers.Sweep(context.Background()); err != nil {
		return err
	}
	cfg, err := n.netConfig()
	if err != nil {
		return err
	}
	if n.net, err = transport.New(n.keys, n.Pairing.Gate(), receiver{n}, cfg); err != nil {
		return err
	}
	if err = n.openGossip(); err != nil {
		return err
	}
	n.Views = view.New(n.viewParts(), view.Config{
		Self: n.self, Mesh: n.mesh.ID, Version: n.cfg.Version, Started: n.started, Clock: n.cfg.Clock,
		DHT: n.cfg.Net.DHT, PortMap: n.cfg.Net.PortMap, Reserve: n.cfg.Net.Relays,
	})
	n.Pairing.Connect(n.net, n.gossip, n.outbox, n.inbox)
	n.Queues.Connect(n.net, n.gossip)
	n.transfers.Connect(n.net)
	n.notices.Connect(n.net)
	n.Explainer = why.New(n.Views, n.Queues, n.Mail)
	n.Redriver.Connect(n.Views)
	return nil
}

// Run runs the node. It returns when ctx is done and everything has stopped, or when a
// subsystem failed. A shutdown uses up no attempt of any task: it waits a bounded time
// for the handlers, lets pending writes finish and then closes everything.
func (n *Node) Run(ctx context.Context) error {
	defer n.running.Store(false)
	n.log.Info("this node is a member", "name", n.self.Name, "id", n.keys.Peer().String(), "addrs", n.Addrs(), "mesh", n.mesh.ID.String(), "certificate_until", n.self.NotAfter)
	parts, stopParts := context.WithCancel(context.WithoutCancel(ctx))
	defer stopParts()
	g, failed := errgroup.WithContext(parts)
	g.Go(func() error { return n.outbox.Run(parts) })
	g.Go(func() error { return n.net.Run(parts) })
	g.Go(func() error { return n.gossip.Run(parts) })
	g.Go(func() error { return n.Queues.Run(parts) })
	g.Go(func() error { return n.transfers.Run(parts) })
	g.Go(func() error { return n.Schedules.Run(parts) })
	g.Go(func() error { n.watchWork(parts); return nil })
	g.Go(func() error { return n.frames.ServeSelf(parts) })
	g.Go(func() error { return n.notices.Run(parts) })
	g.Go(func() error { return n.transfers.Collect(parts) })
	g.Go(func() error { n.keepClock(parts); return nil })
	g.Go(func() error { return n.Pairing.Run(parts) })
	g.Go(func() error { return n.Handlers.Run(parts) })
	g.Go(func() error { return n.Mail.Run(parts) })
	work, stopWork := context.WithCancel(parts)
	g.Go(func() error {
		defer stopParts()
		defer n.leave(parts)
		defer n.Queues.WaitReported(parts)
		return n.inbox.Run(work)
	})
	g.Go(func() error {
		defer stopWork()
		defer n.Queues.Stop()
		defer n.draining.Store(true)
		n.running.Store(true)
		select {
		case <-ctx.Done():
			return nil
		case <-failed.Done():
			return nil
		case <-n.storage.Store.Failed():
			return n.storage.Store.Err()
		}
	})
	err := g.Wait()
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		err = nil
	}
	return errors.Join(err, n.Close())
}

// Close releases what New acquired. After Run it does nothing.
func (n *Node) Close() error {
	var err error
	if n.net != nil {
		err = n.net.Close()
	}
	return errors.Join(err, n.storage.Close())
}

// Submit accepts a task for another node. When it returns, the task is on disk here and
// cannot be lost (I1): it reaches one of the final states of a task, whatever happens to
// this machine or the other one.
//
// This is the outbound path: package submit seals, and the outbox signs it together with all
// tasks that queued meanwhile, in one commit. The outbox sends the task when there is a path (see receiver.Linked).
func (n *Node) Submit(ctx context.Context, r wire.Request) (wire.Submitted, error) {
	return n.submitter.Submit(ctx, &submit.Request{Request: r})
}

// SubmitMany submits many tasks with as few commits as possible. Each has its own result
// or error.
func (n *Node) SubmitMany(ctx context.Context, rs []wire.Request) ([]wire.Submitted, []error) {
	return n.submitter.SubmitMany(ctx, rs)
}

// A receiver is a node as the transport sees it.
type receiver struct{ *Node }

// Linked serves one connected peer as long as there is a path to it: the outbox and the
// spools of mail send what waits for the peer and process its answers.
func (n receiver) Linked(ctx context.Context, l *transport.Link) error {
	n.Queues.AnnounceTo(l.Peer())
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return n.outbox.Serve(ctx, l) })
	g.Go(func() error { return n.Mail.Linked(ctx, l) })
	return g.Wait()
}

// Receive processes a group of frames of one peer.
//
// This is the inbound path: package receive checks each frame, passes tasks to the inbox and
// results to the outbox, and answers once that is durable (I8). From the inbox a task goes
// to its handler (executor); its end comes back through submit.Submitter.PutResult in one
// batch with the RESULT, which takes the outbound path of this node and the inbound path of
// its home. A task of a queue takes the inbound path of its home, is granted from there
// (queue.Custodian), and its result returns to the home and from there to its origin.
func (n receiver) Receive(ctx context.Context, from proto.PeerID, msgs []*proto.Message) (transport.Answer, error) {
	return n.frames.Receive(ctx, from, msgs)
}

// Started receives an owner's notice that a task of this node is running.
func (n receiver) Started(from proto.PeerID, r *proto.Receipts) { n.notices.Started(from, r) }
