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
	// Wait lets a task wait for a slot: [Driver.Ready] is called when there is one.
	Wait(from proto.PeerID, g *proto.Grant)
	// Stop ends the wait, or the run, of a task; cancelled: a person wants that.
	Stop(id proto.TaskID, cancelled bool)
}

// An Prober asks handlers what an earlier start of the node has done.
type Prober interface {
	// Probe asks the handler of a task, which ran when the node died, whether its effect
	// has happened: [Driver.Probed] takes the answer. It does not wait.
	Probe(from proto.PeerID, g *proto.Grant)
}

// Parts is what a room works with. All are needed.
type Parts struct {
	Network Network
	Custody Custody
	Runner  Runner
	Prober  Prober
	Sealer  Sealer
	Mover   Mover
	Bodies  Bodies
}

// Bodies brings what is too large for a message, and keeps it.
type Bodies interface {
	// Offer offers the body of a task whose cell is here to its owner. It does not wait.
	Offer(id proto.TaskID, owner proto.PeerID)
	// SendBodyFirst has the streamed body of an envelope brought to p first, if it has one and
	// it stands beside a message of type t, and then calls after. It does not wait. It
	// may give up: what matters is said again.
	SendBodyFirst(p proto.PeerID, t proto.MessageType, id proto.TaskID, e *proto.Envelope, after func())
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
	// HandedOff is told of tasks that their new home has.
	HandedOff(ids []proto.TaskID, home proto.PeerID)
}

