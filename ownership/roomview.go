package ownership

import (
	"context"
	"slices"
	"time"

	"github.com/balefire/balefire/ownership/dispatch"
	"github.com/balefire/balefire/proto"
)

// A LeaseView is a lease as this node sees it: one that it gave, or one that it has.
type LeaseView struct {
	Task               proto.TaskID
	Queue, Kind        string
	Home               bool         // this node gave it
	Peer               proto.PeerID // the other side
	State              string       // of the task at its home; how far it came at its owner
	Epoch              proto.Seq
	Attempts, Abandons uint32
	Cancel, Lapsed     bool
	Permitted          bool          // at its home: it may have been started, and may be once only
	Fetching           bool          // at its owner: its body is awaited
	Unknown            bool          // at its owner: its home says that it does not know the task
	Left               time.Duration // until it ends unless it is renewed
	GrantedMs          int64         // Unix milliseconds; 0: not known here
}

// Leases returns those that match, nil all: the ones that this node gave, then the
// ones that it has.
func (r *Room) Leases(ctx context.Context, match func(LeaseView) bool, limit int) ([]LeaseView, error) {
	return asked(ctx, r, func() (all []LeaseView) {
		take := func(v LeaseView) {
			if len(all) < limit && (match == nil || match(v)) {
				all = append(all, v)
			}
		}
		now := r.now()
		for e := r.home.live.Front(); e != nil; e = e.Next() {
			if c := e.Value.(*cell); !c.free() {
				take(c.view(now))
			}
		}
		for e := r.owner.live.Front(); e != nil; e = e.Next() {
			if x := e.Value.(*run); x.phase != proto.LeaseClosed {
				take(x.view(now))
			}
		}
		return all
	})
}

func (c *cell) view(now Now) LeaseView {
	v := LeaseView{
		Task: c.task.ID, Queue: c.task.Queue, Kind: c.task.Kind, Home: true, Peer: c.owner, State: c.state.Name(), Epoch: c.epoch,
		Attempts: c.attempts, Abandons: c.abandons, Cancel: c.cancel, Lapsed: c.place.lapsed, Permitted: c.permitted(), Left: c.place.until - now.Mono,
	}
	if n := len(c.grants); n > 0 {
		v.GrantedMs = c.grants[n-1].TimeMs
	}
	return v
}

func (x *run) view(now Now) LeaseView {
	phase := x.phase.String()[len("LEASE_PHASE_"):]
	return LeaseView{Task: x.task, Queue: x.queue, Peer: x.home, State: phase, Epoch: x.epoch, Attempts: x.attempt, Cancel: x.mem.stopped, Lapsed: now.Boot >= x.mem.until, Left: x.mem.until - now.Boot, Fetching: x.mem.fetches, Unknown: x.mem.unknown > 0}
}

// A QueueView is a queue as its home sees it.
type QueueView struct {
	Waiting, Owned, Going int
	Untold                bool // it was given away, and its new home has not said that it knows
	Members               []MemberView
	Blocked               []LaneView // lanes that stand still, by their keys
}

// A LaneView is a lane that stands still because its head died.
type LaneView struct {
	Key    string
	Origin proto.PeerID // zero: of all origins
	Died   proto.TaskID // zero: not known any more
	Waits  int          // tasks in it
}

// A MemberView is a node that could work on a queue.
type MemberView struct {
	dispatch.Member
	Owned int
}

// Counts are the tasks whose cells are here, by queue, and the leases that are not over,
// by owner.
type Counts struct {
	Queues map[string]QueueView // without members
	Owners map[proto.PeerID]int
}

// Counts counts everything at once.
func (r *Room) Counts(ctx context.Context) (Counts, error) {
	return asked(ctx, r, func() Counts {
		c := Counts{map[string]QueueView{}, map[proto.PeerID]int{}}
		for e := r.home.live.Front(); e != nil; e = e.Next() {
			x := e.Value.(*cell)
			v := c.Queues[x.task.Queue]
			if x.leased() {
				v.Owned++
				c.Owners[x.owner]++
			} else {
				v.Waiting++
			}
			c.Queues[x.task.Queue] = v
		}
		for e := r.home.going.Front(); e != nil; e = e.Next() {
			g := e.Value.(*gone)
			v := c.Queues[g.queue]
			v.Going++
			c.Queues[g.queue] = v
		}
		return c
	})
}

