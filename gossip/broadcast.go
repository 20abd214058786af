package gossip

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/balefire/balefire/proto"
)

const (
	describeEvery = 2 * time.Second // how often the node is asked what it is
	loadEvery     = 5 * time.Second // between two records that differ in work alone
	measuredEvery = time.Minute     // between two that differ in what was measured alone, which is noise at rest
	// maxTopic leaves room in a gossip message for what surrounds the rumors.
	maxTopic = proto.MaxControl - 1<<10
)

// selfRecord is what the node last said of itself.
type selfRecord struct {
	info    Self
	at      time.Duration
	leaving bool
}

// A recordSigner signs what the room's core says. The room's lock is held.
type recordSigner struct{ r *Runner }

// Record returns the node's own record as it is now. A list that would make it too long
// is cut.
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
		r.log.Warn("the node's record is too long: it is told in part", "error", err)
		rec.Addrs, rec.Labels, rec.Kinds = rec.Addrs[:len(rec.Addrs)/2], rec.Labels[:len(rec.Labels)/2], rec.Kinds[:len(rec.Kinds)/2]
		rec.Version = ""
	}
	if err != nil {
		panic("gossip: " + err.Error()) // nothing is left in it that others chose
	}
	return &Update{Peer: self, By: self, Incarnation: incarnation, Record: rec, Rumor: &proto.Rumor{Record: s}}
}

// Accuse returns the node's statement that another did not answer.
func (v recordSigner) Accuse(p proto.PeerID, incarnation uint64, l proto.Liveness) *Update {
	self := v.r.keys.Peer()
	s, err := v.r.keys.SignAccusation(&proto.Accusation{
		Mesh: v.r.mesh.ID[:], Peer: p[:], Accuser: self[:], Incarnation: incarnation, Liveness: l, TimeMs: v.r.cfg.Clock.Now().UnixMilli(),
	})
	if err != nil {
		panic("gossip: " + err.Error()) // the core accuses others of what they were
	}
	return &Update{Peer: p, By: self, Incarnation: incarnation, Liveness: l, Rumor: &proto.Rumor{Accusation: s}}
}

// describeLoop asks the node what it is, and says so when that is news.
func (r *Runner) describeLoop(ctx context.Context) error {
	every := time.NewTicker(describeEvery)
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

// Describe asks Config.Own now, instead of within two seconds.
func (r *Runner) Describe() {
	own := r.cfg.Self()
	r.step(func(now time.Duration) []Action {
		if r.self.leaving || now-r.self.at < r.self.info.minAge(own) {
			return nil
		}
		r.self.info, r.self.at = own, now
		return r.core.Revise(now)
	})
}

// sameExceptLoad reports whether o and p differ in nothing but load and what was measured.
func (o Self) sameExceptLoad(p Self) bool {
	return o.State == p.State && o.Open == p.Open && o.Priority == p.Priority && o.Version == p.Version && o.Started.Equal(p.Started) &&
		slices.Equal(o.Labels, p.Labels) && slices.Equal(o.Kinds, p.Kinds) && slices.Equal(o.Relays, p.Relays) && slices.Equal(o.Addrs, p.Addrs)
}

// minAge returns how old a record that said o must be before one is made that says p.
func (o Self) minAge(p Self) time.Duration {
	switch {
	case !o.sameExceptLoad(p):
		return 0
	case workChanged(o.Load, p.Load) || !slices.EqualFunc(o.Hops, p.Hops, sameRelay):
		return loadEvery
	case machineChanged(o.Load, p.Load) || hopsChanged(o.Hops, p.Hops):
		return measuredEvery
	}
	return math.MaxInt64
}

// machineChanged reports whether others would decide otherwise with the CPU and memory
// of b than with those of a.
func machineChanged(a, b *proto.Load) bool {
	far := func(x, y uint32) bool { return max(x, y)-min(x, y) >= 100 }
	return far(a.GetCpuPermille(), b.GetCpuPermille()) || far(a.GetMemoryPermille(), b.GetMemoryPermille())
}

// workChanged reports whether others would decide otherwise with the work of b than with
// that of a.
func workChanged(a, b *proto.Load) bool {
	far := func(x, y, least uint32) bool { return max(x, y)-min(x, y) >= least }
	slots := max(b.GetSlots(), 4) / 4
	return a.GetSlots() != b.GetSlots() ||
		(a.GetBusy() < a.GetSlots()) != (b.GetBusy() < b.GetSlots()) || far(a.GetBusy(), b.GetBusy(), slots) ||
		(a.GetWaiting() == 0) != (b.GetWaiting() == 0) || far(a.GetWaiting(), b.GetWaiting(), 8+max(a.GetWaiting(), b.GetWaiting())/2)
}

func sameRelay(x, y *proto.Hop) bool { return bytes.Equal(x.GetRelay(), y.GetRelay()) }

// hopsChanged reports whether others would choose relays otherwise with b than with a.
func hopsChanged(a, b []*proto.Hop) bool {
	far := func(x, y, least uint32) bool { return max(x, y)-min(x, y) > max(least, min(x, y)/4) }
	return !slices.EqualFunc(a, b, func(x, y *proto.Hop) bool {
		return sameRelay(x, y) && !far(x.GetRttMs(), y.GetRttMs(), 5) &&
			!far(x.GetLossPermille(), y.GetLossPermille(), 10) && !far(x.GetRateKibps(), y.GetRateKibps(), 256)
	})
}

// probeMessage returns what makes the message of a probe or reply, outside the room's lock.
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
				r.log.Debug("a probe was not sent", "peer", l.to, "error", err)
			}
		}
	}
}

// publishLoop brings news to the topic.
func (r *Runner) publishLoop(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.out.publishReady:
		}
		if err := r.publishPending(ctx); err != nil {
			r.log.Debug("rumors were not published", "error", err)
		}
	}
}

// publishPending publishes what waits.
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
			rumor := r.withIntroduction(updates[0])
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

// broadcast publishes m under the next number. Others remember the numbers that they heard of
// a node, and hear none twice: they follow from the boot number, which no clock sets back.
func (r *Runner) broadcast(ctx context.Context, m *proto.Rumors) error {
	m.Number = r.number.Add(1)
	data, err := proto.Encode(nil, m)
	if err != nil {
		return err
	}
	return r.net.Publish(ctx, data)
}

// numbersPerBoot is how many messages of one start have numbers below those of the next.
const numbersPerBoot = 1 << 30

// withIntroduction returns the rumor of n; if it is a record, with who the node is: those that
// never heard of it believe nothing else.
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

// Leave says that the node stops, to the topic and to some others directly, and
// returns when these have heard it or ctx ends: what is only on its way then goes
// down with the connections. Nothing else is said of the node after that.
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
				r.log.Debug("the stop was not told", "peer", p, "error", err)
			}
		})
	}
	wg.Wait()
	return err
}

// finalRecord returns the node's last record and some others to tell it to: they may
// know this node though it has not heard of them yet.
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
