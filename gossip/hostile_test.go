package gossip

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
)

// The bad-input family "gossip/membership": whatever a member or a stranger sends, no
// false statement is accepted, and memory is bounded.

// A receiver is a runner that does not run: the test passes it messages directly.
type receiver struct {
	*testMesh
	runner      *Runner
	me, a, b    *testNode // the receiver, and two members
	other       *testMesh // another mesh
	strangers   int       // made up so far
	strangerKey *identity.Keys
}

func newReceiver(tb testing.TB) *receiver {
	v := &receiver{testMesh: newTestMesh(tb, 3), strangerKey: identity.NewKeys(seeded(99), time.Now())}
	v.introduceAll()
	v.me, v.a, v.b = v.order[0], v.order[1], v.order[2]
	v.other = newTestMesh(tb, 0)
	v.other.root = identity.NewRoot(seeded(77))
	v.other.mesh = v.other.root.Mesh()
	runner, err := Open(v.me.keys, v.mesh, v.me, v.me, Config{Tuning: testTuning(), Boot: 1001, Seed: 1})
	if err != nil {
		tb.Fatal(err)
	}
	v.runner, v.me.runner = runner, runner
	for _, h := range []*testNode{v.a, v.b} {
		v.receive(h, v.record(h, 0, 1))
	}
	if len(runner.Members()) != 2 || runner.Members()[0].Status != Alive {
		tb.Fatalf("the members are not known: %+v", runner.Members())
	}
	return v
}

// receive passes rumors to the runner, as a probe by h.
func (v *receiver) receive(h *testNode, rumors ...*proto.Rumor) {
	b, err := proto.Encode(nil, &proto.Probe{Number: 1, Rumors: rumors})
	if err != nil {
		v.t.Fatal(err)
	}
	v.runner.receive(context.Background(), inMsg{from: h.keys.Peer(), kind: proto.TypeProbe, payload: b})
}

// record returns a record of h, n incarnations above its first.
func (v *receiver) record(h *testNode, n, revision uint64) *proto.Rumor {
	return v.recordOf(h.keys, v.mesh, identity.Incarnation(1000)+n, revision)
}

func (v *receiver) recordOf(k *identity.Keys, mesh identity.Mesh, incarnation, revision uint64) *proto.Rumor {
	p := k.Peer()
	s, err := k.SignNode(&proto.NodeRecord{
		Mesh: mesh.ID[:], Peer: p[:], Boot: 1000, Incarnation: incarnation, Revision: revision, State: proto.NodeRunning,
	})
	if err != nil {
		v.t.Fatal(err)
	}
	return &proto.Rumor{Record: s}
}

func (v *receiver) accuse(k *identity.Keys, of proto.PeerID, incarnation uint64, l proto.Liveness) *proto.Rumor {
	p := k.Peer()
	s, err := k.SignAccusation(&proto.Accusation{Mesh: v.mesh.ID[:], Peer: of[:], Accuser: p[:], Incarnation: incarnation, Liveness: l})
	if err != nil {
		v.t.Fatal(err)
	}
	return &proto.Rumor{Accusation: s}
}

// valid reports whether v would forward what author published.
func (v *receiver) valid(author proto.PeerID, data []byte) bool {
	_, ok := v.runner.Valid(author, data)
	return ok
}

// topicData encodes a message of the topic.
func (v *receiver) topicData(rumors ...*proto.Rumor) []byte {
	b, err := proto.Encode(nil, &proto.Rumors{Rumors: rumors})
	if err != nil {
		v.t.Fatal(err)
	}
	return b
}

