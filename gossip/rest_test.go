package gossip

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
)

// What gossipsub and the connections of package transport do at rest, as a model. Sizes and times
// are those of whole nodes over QUIC: node.TestIdleMeshIsQuiet checks that these send as much.
const (
	overlayLow, overlayDegree, overlayHigh = 3, 4, 6 // of the topic: Dlo, D and Dhi

	lazyPeers = 3       // members that are told once which messages there are: Dlazy
	topicHead = 157     // bytes of author, number, topic and signature of a message
	lazyHead  = 42      // bytes of an IHAVE
	lazyID    = 48      // bytes of a message in it
	streamUse = 200     // bytes of a new stream, both ways
	quicHead  = 24 + 28 // bytes of a packet of QUIC with a stream frame; and of UDP and IPv4
	quicAck   = 27 + 28 // bytes of a packet that only acknowledges
	alsoAcks  = 6       // bytes of an acknowledgment in another packet
	quicRoom  = 1200    // bytes of a stream in a packet

	busyEvery    = 2 * time.Second  // between two looks at a connection: Timing.Busy
	idleEvery    = 10 * time.Second // without anything from the other side, until a PING: Timing.Idle
	measureEvery = 5 * time.Second  // between two PINGs to some relays without a reservation
	othersAsked  = 3                // these relays, in turn: all members are relays
	reservations = 2                // relays that are watched closely
	pingBytes    = 19
	pongBytes    = 31
)

// A restMesh is a mesh at rest: the simulator, with a topic and connections that have a price.
// Every member always has new measurements to tell, which is the most that there can be.
type restMesh struct {
	*sim
	at           []*restNode
	record, root int // bytes of a message of the topic
	messages     int
	records      int
}

// A restNode is what the model adds to a node of the simulator.
type restNode struct {
	overlay  []*simNode
	self     selfRecord
	seen     map[int]bool    // messages
	fresh    int             // of these, since the last heartbeat of gossipsub
	heard    []time.Duration // by node
	acked    []bool          // by node: it has acknowledged something since the last look
	lastPing []time.Duration // by node
	turn     int

	packets, sent, received int
}

func newRestMesh(t *testing.T, size int) *restMesh {
	r := &restMesh{sim: newSim(1, size, testTuning()), at: make([]*restNode, size)}
	r.record, r.root = restSizes(t)
	r.until(time.Minute, func() bool { return r.agree(actualStatus) && r.equal() })
	every, rootInterval := intervalsAmong(size).measured, max(r.t.SyncInterval, time.Duration(size)*rootEvery)
	for i, n := range r.nodes { // some time after the first contact: what was new then has been told
		n.core.rumors.waiting = nil
		n.core.timers.root = r.now + time.Duration(r.rand.Int64N(int64(rootInterval)))
		r.at[i] = &restNode{
			seen: map[int]bool{}, heard: make([]time.Duration, size), acked: make([]bool, size), lastPing: make([]time.Duration, size),
			self: selfRecord{at: r.now - time.Duration(r.rand.Float64()*1.5*float64(every)), spread: r.rand.Float64()},
		}
	}
	r.join()
	r.delay = 50 * time.Millisecond
	r.topic, r.sim.sent = r.publish, r.price
	for _, n := range r.nodes {
		r.repeat(describeEvery, func() { r.describe(n) })
		r.repeat(time.Second, func() { r.tellLazily(n) })
		r.repeat(busyEvery/2, func() { r.look(n, reservations, 0, busyEvery/2) })
		r.repeat(busyEvery, func() { r.look(n, size-1-reservations, reservations, idleEvery) })
		r.repeat(measureEvery, func() { r.measure(n) })
	}
	return r
}

// repeat calls do again and again, from some moment on.
func (r *restMesh) repeat(every time.Duration, do func()) {
	var next func()
	next = func() { do(); r.after(every, next) }
	r.after(time.Duration(r.rand.Int64N(int64(every))), next)
}

