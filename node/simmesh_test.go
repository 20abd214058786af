package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/pairing"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/mem"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/transport/transporttest"
	"github.com/balefire/balefire/wire"
)

// simSlots is how many tasks a node of a simMesh runs at a time.
const simSlots = 32

// A simMesh is a mesh of complete nodes in virtual time: real libp2p over a simulated
// network, each node on an engine that survives its crashes. Its checker knows what was
// promised.
type simMesh struct {
	*transporttest.Network
	t       *testing.T
	rng     *rand.Rand // used by the driver only
	checker *checker
	nodes   []*simNode
	names   sync.Map // of the nodes that were started, by proto.PeerID
	users   sync.WaitGroup
	change  func(*simNode, *Config) // of a test; may be nil
}

// A simNode is a node that may be down. Only the driver starts and stops it; mu guards
// node, which others use while it crashes. The lock is never held during a wait: virtual
// time stops while a goroutine waits for a lock.
type simNode struct {
	mesh      *simMesh
	place     int // index in the mesh, fixed
	at        int // index on the network: its address
	name      string
	dir       string
	id        proto.PeerID // since its first start
	engine    *mem.Engine
	life      int           // counts starts
	change    func(*Config) // of a test; may be nil
	beforeRun func(*Node)   // may be nil; called before the node runs
	stop      context.CancelFunc
	done      chan error

	mu   sync.Mutex
	node *Node // nil while it is down
}

// newSimMesh starts n nodes that are members of one mesh, joined by tickets over the
// network.
func newSimMesh(t *testing.T, n int, seed uint64, link transporttest.Link) *simMesh {
	return newSimMeshWith(t, n, seed, link, nil)
}

// newSimMeshWith is newSimMesh with a function that changes the configuration at each
// start of a node.
func newSimMeshWith(t *testing.T, n int, seed uint64, link transporttest.Link, change func(*simNode, *Config)) *simMesh {
	w := &simMesh{Network: transporttest.Mesh(t, link), t: t, rng: rand.New(rand.NewPCG(seed, 2)), checker: newChecker(t), change: change}
	first := w.add()
	if _, err := pairing.Init(pairing.InitOptions{Dir: first.dir, Name: first.name, NewMesh: true, Clock: clock.Runtime()}); err != nil {
		t.Fatal(err)
	}
	first.start()
	for range n - 1 {
		w.join(w.add())
	}
	return w
}

// noCircuits disables the relay service of a node. Virtual time stops while a goroutine
// waits for a mutex, and the end of a circuit over a dead path was waited for with one
// held: hours with relays have hung, in libp2p and here.
func noCircuits(_ *simNode, cfg *Config) { cfg.Net.Relay = false }

// smallMesh disables the hash table and the relays of a node. With a few nodes on one
// machine they are most of the work and do not affect queues.
func smallMesh(s *simNode, cfg *Config) {
	noCircuits(s, cfg)
	cfg.Net.DHT, cfg.Net.Relays = false, 0
}

// quietMesh is smallMesh with a third of the usual probes and comparisons. Deaths are known
// later, mostly after the leases of who died have ended.
func quietMesh(s *simNode, cfg *Config) {
	smallMesh(s, cfg)
	cfg.Mesh.ProbeInterval, cfg.Mesh.SyncInterval = 3*time.Second, 90*time.Second
}

// add creates a node that is not a member yet.
func (sm *simMesh) add() *simNode {
	i := len(sm.nodes)
	s := &simNode{mesh: sm, place: i, at: i, name: fmt.Sprintf("n%d", i), dir: filepath.Join(sm.t.TempDir(), "node"), engine: mem.New()}
	sm.nodes = append(sm.nodes, s)
	return s
}

