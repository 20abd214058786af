package gossip

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/balefire/balefire/proto"
)

const (
	describeEvery = 2 * time.Second  // between two calls of Config.Self
	relaysEvery   = 5 * time.Second  // minimum between two records that differ only in the relays, of which one stays
	workEvery     = 5 * time.Second  // minimum between two that differ only in the work
	workShare     = time.Second / 3  // minimum between two such records of all members
	measuredEvery = time.Minute      // minimum between two that differ only in measurements, which vary at rest, and random up to twice that
	measuredShare = 2 * time.Second  // minimum between two such records of all members: each crosses every link several times
	relaysSpread  = 10 * time.Second // within which a change of the relays is published, at random, while one of them stays
	// maxTopic leaves room in a gossip message for what surrounds the rumors.
	maxTopic = proto.MaxControl - 1<<10
)

// selfRecord is the last description that this node published.
type selfRecord struct {
	info    Self
	at      time.Duration
	spread  float64       // random, 0 to 1: how much later than the minimum it is replaced
	relays  time.Duration // since when the relays are others, of which one stays; 0: they are not
	leaving bool
}

// A recordSigner signs the statements of the runner's core. The runner's lock is held.
type recordSigner struct{ r *Runner }

// Record returns the node's own current record. A list that would make it too long is
// truncated.
func (v recordSigner) Record(incarnation, revision uint64) *Update {
	r := v.r
	self, own := r.keys.Peer(), r.self.info
	rec := &proto.NodeRecord{
		Mesh: r.mesh.ID[:], Peer: self[:], Incarnation: incarnation, Revision: revision, Boot: r.cfg.Boot,
		State: own.State, Open: own.Open, Priority: own.Priority, Load: own.Load, Version: own.Version[:min(len(own.Version), 128)],
		StartedMs: own.Started.UnixMilli(), TimeMs: r.cfg.Clock.Now().UnixMilli(),
		Labels: own.Labels[:min(len(own.Labels), 32)], Kinds: own.Kinds[:min(len(own.Kinds), 64)], Addrs: own.Addrs[:min(len(own.Addrs), 16)],
	}
	if rec.State == proto.NodeUnspecified {
		rec.State = proto.NodeRunning
	}
	if r.self.leaving {
		rec.State = proto.NodeStopped
	}
	for _, p := range own.Relays[:min(len(own.Relays), 4)] {
		rec.Relays = append(rec.Relays, p[:])
	}
	rec.Hops = own.Hops[:min(len(own.Hops), 4)]
	s, err := r.keys.SignNode(rec)
	for ; err != nil && len(rec.Addrs)+len(rec.Labels)+len(rec.Kinds)+len(rec.Version) > 0; s, err = r.keys.SignNode(rec) {
		r.log.Warn("the node's record is too long and is published truncated", "error", err)
		rec.Addrs, rec.Labels, rec.Kinds = rec.Addrs[:len(rec.Addrs)/2], rec.Labels[:len(rec.Labels)/2], rec.Kinds[:len(rec.Kinds)/2]
		rec.Version = ""
	}
	if err != nil {
		panic("gossip: " + err.Error()) // nothing variable is left in it
	}
	return &Update{Peer: self, By: self, Incarnation: incarnation, Record: rec, Rumor: &proto.Rumor{Record: s}}
}

// Accuse returns this node's statement that another did not answer.
func (v recordSigner) Accuse(p proto.PeerID, incarnation uint64, l proto.Liveness) *Update {
	self := v.r.keys.Peer()
	s, err := v.r.keys.SignAccusation(&proto.Accusation{
		Mesh: v.r.mesh.ID[:], Peer: p[:], Accuser: self[:], Incarnation: incarnation, Liveness: l, TimeMs: v.r.cfg.Clock.Now().UnixMilli(),
	})
	if err != nil {
		panic("gossip: " + err.Error()) // the core accuses only valid incarnations
	}
	return &Update{Peer: p, By: self, Incarnation: incarnation, Liveness: l, Rumor: &proto.Rumor{Accusation: s}}
}

// describeLoop updates this node's record when its description changes.
func (r *Runner) describeLoop(ctx context.Context) error {
	every := r.cfg.Clock.Ticker(describeEvery)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-every.C:
		}
		r.Describe()
	}
}

// Describe calls Config.Self now instead of within two seconds.
func (r *Runner) Describe() {
	own := r.cfg.Self()
	r.step(func(now time.Duration) []Action {
		if r.self.leaving || !r.self.due(own, now, intervalsAmong(r.core.alive+1)) {
			return nil
		}
		r.self = selfRecord{info: own, at: now, spread: r.core.rand.Float64()}
		return r.core.Revise(now)
	})
}

// Intervals are the minimum times between two records that differ only in the work, and only in
// measurements.
type intervals struct{ work, measured time.Duration }

// intervalsAmong returns those of one of n members. In a large mesh they grow with n, so that the
// links do not carry more of such records than in one of 15, and of 30.
func intervalsAmong(n int) intervals {
	return intervals{work: max(workEvery, time.Duration(n)*workShare), measured: max(measuredEvery, time.Duration(n)*measuredShare)}
}

