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

// A Network sends messages to other nodes.
type Network interface {
	// Post sends m to p or drops it: important messages are repeated. It does not block.
	Post(p proto.PeerID, t proto.MessageType, m proto.Body)
	// Behind reports whether a message with so many bytes of content would wait for long
	// before it is sent to p: others do.
	Behind(p proto.PeerID, bytes int) bool
}

// A Custody stores the tasks of the queues whose home is here.
type Custody interface {
	// Tasks returns those that have not ended, in the order in which they came.
	Tasks() ([]Task, error)
	// Envelope returns a task as it was signed, with its content key wrapped for p.
	Envelope(id proto.TaskID, p proto.PeerID) (*proto.Envelope, error)
	// End makes one batch durable: the terminal record of a task, its result for the
	// origin, and what also adds. An error that wraps [ErrStopped] means that the node stops
	// before that was possible.
	End(ctx context.Context, e End, o *proto.Outcome, also func(*store.Batch)) error
}

// A Runner runs the tasks that were granted to this node.
type Runner interface {
	// Check returns zero if this node would accept the grant from that node now. It is
	// called by many goroutines.
	Check(from proto.PeerID, g *proto.Grant) proto.Code
	// Wait queues a task for a slot: [Driver.Ready] is called when there is one.
	Wait(from proto.PeerID, g *proto.Grant)
	// Stop ends the wait or the run of a task. cancelled: an operator wants that; hard: at
	// once, without letting the handler finish.
	Stop(id proto.TaskID, cancelled, hard bool)
}

// A Prober asks handlers what an earlier start of the node did.
type Prober interface {
	// Probe asks the handler of a task that ran when the node died whether its effect has
	// happened. [Driver.Probed] takes the answer. It does not block.
	Probe(from proto.PeerID, g *proto.Grant)
}

// Parts are the dependencies of a driver. All are required.
type Parts struct {
	Network Network
	Custody Custody
	Runner  Runner
	Prober  Prober
	Sealer  Sealer
	Mover   Mover
	Bodies  Bodies
}

// Bodies transfers and stores bodies that are too large for a message.
type Bodies interface {
	// Offer offers the body of a task to its owner. It does not block.
	Offer(id proto.TaskID, owner proto.PeerID)
	// SendBodyFirst sends p the streamed body of an envelope, if it has one that goes with
	// a message of type t, and then calls after. It does not block. It may give up:
	// important messages are repeated.
	SendBodyFirst(p proto.PeerID, t proto.MessageType, id proto.TaskID, e *proto.Envelope, after func())
	// Forget is called when the outcome of a run here is no longer needed.
	Forget(id proto.TaskID, o *proto.Outcome)
}

// A Mover transfers the custody of tasks between homes.
type Mover interface {
	// Check verifies a task that an old home hands over, as its origin signed it, and
	// returns its description. It is called by many goroutines.
	Check(from proto.PeerID, m *proto.Handoff) (Task, error)
	// Adopt prepares to take custody of it: into adds that to the batch that makes this
	// node its home, drop abandons it.
	Adopt(m *proto.Handoff) (into func(*store.Batch), drop func(), err error)
	// HandedOff is called with tasks that their new home has taken.
	HandedOff(ids []proto.TaskID, home proto.PeerID)
}

// A Sealer protects results between owner and home.
type Sealer interface {
	// Seal returns one message for each of 1 to proto.MaxGroup outcomes, in their order.
	Seal(home proto.PeerID, all []SealRequest) ([]*proto.Envelope, error)
	// Unseal verifies and reads a sealed result. With an error it still returns the task,
	// if that can be read.
	Unseal(from proto.PeerID, m *proto.Message) (Unsealed, error)
}

// An Unsealed is a result that was opened.
type Unsealed struct {
	Task    proto.TaskID
	Outcome *proto.Outcome
	Absent  bool // the body of the result is not here yet, or not verified
}

// A SealRequest is an outcome to be sealed.
type SealRequest struct {
	Task    proto.TaskID
	Outcome *proto.Outcome
}

// Settings configure a driver.
type Settings struct {
	Config
	Self   proto.PeerID
	Boot   uint64       // boot number of this start
	BootID proto.BootID // of this start

	Events        func([]Event)             // called with events that are durable; must not block
	Orphan        func([]Orphan)            // likewise, with results that do not count
	Queue         func(name string)         // likewise, with a queue, or another name with a home, that has changed
	OnMisbehavior func(proto.PeerID, error) // called with a peer whose message asks for records that cannot be stored; must not block
	Fail          func(point string) error  // tests: an error at a point stops the driver there, see the Point constants
	Clock         clock.Clock               // default clock.System()
	Logger        *slog.Logger              // default: none
}

