package gossip

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/balefire/balefire/proto"
)

// A Core decides who is alive. It has no clock, disk, network or goroutine: each
// input says what happened and when (since some fixed moment, never going back), and
// returns what to do about it. The actions are good until the next input. It is not
// safe for concurrent use.
type Core struct {
	self   proto.PeerID
	t      Tuning
	signer Signer
	rand   *rand.Rand
	out    []Action

	members         map[proto.PeerID]*member
	tombstones      tombstones
	own             own
	probing         probing
	rumors          rumors
	accusationLimit accusationLimit

	census
	suspects     []*member     // whose time to refute runs
	recovering   []*member     // back, but without new work yet
	syncs        syncs         // exchanges that are due
	timers       timers        // what comes back regularly
	counts       Counts        // what happened
	cachedDigest *digest       // of the digest; nil: to be made again
	lastHeard    time.Duration // when any node last spoke to this one
	isolated     bool          // as the last event said
}

// census counts the members that are ALIVE or SUSPECT, and those that said that they
// stop. full: an alarm told that there is no room for more.
type census struct {
	alive, left int
	full        bool
}

// own is what the node says of itself.
type own struct {
	incarnation uint64
	revision    uint64
	record      *Update
	health      int                      // 0 is good, maxHealth is bad: multiplies own timeouts
	accusers    map[proto.PeerID]accuser // of this node itself, of the last minute
	accused     time.Duration            // when it last was, by enough others; 0: never
}

// timers holds when what comes back regularly is due.
type timers struct {
	root, sync, prune time.Duration
	reannounce        time.Duration // the node says once more that it is alive
	lastInput         time.Duration // when the last input came
	next              time.Duration // the earliest of everything: when Tick wants to be called
}

// Counts counts what happened since the start. A test of situations fails when one
// of them stays 0.
type Counts struct {
	Probes, Helped, Indirect, Acks, Misses uint64 // direct probes; those made for others; asked of helpers; answered; not
	Suspicions, Confirmations, Verdicts    uint64
	Refutations                            uint64 // by others: false alarms
	OwnRefutations                         uint64
	Returns                                uint64 // from the dead
	Suppressed                             uint64
	Pruned, StaleDead                      uint64 // rows forgotten; news refused because of a forgotten row
	Pauses                                 uint64 // of this node, noticed by itself
	Throttled                              uint64 // accusations that were ignored: too many by one accuser
	Stale                                  uint64 // news that was known
	UnknownIncarnation                     uint64 // accusations of an incarnation that is not known here
	Refused                                uint64 // members for whom there was no row
}

// NewCore returns a core that knows only itself. boot makes its incarnation higher than
// that of any earlier start.
func NewCore(self proto.PeerID, incarnation uint64, now time.Duration, t Tuning, v Signer, r *rand.Rand) *Core {
	c := &Core{self: self, t: t.withDefaults(), signer: v, rand: r, members: make(map[proto.PeerID]*member)}
	c.own = own{incarnation: incarnation, revision: 1, accusers: make(map[proto.PeerID]accuser)}
	c.own.record = v.Record(incarnation, 1)
	c.tombstones.init()
	c.rumors.init()
	c.accusationLimit.init()
	c.lastHeard, c.timers.lastInput, c.timers.reannounce = now, now, never
	c.timers.root = now + c.jitter(c.t.SyncInterval)
	c.timers.sync = now + c.jitter(c.t.SyncInterval)
	c.timers.prune = now + c.t.PruneInterval
	c.probing.due = now + c.jitter(c.t.ProbeInterval)
	c.plan()
	return c
}

// Next returns when Tick wants to be called.
func (c *Core) Next() time.Duration { return c.timers.next }

// jitter returns a random time up to d.
func (c *Core) jitter(d time.Duration) time.Duration {
	return time.Duration(c.rand.Float64() * float64(d))
}

// begin and end frame each input. The first one after a pause of this node finds it,
// whichever it is: what it brings may have waited as long.
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

