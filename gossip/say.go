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

// saying is what the node last said of itself.
type saying struct {
	own     Own
	at      time.Duration
	leaving bool
}

// A voice signs what the room's core says. The room's lock is held.
type voice struct{ r *Room }

// Record returns the node's own record as it is now. A list that would make it too long
// is cut.
func (v voice) Record(incarnation, revision uint64) *News {
	r := v.r
	self, own := r.keys.Peer(), r.said.own
	rec := &proto.NodeRecord{
		Mesh: r.mesh.ID[:], Peer: self[:], Incarnation: incarnation, Revision: revision, Boot: r.cfg.Boot,
		State: own.State, Open: own.Open, Priority: own.Priority, Load: own.Load, Version: own.Version[:min(len(own.Version), 128)],
		StartedMs: own.Started.UnixMilli(), TimeMs: r.cfg.Clock.Now().UnixMilli(),
		Labels: own.Labels[:min(len(own.Labels), 32)], Kinds: own.Kinds[:min(len(own.Kinds), 64)], Addrs: own.Addrs[:min(len(own.Addrs), 16)],
	}
	if rec.State == proto.NodeUnspecified {
		rec.State = proto.NodeRunning
	}
	if r.said.leaving {
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
	return &News{Peer: self, By: self, Incarnation: incarnation, Record: rec, Rumor: &proto.Rumor{Record: s}}
}

// Accuse returns the node's statement that another did not answer.
func (v voice) Accuse(p proto.PeerID, incarnation uint64, l proto.Liveness) *News {
	self := v.r.keys.Peer()
	s, err := v.r.keys.SignAccusation(&proto.Accusation{
		Mesh: v.r.mesh.ID[:], Peer: p[:], Accuser: self[:], Incarnation: incarnation, Liveness: l, TimeMs: v.r.cfg.Clock.Now().UnixMilli(),
	})
	if err != nil {
		panic("gossip: " + err.Error()) // the core accuses others of what they were
	}
	return &News{Peer: p, By: self, Incarnation: incarnation, Liveness: l, Rumor: &proto.Rumor{Accusation: s}}
}

// describe asks the node what it is, and says so when that is news.
func (r *Room) describe(ctx context.Context) error {
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
func (r *Room) Describe() {
	own := r.cfg.Own()
	r.step(func(now time.Duration) []Action {
		if r.said.leaving || now-r.said.at < r.said.own.until(own) {
			return nil
		}
		r.said.own, r.said.at = own, now
		return r.core.Revise(now)
	})
}

// same reports whether o and p differ in nothing but load and what was measured.
func (o Own) same(p Own) bool {
	return o.State == p.State && o.Open == p.Open && o.Priority == p.Priority && o.Version == p.Version && o.Started.Equal(p.Started) &&
		slices.Equal(o.Labels, p.Labels) && slices.Equal(o.Kinds, p.Kinds) && slices.Equal(o.Relays, p.Relays) && slices.Equal(o.Addrs, p.Addrs)
}

// until returns how old a record that said o must be before one is made that says p.
func (o Own) until(p Own) time.Duration {
	switch {
	case !o.same(p):
		return 0
	case workMatters(o.Load, p.Load) || !slices.EqualFunc(o.Hops, p.Hops, sameRelay):
		return loadEvery
	case machineMatters(o.Load, p.Load) || hopsMatter(o.Hops, p.Hops):
		return measuredEvery
	}
	return math.MaxInt64
}

// machineMatters reports whether others would decide otherwise with the CPU and memory
// of b than with those of a.
func machineMatters(a, b *proto.Load) bool {
	far := func(x, y uint32) bool { return max(x, y)-min(x, y) >= 100 }
	return far(a.GetCpuPermille(), b.GetCpuPermille()) || far(a.GetMemoryPermille(), b.GetMemoryPermille())
}

// workMatters reports whether others would decide otherwise with the work of b than with
// that of a.
func workMatters(a, b *proto.Load) bool {
	far := func(x, y, least uint32) bool { return max(x, y)-min(x, y) >= least }
	slots := max(b.GetSlots(), 4) / 4
	return a.GetSlots() != b.GetSlots() ||
		(a.GetBusy() < a.GetSlots()) != (b.GetBusy() < b.GetSlots()) || far(a.GetBusy(), b.GetBusy(), slots) ||
		(a.GetWaiting() == 0) != (b.GetWaiting() == 0) || far(a.GetWaiting(), b.GetWaiting(), 8+max(a.GetWaiting(), b.GetWaiting())/2)
}

func sameRelay(x, y *proto.Hop) bool { return bytes.Equal(x.GetRelay(), y.GetRelay()) }

// hopsMatter reports whether others would choose relays otherwise with b than with a.
func hopsMatter(a, b []*proto.Hop) bool {
	far := func(x, y, least uint32) bool { return max(x, y)-min(x, y) > max(least, min(x, y)/4) }
	return !slices.EqualFunc(a, b, func(x, y *proto.Hop) bool {
		return sameRelay(x, y) && !far(x.GetRttMs(), y.GetRttMs(), 5) &&
			!far(x.GetLossPermille(), y.GetLossPermille(), 10) && !far(x.GetRateKibps(), y.GetRateKibps(), 256)
	})
}

// message returns what makes the message of a probe or reply, outside the room's lock.
func message(a *Action) func() (*proto.Message, error) {
	do, number, missed, target := a.Do, a.Number, a.Missed, a.Target
	rumors := make([]*proto.Rumor, 0, len(a.News))
	for _, n := range a.News {
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

// send sends probes and replies.
func (r *Room) send(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case l := <-r.out.letters:
			m, err := l.message()
			if err == nil {
				err = r.net.SendCtl(l.to, m)
			}
			if err != nil {
				r.log.Debug("a probe was not sent", "peer", l.to, "error", err)
			}
		}
	}
}

// publish brings news to the topic.
func (r *Room) publish(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.out.spread:
		}
		if err := r.spread(ctx); err != nil {
			r.log.Debug("rumors were not published", "error", err)
		}
	}
}