// A Driver runs a [Home] and an [Owner]: it feeds them one input at a time, commits what
// all waiting inputs ask for in one step, and performs the rest once that is durable.
// Messages of this node to itself come back as inputs.
//
//	messages, ticks, requests ─▶ inputs ─▶ Home, Owner ─▶ one batch ─▶ send, start, stop, report
//
// Its methods are safe for concurrent use. They need a running [Driver.Run].
type Driver struct {
	store *store.Store
	parts Parts
	cfg   Settings
	home  *Home
	owner *Owner

	inputs    chan func()
	quota     inputQuota    // places and bytes in inputs, by sender
	done      chan struct{} // closed when Run has returned
	published atomic.Pointer[snapshot]

	pending     pendingOutput
	sender      proto.PeerID // of the current message; zero: none
	homeInvalid bool         // the home has records that the store rejected; see rebuildHome
	starts      starts
	records     runRecords
	received    map[proto.TaskID]*proto.Outcome // results received in this step
	selfSent    []selfMessage                   // messages of this node to itself
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
	done    map[proto.TaskID]*proto.Outcome  // results of runs here that are no longer needed
	with    []func(*store.Batch)             // custody of tasks that arrived
	arrived map[string][]byte                // records of those tasks as they arrived, by key
	bytes   int                              // of the writes, and of what is written with them
	after   []func(error)
}

// ErrStopped is returned for a request to a driver that has stopped.
var ErrStopped = errors.New("ownership: the node is stopping")

// maxInputs is how many inputs may be queued.
const maxInputs = 4096

// tickEvery is the interval of ticks.
const tickEvery = time.Second