// Sealer protect results between an owner and a home.
type Sealer interface {
	// Seal makes of 1 to proto.MaxGroup outcomes what travels to home, in their order.
	Seal(home proto.PeerID, all []SealRequest) ([]*proto.Envelope, error)
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

// A SealRequest is an outcome that is to be sealed.
type SealRequest struct {
	Task    proto.TaskID
	Outcome *proto.Outcome
}

// Settings are those of a room.
type Settings struct {
	Config
	Self   proto.PeerID
	Boot   uint64       // number of this start
	BootID proto.BootID // of this start

	Events        func([]Event)             // called with what has become durable; must not block
	Orphan        func([]Orphan)            // likewise, results that do not count
	Queue         func(name string)         // likewise, a queue that has changed
	OnMisbehavior func(proto.PeerID, error) // called with who said what cannot be kept; must not block
	Fail          func(point string) error  // tests: an error at a point stops the room there, see the Point constants
	Clock         clock.Clock               // default clock.System()
	Logger        *slog.Logger              // default: none
}

// A Driver drives a [Home] and an [Owner]: it feeds them one input at a time, writes
// what all inputs that waited ask for in one step, and does the rest once that is
// durable. What it says to itself comes back as an input.
//
//	messages, ticks, wishes ─▶ inputs ─▶ Home, Owner ─▶ one batch ─▶ send, start, stop, tell
//
// Its methods are safe for concurrent use. They need a running [Driver.Run].
type Driver struct {
	store *store.Store
	parts Parts
	cfg   Settings
	home  *Home
	owner *Owner

	inputs    chan func()
	quota     inputQuota    // in inputs, by sender
	done      chan struct{} // closed when Run has returned
	published atomic.Pointer[snapshot]

	pending     pendingOutput
	sender      proto.PeerID // whose message is looked at; zero: nobody's
	homeInvalid bool         // the home knows what the store does not take
	driverState
}

// driverState is what the room keeps beside the machines, for its one goroutine.
type driverState struct {
	grants          map[proto.TaskID]receivedGrant  // taken and not started
	startWaiters    map[proto.TaskID]chan Start     // a slot is held for them
	policies        map[proto.TaskID]Policy         // of what is started here, on disk
	probes          map[proto.TaskID]probe          // of what shall be asked about if the node dies, on disk
	results         map[proto.TaskID]result         // of what is finished here, on disk
	receivedResults map[proto.TaskID]*proto.Outcome // results that came in this turn
	selfSent        []selfMessage                   // messages of this node for itself
	running         map[proto.TaskID]bool           // handlers at work
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

type receivedGrant struct {
	from proto.PeerID
	msg  *proto.Grant
}

type selfMessage struct {
	typ  proto.MessageType
	body proto.Body
	task proto.TaskID
}

// A pendingOutput is what the inputs of one step ask for together.
type pendingOutput struct {
	writes  map[string][]byte
	order   []string
	out     Output
	rulings map[proto.PeerID][]*proto.Ruling // answers to results
	done    map[proto.TaskID]*proto.Outcome  // results of runs here that are not needed any more
	with    []func(*store.Batch)             // custody of tasks that came
	arrived map[string][]byte                // their cells as they came, by key
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
func Open(s *store.Store, with Parts, cfg Settings) (*Driver, error) {
	if cfg.Clock.IsZero() {
		cfg.Clock = clock.System()
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	d := &Driver{
		store: s, parts: with, cfg: cfg, home: NewHome(cfg.Self, cfg.Boot, cfg.Config), owner: NewOwner(cfg.Self, cfg.BootID, cfg.Config),
		inputs: make(chan func(), maxInputs), done: make(chan struct{}),
		driverState: driverState{
			grants: map[proto.TaskID]receivedGrant{}, startWaiters: map[proto.TaskID]chan Start{}, policies: map[proto.TaskID]Policy{},
			probes: map[proto.TaskID]probe{}, results: map[proto.TaskID]result{}, receivedResults: map[proto.TaskID]*proto.Outcome{}, running: map[proto.TaskID]bool{},
		},
	}
	d.pending.reset()
	if err := d.load(); err != nil {
		return nil, fmt.Errorf("open the room of leases: %w", err)
	}
	d.publish()
	return d, nil
}

func (d *Driver) now() Now {
	c := d.cfg.Clock
	return Now{Wall: c.Now().UnixMilli(), Mono: c.Mono(), Boot: c.Boot(), Doubted: c.Doubted()}
}

// Run drives the room until ctx is done, or the store fails: then it must be opened
// anew.
func (d *Driver) Run(ctx context.Context) error {
	defer close(d.done)
	defer d.releaseAll()
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	d.merge(d.home.Begin(d.now()))
	d.merge(d.owner.Begin(d.policy, d.now()))
	for id := range d.policies {
		d.pruneTask(id)
	}
	for id := range d.results {
		d.pruneTask(id)
	}
	for all := true; ; {
		if err := d.flush(ctx, all || d.homeInvalid); ctx.Err() != nil {
			return nil // what was not written is found at the next start
		} else if err != nil {
			return fmt.Errorf("leases: %w", err)
		}
		if d.homeInvalid {
			if err := d.rebuildHome(); err != nil {
				return fmt.Errorf("leases: %w", err)
			}
			continue
		}
		if all = false; len(d.selfSent) > 0 {
			d.handleSelfSent()
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case in := <-d.inputs:
			in()
		case <-tick.C:
			d.merge(d.home.Tick(d.now()))
			d.merge(d.owner.Tick(d.now()))
			all = true
		}
		d.drain()
	}
}

// A step takes in so many inputs, and so many bytes to write, at most: together with the
// last input they fit into one batch.
const (
	maxStepInputs = 512
	maxStepBytes  = maxOutput
)

// drain takes what waits besides.
func (d *Driver) drain() {
	for n := 0; n < maxStepInputs && d.pending.bytes < maxStepBytes; n++ {
		select {
		case in := <-d.inputs:
			in()
		default:
			return
		}
	}
}

// policy is what the handler of a task that was running wanted at its start. Where
// that is not known, or nothing is left to ask about, a person decides.
func (d *Driver) policy(id proto.TaskID) Policy {
	p, ok := d.policies[id]
	if !ok || p == PolicyProbe && d.probes[id].grant == nil {
		return PolicyPark
	}
	return p
}

// enqueue queues an input; false: the room has ended.
func (d *Driver) enqueue(ctx context.Context, in func()) bool {
	select {
	case d.inputs <- in:
		return true
	case <-d.done:
	case <-ctx.Done():
	}
	return false
}

// do has f run between two inputs, and returns once what it asked for is durable.
func (d *Driver) do(ctx context.Context, f func()) error {
	answer := make(chan error, 1)
	in := func() {
		f()
		d.pending.after = append(d.pending.after, func(err error) { answer <- err })
	}
	if !d.enqueue(ctx, in) {
		return cmp.Or(ctx.Err(), ErrStopped)
	}
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-d.done:
		select {
		case err := <-answer:
			return err
		default:
			return ErrStopped
		}
	}
}

// call has f run between two inputs and returns what it found. A caller who leaves
// before that sees nothing of it: f may still run.
func call[T any](ctx context.Context, d *Driver, f func() T) (T, error) {
	found := make(chan T, 1)
	if err := d.do(ctx, func() { found <- f() }); err != nil {
		return *new(T), err
	}
	return <-found, nil
}

// load gives the machines what is on disk.
func (d *Driver) load() error {
	parts, asks := map[proto.TaskID][][]byte{}, map[proto.TaskID][][]byte{}
	err := d.loadHome(func(key string, val []byte) error {
		switch {
		case key[0] == keyPolicy && len(key) == 17 && len(val) == 1:
			d.policies[proto.TaskID([]byte(key[1:]))] = Policy(val[0])
		case key[0] == keyResult && len(key) == 18:
			id := proto.TaskID([]byte(key[1:17]))
			parts[id] = append(parts[id], val)
		case key[0] == keyProbe && len(key) == 18:
			id := proto.TaskID([]byte(key[1:17]))
			asks[id] = append(asks[id], val)
		}
		return d.owner.Load(key, val)
	})
	if err != nil {
		return err
	}
	for id, pieces := range asks {
		g := new(proto.Grant)
		if err := proto.Decode(slices.Concat(pieces...), g); err != nil {
			return fmt.Errorf("the grant of %s: %w", id, err)
		}
		d.probes[id] = probe{g, len(pieces)}
	}
	for id, pieces := range parts {
		o := new(proto.Outcome)
		if err := proto.Decode(slices.Concat(pieces...), o); err != nil {
			return fmt.Errorf("the result of %s: %w", id, err)
		}
		d.results[id] = result{o, len(pieces)}
	}
	return nil
}

// loadHome gives the home what is on disk. also is called with each record.
func (d *Driver) loadHome(also func(key string, val []byte) error) error {
	leases := map[proto.TaskID]*proto.Lease{}
	for p, err := range d.store.All(store.Leases, nil, nil) {
		if err != nil {
			return err
		}
		key := string(p.Key)
		m, err := d.home.Load(key, p.Val)
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
	tasks, err := d.parts.Custody.Tasks()
	if err != nil {
		return err
	}
	for _, t := range tasks {
		d.home.Restore(t, leases[t.ID], d.now())
	}
	return nil
}

// rebuildHome makes the home anew from what is on disk, as a start of the node does: it knew
// what the store does not take, and nobody has heard of that. Handlers go on.
func (d *Driver) rebuildHome() error {
	old := d.home
	d.homeInvalid, d.home = false, NewHome(d.cfg.Self, d.cfg.Boot, d.cfg.Config)
	if err := d.loadHome(func(string, []byte) error { return nil }); err != nil {
		return err
	}
	d.home.nodes, d.home.peers, d.home.active = old.nodes, old.peers, old.active
	d.merge(d.home.Begin(d.now()))
	d.publish()
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
func (d *Driver) keepResult(id proto.TaskID, o *proto.Outcome, b []byte) {
	d.results[id] = result{o, d.pending.writePieces(keyResult, id, b)}
}

func (d *Driver) dropResult(id proto.TaskID) {
	d.pending.dropPieces(keyResult, id, d.results[id].pieces)
	d.pending.done[id] = d.results[id].outcome
	delete(d.results, id)
}

// Results calls f with each outcome of a run here that its home has not answered yet.
// It is for before [Driver.Run].
func (d *Driver) Results(f func(id proto.TaskID, o *proto.Outcome)) {
	for id, x := range d.results {
		f(id, x.outcome)
	}
}

// keepProbe keeps the grant of a task, in the batch of its start.
func (d *Driver) keepProbe(id proto.TaskID, g *proto.Grant) {
	b, err := proto.Encode(nil, g)
	if err != nil {
		d.cfg.Logger.Warn("a grant cannot be kept: its handler will not be asked if the node dies", "task", id.String(), "err", err)
		return
	}
	d.probes[id] = probe{g, d.pending.writePieces(keyProbe, id, b)}
}

func (d *Driver) dropProbe(id proto.TaskID) {
	d.pending.dropPieces(keyProbe, id, d.probes[id].pieces)
	delete(d.probes, id)
}

// PendingProbes calls f with each task whose handler will be asked what it did before this
// start. It is for before [Driver.Run].
func (d *Driver) PendingProbes(f func(proto.TaskID)) {
	for id := range d.probes {
		f(id)
	}
}

// snapshot is what others read of the queues without asking. Nobody may change it.
type snapshot struct {
	states map[string]*proto.QueueState
	deeds  map[string][]proof
}

func (d *Driver) publish() {
	all := &snapshot{make(map[string]*proto.QueueState, len(d.home.queues)), make(map[string][]proof, len(d.home.queues))}
	for name, q := range d.home.queues {
		if q.state != nil {
			all.states[name], all.deeds[name] = d.home.stateOf(q), slices.Clone(q.deeds)
		}
	}
	d.published.Store(all)
}

// QueueStates returns what is known here about queues, by name. Nobody may change it.
func (d *Driver) QueueStates() map[string]*proto.QueueState { return d.published.Load().states }

// WasHome reports whether p is, or once was, the home of a queue, as far as is known here.
func (d *Driver) WasHome(name string, p proto.PeerID) bool {
	all := d.published.Load()
	return (&queue{state: all.states[name], deeds: all.deeds[name]}).wasHome(p)
}

// releaseAll lets nobody wait who would wait for ever.
func (d *Driver) releaseAll() {
	for id, c := range d.startWaiters {
		close(c)
		delete(d.startWaiters, id)
	}
	for _, f := range d.pending.after {
		f(ErrStopped)
	}
}

// maxParallelBatches is how many batches of one turn are written at the same time: enough for the
// store to write many in one go.
const maxParallelBatches = 256

// runAll runs the fs, many at the same time, and returns the first error.
func runAll(fs []func() error) error {
	if len(fs) == 1 {
		return fs[0]()
	}
	var g errgroup.Group
	g.SetLimit(maxParallelBatches)
	for _, f := range fs {
		g.Go(f)
	}
	return g.Wait()
}