// restSizes returns the bytes of messages of the topic: the record of a member with two relays and
// paths to four, and a root.
func restSizes(t *testing.T) (record, root int) {
	t.Helper()
	keys := identity.NewKeys(seeded(1), time.Unix(0, 0))
	self := keys.Peer()
	id := self[:]
	rec := &proto.NodeRecord{
		Mesh: id[:16], Peer: id, Incarnation: identity.Incarnation(9), Revision: 100, Boot: 9, State: proto.NodeRunning, Load: &proto.Load{Slots: 32},
		Version: "balefire 1.0.0", StartedMs: 1 << 40, TimeMs: 1 << 40, Kinds: []string{"backup"}, Addrs: []string{"/ip4/10.51.1.11/udp/4001/quic-v1"}, Relays: [][]byte{id, id},
	}
	for range 4 {
		rec.Hops = append(rec.Hops, &proto.Hop{Relay: id, RttMs: 200})
	}
	s, err := keys.SignNode(rec)
	if err != nil {
		t.Fatal(err)
	}
	const number = 1 << 50
	return topicHead + proto.Size(&proto.Rumors{Rumors: []*proto.Rumor{{Record: s}}, Number: number}), topicHead + proto.Size(&proto.Rumors{Root: id, Number: number})
}

// join builds the overlay: who has too few others asks some, who has too many leaves some.
func (r *restMesh) join() {
	change := func(a, b *simNode, on bool) {
		for _, e := range [][2]*simNode{{a, b}, {b, a}} {
			all := &r.at[e[0].i].overlay
			if *all = slices.DeleteFunc(*all, func(o *simNode) bool { return o == e[1] }); on {
				*all = append(*all, e[1])
			}
		}
	}
	for range 20 {
		for _, n := range r.nodes {
			all := slices.Clone(r.at[n.i].overlay)
			if len(all) > overlayHigh {
				r.rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
				for _, o := range all[overlayDegree:] {
					change(n, o, false)
				}
			}
			if len(all) < overlayLow {
				for _, o := range r.others(n, overlayDegree-len(all)) {
					change(n, o, true)
				}
			}
		}
	}
}

// others returns so many members that are not in the overlay of n, if there are.
func (r *restMesh) others(n *simNode, most int) (some []*simNode) {
	for _, i := range r.rand.Perm(len(r.nodes)) {
		if o := r.nodes[i]; len(some) < most && o != n && !slices.Contains(r.at[n.i].overlay, o) {
			some = append(some, o)
		}
	}
	return some
}

// describe publishes new measurements as soon as that is due.
func (r *restMesh) describe(n *simNode) {
	self := &r.at[n.i].self
	busier := self.info
	busier.Load = &proto.Load{CpuPermille: 1000 - self.info.Load.GetCpuPermille()}
	if self.due(busier, r.now, intervalsAmong(len(r.nodes))) {
		*self = selfRecord{info: busier, at: r.now, spread: r.rand.Float64()}
		r.records++
		r.act(n, n.core.Revise(r.now))
	}
}

// publish spreads a message over the overlay.
func (r *restMesh) publish(from *simNode, a *Action) {
	r.messages++
	m := r.messages
	updates := a.Updates
	size, apply := r.record, func(n *simNode) []Action { return n.core.Updates(r.now, from.id, updates) }
	if a.Kind == DoRoot {
		root := from.core.Root()
		size, apply = r.root, func(n *simNode) []Action { return n.core.RootReceived(r.now, from.id, n.core.Root() == root) }
	}
	var arrive func(n, by *simNode)
	arrive = func(n, by *simNode) {
		at := r.at[n.i]
		if at.seen[m] {
			return
		}
		at.seen[m] = true
		at.fresh++
		if n != from {
			r.act(n, apply(n))
		}
		for _, o := range at.overlay {
			if o != by && o != from {
				r.oneWay(n, o, size)
				r.after(r.delay/2+time.Duration(r.rand.Int64N(int64(r.delay))), func() { arrive(o, n) })
			}
		}
	}
	arrive(from, nil)
}

// tellLazily is the heartbeat of gossipsub.
func (r *restMesh) tellLazily(n *simNode) {
	at := r.at[n.i]
	if at.fresh > 0 {
		for _, o := range r.others(n, lazyPeers) {
			r.oneWay(n, o, lazyHead+at.fresh*lazyID)
		}
	}
	at.fresh = 0
}