// join makes s a member with a ticket of the first node and starts it. A node admits
// five strangers at once and then one per second.
func (sm *simMesh) join(s *simNode) {
	sm.t.Helper()
	if s.place >= 5 {
		time.Sleep(time.Second)
	}
	var o wire.InviteOptions
	if s.place == 2 { // an admin, so that it may seize the queues of the first node
		o.Roles = append(identity.DefaultRoles(), identity.RoleAdmin)
	}
	inv, err := sm.nodes[0].get().Pairing.Invite(sm.t.Context(), o)
	if err != nil {
		sm.t.Fatal(err)
	}
	if _, err := Joiner(s.config()).WithTicket(sm.t.Context(), inv.Ticket, s.name); err != nil {
		sm.t.Fatal(err)
	}
	s.engine = s.engine.Reopen() // WithTicket has closed it
	s.start()
}

// close stops every node and the network: the bubble must be empty at its end (I15).
func (sm *simMesh) close() {
	sm.users.Wait()
	for _, s := range sm.nodes {
		s.halt()
	}
	sm.Network.Close()
}

func (s *simNode) config() Config {
	log := slog.New(slog.DiscardHandler)
	if testing.Verbose() && meshLog {
		log = slog.New(slog.NewTextHandler(s.mesh.t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})).With("node", s.name)
	}
	cfg := DefaultConfig(s.dir)
	cfg.Logger, cfg.Clock = log, clock.Runtime()
	cfg.Limits.Slots, cfg.Limits.MemoryLimit, cfg.Mail.Keep = simSlots, -1, 0
	cfg.Net.MDNS = false // the LAN is not simulated
	cfg.Simulated = Simulation{
		Engine: s.engine, Transport: func(c *transport.Config) { s.mesh.Configure(s.at, c) },
		Load: func() (cpu, memory uint32) { return 0, 0 }, // not the load of the machine that runs the test
	}
	if s.mesh.change != nil {
		s.mesh.change(s, &cfg)
	}
	if s.change != nil {
		s.change(&cfg)
	}
	return cfg
}

// start opens the node with the state of its last life and runs it.
func (s *simNode) start() {
	s.mesh.t.Helper()
	if s.get() != nil {
		return
	}
	s.engine = s.engine.Reopen()
	n, err := New(s.config())
	if err != nil {
		s.mesh.t.Fatalf("%s does not start again: %v", s.name, err)
	}
	if s.life++; s.life == 1 {
		s.id = n.keys.Peer()
		s.mesh.names.Store(s.id, s.name)
	}
	spec := inbox.Spec{
		Kind: simKind, Allow: []string{"role:send"}, OnCrash: inbox.OnCrashRetry, MaxAttempts: simAttempts,
		Timeout: 20 * time.Minute, Handler: planHandler{s.mesh.checker, s.place, s.life},
	}
	if err := n.inbox.Register(spec); err != nil {
		s.mesh.t.Fatal(err)
	}
	if s.beforeRun != nil {
		s.beforeRun(n)
	}
	s.mesh.checker.nodeOpened(s.place, n)
	ctx, cancel := context.WithCancel(context.Background())
	s.stop, s.done = cancel, make(chan error, 1)
	go func() { s.done <- n.Run(ctx) }()
	s.set(n)
}

// halt stops the node gracefully.
func (s *simNode) halt() {
	if s.get() == nil {
		return
	}
	s.set(nil)
	s.stop()
	if err := <-s.done; err != nil && !errors.Is(err, context.Canceled) {
		s.mesh.t.Errorf("%s stopped with: %v", s.name, err)
	}
	s.mesh.checker.nodeClosed(s.place, s.life)
}

// crash simulates a power failure: the next life finds exactly what is committed now.
// Later actions of the dying process reach no other node.
func (s *simNode) crash() {
	if s.get() == nil {
		return
	}
	s.set(nil)
	s.mesh.Unplug(s.at)
	s.engine = s.engine.Reopen()
	s.mesh.checker.nodeClosed(s.place, s.life)
	s.stop()
	if err := <-s.done; err != nil {
		s.mesh.t.Logf("%s crashed: %v", s.name, err)
	}
	s.mesh.Plug(s.at)
}

// get returns the running node, nil while it is down.
func (s *simNode) get() *Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.node
}

func (s *simNode) set(n *Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.node = n
}
