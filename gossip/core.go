package gossip

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/balefire/balefire/proto"
)

// A Core decides which members are alive. It has no clock, disk, network or goroutines:
// each input carries the current time, on a monotonic scale, and returns the actions to
// perform. The returned slice is valid until the next input. A Core is not safe for
// concurrent use.
type Core struct {
	self     proto.PeerID
	t        Tuning
	signer   Signer
	received func(proto.PeerID) uint64 // packets from a member so far
	rand     *rand.Rand
	out      []Action

	members         map[proto.PeerID]*member
	tombstones      tombstones
	own             own
	probing         probing
	rumors          rumors
	accusationLimit rateLimit
	recordLimit     rateLimit // of records that lead to an event

	alive, left  int           // members that are ALIVE or SUSPECT, and that left
	full         bool          // an alarm has reported that the member table is full
	suspects     []*member     // not yet declared dead
	recovering   []*member     // alive again, but not yet eligible
	syncs        syncs         // pending exchanges
	timers       timers        // deadlines of periodic work
	counts       Counts        // event counts
	cachedDigest *digest       // nil: must be rebuilt
	lastHeard    time.Duration // time of the last message from any node
	isolated     bool          // as last reported
}

// own is this node's own state.
type own struct {
	incarnation uint64
	revision    uint64
	record      *Update
	health      int                      // 0 to maxHealth, higher is worse; multiplies this node's timeouts
	late        float64                  // share of its probes whose answers come late, smoothed
	accusers    map[proto.PeerID]accuser // nodes that accused this one within the last minute
	accused     time.Duration            // time of the last accusation by enough nodes; 0: never
}

// timers holds the deadlines of periodic work.
type timers struct {
	root, sync, prune time.Duration
	reannounce        time.Duration // when the node publishes its refutation again
	lastInput         time.Duration // time of the last input
	next              time.Duration // the earliest deadline: when Tick must be called
}

// Counts holds event counts since the start. The simulation test fails if one of them
// stays 0.
type Counts struct {
	Probes, Helped, Indirect, Acks, Misses uint64 // direct; made for others; requested from helpers; answered; unanswered
	Slow                                   uint64 // of those unanswered, by members whose packets arrive
	Suspicions, Confirmations, Verdicts    uint64
	Postponed                              uint64 // verdicts, because packets of the member arrive
	Refutations                            uint64 // of suspicions by this node: false alarms
	OwnRefutations                         uint64
	Returns                                uint64 // from DEAD
	Suppressed                             uint64
	Pruned, StaleDead                      uint64 // members forgotten; updates rejected because of a tombstone
	Pauses                                 uint64 // of this node, detected by itself
	Throttled                              uint64 // accusations and records ignored by the rate limit
	Stale                                  uint64 // updates that were already known
	UnknownIncarnation                     uint64 // accusations of an incarnation unknown here
	Refused                                uint64 // members rejected because the table was full
}

// NewCore returns a core that knows only itself. incarnation must be higher than that of
// any earlier start. received returns how many packets have come from a member over its
// present connections, acknowledgments included; a constant is allowed.
func NewCore(self proto.PeerID, incarnation uint64, now time.Duration, t Tuning, v Signer, received func(proto.PeerID) uint64, r *rand.Rand) *Core {
	c := &Core{self: self, t: t, signer: v, received: received, rand: r, members: make(map[proto.PeerID]*member)}
	c.own = own{incarnation: incarnation, revision: 1, accusers: make(map[proto.PeerID]accuser)}
	c.own.record = v.Record(incarnation, 1)
	c.tombstones.init()
	c.rumors.init()
	c.accusationLimit.init()
	c.recordLimit.init()
	c.lastHeard, c.timers.lastInput, c.timers.reannounce = now, now, never
	c.timers.root = now + c.jitter(c.t.SyncInterval)
	c.timers.sync = now + c.jitter(c.t.SyncInterval)
	c.timers.prune = now + c.t.PruneInterval
	c.probing.due = now + c.jitter(c.t.ProbeInterval)
	c.plan()
	return c
}

// Next returns when Tick must be called.
func (c *Core) Next() time.Duration { return c.timers.next }

// jitter returns a random duration up to d.
func (c *Core) jitter(d time.Duration) time.Duration {
	return time.Duration(c.rand.Float64() * float64(d))
}

// begin and end enclose each input. begin detects a pause of this node: the input may
// have waited as long.
func (c *Core) begin(now time.Duration) {
	c.out = c.out[:0]
	late := now - max(c.timers.next, c.timers.lastInput)
	c.timers.lastInput = now
	if late > c.t.ProbeInterval/2 && !c.t.Plain {
		c.afterPause(now, late)
	}
}

func (c *Core) end(now time.Duration) []Action {
	if cut := c.Isolated(now); cut != c.isolated {
		c.isolated = cut
		c.emit(Event{Kind: Isolation, Peer: c.self, On: cut, Incarnation: c.own.incarnation})
	}
	c.plan()
	return c.out
}

func (c *Core) do(a Action)  { c.out = append(c.out, a) }
func (c *Core) emit(e Event) { c.out = append(c.out, Action{Kind: DoEvent, Event: &e}) }

// rootEvery is the minimum time between two published roots, of all members: each crosses
// every link several times.
const rootEvery = 4 * time.Second

