// Package queue keeps the shared queues of a mesh: tasks that any member may run. It joins
// the ownership subsystem, which decides who runs a task, with the inbox, which stores and
// runs it, and with what gossip, transport and the address book know about the members.
//
// A task that its home has accepted is in custody there until it ends. Exactly one node is
// the home of a queue at a time, and its leases decide whose result of a task counts. The
// names of mailboxes and topics have homes in the same way: see [Titles].
//
//	Accept ─▶ Taken ─▶ driver ── GRANT ─▶ owner's driver ─▶ Wait ─▶ slot ─▶ Ready ─▶ handler
//	origin ◀─ PutResult ◀─ End ◀─ driver ◀── ENDED ── Finish ◀──────────────────────────┘
package queue

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/audit"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/event"
	"github.com/balefire/balefire/gossip"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/outbox"
	"github.com/balefire/balefire/ownership"
	"github.com/balefire/balefire/ownership/dispatch"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/wire"
)

// Queues are the shared queues that a node knows. Its methods are safe for concurrent use.
type Queues struct {
	// Driver runs the leases. The views and the transfer of large bodies use it directly.
	Driver *ownership.Driver

	parts   Parts
	cfg     Config
	self    proto.PeerID
	net     *transport.Transport
	gossip  *gossip.Runner
	events  *eventLog
	metrics *queueMetrics

	timelines  timelineRequests // open questions to other nodes
	admins     adminRequests    // questions to admins
	running    atomic.Bool
	background sync.WaitGroup
	drained    atomic.Bool   // an operator wants this node to get nothing new
	moving     sync.Mutex    // held during handoffs
	paused     bool          // this node has paused itself; used by watch only
	changed    chan struct{} // receives a token when the members may have changed
	titles     titleWatch
}

// Parts are the dependencies of the queues. All are required.
type Parts struct {
	Store   *store.Store
	Keys    *identity.Keys
	Mesh    identity.Mesh
	Sealer  *identity.Sealer
	Book    *addressbook.Book
	Members inbox.Members
	Outbox  *outbox.Outbox
	Inbox   *inbox.Inbox
	Tasks   Tasks
	Bodies  Bodies
	Grants  GrantBodies
	Checks  func() *identity.Checks        // of an envelope that arrives now
	Root    func() (*identity.Root, error) // the key of the mesh, if this node has it
	Self    func() dispatch.Member         // this node; Alive while it runs
	// Stopping reports whether the node stops.
	Stopping func() bool
}

// Tasks finds the tasks of this node.
type Tasks interface {
	// Find finds a task by its id or the beginning of it, with the role of this node.
	Find(ctx context.Context, ref string) (proto.TaskID, string, *proto.Record, error)
	// Task returns a task for display.
	Task(ctx context.Context, ref string) (wire.Task, error)
	// FinishMoves completes the moves of tasks to other queues.
	FinishMoves(ctx context.Context)
}

// Bodies stores and transfers the large bodies of tasks whose home is this node.
type Bodies interface {
	ownership.Bodies
	// Has reports whether the large body that a header names is stored here.
	Has(h *proto.Header) bool
	// Take gives a task whose large body is here already a place among those that are
	// stored, and returns why it gets none.
	Take(id proto.TaskID, origin proto.PeerID) (why string)
	// Track is called with each task in custody whose body is large.
	Track(id proto.TaskID, origin proto.PeerID)
	// Untrack is called when a task has ended here or has moved to another home.
	Untrack(id proto.TaskID)
	// Seal stores the large result of a run here for its home.
	Seal(ctx context.Context, id proto.TaskID, e inbox.LeaseEnd) inbox.LeaseEnd
	// Object returns what the header of a large result here states, or its outcome
	// without it if it is damaged.
	Object(id proto.TaskID, o *proto.Outcome) (name [32]byte, size int64, lost *proto.Outcome)
	// Missing reports whether the large result of a message is not stored here yet.
	Missing(from proto.PeerID, m *proto.Message, id proto.TaskID, o *proto.Outcome) bool
}

