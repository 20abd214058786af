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

// A Network carries what the room says. The transport is one.
type Network interface {
	// SendCtl sends a PROBE or PROBED, or drops it. It must not block.
	SendCtl(p proto.PeerID, m *proto.Message) error
	// Publish sends data to every member that listens to the gossip topic.
	Publish(ctx context.Context, data []byte) error
	// Exchange sends a SYNC and returns the SYNCED that answers it.
	Exchange(ctx context.Context, p proto.PeerID, m *proto.Message) (*proto.Message, error)
}

// A Directory knows who is a member. The address book is one.
type Directory interface {
	// Member returns who p is; false for a stranger, and for who was revoked.
	Member(p proto.PeerID) (identity.Member, bool)
	// Learn takes an introduction, after it verified it.
	Learn(ctx context.Context, k *proto.KnownPeer) error
	// Introduce returns what makes others learn p; nil: p is unknown.
	Introduce(p proto.PeerID) *proto.KnownPeer
}

// A Revoker is a Directory that keeps revocations, for ever.
type Revoker interface {
	// Revoke takes a revocation whose signature holds. From then on Member does not
	// return whom it names.
	Revoke(ctx context.Context, s *proto.Signed) error
	// Revocations returns all that were taken.
	Revocations() []*proto.Signed
}

// Self is what the node says of itself.
type Self struct {
	State    proto.NodeState // default RUNNING
	Started  time.Time
	Priority uint32
	Load     *proto.Load
	Labels   []string
	Kinds    []string
	Relays   []proto.PeerID // at most 4
	Addrs    []string
	Hops     []*proto.Hop // its ways to relays, by their ids; at most 4
	Open     bool         // anybody can dial it, as far as it knows
	Version  string
}

// Config tunes a room. The zero value of each field means its default.
type Config struct {
	Tuning
	Boot       uint64                // number of this start; must be set, and rise
	Self       func() Self           // is asked every 2 seconds; default: a running node that serves nothing
	Changed    func(Event)           // hears what happens, in order; may call the room; default nobody
	Clock      clock.Clock           // default clock.System()
	Logger     *slog.Logger          // default: silent
	Registerer prometheus.Registerer // default: no metrics
	Seed       uint64                // of random choices; default: random
}

func (c Config) withDefaults() Config {
	c.Tuning = c.Tuning.withDefaults()
	c.Boot = max(c.Boot, 1)
	if c.Self == nil {
		c.Self = func() Self { return Self{} }
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

// A Runner is a Core with a clock, keys and a network. It is safe for concurrent use.
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
	number   atomic.Uint64 // of the last message of the topic

	mu           sync.Mutex
	core         *Core
	self         selfRecord
	differsSince time.Duration         // when a root first was another than this node's; 0: they are equal
	syncing      map[proto.PeerID]bool // an exchange with it waits or goes on

	in    inQueue
	out   outgoing
	wake  chan struct{} // the core wants its Tick at another time
	syncs chan proto.PeerID
}

// Open returns the room of a node that knows nobody yet. It starts nothing: see Run.
func Open(keys *identity.Keys, mesh identity.Mesh, net Network, dir Directory, cfg Config) (*Runner, error) {
	cfg = cfg.withDefaults()
	r := &Runner{
		keys: keys, mesh: mesh, net: net, dir: dir, cfg: cfg, log: cfg.Logger,
		syncing: make(map[proto.PeerID]bool), wake: make(chan struct{}, 1), syncs: make(chan proto.PeerID, 64),
	}
	r.in.init()
	r.out.init()
	r.verifier = newVerifier(mesh, dir)
	r.number.Store(cfg.Boot * numbersPerBoot)
	r.self.info = cfg.Self()
	r.core = NewCore(keys.Peer(), identity.Incarnation(cfg.Boot), r.now(), cfg.Tuning, recordSigner{r}, rand.New(rand.NewPCG(cfg.Seed, 1)))
	r.loadRevoked()
	var err error
	r.met, err = newMetrics(cfg.Registerer, r)
	return r, err
}

// now is the core's time. It is never 0.
func (r *Runner) now() time.Duration { return r.cfg.Clock.Mono() + time.Second }

// Run probes, listens and mends until ctx is done.
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
	r.step(func(now time.Duration) []Action { return r.core.Revise(now) }) // its first word
	return g.Wait()
}

