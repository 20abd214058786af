package ownership

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// A Network carries messages to other nodes.
type Network interface {
	// Post sends m to p or drops it: what matters is said again. It does not wait.
	Post(p proto.PeerID, t proto.MessageType, m proto.Body)
}

// A Custody keeps the tasks whose cells are here.
type Custody interface {
	// Tasks returns those that have not ended, in the order in which they came.
	Tasks() ([]Task, error)
	// Envelope returns a task as it was signed, with its slot wrapped for p.
	Envelope(id proto.TaskID, p proto.PeerID) (*proto.Envelope, error)
	// End makes the terminal record of a task, its result on the way to the origin and
	// what also adds durable in one batch.
	End(ctx context.Context, e End, o *proto.Outcome, also func(*store.Batch)) error
}

// A Runner runs what was granted to this node.
type Runner interface {
	// Check looks at a grant of from: zero if this node would run it now. It is called
	// by many goroutines.
	Check(from proto.PeerID, g *proto.Grant) proto.Code
	// Wait lets a task wait for a slot: [Room.Ready] is called when there is one.
	Wait(from proto.PeerID, g *proto.Grant)
	// Stop ends the wait, or the run, of a task; cancelled: a person wants that.
	Stop(id proto.TaskID, cancelled bool)
}

// An Asker asks handlers what an earlier start of the node has done.
type Asker interface {
	// Probe asks the handler of a task, which ran when the node died, whether its effect
	// has happened: [Room.Probed] takes the answer. It does not wait.
	Probe(from proto.PeerID, g *proto.Grant)
}

// Parts is what a room works with. All are needed.
type Parts struct {
	Network Network
	Custody Custody
	Runner  Runner
	Asker   Asker
	Seals   Seals
	Mover   Mover
	Bodies  Bodies
}

// Bodies brings what is too large for a message, and keeps it.
type Bodies interface {
	// Lend offers the body of a task whose cell is here to its owner. It does not wait.
	Lend(id proto.TaskID, owner proto.PeerID)
	// Carry has the streamed body of an envelope brought to p first, if it has one and
	// it stands beside a message of type t, and then calls after. It does not wait. It
	// may give up: what matters is said again.
	Carry(p proto.PeerID, t proto.MessageType, id proto.TaskID, e *proto.Envelope, after func())
	// Forget is told of the outcome of a run here that is not needed any more.
	Forget(id proto.TaskID, o *proto.Outcome)
}

// A Mover brings the custody of tasks from one home to another.
type Mover interface {
	// Check checks a task that an old home hands over, as its origin signed it, and
	// reads what it is. It is called by many goroutines.
	Check(from proto.PeerID, m *proto.Handoff) (Task, error)
	// Adopt prepares to take custody of it: into adds that to the batch that makes
	// this node its home, drop gives it up.
	Adopt(m *proto.Handoff) (into func(*store.Batch), drop func(), err error)
	// Gone is told of tasks that their new home has.
	Gone(ids []proto.TaskID, home proto.PeerID)
}

// Seals protect results between an owner and a home.
type Seals interface {
	// Seal makes of 1 to proto.MaxGroup outcomes what travels to home, in their order.
	Seal(home proto.PeerID, all []Sealing) ([]*proto.Envelope, error)
	// Unseal checks and reads what an owner has sealed. With an error it returns the task
	// all the same, if that can be read.
	Unseal(from proto.PeerID, m *proto.Message) (Unsealed, error)
}

// An Unsealed is what an owner has sealed.
type Unsealed struct {
	Task    proto.TaskID
	Outcome *proto.Outcome
	Absent  bool // the body of the result is not here yet, or not looked through
}

// A Sealing is an outcome that is to be sealed.
type Sealing struct {
	Task    proto.TaskID
	Outcome *proto.Outcome
}

// Settings are those of a room.
type Settings struct {
	Config
	Self   proto.PeerID
	Boot   uint64       // number of this start
	BootID proto.BootID // of this start

	Events func([]Event)             // called with what has become durable; must not block
	Orphan func([]Orphan)            // likewise, results that do not count
	Queue  func(name string)         // likewise, a queue that has changed
	Offend func(proto.PeerID, error) // called with who said what cannot be kept; must not block
	Fail   func(point string) error  // tests: an error at a point stops the room there, see the Point constants
	Clock  clock.Clock               // default clock.System()
	Logger *slog.Logger              // default: none
}

