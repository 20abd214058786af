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
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/mem"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/transport/transporttest"
)

// A world is a mesh of whole nodes in virtual time: real libp2p over a simulated
// wire, each node on an engine that survives its crashes. Its ledger knows what
// was promised.
type world struct {
	*transporttest.Network
	t      *testing.T
	rng    *rand.Rand // of the driver alone
	ledger *ledger
	nodes  []*simulated
	users  sync.WaitGroup
	change func(*simulated, *Config) // of a test; may be nil
}

// A simulated node may be down. The driver alone starts and stops it; mu guards
// node, which people go on using while it crashes. It is never held over a wait:
// virtual time stands still while a goroutine waits for a lock.
type simulated struct {
	world  *world
	place  int // in the world, for good
	at     int // on the wire: its address
	name   string
	dir    string
	id     proto.PeerID // once known
	engine *mem.Engine
	life   int           // counts starts
	change func(*Config) // of a test; may be nil
	ready  func(*Node)   // likewise: called before it runs
	stop   context.CancelFunc
	done   chan error

	mu   sync.Mutex
	node *Node // nil while it is down
}

// newWorld starts n nodes that are members of one mesh, joined by tickets over
// the wire.
func newWorld(t *testing.T, n int, seed uint64, link transporttest.Link) *world {
	return newWorldWith(t, n, seed, link, nil)
}

// newWorldWith has the configuration of each life of a node completed by change.
func newWorldWith(t *testing.T, n int, seed uint64, link transporttest.Link, change func(*simulated, *Config)) *world {
	w := &world{Network: transporttest.Mesh(t, link), t: t, rng: rand.New(rand.NewPCG(seed, 2)), ledger: newLedger(t), change: change}
	first := w.add()
	if _, err := Init(InitOptions{Dir: first.dir, Name: first.name, NewMesh: true, Clock: clock.Runtime()}); err != nil {
		t.Fatal(err)
	}
	first.start()
	for range n - 1 {
		w.join(w.add())
	}
	return w
}

// noCircuits has a node relay for nobody. Virtual time does not go on while somebody
// waits for a mutex, and what ends a circuit over a dead path has been waited for with
// one held: hours with relays have stood still, in libp2p and here.
func noCircuits(_ *simulated, cfg *Config) { cfg.Net.NoRelay = true }

// few has a node look for nobody in a hash table, and for no relays. Of a few nodes on
// one machine that is most of the work, and of queues it says nothing.
func few(s *simulated, cfg *Config) {
	noCircuits(s, cfg)
	cfg.Net.NoDHT, cfg.Net.Relays = true, -1
}

// add makes a node that is no member yet.
func (w *world) add() *simulated {
	i := len(w.nodes)
	s := &simulated{world: w, place: i, at: i, name: fmt.Sprintf("n%d", i), dir: filepath.Join(w.t.TempDir(), "node"), engine: mem.New()}
	w.nodes = append(w.nodes, s)
	return s
}

// join makes s a member, by a ticket of the first, and starts it. A node lets five
// strangers in at once, and then one a second.
func (w *world) join(s *simulated) {
	w.t.Helper()
	if s.place >= 5 {
		time.Sleep(time.Second)
	}
	var o InviteOptions
	if s.place == 2 { // it may seize the queues of the first
		o.Roles = append(identity.DefaultRoles(), identity.RoleAdmin)
	}
	inv, err := w.nodes[0].get().Invite(w.t.Context(), o)
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := Join(w.t.Context(), s.config(), inv.Ticket, s.name); err != nil {
		w.t.Fatal(err)
	}
	s.engine = s.engine.Reopen() // Join has closed it
	s.start()
}

// close stops every node and the wire: the bubble must end empty (I15).
func (w *world) close() {
	w.users.Wait()
	for _, s := range w.nodes {
		s.halt()
	}
	w.Network.Close()
}

func (s *simulated) config() Config {
	log := slog.New(slog.DiscardHandler)
	if testing.Verbose() && meshLog {
		log = slog.New(slog.NewTextHandler(s.world.t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})).With("node", s.name)
	}
	cfg := Config{
		Dir: s.dir, Logger: log, Clock: clock.Runtime(), Limits: Limits{Slots: 32, MemoryLimit: -1}, Net: NetConfig{NoMDNS: true}, // the LAN is no simulated one
		Simulated: Simulation{
			Engine: s.engine, Transport: func(c *transport.Config) { s.world.Configure(s.at, c) },
			Load: func() (cpu, memory uint32) { return 0, 0 }, // whoever tests is busy, as nobody in the world is
		},
	}
	if s.world.change != nil {
		s.world.change(s, &cfg)
	}
	if s.change != nil {
		s.change(&cfg)
	}
	return cfg
}

// start opens the node on what its last life left and runs it.
func (s *simulated) start() {
	s.world.t.Helper()
	if s.get() != nil {
		return
	}
	s.engine = s.engine.Reopen()
	n, err := New(s.config())
	if err != nil {
		s.world.t.Fatalf("%s does not start again: %v", s.name, err)
	}
	s.life++
	spec := inbox.Spec{
		Kind: simKind, Allow: []string{"role:send"}, OnCrash: inbox.OnCrashRetry, MaxAttempts: simAttempts,
		Timeout: 20 * time.Minute, Handler: worked{s.world.ledger, s.place, s.life},
	}
	if err := n.inbox.Register(spec); err != nil {
		s.world.t.Fatal(err)
	}
	if s.ready != nil {
		s.ready(n)
	}
	s.world.ledger.opened(s.place, n)
	ctx, cancel := context.WithCancel(context.Background())
	s.stop, s.done = cancel, make(chan error, 1)
	go func() { s.done <- n.Run(ctx) }()
	s.set(n)
}

// halt stops the node in order.
func (s *simulated) halt() {
	if s.get() == nil {
		return
	}
	s.set(nil)
	s.stop()
	if err := <-s.done; err != nil && !errors.Is(err, context.Canceled) {
		s.world.t.Errorf("%s stopped with: %v", s.name, err)
	}
	s.world.ledger.closed(s.place, s.life)
}

// crash cuts the power: what was committed by now is all that the next life will
// find. What the dying process still does reaches nobody.
func (s *simulated) crash() {
	if s.get() == nil {
		return
	}
	s.set(nil)
	s.world.Unplug(s.at)
	s.engine = s.engine.Reopen()
	s.world.ledger.closed(s.place, s.life)
	s.stop()
	if err := <-s.done; err != nil {
		s.world.t.Logf("%s crashed: %v", s.name, err)
	}
	s.world.Plug(s.at)
}

// get returns the running node, nil while it is down.
func (s *simulated) get() *Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.node
}

func (s *simulated) set(n *Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.node = n
}