func TestInvalidStatementsHaveNoEffect(t *testing.T) {
	v := newReceiver(t)
	a, b := v.a.keys.Peer(), v.b.keys.Peer()
	first := identity.Incarnation(1000)
	forged := v.record(v.b, 5, 1)
	forged.Record.Signature[3] ^= 1
	swapped := v.record(v.b, 5, 1)
	swapped.Record.Signer = a[:]
	asOther := &proto.Rumor{Accusation: v.record(v.b, 5, 1).Record}
	stranger := v.strangerKey
	other, err := v.other.root.IssueMember(identity.Member{Peer: stranger.Peer(), Name: "spy"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	spy := v.recordOf(stranger, v.mesh, first, 1)
	spy.Introduction = &proto.KnownPeer{Certificate: other}
	borrowed := v.recordOf(stranger, v.mesh, first, 1)
	borrowed.Introduction = v.me.known[a]
	issued := v.record(v.b, 5, 1)
	issued.Record.Issuer = v.b.cert
	tests := []struct {
		name  string
		rumor *proto.Rumor
		topic bool // a may publish it, but it has no effect
	}{
		{"forged record", forged, false},
		{"record under another's name", swapped, false},
		{"record as accusation", asOther, false},
		{"record of another, published", v.record(v.b, 5, 1), false},
		{"record of another mesh", v.recordOf(v.b.keys, v.other.mesh, first+5, 1), false},
		{"record of a stranger", v.recordOf(stranger, v.mesh, first, 1), false},
		{"record of a stranger with a certificate of another mesh", spy, false},
		{"record of a stranger with a member's certificate", borrowed, false},
		{"record with an issuer", issued, false},
		{"accusation by a stranger", v.accuse(stranger, b, first, proto.Dead), false},
		{"nothing", &proto.Rumor{}, false},
		{"both", &proto.Rumor{Record: v.record(v.a, 5, 1).Record, Accusation: v.accuse(v.a.keys, b, first, proto.Dead).Accusation}, false},
		{"accusation of an incarnation that never existed", v.accuse(v.a.keys, b, first+7, proto.Dead), true},
		{"accusation of the highest incarnation", v.accuse(v.a.keys, b, 1<<64-1, proto.Dead), true},
		{"accusation of a past incarnation", v.accuse(v.a.keys, b, first-1, proto.Dead), true},
		{"accusation of nobody", v.accuse(v.a.keys, proto.PeerID{1, 2, 3}, first, proto.Dead), true},
		{"accusation of the receiver in the highest incarnation", v.accuse(v.a.keys, v.me.keys.Peer(), 1<<64-1, proto.Dead), true},
		{"an old record again", v.record(v.a, 0, 1), true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before, mine := fmt.Sprint(v.state()), v.incarnation()
			if data := v.topicData(tt.rumor); v.valid(a, data) != tt.topic {
				t.Errorf("valid on the topic: %v", !tt.topic)
			} else {
				v.runner.receiveTopic(t.Context(), inMsg{from: a, payload: data})
			}
			if tt.name != "record of another, published" { // which is valid when forwarded
				v.receive(v.a, tt.rumor)
			}
			if after := fmt.Sprint(v.state()); after != before {
				t.Errorf("it had an effect:\n%s\n%s", before, after)
			}
			if v.incarnation() != mine {
				t.Error("the receiver raised its incarnation")
			}
		})
	}
}

// incarnation returns the receiver's own.
func (v *receiver) incarnation() uint64 {
	v.runner.mu.Lock()
	defer v.runner.mu.Unlock()
	return v.runner.core.own.incarnation
}

// state returns the receiver's view of the members, without times.
func (v *receiver) state() (all []string) {
	for _, m := range v.runner.Members() {
		all = append(all, fmt.Sprint(m.Peer.Short(), m.Status, m.Incarnation, m.Record.GetRevision()))
	}
	return all
}

// No flipped bit in a message of the topic results in a different valid statement.
func TestBitFlipsForgeNoStatement(t *testing.T) {
	v := newReceiver(t)
	data := v.topicData(v.record(v.a, 3, 4), v.accuse(v.a.keys, v.b.keys.Peer(), identity.Incarnation(1000), proto.Suspect))
	if !v.valid(v.a.keys.Peer(), data) {
		t.Fatal("the unmodified message is not valid")
	}
	passed := 0
	for bit := range len(data) * 8 {
		data[bit/8] ^= 1 << (bit % 8)
		if h, err := v.runner.readTopic(v.a.keys.Peer(), data, func(p proto.PeerID, _ *proto.KnownPeer) bool { return v.runner.verifier.member(p) }); err == nil {
			passed++ // now an unknown field or statement
			for _, n := range h.updates {
				if n.By != v.a.keys.Peer() || n.accuses() && (n.Peer != v.b.keys.Peer() || n.Liveness != proto.Suspect) ||
					!n.accuses() && n.Record.GetRevision() != 4 {
					t.Fatalf("bit %d: %+v", bit, n)
				}
			}
		}
		data[bit/8] ^= 1 << (bit % 8)
	}
	t.Logf("%d bits, %d harmless", len(data)*8, passed)
}

// A member that accuses everyone repeatedly kills no one and is soon ignored. Records of
// ten thousand unknown nodes leave nothing behind.
func TestFloodsAreBounded(t *testing.T) {
	v := newReceiver(t)
	b := v.b.keys.Peer()
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	start := heap()
	for i := range uint64(300) { // a accuses and b refutes each time
		v.receive(v.a, v.accuse(v.a.keys, b, identity.Incarnation(1000)+i, proto.Dead))
		if m, _ := v.runner.Member(b); m.Status == Dead {
			t.Fatal("one member alone killed another")
		}
		v.receive(v.b, v.record(v.b, i+1, 1))
	}
	if c := v.runner.Summary().Counts; c.Throttled < 200 {
		t.Errorf("a flood of accusations was not throttled: %+v", c)
	}
	for range 10_000 / 8 {
		var rumors []*proto.Rumor
		for range 8 {
			s := &proto.Signed{Details: make([]byte, 200), Signature: make([]byte, 64), Signer: fmt.Appendf(nil, "%032d", v.strangers)}
			v.strangers++
			rumors = append(rumors, &proto.Rumor{Record: s})
		}
		v.receive(v.a, rumors...)
	}
	if n := len(v.runner.Members()); n != 2 {
		t.Errorf("%d members after ten thousand unknown ones", n)
	}
	for i := range 100_000 { // not processed: the queue must be bounded
		v.runner.Control(v.a.keys.Peer(), &proto.Message{Type: proto.TypeProbe, Payload: make([]byte, 1+i%2000)})
	}
	v.runner.Control(b, &proto.Message{Type: proto.TypeProbe})
	if n := len(v.runner.in.waiting); n != maxWaitingPeer+1 {
		t.Errorf("%d messages are queued, want %d of the flood and one of another peer", n, maxWaitingPeer)
	}
	grown := int64(heap()) - int64(start)
	t.Logf("heap grew by %d KiB", grown>>10)
	if grown > 16<<20 {
		t.Errorf("the heap grew by %d KiB", grown>>10)
	}
	runtime.KeepAlive(v)
}

func TestBadSyncsAreRefused(t *testing.T) {
	v := newReceiver(t)
	pruned := append(make([]byte, 31), 7)
	v.runner.core.tombstones.add(proto.PeerID(pruned), 9)
	line := func(n byte) *proto.Digest { return &proto.Digest{Peer: append(make([]byte, 31), n), Incarnation: 1} }
	encode := func(q *proto.SyncRequest) []byte { b, _ := proto.Encode(nil, q); return b }
	tests := []struct {
		name string
		from proto.PeerID
		m    *proto.Message
	}{
		{"of a stranger", v.strangerKey.Peer(), &proto.Message{Type: proto.TypeSync}},
		{"of another type", v.a.keys.Peer(), &proto.Message{Type: proto.TypeSynced}},
		{"damaged", v.a.keys.Peer(), &proto.Message{Type: proto.TypeSync, Payload: []byte{0xff}}},
		{"too long", v.a.keys.Peer(), &proto.Message{Type: proto.TypeSync, Payload: make([]byte, proto.MaxControl+1)}},
		{"half a peer", v.a.keys.Peer(), &proto.Message{Type: proto.TypeSync, Payload: encode(&proto.SyncRequest{After: []byte{1}})}},
		{"out of order", v.a.keys.Peer(), &proto.Message{Type: proto.TypeSync, Payload: encode(&proto.SyncRequest{Digests: []*proto.Digest{line(2), line(1)}})}},
		{"twice the same", v.a.keys.Peer(), &proto.Message{Type: proto.TypeSync, Payload: encode(&proto.SyncRequest{Digests: []*proto.Digest{line(2), line(2)}})}},
		{"beyond its range", v.a.keys.Peer(), &proto.Message{Type: proto.TypeSync, Payload: encode(&proto.SyncRequest{Digests: []*proto.Digest{line(9)}, Until: line(5).Peer})}},
		{"without an incarnation", v.a.keys.Peer(), &proto.Message{Type: proto.TypeSync, Payload: encode(&proto.SyncRequest{Digests: []*proto.Digest{{Peer: pruned}}})}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if reply, err := v.runner.Sync(t.Context(), tt.from, tt.m); err == nil {
				t.Errorf("answered: %v", reply)
			}
		})
	}
	q := &proto.SyncRequest{}
	for i := range proto.MaxDigests { // all unknown: it requests some, and adds no members
		q.Digests = append(q.Digests, &proto.Digest{Peer: append(make([]byte, 30), byte(i>>8)+1, byte(i)), Incarnation: 1<<64 - 1})
	}
	reply, err := v.runner.Sync(t.Context(), v.a.keys.Peer(), &proto.Message{Type: proto.TypeSync, Payload: encode(q)})
	var r proto.SyncReply
	if err != nil || proto.Decode(reply.GetPayload(), &r) != nil || len(r.GetWanted()) > proto.MaxRumors || !r.GetMore() || len(v.runner.Members()) != 2 {
		t.Errorf("a digest of unknown nodes: %v, %v", &r, err)
	}
}