// spread publishes what waits.
func (r *Room) spread(ctx context.Context) error {
	news, root := r.out.take()
	var known []byte
	if root {
		r.mu.Lock()
		sum := r.root()
		r.mu.Unlock()
		known = sum[:]
	}
	for len(news) > 0 || known != nil {
		m := &proto.Rumors{Root: known}
		size := 0
		for len(news) > 0 && len(m.Rumors) < proto.MaxRumors {
			rumor := r.introduced(news[0])
			if size += proto.Size(rumor) + 8; size > maxTopic {
				break
			}
			m.Rumors, news = append(m.Rumors, rumor), news[1:]
		}
		if err := r.say(ctx, m); err != nil {
			return fmt.Errorf("publish rumors: %w", err)
		}
		r.met.said.Add(float64(len(m.Rumors)))
		known = nil
	}
	return nil
}

// say publishes m under the next number. Others remember the numbers that they heard of
// a node, and hear none twice: they follow from the boot number, which no clock sets back.
func (r *Room) say(ctx context.Context, m *proto.Rumors) error {
	m.Number = r.number.Add(1)
	data, err := proto.Encode(nil, m)
	if err != nil {
		return err
	}
	return r.net.Publish(ctx, data)
}

// perBoot is how many messages of one start have numbers below those of the next.
const perBoot = 1 << 30

// introduced returns the rumor of n; if it is a record, with who the node is: those that
// never heard of it believe nothing else.
func (r *Room) introduced(n *News) *proto.Rumor {
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
func (r *Room) Leave(ctx context.Context) error {
	var word *News
	var to []proto.PeerID
	r.step(func(now time.Duration) (actions []Action) {
		if r.said.leaving {
			return nil
		}
		r.said.leaving = true
		actions = r.core.Revise(now)
		word, to = r.core.farewell()
		return actions
	})
	err := r.spread(ctx)
	var wg sync.WaitGroup
	for _, p := range to {
		wg.Go(func() {
			if _, _, _, err := r.stepOf(ctx, p, &Ask{After: last, News: []*News{word}}, nil); err != nil {
				r.log.Debug("the stop was not told", "peer", p, "error", err)
			}
		})
	}
	wg.Wait()
	return err
}

// farewell returns the node's last record and some others to tell it to: they may
// know this node though it has not heard of them yet.
func (c *Core) farewell() (word *News, to []proto.PeerID) {
	for p, m := range c.members {
		if m.connected && !m.gone() {
			to = append(to, p)
		}
	}
	slices.SortFunc(to, proto.PeerID.Compare)
	c.rand.Shuffle(len(to), func(i, j int) { to[i], to[j] = to[j], to[i] })
	return c.own.news, to[:min(len(to), 8)]
}