// A Room drives a [Home] and an [Owner]: it feeds them one input at a time, writes
// what all inputs that waited ask for in one step, and does the rest once that is
// durable. What it says to itself comes back as an input.
//
//	messages, ticks, wishes ─▶ inputs ─▶ Home, Owner ─▶ one batch ─▶ send, start, stop, tell
//
// Its methods are safe for concurrent use. They need a running [Room.Run].
type Room struct {
	store *store.Store
	with  Parts
	cfg   Settings
	home  *Home
	owner *Owner

	inputs  chan func()
	waiting waiting       // in inputs, by sender
	done    chan struct{} // closed when Run has returned
	queues  atomic.Pointer[shown]

	turn    turn
	from    proto.PeerID // whose message is looked at; zero: nobody's
	spoiled bool         // the home knows what the store does not take
	kept
}

// kept is what the room keeps beside the machines, for its one goroutine.
type kept struct {
	grants   map[proto.TaskID]grantIn        // taken and not started
	ready    map[proto.TaskID]chan Start     // a slot is held for them
	policies map[proto.TaskID]Policy         // of what is started here, on disk
	probes   map[proto.TaskID]probe          // of what shall be asked about if the node dies, on disk
	results  map[proto.TaskID]result         // of what is finished here, on disk
	claims   map[proto.TaskID]*proto.Outcome // results that came in this turn
	self     []selfSent                      // messages of this node for itself
	alive    map[proto.TaskID]bool           // handlers at work
}

// A result stands on disk in so many pieces.
type result struct {
	outcome *proto.Outcome
	pieces  int
}

// A probe is a grant as it is kept for whoever must ask about its task: it stands on
// disk in so many pieces.
type probe struct {
	grant  *proto.Grant
	pieces int
}

type grantIn struct {
	from proto.PeerID
	msg  *proto.Grant
}

type selfSent struct {
	typ  proto.MessageType
	body proto.Body
	task proto.TaskID
}

// A turn is what the inputs of one step ask for together.
type turn struct {
	writes  map[string][]byte
	order   []string
	out     Output
	rulings map[proto.PeerID][]*proto.Ruling // answers to results
	done    map[proto.TaskID]*proto.Outcome  // results of runs here that are not needed any more
	with    []func(*store.Batch)             // custody of tasks that came
	came    map[string][]byte                // their cells as they came, by key
	bytes   int                              // of the writes, and of what comes with them
	after   []func(error)
}

// ErrStopped is returned for a wish to a room that does not run any more.
var ErrStopped = errors.New("ownership: the node is stopping")

// maxInputs is how many inputs may wait.
const maxInputs = 4096

// tickEvery is how often the machines look at the clock.
const tickEvery = time.Second

