package gossip

import (
	"math"
	"slices"
	"time"

	"github.com/balefire/balefire/proto"
)

const (
	never = time.Duration(math.MaxInt64)
	// maxHealth is the worst local health score, as in Lifeguard.
	maxHealth = 8
	// degradedHealth is the score at which a node considers itself faulty.
	degradedHealth = 5
	// maxIndirectProbes bounds the concurrent probes that a node makes for others.
	maxIndirectProbes = 64
)

// probing is the state of the probe rounds.
type probing struct {
	number    uint64
	due       time.Duration // when the next direct probe is due
	count     uint          // of probes: every second one goes to a busy member, if there is one
	ring      []*member     // in random order; each member is probed once per round
	at        int
	busyQueue []*member // busy members, round robin
	pending   []*probe
	indirect  []indirectProbe

	rtts []time.Duration // unread round trips
}

// A probe is a direct probe that waits for an answer.
type probe struct {
	number   uint64
	target   *member
	sent     time.Duration
	received uint64        // packets from the target until then; after ask, until that
	ask      time.Duration // when helpers are asked; never: they have been
	end      time.Duration // when it fails
	asked    int           // number of helpers
	helpers  []*member     // those that have not reported a miss
}

// An indirectProbe is a probe that this node makes for another.
type indirectProbe struct {
	number      uint64 // number of this node's probe
	asker       proto.PeerID
	askerNumber uint64 // number of the asker's probe
	target      proto.PeerID
	end         time.Duration
}

// next returns the earliest deadline of p.
func (p *probing) next() time.Duration {
	next := p.due
	for _, o := range p.pending {
		next = min(next, o.ask, o.end)
	}
	for i := range p.indirect {
		next = min(next, p.indirect[i].end)
	}
	return next
}

// postpone moves all deadlines of pending probes.
func (p *probing) postpone(d time.Duration) {
	for _, o := range p.pending {
		o.end += d
		if o.ask != never {
			o.ask += d
		}
	}
	for i := range p.indirect {
		p.indirect[i].end += d
	}
}

func (p *probing) add(m *member, at int) {
	p.ring = append(p.ring, m)
	last := len(p.ring) - 1
	p.ring[at], p.ring[last] = p.ring[last], p.ring[at]
	if m.busy {
		p.busyQueue = append(p.busyQueue, m)
	}
}

func (p *probing) remove(m *member) {
	is := func(o *member) bool { return o == m }
	p.ring = slices.DeleteFunc(p.ring, is)
	p.busyQueue = slices.DeleteFunc(p.busyQueue, is)
	p.pending = slices.DeleteFunc(p.pending, func(o *probe) bool { return o.target == m })
}

func (p *probing) setBusy(m *member, busy bool) {
	p.busyQueue = slices.DeleteFunc(p.busyQueue, func(o *member) bool { return o == m })
	if busy {
		p.busyQueue = append(p.busyQueue, m)
	}
}

// tickProbes asks helpers, times out probes and sends the next one.
func (c *Core) tickProbes(now time.Duration) {
	p := &c.probing
	for i := 0; i < len(p.pending); {
		o := p.pending[i]
		switch {
		case now >= o.end:
			p.pending = slices.Delete(p.pending, i, i+1)
			c.probeFailed(now, o)
			continue
		case now >= o.ask:
			o.ask = never
			if !c.isSlow(now, o) {
				c.askHelpers(o)
			}
			o.received = c.received(o.target.id) // it may have died since it sent those
		}
		i++
	}
	p.indirect = slices.DeleteFunc(p.indirect, func(ch indirectProbe) bool {
		if now < ch.end {
			return false
		}
		c.do(Action{Kind: DoReply, Peer: ch.asker, Number: ch.askerNumber, Target: ch.target, Missed: true})
		return true
	})
	if now >= p.due {
		every := c.interval()
		p.due += every * (1 + (now-p.due)/every) // not later each time by what this tick is late
		c.probe(now)
	}
}

// interval returns the time to the next direct probe: longer if this node's health is
// degraded, shorter if there are busy members.
func (c *Core) interval() time.Duration {
	d := c.t.ProbeInterval
	if len(c.probing.busyQueue) > 0 {
		d /= 2 // every second probe goes to a busy member; the rate for the others is unchanged
	}
	return d * time.Duration(1+c.health())
}