// Tick does what is due at now.
func (c *Core) Tick(now time.Duration) []Action {
	c.begin(now)
	c.tickProbes(now)
	c.tickSuspects(now)
	c.tickRecovering(now)
	if now >= c.timers.root {
		c.timers.root = now + c.t.SyncInterval*9/10 + c.jitter(c.t.SyncInterval/5)
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

// plan sets when Tick wants to be called.
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

// afterPause makes up for a time in which this node did not run: what it waited for could
// not be read, so nobody else is to blame, and what waits at the door comes first. The
// others may have missed it: it says that it is alive before they ask.
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

// Introduced says that p is a member of the mesh. Nothing is said about its being alive.
func (c *Core) Introduced(now time.Duration, p proto.PeerID) []Action {
	c.begin(now)
	c.row(p)
	return c.end(now)
}

// Forgotten says that p is no member any more: revoked, or forgotten by a person.
func (c *Core) Forgotten(now time.Duration, p proto.PeerID) []Action {
	c.begin(now)
	if m := c.members[p]; m != nil {
		c.remove(m)
	}
	return c.end(now)
}

// Connected says that messages can go to p now. What the two know is compared.
func (c *Core) Connected(now time.Duration, p proto.PeerID) []Action {
	c.begin(now)
	if m := c.row(p); m != nil {
		m.connected = true
		c.requestSync(now, m, true)
	}
	return c.end(now)
}

// Disconnected says that messages to p are lost now.
func (c *Core) Disconnected(now time.Duration, p proto.PeerID) []Action {
	c.begin(now)
	if m := c.members[p]; m != nil {
		m.connected = false
	}
	return c.end(now)
}

// Busy says whether there is work for p: it is probed more often then.
func (c *Core) Busy(now time.Duration, p proto.PeerID, busy bool) []Action {
	c.begin(now)
	if m := c.members[p]; m != nil && m.busy != busy {
		m.busy = busy
		c.probing.setBusy(m, busy)
	}
	return c.end(now)
}

// Updates takes news that came by the topic or in an exchange, from somebody.
func (c *Core) Updates(now time.Duration, from proto.PeerID, updates []*Update) []Action {
	c.begin(now)
	c.heardFrom(now, from)
	c.learn(now, from, updates)
	return c.end(now)
}

// Revise says that the node describes itself anew: its record is signed again and
// published.
func (c *Core) Revise(now time.Duration) []Action {
	c.begin(now)
	c.own.revision++
	c.announce()
	return c.end(now)
}

// announce signs the node's own record and spreads it.
func (c *Core) announce() {
	c.own.record = c.signer.Record(c.own.incarnation, c.own.revision)
	c.cachedDigest = nil
	c.rumors.add(c.own.record)
	c.do(Action{Kind: DoPublish, Updates: []*Update{c.own.record}})
}

// refute says that this node is alive, and soon once more: one word may be lost, and
// who misses it comes to the wrong verdict.
func (c *Core) refute(now time.Duration) {
	c.own.incarnation++
	c.announce()
	if !c.t.Plain {
		c.timers.reannounce = now + c.t.ProbeInterval/10
	}
}

// heardFrom notes that p itself sent something.
func (c *Core) heardFrom(now time.Duration, p proto.PeerID) {
	c.lastHeard = now
	if m := c.members[p]; m != nil {
		m.path.heard = now
	}
}

// row returns the row of p, made if there is room; nil for this node itself.
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

// rejectMember tells, once until there is room again, that members are not watched.
func (c *Core) rejectMember(p proto.PeerID) {
	c.counts.Refused++
	if !c.full {
		c.full = true
		c.emit(Event{Kind: Alarm, Peer: p, Cause: fmt.Sprintf("%d members are known, the most that are: further ones are not watched and get no shared work; forget those that are gone, and revoke the admin who lets too many in", len(c.members))})
	}
}