// Tick performs the work due at now.
func (c *Core) Tick(now time.Duration) []Action {
	c.begin(now)
	c.tickProbes(now)
	c.tickSuspects(now)
	c.tickRecovering(now)
	if now >= c.timers.root {
		every := max(c.t.SyncInterval, time.Duration(c.alive)*rootEvery)
		c.timers.root = now + every*9/10 + c.jitter(every/5)
		c.do(Action{Kind: DoRoot})
	}
	if now >= c.timers.sync {
		c.timers.sync = now + c.t.SyncInterval*9/10 + c.jitter(c.t.SyncInterval/5)
		c.syncRandom(now)
	}
	if now >= c.timers.prune {
		c.timers.prune = now + c.t.PruneInterval
		c.prune(now, c.t.PruneAge, c.t.PruneLimit)
	}
	if now >= c.timers.reannounce {
		c.timers.reannounce = never
		c.do(Action{Kind: DoPublish, Updates: []*Update{c.own.record}})
	}
	c.tickSyncs(now)
	return c.end(now)
}

// plan computes when Tick must be called.
func (c *Core) plan() {
	next := min(c.timers.root, c.timers.sync, c.timers.prune, c.timers.reannounce, c.probing.next(), c.syncs.next())
	for _, m := range c.suspects {
		next = min(next, m.suspicion.deadline)
	}
	for _, m := range c.recovering {
		next = min(next, m.eligibleAt)
	}
	c.timers.next = next
}

// afterPause compensates for a time in which this node did not run. Messages could not be
// read during the pause, so no other node is to blame, and queued messages must be
// processed first. Others may have missed this node: it announces that it is alive before
// they ask.
func (c *Core) afterPause(now, late time.Duration) {
	c.counts.Pauses++
	grace := late + c.t.ProbeInterval
	for _, m := range c.suspects {
		m.suspicion.start += grace
		m.suspicion.deadline += grace
	}
	c.probing.postpone(grace)
	c.degrade(1 + int(late/(4*c.t.ProbeInterval)))
	if late > 2*c.t.ProbeInterval {
		c.refute(now)
	}
}

// Introduced adds p as a member of the mesh, with unknown liveness.
func (c *Core) Introduced(now time.Duration, p proto.PeerID) []Action {
	c.begin(now)
	c.row(p)
	return c.end(now)
}

// Forgotten removes p, which is no longer a member: it was revoked, or forgotten by an
// operator.
func (c *Core) Forgotten(now time.Duration, p proto.PeerID) []Action {
	c.begin(now)
	if m := c.members[p]; m != nil {
		c.remove(m)
	}
	return c.end(now)
}

// Connected reports that p is reachable now and requests an exchange with it.
func (c *Core) Connected(now time.Duration, p proto.PeerID) []Action {
	c.begin(now)
	if m := c.row(p); m != nil {
		m.connected = true
		c.requestSync(now, m, true)
	}
	return c.end(now)
}

// Disconnected reports that p is no longer reachable.
func (c *Core) Disconnected(now time.Duration, p proto.PeerID) []Action {
	c.begin(now)
	if m := c.members[p]; m != nil {
		m.connected = false
	}
	return c.end(now)
}

// Busy sets whether this node has work for p. Busy peers are probed more often.
func (c *Core) Busy(now time.Duration, p proto.PeerID, busy bool) []Action {
	c.begin(now)
	if m := c.members[p]; m != nil && m.busy != busy {
		m.busy = busy
		c.probing.setBusy(m, busy)
	}
	return c.end(now)
}

// Updates applies updates received from another node through the topic or an exchange.
func (c *Core) Updates(now time.Duration, from proto.PeerID, updates []*Update) []Action {
	c.begin(now)
	c.lastHeard = now
	c.learn(now, from, updates)
	return c.end(now)
}

// Revise signs this node's record again, after its description changed, and publishes it.
func (c *Core) Revise(now time.Duration) []Action {
	c.begin(now)
	c.own.revision++
	c.announce()
	return c.end(now)
}

// announce signs this node's own record and spreads it.
func (c *Core) announce() {
	before := c.own.record
	c.own.record = c.signer.Record(c.own.incarnation, c.own.revision)
	c.cachedDigest = nil
	if c.own.record.Incarnation > before.Incarnation || !sameDescription(before.Record, c.own.record.Record) {
		c.rumors.add(c.own.record)
	}
	c.do(Action{Kind: DoPublish, Updates: []*Update{c.own.record}})
}

// refute announces that this node is alive, twice: a message may be lost, and a node that
// misses it reaches a wrong verdict.
func (c *Core) refute(now time.Duration) {
	c.own.incarnation++
	c.announce()
	if !c.t.Plain {
		c.timers.reannounce = now + c.t.ProbeInterval/10
	}
}

// row returns the member p, adding it if there is room. It returns nil for this node
// itself.
func (c *Core) row(p proto.PeerID) *member {
	m := c.members[p]
	if m != nil || p == c.self || p.IsZero() {
		return m
	}
	if len(c.members) >= c.t.MaxMembers {
		c.rejectMember(p)
		return nil
	}
	m = &member{id: p}
	c.members[p] = m
	return m
}

// rejectMember counts a member for which there is no room. It raises an alarm once, until
// there is room again.
func (c *Core) rejectMember(p proto.PeerID) {
	c.counts.Refused++
	if !c.full {
		c.full = true
		c.emit(Event{Kind: Alarm, Peer: p, Cause: fmt.Sprintf("the member table is full (%d members): further members are not monitored and get no shared work; forget members that are gone, and revoke the admin that admits too many", len(c.members))})
	}
}
