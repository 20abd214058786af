package ownership

import (
	"context"
	"slices"
	"time"

	"github.com/balefire/balefire/ownership/dispatch"
	"github.com/balefire/balefire/proto"
)

// A LeaseView is a lease as this node sees it, as a home or as an owner.
type LeaseView struct {
	Task               proto.TaskID
	Queue, Kind        string
	Home               bool         // this node granted it
	Peer               proto.PeerID // the other side
	State              string       // of the task at its home; of the run at its owner
	Epoch              proto.Seq
	Attempts, Abandons uint32
	Cancel, Lapsed     bool
	Permitted          bool          // at its home: the task may have started, and may be started only once
	Running            bool          // at its owner: a handler of this process was started for it
	Fetching           bool          // at its owner: waiting for the body
	Unknown            bool          // at its owner: the home does not know the task
	Left               time.Duration // until it expires unless it is renewed
	GrantedMs          int64         // Unix milliseconds; 0: unknown
}

// Leases returns up to limit leases that match, or any with nil: first those that this node
// granted, then those that it has.
func (d *Driver) Leases(ctx context.Context, match func(LeaseView) bool, limit int) ([]LeaseView, error) {
	return call(ctx, d, func() (all []LeaseView) {
		take := func(v LeaseView) {
			if len(all) < limit && (match == nil || match(v)) {
				all = append(all, v)
			}
		}
		now := d.now()
		for ts := range each[*taskState](d.home.live) {
			if !ts.free() {
				take(ts.view(now))
			}
		}
		for x := range each[*run](d.owner.live) {
			if x.phase != proto.LeaseClosed {
				take(x.view(now))
			}
		}
		return all
	})
}

func (ts *taskState) view(now Now) LeaseView {
	v := LeaseView{
		Task: ts.task.ID, Queue: ts.task.Queue, Kind: ts.task.Kind, Home: true, Peer: ts.owner, State: ts.state.Name(), Epoch: ts.epoch,
		Attempts: ts.attempts, Abandons: ts.abandons, Cancel: ts.cancel, Lapsed: ts.mem.lapsed, Permitted: ts.permitted(), Left: ts.mem.leaseUntil - now.Mono,
	}
	if n := len(ts.grants); n > 0 {
		v.GrantedMs = ts.grants[n-1].TimeMs
	}
	return v
}

func (x *run) view(now Now) LeaseView {
	phase := x.phase.String()[len("LEASE_PHASE_"):]
	return LeaseView{Task: x.claim.task, Queue: x.queue, Peer: x.home, State: phase, Epoch: x.claim.epoch, Attempts: x.attempt, Cancel: x.mem.stopped, Lapsed: now.Boot >= x.mem.leaseUntil, Left: x.mem.leaseUntil - now.Boot, Running: x.mem.alive, Fetching: x.mem.fetching, Unknown: x.mem.unknownSince > 0}
}

// A QueueView is a queue as its home sees it.
type QueueView struct {
	Waiting, Owned, Going int
	Unannounced           bool // it was handed over, and its new home has not confirmed that
	Members               []MemberView
	Blocked               []LaneView // blocked lanes, ordered by key
}

// A LaneView is a lane that is blocked because its head failed.
type LaneView struct {
	Key      string
	Origin   proto.PeerID // zero: all origins
	DeadHead proto.TaskID // zero: unknown
	Waiting  int          // tasks in it
}

// A MemberView is a node that could work for a queue.
type MemberView struct {
	dispatch.Member
	Owned int
}

// Counts holds the number of tasks here by queue, and of leases that are not over by owner.
type Counts struct {
	Queues map[string]QueueView // without members
	Owners map[proto.PeerID]int
	// Rescued is how often a task of class low was granted because it had waited too long.
	Rescued uint64
}

// Counts counts everything at once.
func (d *Driver) Counts(ctx context.Context) (Counts, error) {
	return call(ctx, d, func() Counts {
		c := Counts{Queues: map[string]QueueView{}, Owners: map[proto.PeerID]int{}, Rescued: d.home.rescued}
		for x := range each[*taskState](d.home.live) {
			v := c.Queues[x.task.Queue]
			if x.leased() {
				v.Owned++
				c.Owners[x.owner]++
			} else {
				v.Waiting++
			}
			c.Queues[x.task.Queue] = v
		}
		for entry := range each[*handoffEntry](&d.home.transit.open) {
			v := c.Queues[entry.queue]
			v.Going++
			c.Queues[entry.queue] = v
		}
		return c
	})
}

