package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/executor"
	"github.com/balefire/balefire/gossip"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/mailbox"
	"github.com/balefire/balefire/memory"
	"github.com/balefire/balefire/outbox"
	"github.com/balefire/balefire/pairing"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/queue"
	"github.com/balefire/balefire/redrive"
	"github.com/balefire/balefire/schedule"
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

	sealer   *identity.Sealer
	verifier *identity.Verifier
	registry *prometheus.Registry

	names     *nameCache
	metrics   *taskMetrics
	notices   chan peerNotice
	refused   refusedPeers
	events    *eventLog
	transfers *transfer.Transfers
	machine   *machineLoad
	lookups   *lookups

	guard    *clock.Guard // of the wall clock
	started  time.Time
	running  atomic.Bool
	draining atomic.Bool // new work is refused
}

// New opens the node in cfg.Dir: its keys, its store and every subsystem with its stored
// state. It starts nothing: see [Node.Run]. A node that is not run must be closed.
func New(cfg Config) (_ *Node, err error) {
	memory.TuneRuntime(cfg.Limits.MemoryLimit)
	cfg = cfg.withDefaults()
	own, err := pairing.Load(cfg.Dir, cfg.Clock.Now())
	if err != nil {
		return nil, fmt.Errorf("open node: %w", err)
	}
	guard := clock.NewGuard(cfg.Clock)
	guard.Bound(own.Bounds())
	cfg.Clock = guard.Clock()
	n := &Node{cfg: cfg, guard: guard, log: cfg.Logger, registry: prometheus.NewRegistry()}
	n.keys, n.mesh, n.self = own.Keys, own.Mesh, own.Self
	if h := cfg.Logger.Handler(); h != slog.DiscardHandler {
		cfg.Logger = slog.New(peerNamer{h, n.nameInLog})
		n.cfg.Logger, n.log = cfg.Logger, cfg.Logger
	}
	n.names, n.metrics, n.notices, n.refused, n.events = newNameCache(), newTaskMetrics(n), make(chan peerNotice, maxNotices), refusedPeers{peers: map[proto.PeerID]bool{}}, newEventLog(cfg.Clock)
	n.machine, n.lookups = new(machineLoad), newLookups(n)
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
	n.transfers = transfer.New(n.transferParts())
	if n.Pairing, err = pairing.New(n.pairingParts()); err != nil {
		return err
	}
	if n.outbox, err = outbox.Open(s, n.keys, n.outboxConfig()); err != nil {
		return err
	}
	if n.Redriver, err = redrive.Open(n.redriveParts()); err != nil {
		return err
	}
	n.book.SetBoot(n.outbox.Boot(), n.outbox.BootID())
	if n.inbox, err = inbox.Open(s, n.inboxParts(), n.inboxConfig()); err != nil {
		return err
	}
	if err = n.openHandlers(); err != nil {
		return err
	}
	if err = errors.Join(n.openQueues(), n.openSchedules()); err != nil {
		return err
	}
	if n.Mail, err = openMail(n); err != nil {
		return err
	}
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
		DHT: !n.cfg.Net.NoDHT, PortMap: n.cfg.Net.PortMap, Reserve: n.cfg.Net.Relays,
	})
	n.Pairing.Connect(n.net, n.gossip, n.outbox)
	n.Queues.Connect(n.net, n.gossip)
	n.transfers.Connect(n.net)
	n.Explainer = why.New(n.Views, n.Queues, n.Mail)
	n.Redriver.Connect(n.Views)
	return nil
}