// Any bytes may arrive as a probe, as its reply, on the topic and in a sync.
func FuzzRunner(f *testing.F) {
	v := newReceiver(f)
	v.runner.core.tombstones.add(proto.PeerID{7}, 9)
	v.runner.core.tombstones.add(v.b.keys.Peer(), 1)
	probe, _ := proto.Encode(nil, &proto.Probe{Number: 7, Rumors: []*proto.Rumor{v.record(v.b, 1, 1)}})
	reply, _ := proto.Encode(nil, &proto.ProbeReply{Number: 7, Missed: true})
	sync, _ := proto.Encode(nil, &proto.SyncRequest{After: make([]byte, 32)})
	f.Add(uint8(0), probe)
	f.Add(uint8(1), reply)
	f.Add(uint8(2), v.topicData(v.record(v.a, 1, 1)))
	f.Add(uint8(3), sync)
	buried := proto.PeerID{7}
	sync, _ = proto.Encode(nil, &proto.SyncRequest{Digests: []*proto.Digest{{Peer: buried[:], Liveness: proto.Alive}}})
	f.Add(uint8(3), sync)
	f.Fuzz(func(t *testing.T, kind uint8, b []byte) {
		from := v.a.keys.Peer()
		switch kind % 4 {
		case 0:
			v.runner.receive(t.Context(), inMsg{from: from, kind: proto.TypeProbe, payload: b})
		case 1:
			v.runner.receive(t.Context(), inMsg{from: from, kind: proto.TypeProbed, payload: b})
		case 2:
			if v.valid(from, b) {
				v.runner.receiveTopic(t.Context(), inMsg{from: from, payload: b})
			}
		case 3:
			m, err := v.runner.Sync(t.Context(), from, &proto.Message{Type: proto.TypeSync, Payload: b})
			if err == nil && len(m.GetPayload()) > proto.MaxControl {
				t.Fatalf("an answer of %d bytes", len(m.GetPayload()))
			}
		}
		if n := len(v.runner.Members()); n != 2 {
			t.Fatalf("%d members", n)
		}
	})
}