// price counts a message that is not published.
func (r *restMesh) price(from, to *simNode, e *simEvent) {
	const digest, frame = 52, 16
	updates := len(e.updates) * r.record
	switch e.kind {
	case simProbe:
		r.put(from, to, frame+updates)
	case simReply:
		r.put(from, to, frame+alsoAcks+updates)
		r.ack(to, from)
	case simAsk:
		r.put(from, to, streamUse+len(e.ask.Lines)*digest+len(e.ask.Updates)*r.record)
	case simAnswer:
		r.put(from, to, streamUse+len(e.answer.Wanted)*len(from.id)+len(e.answer.Updates)*r.record)
		r.ack(to, from)
	}
}

// look sends a PING to each of so many nodes after the next ones from which nothing came for so long.
func (r *restMesh) look(n *simNode, many, after int, every time.Duration) {
	at := r.at[n.i]
	for i := range many {
		to := r.nodes[(n.i+1+after+i)%len(r.nodes)]
		if at.acked[to.i] {
			at.acked[to.i], at.heard[to.i] = false, r.now
		}
		if r.now-max(at.lastPing[to.i], at.heard[to.i]) >= every {
			at.lastPing[to.i] = r.now
			r.ping(n, to)
		}
	}
}

func (r *restMesh) measure(n *simNode) {
	at := r.at[n.i]
	others := len(r.nodes) - 1 - reservations
	for range min(othersAsked, others) {
		r.ping(n, r.nodes[(n.i+1+reservations+at.turn%others)%len(r.nodes)])
		at.turn++
	}
}

func (r *restMesh) ping(from, to *simNode) {
	r.put(from, to, pingBytes)
	r.after(2*r.delay, func() {
		r.put(to, from, pongBytes+alsoAcks)
		r.ack(from, to)
	})
}

// oneWay counts bytes of a stream that nothing answers.
func (r *restMesh) oneWay(from, to *simNode, bytes int) {
	r.put(from, to, bytes)
	r.ack(to, from)
}

// put counts bytes of a stream.
func (r *restMesh) put(from, to *simNode, bytes int) {
	packets := 1 + (bytes-1)/quicRoom
	r.count(from, to, packets, bytes+packets*quicHead)
	r.at[to.i].heard[from.i] = r.now
}

// ack counts an acknowledgment.
func (r *restMesh) ack(from, to *simNode) {
	r.count(from, to, 1, quicAck)
	r.at[to.i].acked[from.i] = true
}

func (r *restMesh) count(from, to *simNode, packets, bytes int) {
	r.at[from.i].packets += packets
	r.at[from.i].sent += bytes
	r.at[to.i].received += bytes
}

// What a member of a mesh at rest sends hardly grows with the size of the mesh, but for a PING to each
// other one. The bytes and packets of small meshes are those of node.TestIdleMeshIsQuiet.
func TestLargeMeshIsQuiet(t *testing.T) {
	const seconds = 200
	for _, tt := range []struct {
		size           int
		bytes, packets float64 // a member and second, on average
		most           int     // bytes of each member and second, each way
	}{{8, 1200, 11, 4000}, {15, 1500, 13, 4000}, {30, 2000, 15, 6000}, {200, 3900, 37, 10_000}} {
		t.Run(fmt.Sprint(tt.size, " members"), func(t *testing.T) {
			r := newRestMesh(t, tt.size)
			r.run(30 * time.Second)
			for _, n := range r.at {
				n.packets, n.sent, n.received = 0, 0, 0
			}
			messages, records := r.messages, r.records
			r.run(seconds * time.Second)
			packets, sent, worst := 0, 0, 0
			for _, n := range r.at {
				packets, sent, worst = packets+n.packets, sent+n.sent, max(worst, n.sent, n.received)
			}
			all := float64(tt.size * seconds)
			t.Logf("counted: %d members publish %d records and %d messages in %d s; a member sends %.0f bytes and %.1f packets a second, one sends or receives %d bytes",
				tt.size, r.records-records, r.messages-messages, seconds, float64(sent)/all, float64(packets)/all, worst/seconds)
			if worst/seconds > tt.most {
				t.Errorf("a member sends or receives %d bytes a second, want at most %d", worst/seconds, tt.most)
			}
			for what, got := range map[string]float64{"bytes": float64(sent) / all / tt.bytes, "packets": float64(packets) / all / tt.packets} {
				if got < 0.9 || got > 1.1 {
					t.Errorf("a member sends %.2f times as many %s as stated", got, what)
				}
			}
		})
	}
}
