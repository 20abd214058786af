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
	"github.com/balefire/balefire/inbox"
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
}

// A simulated node may be down. The driver alone starts and stops it; mu guards
// node, which people go on using while it crashes. It is never held over a wait:
// virtual time stands still while a goroutine waits for a lock.
type simulated struct {
	world  *world
	place  int
	name   string
	dir    string
	engine *mem.Engine
	life   int // counts starts
	stop   context.CancelFunc
	done   chan error

	mu   sync.Mutex
	node *Node // nil while it is down
}

// newWorld starts n nodes that are members of one mesh, joined by tickets over
// the wire.
func newWorld(t *testing.T, n int, seed uint64, link transporttest.Link) *world {
	w := &world{Network: transporttest.Mesh(t, link), t: t, rng: rand.New(rand.NewPCG(seed, 2)), ledger: newLedger(t)}
	for i := range n {
		w.nodes = append(w.nodes, &simulated{world: w, place: i, name: fmt.Sprintf("n%d", i), dir: filepath.Join(t.TempDir(), "node"), engine: mem.New()})
	}
	first := w.nodes[0]
	if _, err := Init(InitOptions{Dir: first.dir, Name: first.name, NewMesh: true, Clock: clock.Runtime()}); err != nil {
		t.Fatal(err)
	}
	first.start()
	for _, s := range w.nodes[1:] {
		inv, err := first.node.Invite(t.Context(), InviteOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Join(t.Context(), s.config(), inv.Ticket, s.name); err != nil {
			t.Fatal(err)
		}
		s.engine = s.engine.Reopen() // Join has closed it
		s.start()
	}
	return w
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
	return Config{
		Dir: s.dir, Logger: log, Clock: clock.Runtime(), Limits: Limits{Slots: 32, MemoryLimit: -1},
		Simulated: Simulation{Engine: s.engine, Transport: func(c *transport.Config) { s.world.Configure(s.place, c) }},
	}
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
	s.world.Unplug(s.place)
	s.engine = s.engine.Reopen()
	s.world.ledger.closed(s.place, s.life)
	s.stop()
	if err := <-s.done; err != nil {
		s.world.t.Logf("%s crashed: %v", s.name, err)
	}
	s.world.Plug(s.place)
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