// Queue looks at a queue.
func (r *Room) Queue(ctx context.Context, name string) (QueueView, error) {
	return asked(ctx, r, func() (v QueueView) {
		q := r.home.queues[name]
		if q == nil {
			return v
		}
		if q.stale {
			r.home.remake(q)
		}
		for e := r.home.live.Front(); e != nil; e = e.Next() {
			switch c := e.Value.(*cell); {
			case c.place.queue != q:
			case c.leased():
				v.Owned++
			default:
				v.Waiting++
			}
		}
		v.Untold = q.gave && !q.told && !q.here(r.cfg.Self)
		for e := r.home.going.Front(); e != nil; e = e.Next() {
			if e.Value.(*gone).queue == name {
				v.Going++
			}
		}
		for _, m := range q.members {
			v.Members = append(v.Members, MemberView{*m, q.usage.On(m.Peer)})
		}
		for _, b := range q.blocks() {
			l := q.lanes[laneKeyFrom(b.Origin, b.Key)]
			v.Blocked = append(v.Blocked, LaneView{Key: b.Key, Origin: l.key.origin, Died: l.died, Waits: len(l.tasks)})
		}
		return v
	})
}

// A TaskView is what the home of a task knows of it beside its record.
type TaskView struct {
	LeaseView
	Leased, Paused, Turn, Active bool // Turn: it is its turn in its lane; Active: this node may grant
	Blocked                      bool // its lane stands still: its head died
	Class                        proto.Class
	Due                          time.Duration
	Reason                       string
	Grants                       []*proto.Granting
	Serve, Could                 int // members that serve its kind; those that have room now
	Shy                          int // of those that serve it, how many asked for a pause
}

// Task looks at a task whose cell is here.
func (r *Room) Task(ctx context.Context, id proto.TaskID) (v TaskView, known bool, err error) {
	found, err := asked(ctx, r, func() *TaskView {
		c := r.home.cells[id]
		if c == nil {
			return nil
		}
		now, q := r.now(), c.place.queue
		v := &TaskView{
			LeaseView: c.view(now), Leased: c.leased(), Paused: q.state.GetPaused(), Turn: r.home.next(c), Active: r.home.active,
			Blocked: c.place.lane != nil && c.place.lane.blocked, Class: c.task.Class,
			Due: r.home.untilDue(c), Reason: c.reason, Grants: slices.Clone(c.grants),
		}
		v.Could = len(r.home.candidates(q, c))
		for _, m := range q.members {
			if m.Alive && !m.Draining && slices.Contains(m.Kinds, c.task.Kind) && !slices.ContainsFunc(c.task.Labels, func(l string) bool { return !contains(m.Labels, l) }) {
				v.Serve++
				if n := r.home.nodes[m.Peer]; n != nil && (now.Mono < n.shy[c.task.Kind] || now.Mono < n.shy[""]) {
					v.Shy++
				}
			}
		}
		return v
	})
	if found == nil {
		return v, false, err
	}
	return *found, true, err
}

// Idle counts what this node still has as an owner: handlers at work, and ends of
// leases that their homes have not answered.
func (r *Room) Idle(ctx context.Context) (running, unsaid int, err error) {
	n, err := asked(ctx, r, func() (n struct{ running, unsaid int }) {
		n.running = len(r.alive)
		for e := r.owner.live.Front(); e != nil; e = e.Next() {
			switch x := e.Value.(*run); x.phase {
			case proto.LeaseReleased:
				n.unsaid++
			case proto.LeaseFinished:
				if !x.orphan { // a result that does not count is kept for long
					n.unsaid++
				}
			}
		}
		return n
	})
	return n.running, n.unsaid, err
}

// A Past is what this node remembers of a task of a queue that is not here any more.
type Past struct {
	State proto.TaskState // how it ended here; unspecified: it went to another home
	Peer  proto.PeerID    // who had its newest lease, zero if nobody ever; or the other home
	Epoch proto.Seq       // of that lease

	Going   bool   // it is on its way to the other home, which has not answered yet
	Refused string // why that home did not take it when it was sent last; empty: it did not say
}

// Past looks for a task that ended here, or went to another home.
func (r *Room) Past(ctx context.Context, id proto.TaskID) (p Past, known bool, err error) {
	found, err := asked(ctx, r, func() *Past {
		if g := r.home.moved[id]; g != nil {
			return &Past{Peer: g.home, Going: g.lease != nil, Refused: g.refused}
		}
		if e := r.home.ended[id]; e != nil {
			x := e.Value.(*ended)
			return &Past{State: x.state, Peer: x.owner, Epoch: x.epoch}
		}
		return nil
	})
	if found == nil {
		return p, false, err
	}
	return *found, true, err
}