func (c *Core) health() int {
	if c.t.Plain {
		return 0
	}
	return c.own.health
}

// probed records a probe that was answered, and whether that took much longer than usual.
func (o *own) probed(late bool) {
	o.late *= 7.0 / 8
	if late {
		o.late += 1.0 / 8
	}
}

// degrade and improve change the local health score.
func (c *Core) degrade(n int) { c.own.health = min(c.own.health+n, maxHealth) }
func (c *Core) improve()      { c.own.health = max(c.own.health-1, 0) }

// probe sends one direct probe.
func (c *Core) probe(now time.Duration) {
	m := c.nextTarget()
	if m == nil {
		return
	}
	c.counts.Probes++
	timeout := m.path.timeout(c.t.ProbeTimeout) * time.Duration(1+c.health())
	c.probing.number++
	o := &probe{number: c.probing.number, target: m, sent: now, received: c.received(m.id), ask: now + timeout}
	o.end = now + max(3*timeout, c.t.ProbeInterval*time.Duration(1+c.health()))
	c.probing.pending = append(c.probing.pending, o)
	c.do(Action{Kind: DoProbe, Peer: m.id, Number: o.number, Updates: c.piggyback(m)})
}

// nextTarget returns the member to probe: sometimes a suspect, so that it learns of the
// accusation and the suspicion is confirmed or refuted; alternately a busy member;
// otherwise the next one of the round.
func (c *Core) nextTarget() *member {
	p := &c.probing
	p.count++
	if n := len(c.suspects); n > 0 && !c.t.Plain && c.rand.IntN(max(c.alive, 1)) < 3 {
		if m := c.suspects[c.rand.IntN(n)]; !c.isProbed(m) {
			return m
		}
	}
	if len(p.busyQueue) > 0 && p.count%2 == 0 {
		m := p.busyQueue[0]
		p.busyQueue = append(p.busyQueue[1:], m)
		if m.status != Left && !c.isProbed(m) {
			return m
		}
	}
	for range len(p.ring) {
		if p.at >= len(p.ring) {
			p.at = 0
			c.rand.Shuffle(len(p.ring), func(i, j int) { p.ring[i], p.ring[j] = p.ring[j], p.ring[i] })
		}
		m := p.ring[p.at]
		p.at++
		if !m.gone() && !c.isProbed(m) {
			return m
		}
	}
	return nil
}

func (c *Core) isProbed(m *member) bool {
	return slices.ContainsFunc(c.probing.pending, func(o *probe) bool { return o.target == m })
}

// askHelpers asks other members to probe the target of o.
func (c *Core) askHelpers(o *probe) {
	for _, h := range c.pick(helpers, func(m *member) bool { return m.status == Alive && m != o.target }) {
		o.asked, o.helpers = o.asked+1, append(o.helpers, h)
		c.counts.Indirect++
		c.do(Action{Kind: DoProbe, Peer: h.id, Target: o.target.id, Number: o.number, Updates: c.piggyback(h)})
	}
}

// pick returns up to n random members that satisfy fit.
func (c *Core) pick(n int, fit func(*member) bool) []*member {
	ring := c.probing.ring
	if len(ring) == 0 {
		return nil
	}
	var picked []*member
	for range 4 * n { // most members fit; a rare miss costs one helper
		m := ring[c.rand.IntN(len(ring))]
		if fit(m) && !slices.Contains(picked, m) {
			if picked = append(picked, m); len(picked) == n {
				break
			}
		}
	}
	return picked
}

// maxUnanswered is how long a member whose packets arrive may leave probes unanswered.
const maxUnanswered = 30 * time.Second

// isSlow reports whether packets of the target have arrived since o was sent, or since
// helpers were due: the answer waits in a queue, of a link that is narrow or loaded. An
// accusation would lengthen it. A member whose process hangs sends packets too, but no
// answers.
func (c *Core) isSlow(now time.Duration, o *probe) bool {
	since := o.target.path.unanswered
	if since == 0 {
		since = o.sent
	}
	return !c.t.Plain && c.received(o.target.id) > o.received && now-since < maxUnanswered
}

