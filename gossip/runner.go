package gossip

import (
	"cmp"
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
)

// A Network sends messages. The transport implements it.
type Network interface {
	// SendCtl sends a PROBE or PROBED, or drops it. It must not block.
	SendCtl(p proto.PeerID, m *proto.Message) error
	// Publish sends data to every member that listens to the gossip topic.
	Publish(ctx context.Context, data []byte) error
	// Exchange sends a SYNC and returns the SYNCED that answers it.
	Exchange(ctx context.Context, p proto.PeerID, m *proto.Message) (*proto.Message, error)
}

// A Directory knows the members. The address book implements it.
type Directory interface {
	// Member returns the membership of p; false for a stranger or a revoked node.
	Member(p proto.PeerID) (identity.Member, bool)
	// Learn verifies and stores an introduction.
	Learn(ctx context.Context, k *proto.KnownPeer) error
	// Introduce returns an introduction of p for other nodes; nil: p is unknown.
	Introduce(p proto.PeerID) *proto.KnownPeer
}

// A Revoker is a Directory that stores revocations permanently.
type Revoker interface {
	// Revoke stores a revocation with a valid signature. From then on Member does not
	// return the node that it names.
	Revoke(ctx context.Context, s *proto.Signed) error
	// Revocations returns all stored revocations.
	Revocations() []*proto.Signed
}

// Self is a node's description of itself.
type Self struct {
	State    proto.NodeState // default RUNNING
	Started  time.Time
	Priority uint32
	Load     *proto.Load
	Labels   []string
	Kinds    []string
	Relays   []proto.PeerID // at most 4
	Addrs    []string
	Hops     []*proto.Hop // its paths to relays, ordered by id; at most 4
	Open     bool         // it believes that any node can dial it
	Version  string
}

// Config configures a Runner. The zero value of each field means its default.
type Config struct {
	Tuning
	Boot       uint64                // boot number of this start; required, must increase with each start
	Self       func() Self           // called every 2 seconds; default: a running node that serves nothing
	Changed    func(Event)           // called with each event, in order; may call the runner; default: none
	Clock      clock.Clock           // default clock.System()
	Logger     *slog.Logger          // default: silent
	Registerer prometheus.Registerer // default: no metrics
	Seed       uint64                // for random choices; default: random

	// Received returns how many packets have come from a member over its present
	// connections, acknowledgments included: they show that it lives. It must not block,
	// nor call the runner. Default: none.
	Received func(p proto.PeerID) uint64
}

func (c Config) withDefaults() Config {
	c.MaxMembers = cmp.Or(c.MaxMembers, 4096)
	c.Boot = max(c.Boot, 1)
	if c.Self == nil {
		c.Self = func() Self { return Self{} }
	}
	if c.Received == nil {
		c.Received = func(proto.PeerID) uint64 { return 0 }
	}
	if c.Changed == nil {
		c.Changed = func(Event) {}
	}
	if c.Clock.IsZero() {
		c.Clock = clock.System()
	}
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	c.Seed = cmp.Or(c.Seed, rand.Uint64())
	return c
}

// A Runner runs a Core with a clock, keys and a network. It is safe for concurrent use.
type Runner struct {
	keys     *identity.Keys
	mesh     identity.Mesh
	net      Network
	dir      Directory
	cfg      Config
	log      *slog.Logger
	met      *metrics
	verifier *verifier
	revoked  revokedSet
	number   atomic.Uint64 // number of the last published message

	introduced introduced

	mu           sync.Mutex
	core         *Core
	self         selfRecord
	differsSince time.Duration         // when another node's root first differed from this one's; 0: equal
	syncing      map[proto.PeerID]bool // peers with a queued or running exchange

	in    inQueue
	out   outgoing
	due   *time.Timer // of the core's next deadline
	syncs chan proto.PeerID
}

// Open returns the runner of a node that knows no other yet. It starts nothing: see Run.
func Open(keys *identity.Keys, mesh identity.Mesh, net Network, dir Directory, cfg Config) (*Runner, error) {
	cfg = cfg.withDefaults()
	r := &Runner{
		keys: keys, mesh: mesh, net: net, dir: dir, cfg: cfg, log: cfg.Logger,
		syncing: make(map[proto.PeerID]bool), due: time.NewTimer(0), syncs: make(chan proto.PeerID, 64),
	}
	r.in.init()
	r.out.init()
	r.verifier = newVerifier(mesh, dir)
	r.number.Store(cfg.Boot * numbersPerBoot)
	r.self.info = cfg.Self()
	r.core = NewCore(keys.Peer(), identity.Incarnation(cfg.Boot), r.now(), cfg.Tuning, recordSigner{r}, cfg.Received, rand.New(rand.NewPCG(cfg.Seed, 1)))
	r.core.probing.due = r.now() + cfg.Clock.Until(cfg.ProbeInterval) // when the tickers of the node tick too
	r.core.plan()
	r.loadRevoked()
	var err error
	r.met, err = newMetrics(cfg.Registerer, r)
	return r, err
}

// now returns the core's time. It is never 0.
func (r *Runner) now() time.Duration { return r.cfg.Clock.Mono() + time.Second }