// tick calls the core when it wants to be called.
func (r *Runner) tick(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.wake:
		case <-timer.C:
			r.step(r.core.Tick)
		}
		r.mu.Lock()
		next := r.core.Next()
		r.mu.Unlock()
		timer.Reset(max(next-r.now(), time.Millisecond))
	}
}

// step gives an input to the core and has done what it asks for.
func (r *Runner) step(input func(now time.Duration) []Action) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.core.Next()
	actions := input(r.now())
	for i := range actions {
		r.perform(&actions[i])
	}
	for _, rtt := range r.core.RTTs() {
		r.met.rtt.Observe(rtt.Seconds())
	}
	if r.core.Next() < before {
		signal(r.wake)
	}
}

// perform has one action done, by whoever does such. r.mu is held.
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
			return // there will be another reason
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

// Introduced says that p is a member of the mesh. Tell it of each at the start.
func (r *Runner) Introduced(p proto.PeerID) {
	r.step(func(now time.Duration) []Action { return r.core.Introduced(now, p) })
}

// Forgotten says that p is no member any more.
func (r *Runner) Forgotten(p proto.PeerID) {
	r.step(func(now time.Duration) []Action { return r.core.Forgotten(now, p) })
}

// Connected says whether messages can go to p.
func (r *Runner) Connected(p proto.PeerID, on bool) {
	r.step(func(now time.Duration) []Action {
		if on {
			return r.core.Connected(now, p)
		}
		return r.core.Disconnected(now, p)
	})
}

// Reachable says to whom messages can go now, all of them: what [Runner.Connected] did not
// tell is made up for. Call it now and then.
func (r *Runner) Reachable(all []proto.PeerID) {
	on := make(map[proto.PeerID]bool, len(all))
	for _, p := range all {
		on[p] = true
	}
	for _, m := range r.Members() {
		if m.Connected != on[m.Peer] {
			r.Connected(m.Peer, on[m.Peer])
		}
		delete(on, m.Peer)
	}
	for p := range on {
		if r.verifier.member(p, nil) {
			r.Connected(p, true)
		}
	}
}

// Busy says whether there is work for p: it is probed more often then.
func (r *Runner) Busy(p proto.PeerID, busy bool) {
	r.step(func(now time.Duration) []Action { return r.core.Busy(now, p, busy) })
}

// Members returns all others that are known, in order of their ids.
func (r *Runner) Members() []Member {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.core.Members(r.now())
}

// Member returns what is known of p; false: nothing.
func (r *Runner) Member(p proto.PeerID) (Member, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.core.Member(r.now(), p)
}

// Isolated reports whether this node is suspected itself, or hears from nobody though it
// knows two others or more. It must claim nothing new then (I16).
func (r *Runner) Isolated() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.core.Isolated(r.now())
}

// SelfPaused reports whether this node should not claim new work: it is isolated, or its
// own probes fail so often that it takes itself for the one that is ill.
func (r *Runner) SelfPaused() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.core.Degraded(r.now())
}

// Accusers returns who accused this node within the last minute.
func (r *Runner) Accusers() []proto.PeerID {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.core.Accusers(r.now())
}

// Prune forgets up to limit nodes that are dead, or have left, for longer than age, and
// returns them; dryRun only tells.
func (r *Runner) Prune(age time.Duration, limit int, dryRun bool) []proto.PeerID {
	var pruned []proto.PeerID
	r.step(func(now time.Duration) (actions []Action) {
		pruned, actions = r.core.Prune(now, age, limit, dryRun)
		return actions
	})
	return pruned
}

// A Summary is the mesh at a glance.
type Summary struct {
	Counts      Counts
	ByStatus    map[Status]int
	Eligible    int
	Health      int // of this node: 0 is good, 8 is as bad as it gets
	Isolated    bool
	SelfPaused  bool
	Incarnation uint64
	Root        [32]byte // what this node knows; equal at two nodes that know the same
	Revocations int
}

// Summary returns the mesh at a glance.
func (r *Runner) Summary() Summary {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	s := Summary{
		Counts: r.core.Counts(), ByStatus: make(map[Status]int), Health: r.core.Health(), Isolated: r.core.Isolated(now),
		SelfPaused: r.core.Degraded(now), Incarnation: r.core.Incarnation(), Root: r.root(), Revocations: r.revoked.count(),
	}
	for _, m := range r.core.members {
		s.ByStatus[m.status]++
		if m.eligible(now) {
			s.Eligible++
		}
	}
	return s
}