// Run runs the node. It returns when ctx is done and everything has stopped, or when a
// subsystem failed. A shutdown uses up no attempt of any task: it waits a bounded time
// for the handlers, lets pending writes finish and then closes everything.
func (n *Node) Run(ctx context.Context) error {
	defer n.running.Store(false)
	n.log.Info("this node is a member", "name", n.self.Name, "id", n.keys.Peer().String(), "mesh", n.mesh.ID.String(), "certificate_until", n.self.NotAfter)
	parts, stopParts := context.WithCancel(context.WithoutCancel(ctx))
	defer stopParts()
	g, failed := errgroup.WithContext(parts)
	g.Go(func() error { return n.outbox.Run(parts) })
	g.Go(func() error { return n.net.Run(parts) })
	g.Go(func() error { return n.gossip.Run(parts) })
	g.Go(func() error { return n.Queues.Run(parts) })
	g.Go(func() error { return n.transfers.Run(parts) })
	g.Go(func() error { return n.Schedules.Run(parts) })
	g.Go(func() error { return n.watchWork(parts) })
	g.Go(func() error { return n.serveSelf(parts) })
	g.Go(func() error { return n.handleNotices(parts) })
	g.Go(func() error { return n.transfers.Collect(parts) })
	g.Go(func() error { return n.runReady(parts) })
	g.Go(func() error { return n.keepClock(parts) })
	g.Go(func() error { return n.lookups.run(parts) })
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
// This is the outbound path: seal, sign together with all tasks that queued meanwhile,
// one commit. The outbox sends the task when there is a path (see receiver.Linked).
func (n *Node) Submit(ctx context.Context, r wire.Request) (wire.Submitted, error) {
	return n.submit(ctx, &redrive.Request{Request: r})
}

func (n *Node) submit(ctx context.Context, r *redrive.Request) (wire.Submitted, error) {
	d, to, err := n.draft(ctx, r)
	if err != nil {
		return wire.Submitted{}, err
	}
	s := newSubmitted(d, to) // before the outbox has the draft: it changes its record
	existing, err := n.put(ctx, d)
	return n.finishSubmit(d, s, existing, err)
}

// SubmitMany submits many tasks with as few commits as possible. Each has its own result
// or error.
func (n *Node) SubmitMany(ctx context.Context, rs []wire.Request) ([]wire.Submitted, []error) {
	out, errs := make([]wire.Submitted, len(rs)), make([]error, len(rs))
	drafts, at := make([]*outbox.Draft, 0, len(rs)), make([]int, 0, len(rs))
	for i := range rs {
		d, to, err := n.draft(ctx, &redrive.Request{Request: rs[i]})
		if err != nil {
			errs[i] = err
			continue
		}
		drafts, at = append(drafts, d), append(at, i)
		out[i] = newSubmitted(d, to)
	}
	existing, failed := n.putMany(ctx, drafts)
	for j, i := range at {
		out[i], errs[i] = n.finishSubmit(drafts[j], out[i], existing[j], failed[j])
	}
	return out, errs
}

// put stores a draft, between the two failpoints of a submit.
func (n *Node) put(ctx context.Context, d *outbox.Draft) (existing *proto.TaskID, err error) {
	if err := n.cfg.Fail(PointSealed); err != nil {
		return nil, err
	}
	existing, err = n.outbox.Submit(ctx, d)
	_ = n.cfg.Fail(PointStored) // the tasks are on disk: nothing can fail any more
	return existing, err
}

// putMany is put for several drafts.
func (n *Node) putMany(ctx context.Context, drafts []*outbox.Draft) (existing []*proto.TaskID, errs []error) {
	if err := n.cfg.Fail(PointSealed); err != nil {
		return make([]*proto.TaskID, len(drafts)), slices.Repeat([]error{err}, len(drafts))
	}
	existing, errs = n.outbox.SubmitMany(ctx, drafts)
	_ = n.cfg.Fail(PointStored) // the tasks are on disk: nothing can fail any more
	return existing, errs
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

// Receive processes a group of frames of one peer. It checks each frame, passes tasks to
// the inbox and results to the outbox, and returns once everything they accepted is
// durable (I8). It signs receipts for what it accepted.
//
// This is the inbound path. From the inbox a task goes to its handler (worker.Run); its
// end comes back through inboxResults.PutResult in one batch with the RESULT, which
// takes the outbound path of this node and the inbound path of its home.
func (n receiver) Receive(ctx context.Context, from proto.PeerID, msgs []*proto.Message) (transport.Answer, error) {
	if err := n.cfg.Fail(PointReceive); err != nil {
		return transport.Answer{}, err
	}
	in := n.sortFrames(ctx, from, msgs)
	for i, v := range n.inbox.Accept(ctx, in.tasks) {
		in.refuse(in.taskAt[i], v.Code, v.Detail, v.State, uint64(v.RetryAfter.Milliseconds()))
	}
	var files []string // of the results, which are pinned
	for _, r := range in.results {
		files = append(files, r.Blob)
	}
	for i, v := range n.outbox.Commit(ctx, from, in.results) {
		n.transfers.Bodies.UnpinResult(files[i], v.Code)
		if r := &in.results[i]; r.TooLarge {
			n.resultTooLarge(from, r.ID, r.Outcome.GetReason())
		}
		in.refuse(in.resultAt[i], v.Code, v.Detail, v.State, 0)
	}
	if in.mark != nil {
		n.inbox.Settle(from, *in.mark)
	}
	return n.answer(from, in), n.cfg.Fail(PointAccepted)
}