// Run probes, receives and synchronizes until ctx is done.
func (r *Runner) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return r.tick(ctx) })
	g.Go(func() error { return r.receiveLoop(ctx) })
	g.Go(func() error { return r.describeLoop(ctx) })
	g.Go(func() error { return r.out.deliverEvents(ctx, r.cfg.Changed, r.currentState) })
	g.Go(func() error { return r.publishLoop(ctx) })
	g.Go(func() error { return r.sendLoop(ctx) })
	for range maxExchanges {
		g.Go(func() error { return r.exchangeLoop(ctx) })
	}
	r.step(func(now time.Duration) []Action { return r.core.Revise(now) }) // its first record
	return g.Wait()
}

// tick calls the core at its deadlines.
func (r *Runner) tick(ctx context.Context) error {
	defer r.due.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.due.C:
			r.step(r.core.Tick)
		}
	}
}

// step passes an input to the core and performs the resulting actions.
func (r *Runner) step(input func(now time.Duration) []Action) {
	r.mu.Lock()
	defer r.mu.Unlock()
	actions := input(r.now())
	for i := range actions {
		r.perform(&actions[i])
	}
	for _, rtt := range r.core.RTTs() {
		r.met.rtt.Observe(rtt.Seconds())
	}
	r.due.Reset(max(r.core.Next()-r.now(), time.Millisecond)) // most deadlines end with an answer: they wake nobody
}

// perform dispatches one action. r.mu is held.
func (r *Runner) perform(a *Action) {
	switch a.Kind {
	case DoProbe, DoReply:
		r.out.send(outMsg{to: a.Peer, encode: probeMessage(a)})
	case DoPublish:
		r.out.publish(a.Updates, false)
	case DoRoot:
		r.out.publish(nil, true)
	case DoSync:
		if r.syncing[a.Peer] {
			return // another request will follow
		}
		select {
		case r.syncs <- a.Peer:
			r.syncing[a.Peer] = true
		default:
		}
	case DoEvent:
		r.out.event(*a.Event)
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Introduced adds p as a member of the mesh. It must be called for each member at
// startup.
func (r *Runner) Introduced(p proto.PeerID) {
	r.step(func(now time.Duration) []Action { return r.core.Introduced(now, p) })
}

// Forgotten removes p, which is no longer a member.
func (r *Runner) Forgotten(p proto.PeerID) {
	r.step(func(now time.Duration) []Action { return r.core.Forgotten(now, p) })
}

// Connected sets whether p is reachable.
func (r *Runner) Connected(p proto.PeerID, on bool) {
	r.step(func(now time.Duration) []Action {
		if on {
			return r.core.Connected(now, p)
		}
		return r.core.Disconnected(now, p)
	})
}

// Reachable sets all peers that are reachable now, and corrects what [Runner.Connected]
// missed. It should be called from time to time. A revoked member whose connection or message was
// still being processed when its row was removed may have got a new one, which is removed.
func (r *Runner) Reachable(all []proto.PeerID) {
	on := make(map[proto.PeerID]bool, len(all))
	for _, p := range all {
		on[p] = true
	}
	for _, m := range r.Members() {
		switch {
		case r.revoked.revokes(identity.Member{Peer: m.Peer}) && !r.verifier.member(m.Peer):
			r.Forgotten(m.Peer)
		case m.Connected != on[m.Peer]:
			r.Connected(m.Peer, on[m.Peer])
		}
		delete(on, m.Peer)
	}
	for p := range on {
		if r.verifier.member(p) {
			r.Connected(p, true)
		}
	}
}

// Busy sets whether this node has work for p. Busy peers are probed more often.
func (r *Runner) Busy(p proto.PeerID, busy bool) {
	r.step(func(now time.Duration) []Action { return r.core.Busy(now, p, busy) })
}

// Members returns all other known nodes, ordered by id.
func (r *Runner) Members() []Member {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.core.Members(r.now())
}

// Member returns what is known about p; false: p is unknown.
func (r *Runner) Member(p proto.PeerID) (Member, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.core.Member(r.now(), p)
}

// Isolated reports whether this node is itself suspected, or hears from no one although
// it knows at least two others. It must not claim new work then (I16).
func (r *Runner) Isolated() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.core.Isolated(r.now())
}

// SelfPaused reports whether this node should not claim new work: it is isolated, or so
// many of its own probes fail that the fault is probably its own.
func (r *Runner) SelfPaused() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.core.Degraded(r.now())
}

// Accusers returns the nodes that accused this one within the last minute.
func (r *Runner) Accusers() []proto.PeerID {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.core.Accusers(r.now())
}

// Prune forgets up to limit nodes that have been dead or gone for longer than age, and
// returns them. With dryRun it only returns them.
func (r *Runner) Prune(age time.Duration, limit int, dryRun bool) []proto.PeerID {
	var pruned []proto.PeerID
	r.step(func(now time.Duration) (actions []Action) {
		pruned, actions = r.core.Prune(now, age, limit, dryRun)
		return actions
	})
	return pruned
}

// A Summary is an overview of the mesh.
type Summary struct {
	Counts     Counts
	ByStatus   map[Status]int
	Eligible   int
	Health     int // of this node: 0 is healthy, 8 is the worst
	Isolated   bool
	SelfPaused bool
	Root       [32]byte // hash of what this node knows; equal on two nodes that know the same
}

// Summary returns an overview of the mesh.
func (r *Runner) Summary() Summary {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	s := Summary{
		Counts: r.core.counts, ByStatus: make(map[Status]int), Health: r.core.own.health, Isolated: r.core.Isolated(now),
		SelfPaused: r.core.Degraded(now), Root: r.root(),
	}
	for _, m := range r.core.members {
		s.ByStatus[m.status]++
		if m.eligible(now) {
			s.Eligible++
		}
	}
	return s
}