// due reports whether s is replaced now by a record with p. What a change of the network lets all
// measure at once, or the death of a relay, they do not all publish at once: a narrow link could not
// take it.
func (s *selfRecord) due(p Self, now time.Duration, among intervals) bool {
	age := s.info.minAge(p, among)
	if age == among.measured {
		age += time.Duration(s.spread * float64(age))
	}
	switch {
	case slices.Equal(s.info.Relays, p.Relays):
		s.relays = 0
	case age > 0:
		if s.relays == 0 {
			s.relays = max(now, 1)
		}
		age = max(age, s.relays-s.at+time.Duration(s.spread*float64(relaysSpread)))
	}
	return now-s.at >= age
}

// sameExceptRelays reports whether o and p differ at most in the relays, in load and in
// measurements.
func (o Self) sameExceptRelays(p Self) bool {
	return o.State == p.State && o.Open == p.Open && o.Priority == p.Priority && o.Version == p.Version && o.Started.Equal(p.Started) &&
		slices.Equal(o.Labels, p.Labels) && slices.Equal(o.Kinds, p.Kinds) && slices.Equal(o.Addrs, p.Addrs)
}

// minAge returns the minimum age of a record with o before it is replaced by one with p. While
// one of the relays stays, the node is reached through it.
func (o Self) minAge(p Self, among intervals) time.Duration {
	sameRelays := slices.Equal(o.Relays, p.Relays)
	switch {
	case !o.sameExceptRelays(p) || !sameRelays && !slices.ContainsFunc(o.Relays, func(r proto.PeerID) bool { return slices.Contains(p.Relays, r) }):
		return 0
	case !sameRelays || !slices.EqualFunc(o.Hops, p.Hops, sameRelay):
		return relaysEvery
	case workChanged(o.Load, p.Load):
		if isFull(o.Load) && !isFull(p.Load) {
			return workEvery // until they hear of it, others give it nothing
		}
		return among.work
	case machineChanged(o.Load, p.Load) || hopsChanged(o.Hops, p.Hops):
		return among.measured
	}
	return math.MaxInt64
}

// machineChanged reports whether the CPU and memory of b differ from a's enough to matter
// to others.
func machineChanged(a, b *proto.Load) bool {
	far := func(x, y uint32) bool { return max(x, y)-min(x, y) >= 100 }
	return far(a.GetCpuPermille(), b.GetCpuPermille()) || far(a.GetMemoryPermille(), b.GetMemoryPermille())
}

// isFull reports whether no slot is free.
func isFull(l *proto.Load) bool { return l.GetBusy() >= l.GetSlots() }

// workChanged reports whether the work of b differs from a's enough to matter to others.
func workChanged(a, b *proto.Load) bool {
	far := func(x, y, least uint32) bool { return max(x, y)-min(x, y) >= least }
	slots := max(b.GetSlots(), 4) / 4
	return a.GetSlots() != b.GetSlots() ||
		isFull(a) != isFull(b) || far(a.GetBusy(), b.GetBusy(), slots) ||
		(a.GetWaiting() == 0) != (b.GetWaiting() == 0) || far(a.GetWaiting(), b.GetWaiting(), 8+max(a.GetWaiting(), b.GetWaiting())/2)
}

func sameRelay(x, y *proto.Hop) bool { return bytes.Equal(x.GetRelay(), y.GetRelay()) }

// hopsChanged reports whether b differs from a enough for others to choose other relays:
// one of the terms of a path's score, which are between 0 and 1, by a tenth. Half of a term
// is reached at 50 ms, 2 % and 10 Mbit/s.
func hopsChanged(a, b []*proto.Hop) bool {
	far := func(x, y uint32, half float64) bool {
		term := func(v uint32) float64 { return float64(v) / (float64(v) + half) }
		return math.Abs(term(x)-term(y)) > 0.1
	}
	return !slices.EqualFunc(a, b, func(x, y *proto.Hop) bool {
		return sameRelay(x, y) && !far(x.GetRttMs(), y.GetRttMs(), 50) &&
			!far(x.GetLossPermille(), y.GetLossPermille(), 20) && !far(x.GetRateKibps(), y.GetRateKibps(), 1220)
	})
}

// probeMessage returns a function that encodes a probe or reply, to be called outside the
// runner's lock.
func probeMessage(a *Action) func() (*proto.Message, error) {
	do, number, missed, target := a.Kind, a.Number, a.Missed, a.Target
	rumors := make([]*proto.Rumor, 0, len(a.Updates))
	for _, n := range a.Updates {
		rumors = append(rumors, n.Rumor)
	}
	return func() (*proto.Message, error) {
		var to []byte
		if !target.IsZero() {
			to = target[:]
		}
		var payload []byte
		var err error
		kind := proto.TypeProbe
		if do == DoProbe {
			payload, err = proto.Encode(nil, &proto.Probe{Number: number, Target: to, Rumors: rumors})
		} else {
			kind = proto.TypeProbed
			payload, err = proto.Encode(nil, &proto.ProbeReply{Number: number, Target: to, Missed: missed, Rumors: rumors})
		}
		return &proto.Message{Type: kind, Payload: payload}, err
	}
}