// GrantBodies fetches the large bodies of the tasks that are granted to this node.
type GrantBodies interface {
	// Room returns why a task with a large body cannot be accepted now, or zero.
	Room(l inbox.Leased) proto.Code
	// Fetch lets a granted task wait for a slot once its body is here. It does not block.
	Fetch(l inbox.Leased)
	// Stop no longer waits for the body of a task.
	Stop(id proto.TaskID)
	// Release discards the body of a task whose run is over.
	Release(id proto.TaskID)
}

// Config tunes the queues.
type Config struct {
	MadeBy     []string      // members for whom this node, as an admin, signs the creation of a queue
	MaxNames   int           // that it signs for one member; 0: the default of package ownership
	MaxInbox   int           // how many tasks this node takes; with them goes how many leases of one other home it keeps
	StallAfter time.Duration // without progress for this long, a run that reports it is stopped
	Started    time.Time     // when this node started

	Audit       audit.RecordFunc                   // records what the caller does
	AuditSystem audit.RecordFunc                   // records what this node does by a rule
	Event       event.AddFunc                      // reports an event about a member
	Leaving     func(context.Context) (int, error) // counts what else goes to other homes with the queues

	Fail       func(point string) error // tests: see [ownership.Settings]
	Clock      clock.Clock
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// minLeases is how many leases of one home a node keeps however few tasks it takes: one whose tasks
// end at once may have so many before it hears which are over.
const minLeases = 16_384

// Open returns the queues stored here. It starts nothing: see [Queues.Run]. Before that
// [Queues.Connect] must be called.
func Open(parts Parts, cfg Config) (*Queues, error) {
	qs := &Queues{parts: parts, cfg: cfg, self: parts.Keys.Peer(), changed: make(chan struct{}, 1)}
	qs.events, qs.metrics = newEventLog(qs), newQueueMetrics(qs)
	id := parts.Outbox.BootID()
	var err error
	qs.Driver, err = ownership.Open(parts.Store, ownership.Parts{
		Network: qs, Custody: Custody{qs}, Runner: Runner{qs}, Prober: Runner{qs}, Sealer: Results{qs}, Mover: Mover{qs}, Bodies: parts.Bodies,
	}, ownership.Settings{
		Config: ownership.Config{
			Random: func(b []byte) { rand.Read(b) }, Deeds: Deeds{qs}, MayBeHome: qs.mayBeHome,
			MaxNames: cfg.MaxNames, MaxLeases: max(cfg.MaxInbox*4/3, minLeases), StallAfter: cfg.StallAfter, Machine: cfg.Clock.MachineMark(id[:]),
		},
		Self: qs.self, Boot: parts.Outbox.Boot(), BootID: id,
		Events: qs.events.add, Orphan: qs.events.orphans, Queue: qs.stateChanged, Fail: cfg.Fail, Clock: cfg.Clock, Logger: cfg.Logger,
		OnMisbehavior: func(p proto.PeerID, err error) { qs.net.Offend(p, err) },
	})
	if err != nil {
		return nil, err
	}
	qs.titles.last = map[string]Title{}
	for name, s := range qs.Driver.Titles() {
		qs.titles.last[name] = titleOf(s)
	}
	return qs, nil
}

// Connect gives the queues the network and the members, which are opened later.
func (qs *Queues) Connect(net *transport.Transport, members *gossip.Runner) {
	qs.net, qs.gossip = net, members
}

// Run runs the queues until ctx is done.
func (qs *Queues) Run(ctx context.Context) error {
	qs.running.Store(true)
	defer qs.running.Store(false)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return qs.Driver.Run(ctx) })
	g.Go(func() error { qs.watch(ctx); return nil })
	g.Go(func() error { qs.confirmHomes(ctx); return nil })
	err := g.Wait()
	qs.background.Wait()
	return err
}

// Stop returns the tasks that wait here and were not started, because the node stops.
func (qs *Queues) Stop() { qs.Driver.Stop() }