// probeFailed records that the target of o was not reached. A helper that reports a miss
// clears this node; helpers that do not answer degrade its own health.
func (c *Core) probeFailed(now time.Duration, o *probe) {
	c.counts.Misses++
	o.target.path.missed(o)
	switch {
	case c.isSlow(now, o):
		c.counts.Slow++
		o.target.path.slow = true
		c.own.probed(true)
		return
	case o.asked == 0:
		c.degrade(1)
	case len(o.helpers) > 0:
		c.degrade(len(o.helpers))
	}
	if o.target.status == Alive || o.target.status == Suspect {
		c.suspect(now, o.target, c.self, nil)
	}
}

// Probe answers another node's probe: of this node itself, or of target, which it probes
// in turn.
func (c *Core) Probe(now time.Duration, from proto.PeerID, number uint64, target proto.PeerID, updates []*Update) []Action {
	c.begin(now)
	c.lastHeard = now
	c.learn(now, from, updates)
	switch {
	case target.IsZero() || target == c.self:
		c.do(Action{Kind: DoReply, Peer: from, Target: target, Number: number, Updates: c.piggybackTo(from)})
	case len(c.probing.indirect) < maxIndirectProbes && target != from && c.members[target] != nil:
		c.help(now, from, number, c.members[target])
	}
	return c.end(now)
}

// help probes target for another node.
func (c *Core) help(now time.Duration, from proto.PeerID, number uint64, target *member) {
	c.counts.Helped++
	c.probing.number++
	// The report of a miss must arrive before the asker gives up.
	wait := target.path.timeout(c.t.ProbeTimeout) * 4 / 5
	c.probing.indirect = append(c.probing.indirect, indirectProbe{
		number: c.probing.number, asker: from, askerNumber: number, target: target.id, end: now + wait,
	})
	c.do(Action{Kind: DoProbe, Peer: target.id, Number: c.probing.number, Updates: c.piggyback(target)})
}

// Reply processes the answer to a probe.
func (c *Core) Reply(now time.Duration, from proto.PeerID, number uint64, target proto.PeerID, missed bool, updates []*Update) []Action {
	c.begin(now)
	c.lastHeard = now
	c.learn(now, from, updates)
	if target.IsZero() || target == from {
		c.answered(now, from, number)
		return c.end(now)
	}
	for i, o := range c.probing.pending {
		if o.number != number || o.target.id != target {
			continue
		}
		at := slices.IndexFunc(o.helpers, func(m *member) bool { return m.id == from })
		if at < 0 {
			break // not one of the helpers: it cannot vouch for the target
		}
		if missed {
			o.helpers = slices.Delete(o.helpers, at, at+1)
			break
		}
		c.probing.pending = slices.Delete(c.probing.pending, i, i+1)
		o.target.path.missed(o) // the direct probe failed
		c.counts.Acks++
		c.improve()
		break
	}
	return c.end(now)
}

// answered processes the answer of from to a probe by this node.
func (c *Core) answered(now time.Duration, from proto.PeerID, number uint64) {
	for i, o := range c.probing.pending {
		if o.number == number && o.target.id == from {
			c.probing.pending = slices.Delete(c.probing.pending, i, i+1)
			p := &o.target.path
			c.own.probed(p.least > 0 && now-o.sent > 2*p.least+c.t.ProbeTimeout)
			p.answered(now, o.sent)
			p.slow = false
			if len(c.probing.rtts) < maxRTTs {
				c.probing.rtts = append(c.probing.rtts, now-o.sent)
			}
			c.counts.Acks++
			c.improve()
			return
		}
	}
	if m := c.members[from]; m != nil && number > 0 && number == m.path.late {
		m.path.answeredLate(now)
		return
	}
	for i, ch := range c.probing.indirect {
		if ch.number == number && ch.target == from {
			c.probing.indirect = slices.Delete(c.probing.indirect, i, i+1)
			c.do(Action{Kind: DoReply, Peer: ch.asker, Number: ch.askerNumber, Target: ch.target, Updates: c.piggybackTo(ch.asker)})
			return
		}
	}
}