// sendLoop sends probes and replies.
func (r *Runner) sendLoop(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case l := <-r.out.messages:
			m, err := l.encode()
			if err == nil {
				err = r.net.SendCtl(l.to, m)
			}
			if err != nil {
				r.log.Debug("probe not sent", "peer", l.to, "error", err)
			}
		}
	}
}

// publishLoop publishes queued updates on the topic.
func (r *Runner) publishLoop(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.out.publishReady:
		}
		if err := r.publishPending(ctx); err != nil {
			r.log.Debug("rumors not published", "error", err)
		}
	}
}

// publishPending publishes what is queued.
func (r *Runner) publishPending(ctx context.Context) error {
	updates, root := r.out.take()
	var known []byte
	if root {
		r.mu.Lock()
		sum := r.root()
		r.mu.Unlock()
		known = sum[:]
	}
	for len(updates) > 0 || known != nil {
		m := &proto.Rumors{Root: known}
		size := 0
		for len(updates) > 0 && len(m.Rumors) < proto.MaxRumors {
			rumor := r.topicRumor(updates[0])
			if size += proto.Size(rumor) + 8; size > maxTopic {
				break
			}
			m.Rumors, updates = append(m.Rumors, rumor), updates[1:]
		}
		if err := r.broadcast(ctx, m); err != nil {
			return fmt.Errorf("publish rumors: %w", err)
		}
		r.met.published.Add(float64(len(m.Rumors)))
		known = nil
	}
	return nil
}

// broadcast publishes m under the next number. Nodes remember the numbers that they
// received from a node and accept none twice. They derive from the boot number, which
// never decreases, even if the clock is set back.
func (r *Runner) broadcast(ctx context.Context, m *proto.Rumors) error {
	m.Number = r.number.Add(1)
	data, err := proto.Encode(nil, m)
	if err != nil {
		return err
	}
	return r.net.Publish(ctx, data)
}

// numbersPerBoot is the range of message numbers reserved for one start.
const numbersPerBoot = 1 << 30

// withIntroduction returns the rumor of n; for a record, with an introduction of its
// node, without which nodes that do not know it would reject the record.
func (r *Runner) withIntroduction(n *Update) *proto.Rumor {
	if n.Rumor.GetRecord() == nil {
		return n.Rumor
	}
	k := r.dir.Introduce(n.Peer)
	if k == nil {
		return n.Rumor
	}
	return &proto.Rumor{Record: n.Rumor.GetRecord(), Introduction: k}
}

// introductions is how often an introduction is published, which is half of a record. Later
// only exchanges contain it.
const introductions = 3

// An introduced is the introduction of this node that was published last.
type introduced struct {
	mu    sync.Mutex
	sum   [32]byte
	times int
}

// topicRumor returns the rumor of n for the topic, on which this node publishes only its own
// record: with an introduction until it has been published several times.
func (r *Runner) topicRumor(n *Update) *proto.Rumor {
	rumor := r.withIntroduction(n)
	encoded, err := proto.Encode(nil, rumor.GetIntroduction())
	if rumor.GetIntroduction() == nil || err != nil {
		return rumor
	}
	i := &r.introduced
	i.mu.Lock()
	defer i.mu.Unlock()
	if sum := sha256.Sum256(encoded); sum != i.sum {
		i.sum, i.times = sum, 0
	}
	if i.times++; i.times > introductions {
		return n.Rumor
	}
	return rumor
}

// Leave announces that this node stops, on the topic and to some peers directly. It
// returns when those peers have received it or ctx is done: a message still in transit
// would be lost with the connections. Nothing else about this node is published
// afterwards.
func (r *Runner) Leave(ctx context.Context) error {
	var word *Update
	var to []proto.PeerID
	r.step(func(now time.Duration) (actions []Action) {
		if r.self.leaving {
			return nil
		}
		r.self.leaving = true
		actions = r.core.Revise(now)
		word, to = r.core.finalRecord()
		return actions
	})
	err := r.publishPending(ctx)
	var wg sync.WaitGroup
	for _, p := range to {
		wg.Go(func() {
			if _, _, _, err := r.exchangeStep(ctx, p, &Ask{After: maxPeerID, Updates: []*Update{word}}, nil); err != nil {
				r.log.Debug("stop not announced", "peer", p, "error", err)
			}
		})
	}
	wg.Wait()
	return err
}

// finalRecord returns the node's last record and some peers to send it to directly: peers
// may know this node even if it has not heard of them yet.
func (c *Core) finalRecord() (word *Update, to []proto.PeerID) {
	for p, m := range c.members {
		if m.connected && !m.gone() {
			to = append(to, p)
		}
	}
	slices.SortFunc(to, proto.PeerID.Compare)
	c.rand.Shuffle(len(to), func(i, j int) { to[i], to[j] = to[j], to[i] })
	return c.own.record, to[:min(len(to), 8)]
}