// Open returns the driver for the state in s. It starts nothing.
func Open(s *store.Store, with Parts, cfg Settings) (*Driver, error) {
	if cfg.Clock.IsZero() {
		cfg.Clock = clock.System()
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	d := &Driver{
		store: s, parts: with, cfg: cfg, home: NewHome(cfg.Self, cfg.Boot, cfg.Config), owner: NewOwner(cfg.BootID, cfg.Config),
		inputs: make(chan func(), maxInputs), done: make(chan struct{}),
		starts:   starts{map[proto.TaskID]receivedGrant{}, map[proto.TaskID]chan Start{}, map[proto.TaskID]bool{}},
		records:  runRecords{map[proto.TaskID]Policy{}, map[proto.TaskID]probe{}, map[proto.TaskID]result{}, map[proto.PeerID]int{}},
		received: map[proto.TaskID]*proto.Outcome{},
	}
	d.pending.reset()
	if err := d.load(); err != nil {
		return nil, fmt.Errorf("open the leases: %w", err)
	}
	d.publish()
	return d, nil
}

func (d *Driver) now() Now {
	c := d.cfg.Clock
	return Now{Wall: c.Now().UnixMilli(), Mono: c.Mono(), Boot: c.Boot(), Doubted: c.Doubted()}
}

// Run runs the driver until ctx is done or the store fails. After a failure it must be
// opened again.
func (d *Driver) Run(ctx context.Context) error {
	defer close(d.done)
	defer d.releaseAll()
	tick := d.cfg.Clock.Ticker(tickEvery)
	defer tick.Stop()
	d.merge(d.home.Begin(d.now()))
	d.merge(d.owner.Begin(d.records.policy, d.now()))
	for id := range d.records.policies {
		d.records.prune(&d.pending, id, d.owner.runs[id])
	}
	for id := range d.records.results {
		d.records.prune(&d.pending, id, d.owner.runs[id])
	}
	for all := true; ; {
		err := d.flush(ctx, all || d.homeInvalid)
		switch {
		case ctx.Err() != nil:
			return nil // what was not written is recovered at the next start
		case errors.Is(err, ErrStopped):
			d.cfg.Logger.Error("the node stops while the end of a queued task waits: the leases of this node are not released", "err", err)
			return nil
		case err != nil:
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

// Limits of one step, in inputs and in bytes to write: with the last input it still fits
// into one batch.
const (
	maxStepInputs = 512
	maxStepBytes  = maxOutput
)

// drain takes the other waiting inputs.
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

// enqueue queues an input. It returns false when the driver has stopped.
func (d *Driver) enqueue(ctx context.Context, in func()) bool {
	select {
	case d.inputs <- in:
		return true
	case <-d.done:
	case <-ctx.Done():
	}
	return false
}

// do runs f between two inputs, and returns once what it asked for is durable.
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

// call runs f between two inputs and returns its result. If the caller gives up before
// that, f may still run.
func call[T any](ctx context.Context, d *Driver, f func() T) (T, error) {
	found := make(chan T, 1)
	if err := d.do(ctx, func() { found <- f() }); err != nil {
		return *new(T), err
	}
	return <-found, nil
}

// load restores the state machines from disk.
func (d *Driver) load() error {
	pieces := map[string][][]byte{} // of results and probes, by prefix and task
	err := d.loadHome(func(key string, val []byte) error {
		switch {
		case key[0] == keyPolicy && len(key) == 17 && len(val) == 1:
			d.records.policies[proto.TaskID([]byte(key[1:]))] = Policy(val[0])
		case (key[0] == keyResult || key[0] == keyProbe) && len(key) == 18:
			pieces[key[:17]] = append(pieces[key[:17]], val)
		}
		return d.owner.Load(key, val)
	})
	if err != nil {
		return err
	}
	return d.records.join(pieces, d.owner.runs)
}

// loadHome restores the home from disk and calls also with each record.
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

// rebuildHome restores the home from disk, as a start of the node does, after the store
// rejected one of its records and before any output depends on it. Handlers keep running.
func (d *Driver) rebuildHome() error {
	old := d.home
	d.homeInvalid, d.home = false, NewHome(d.cfg.Self, d.cfg.Boot, d.cfg.Config)
	if err := d.loadHome(func(string, []byte) error { return nil }); err != nil {
		return err
	}
	d.home.members, d.home.active = old.members, old.active
	d.merge(d.home.Begin(d.now()))
	d.publish()
	return nil
}

// Results calls f with each outcome that its home has not answered yet. It must be called
// before [Driver.Run].
func (d *Driver) Results(f func(id proto.TaskID, o *proto.Outcome)) {
	for id, x := range d.records.results {
		f(id, x.outcome)
	}
}

// PendingProbes calls f with each task whose handler will be probed about an earlier start.
// It must be called before [Driver.Run].
func (d *Driver) PendingProbes(f func(proto.TaskID, *proto.Grant)) {
	for id, p := range d.records.probes {
		f(id, p.grant)
	}
}

// A snapshot of the names with homes can be read without a request. It must not be changed.
type snapshot struct {
	states map[string]*proto.QueueState // of queues
	deeds  map[string][]proof           // of queues
	titles map[string]*proto.QueueState // of other names
}

func (d *Driver) publish() {
	all := &snapshot{map[string]*proto.QueueState{}, map[string][]proof{}, map[string]*proto.QueueState{}}
	for name, t := range d.home.titles.byName {
		switch {
		case t.state == nil:
		case proto.NamesQueue(name):
			all.states[name], all.deeds[name] = proto.Clone(t.state), slices.Clone(t.deeds)
		default:
			all.titles[name] = t.state // which is replaced, never changed
		}
	}
	d.published.Store(all)
}

// QueueStates returns what is known about queues, by name. It must not be changed.
func (d *Driver) QueueStates() map[string]*proto.QueueState { return d.published.Load().states }

// Titles returns what is known about the homes of mailboxes and topics, by their whole
// names. It must not be changed.
func (d *Driver) Titles() map[string]*proto.QueueState { return d.published.Load().titles }

// WasHome reports whether p is, or once was, the home of a queue, as far as is known here.
func (d *Driver) WasHome(name string, p proto.PeerID) bool {
	all := d.published.Load()
	return (&title{state: all.states[name], deeds: all.deeds[name]}).wasHome(p)
}

// releaseAll releases the goroutines that would wait forever.
func (d *Driver) releaseAll() {
	for id := range d.starts.waiters {
		d.starts.release(id)
	}
	for _, f := range d.pending.after {
		f(ErrStopped)
	}
}

// maxParallelBatches is how many batches of one step are written concurrently: enough for
// the store to group many in one commit.
const maxParallelBatches = 256

// runAll runs the functions concurrently and returns the first error.
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