// Queue returns a view of a queue.
func (d *Driver) Queue(ctx context.Context, name string) (QueueView, error) {
	return call(ctx, d, func() (v QueueView) {
		q := d.home.queues[name]
		if q == nil {
			return v
		}
		q.refreshMembers(&d.home.members)
		for ts := range each[*taskState](&q.tasks) {
			if ts.leased() {
				v.Owned++
			} else {
				v.Waiting++
			}
		}
		v.Unannounced = q.handedOff && !q.title.announced && !q.title.isHome(d.cfg.Self)
		for entry := range each[*handoffEntry](&d.home.transit.open) {
			if entry.queue == name {
				v.Going++
			}
		}
		for _, m := range q.members {
			v.Members = append(v.Members, MemberView{*m, q.usage.OwnedBy(m.Peer)})
		}
		for _, b := range q.blocks() {
			l := q.lanes[laneKeyFrom(b.Origin, b.Key)]
			v.Blocked = append(v.Blocked, LaneView{Key: b.Key, Origin: l.key.origin, DeadHead: l.deadHead, Waiting: len(l.tasks)})
		}
		return v
	})
}

// A TaskView is what the home of a task knows about it besides its record.
type TaskView struct {
	LeaseView
	Leased, Paused, AtHead, Active bool // AtHead: it is next in its lane; Active: this node may grant
	Blocked                        bool // its lane is blocked: the head failed
	Class                          proto.Class
	Due                            time.Duration
	Reason                         string
	Grants                         []*proto.Granting
	Serving, Available             int // members that serve its kind; members that could take it now
	BackedOff                      int // members that serve it and are backed off
}

// Task returns a view of a task that is here.
func (d *Driver) Task(ctx context.Context, id proto.TaskID) (v TaskView, known bool, err error) {
	found, err := call(ctx, d, func() *TaskView {
		ts := d.home.tasks[id]
		if ts == nil {
			return nil
		}
		now, q := d.now(), ts.mem.queue
		v := &TaskView{
			LeaseView: ts.view(now), Leased: ts.leased(), Paused: q.title.state.GetPaused(), AtHead: ts.isNext(d.home.now, &d.home.members), Active: d.home.active,
			Blocked: ts.mem.lane != nil && ts.mem.lane.blocked, Class: ts.task.Class,
			Due: ts.untilDue(d.home.now), Reason: ts.reason, Grants: slices.Clone(ts.grants),
		}
		v.Available = len(d.home.candidates(q, ts))
		for _, m := range q.members {
			if m.Alive && !m.Draining && slices.Contains(m.Kinds, ts.task.Kind) && dispatch.HasAll(m.Labels, ts.task.Options.GetRequire()) {
				v.Serving++
				if d.home.members.backedOff(m.Peer, ts.task.Kind, now.Mono) {
					v.BackedOff++
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

// Unfinished counts what this node still has as an owner: running handlers, and ended
// leases that their homes have not answered.
func (d *Driver) Unfinished(ctx context.Context) (running, unanswered int, err error) {
	n, err := call(ctx, d, func() (n struct{ running, unanswered int }) {
		n.running = len(d.starts.running)
		for x := range each[*run](d.owner.live) {
			switch x.phase {
			case proto.LeaseReleased:
				n.unanswered++
			case proto.LeaseFinished:
				if !x.orphan { // a result that does not count is kept for a long time
					n.unanswered++
				}
			}
		}
		return n
	})
	return n.running, n.unanswered, err
}

// A FormerTask is what this node remembers of a task of a queue that is not here any more.
type FormerTask struct {
	State proto.TaskState // how it ended here; unspecified: it went to another home
	Peer  proto.PeerID    // the last owner, zero if there was none; or the other home
	Epoch proto.Seq       // of the last lease

	Going   bool       // in transit: the other home has not confirmed it
	Code    proto.Code // with which that home last rejected it; 0: it did not
	Refused string     // the reason that it gave
}

// FormerTask looks up a task that ended here or went to another home.
func (d *Driver) FormerTask(ctx context.Context, id proto.TaskID) (p FormerTask, known bool, err error) {
	found, err := call(ctx, d, func() *FormerTask {
		if entry := d.home.transit.byID[id]; entry != nil {
			return &FormerTask{Peer: entry.home, Going: entry.lease != nil, Code: entry.code, Refused: entry.refused}
		}
		if x := d.home.ended.find(id); x != nil {
			return &FormerTask{State: x.state, Peer: x.owner, Epoch: x.epoch}
		}
		return nil
	})
	if found == nil {
		return p, false, err
	}
	return *found, true, err
}