// Open returns the room kept in s. It starts nothing.
func Open(s *store.Store, with Parts, cfg Settings) (*Room, error) {
	if cfg.Clock.IsZero() {
		cfg.Clock = clock.System()
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	r := &Room{
		store: s, with: with, cfg: cfg, home: NewHome(cfg.Self, cfg.Boot, cfg.Config), owner: NewOwner(cfg.Self, cfg.BootID, cfg.Config),
		inputs: make(chan func(), maxInputs), done: make(chan struct{}),
		kept: kept{
			grants: map[proto.TaskID]grantIn{}, ready: map[proto.TaskID]chan Start{}, policies: map[proto.TaskID]Policy{},
			probes: map[proto.TaskID]probe{}, results: map[proto.TaskID]result{}, claims: map[proto.TaskID]*proto.Outcome{}, alive: map[proto.TaskID]bool{},
		},
	}
	r.turn.reset()
	if err := r.load(); err != nil {
		return nil, fmt.Errorf("open the room of leases: %w", err)
	}
	r.publish()
	return r, nil
}

func (r *Room) now() Now {
	c := r.cfg.Clock
	return Now{Wall: c.Now().UnixMilli(), Mono: c.Mono(), Boot: c.Boot(), Doubted: c.Doubted()}
}

// Run drives the room until ctx is done, or the store fails: then it must be opened
// anew.
func (r *Room) Run(ctx context.Context) error {
	defer close(r.done)
	defer r.dropAll()
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	r.add(r.home.Begin(r.now()))
	r.add(r.owner.Begin(r.policy, r.now()))
	for id := range r.policies {
		r.tidyOne(id)
	}
	for id := range r.results {
		r.tidyOne(id)
	}
	for all := true; ; {
		if err := r.flush(ctx, all || r.spoiled); ctx.Err() != nil {
			return nil // what was not written is found at the next start
		} else if err != nil {
			return fmt.Errorf("leases: %w", err)
		}
		if r.spoiled {
			if err := r.mend(); err != nil {
				return fmt.Errorf("leases: %w", err)
			}
			continue
		}
		if all = false; len(r.self) > 0 {
			r.hearSelf()
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case in := <-r.inputs:
			in()
		case <-tick.C:
			r.add(r.home.Tick(r.now()))
			r.add(r.owner.Tick(r.now()))
			all = true
		}
		r.drain()
	}
}

// A step takes in so many inputs, and so many bytes to write, at most: together with the
// last input they fit into one batch.
const (
	maxTurn      = 512
	maxTurnBytes = maxOutput
)

// drain takes what waits besides.
func (r *Room) drain() {
	for n := 0; n < maxTurn && r.turn.bytes < maxTurnBytes; n++ {
		select {
		case in := <-r.inputs:
			in()
		default:
			return
		}
	}
}

// policy is what the handler of a task that was running wanted at its start. Where
// that is not known, or nothing is left to ask about, a person decides.
func (r *Room) policy(id proto.TaskID) Policy {
	p, ok := r.policies[id]
	if !ok || p == PolicyProbe && r.probes[id].grant == nil {
		return PolicyPark
	}
	return p
}

// put queues an input; false: the room has ended.
func (r *Room) put(ctx context.Context, in func()) bool {
	select {
	case r.inputs <- in:
		return true
	case <-r.done:
	case <-ctx.Done():
	}
	return false
}

// ask has f run between two inputs, and returns once what it asked for is durable.
func (r *Room) ask(ctx context.Context, f func()) error {
	answer := make(chan error, 1)
	in := func() {
		f()
		r.turn.after = append(r.turn.after, func(err error) { answer <- err })
	}
	if !r.put(ctx, in) {
		return cmp.Or(ctx.Err(), ErrStopped)
	}
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-r.done:
		select {
		case err := <-answer:
			return err
		default:
			return ErrStopped
		}
	}
}

// asked has f run between two inputs and returns what it found. A caller who leaves
// before that sees nothing of it: f may still run.
func asked[T any](ctx context.Context, r *Room, f func() T) (T, error) {
	found := make(chan T, 1)
	if err := r.ask(ctx, func() { found <- f() }); err != nil {
		return *new(T), err
	}
	return <-found, nil
}

// load gives the machines what is on disk.
func (r *Room) load() error {
	parts, asks := map[proto.TaskID][][]byte{}, map[proto.TaskID][][]byte{}
	err := r.loadHome(func(key string, val []byte) error {
		switch {
		case key[0] == keyPolicy && len(key) == 17 && len(val) == 1:
			r.policies[proto.TaskID([]byte(key[1:]))] = Policy(val[0])
		case key[0] == keyResult && len(key) == 18:
			id := proto.TaskID([]byte(key[1:17]))
			parts[id] = append(parts[id], val)
		case key[0] == keyProbe && len(key) == 18:
			id := proto.TaskID([]byte(key[1:17]))
			asks[id] = append(asks[id], val)
		}
		return r.owner.Load(key, val)
	})
	if err != nil {
		return err
	}
	for id, pieces := range asks {
		g := new(proto.Grant)
		if err := proto.Decode(slices.Concat(pieces...), g); err != nil {
			return fmt.Errorf("the grant of %s: %w", id, err)
		}
		r.probes[id] = probe{g, len(pieces)}
	}
	for id, pieces := range parts {
		o := new(proto.Outcome)
		if err := proto.Decode(slices.Concat(pieces...), o); err != nil {
			return fmt.Errorf("the result of %s: %w", id, err)
		}
		r.results[id] = result{o, len(pieces)}
	}
	return nil
}

// loadHome gives the home what is on disk. also is called with each record.
func (r *Room) loadHome(also func(key string, val []byte) error) error {
	leases := map[proto.TaskID]*proto.Lease{}
	for p, err := range r.store.All(store.Leases, nil, nil) {
		if err != nil {
			return err
		}
		key := string(p.Key)
		m, err := r.home.Load(key, p.Val)
		if err == nil {
			err = also(key, p.Val)
		}
		if err != nil {
			return fmt.Errorf("the record at %x: %w", key, err)
		}
		if m != nil {
			if id, err := proto.TaskIDFrom(m.Task); err == nil {
				leases[id] = m
			}
		}
	}
	tasks, err := r.with.Custody.Tasks()
	if err != nil {
		return err
	}
	for _, t := range tasks {
		r.home.Restore(t, leases[t.ID], r.now())
	}
	return nil
}