const (
	reportTimeout = time.Second           // how long a stop waits until the homes know all results
	reportPoll    = 20 * time.Millisecond // interval between checks of that
)

// WaitReported waits a bounded time at a stop until the homes know how the runs here ended.
// Otherwise they would find out later and run the tasks again.
func (qs *Queues) WaitReported(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	tick := time.NewTicker(reportPoll)
	defer tick.Stop()
	for {
		if _, unsent, err := qs.Driver.Unfinished(ctx); err != nil || unsent == 0 {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Drained reports whether an operator wants this node to get nothing new.
func (qs *Queues) Drained() bool { return qs.drained.Load() }

// HomeOf returns the home of a queue.
func (qs *Queues) HomeOf(name string) (home proto.PeerID, err error) {
	s := qs.Driver.QueueStates()[name]
	switch {
	case s == nil && !proto.ValidQueue(name):
		return home, fmt.Errorf("%w: queue %.80q: use 1-63 of a-z 0-9 . _ -", wire.ErrInvalid, name)
	case s == nil:
		return home, fmt.Errorf("%w: queue %.128q is not known here: create it on the node that should be its home with balefire-node queue set NAME --home here; other nodes learn of it when they connect to that node", wire.ErrNotFound, name)
	}
	return proto.PeerIDFrom(s.GetHome())
}

// IsHome reports whether p is the home of a queue.
func (qs *Queues) IsHome(name string, p proto.PeerID) bool {
	return string(qs.Driver.QueueStates()[name].GetHome()) == string(p[:])
}

// WasHome reports whether p is, or was, the home of a queue.
func (qs *Queues) WasHome(name string, p proto.PeerID) bool { return qs.Driver.WasHome(name, p) }

// WasHomeOf reports whether p is, or was, the home of the queue that a task was sent to:
// the end of a task stays valid if the queue moves before the origin learns of it.
func (qs *Queues) WasHomeOf(target string, p proto.PeerID) bool {
	name, ok := proto.QueueOf(target)
	return ok && qs.WasHome(name, p)
}

// Receive processes a message about queues and leases. No answer is expected; an error
// means that the message was dropped.
func (qs *Queues) Receive(from proto.PeerID, m *proto.Message) error {
	receive := qs.Driver.Receive
	switch m.GetType() {
	case proto.TypeTimeline, proto.TypeTimelineReply:
		receive = qs.receiveTimeline
	case proto.TypeQueueAsk, proto.TypeQueueAnswer:
		receive = qs.receiveQueueAsk
	}
	err := receive(from, m)
	if err != nil {
		qs.events.refusals.WithLabelValues(strings.ToLower(m.GetType().String())).Inc()
		qs.cfg.Logger.Debug("ownership message dropped", "type", m.GetType().String(), "from", from, "err", err)
	}
	return err
}

// Post sends a message over the current link, or requests a connection for the next
// attempt.
func (qs *Queues) Post(to proto.PeerID, t proto.MessageType, body proto.Body) {
	payload, err := proto.Encode(nil, body)
	if err == nil {
		err = qs.net.Post(to, &proto.Message{Type: t, Payload: payload, Timestamp: qs.cfg.Clock.Now().UnixNano()})
	}
	switch {
	case errors.Is(err, transport.ErrNotConnected):
		qs.net.Want(to)
	case err != nil:
		qs.cfg.Logger.Debug("could not send an ownership message", "type", t.String(), "to", to, "err", err)
	default:
		qs.events.sent.WithLabelValues(strings.ToLower(t.String())).Inc()
	}
}

// Behind reports whether a message of this size to a peer would wait for long.
func (qs *Queues) Behind(to proto.PeerID, bytes int) bool { return qs.net.Behind(to, bytes) }

// findPeer finds a peer, or this node, by name or id.
func (qs *Queues) findPeer(ref string) (addressbook.Peer, error) { return qs.parts.Book.Find(ref) }