// mend makes the home anew from what is on disk, as a start of the node does: it knew
// what the store does not take, and nobody has heard of that. Handlers go on.
func (r *Room) mend() error {
	old := r.home
	r.spoiled, r.home = false, NewHome(r.cfg.Self, r.cfg.Boot, r.cfg.Config)
	if err := r.loadHome(func(string, []byte) error { return nil }); err != nil {
		return err
	}
	r.home.nodes, r.home.peers, r.home.active = old.nodes, old.peers, old.active
	r.add(r.home.Begin(r.now()))
	r.publish()
	return nil
}

// Keys of what the room keeps beside the machines.
const (
	keyPolicy = 'p' // + task id: what to do if the node dies while it runs
	keyResult = 'r' // + task id, number: a piece of a result on its way home
	keyProbe  = 'g' // + task id, number: a piece of the grant of a task that is asked about if the node dies
)

// maxPiece is how much of a result stands in one record.
const maxPiece = 48 << 10

// keepResult keeps what goes home of a task, and is encoded in b, in the batch of
// this turn.
func (r *Room) keepResult(id proto.TaskID, o *proto.Outcome, b []byte) {
	r.results[id] = result{o, r.turn.writePieces(keyResult, id, b)}
}

func (r *Room) dropResult(id proto.TaskID) {
	r.turn.dropPieces(keyResult, id, r.results[id].pieces)
	r.turn.done[id] = r.results[id].outcome
	delete(r.results, id)
}

// Results calls f with each outcome of a run here that its home has not answered yet.
// It is for before [Room.Run].
func (r *Room) Results(f func(id proto.TaskID, o *proto.Outcome)) {
	for id, x := range r.results {
		f(id, x.outcome)
	}
}

// keepProbe keeps the grant of a task, in the batch of its start.
func (r *Room) keepProbe(id proto.TaskID, g *proto.Grant) {
	b, err := proto.Encode(nil, g)
	if err != nil {
		r.cfg.Logger.Warn("a grant cannot be kept: its handler will not be asked if the node dies", "task", id.String(), "err", err)
		return
	}
	r.probes[id] = probe{g, r.turn.writePieces(keyProbe, id, b)}
}

func (r *Room) dropProbe(id proto.TaskID) {
	r.turn.dropPieces(keyProbe, id, r.probes[id].pieces)
	delete(r.probes, id)
}

// Asking calls f with each task whose handler will be asked what it did before this
// start. It is for before [Room.Run].
func (r *Room) Asking(f func(proto.TaskID)) {
	for id := range r.probes {
		f(id)
	}
}

// shown is what others read of the queues without asking. Nobody may change it.
type shown struct {
	states map[string]*proto.QueueState
	deeds  map[string][]proven
}

func (r *Room) publish() {
	all := &shown{make(map[string]*proto.QueueState, len(r.home.queues)), make(map[string][]proven, len(r.home.queues))}
	for name, q := range r.home.queues {
		if q.state != nil {
			all.states[name], all.deeds[name] = r.home.stateOf(q), slices.Clone(q.deeds)
		}
	}
	r.queues.Store(all)
}

// QueueStates returns what is known here about queues, by name. Nobody may change it.
func (r *Room) QueueStates() map[string]*proto.QueueState { return r.queues.Load().states }

// Had reports whether p is, or once was, the home of a queue, as far as is known here.
func (r *Room) Had(name string, p proto.PeerID) bool {
	all := r.queues.Load()
	return (&queue{state: all.states[name], deeds: all.deeds[name]}).had(p)
}

// dropAll lets nobody wait who would wait for ever.
func (r *Room) dropAll() {
	for id, c := range r.ready {
		close(c)
		delete(r.ready, id)
	}
	for _, f := range r.turn.after {
		f(ErrStopped)
	}
}

// maxHands is how many batches of one turn are written at the same time: enough for the
// store to write many in one go.
const maxHands = 256

// onceAll runs the fs, many at the same time, and returns the first error.
func onceAll(fs []func() error) error {
	if len(fs) == 1 {
		return fs[0]()
	}
	var g errgroup.Group
	g.SetLimit(maxHands)
	for _, f := range fs {
		g.Go(f)
	}
	return g.Wait()
}
