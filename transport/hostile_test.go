package transport

import (
	"context"
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p"
	dht "github.com/libp2p/go-libp2p-kad-dht"
	pb "github.com/libp2p/go-libp2p-kad-dht/pb"
	pubsub "github.com/libp2p/go-libp2p-pubsub"
	pspb "github.com/libp2p/go-libp2p-pubsub/pb"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/protocol"
	msmux "github.com/multiformats/go-multistream"
	pbuf "google.golang.org/protobuf/proto"

	"github.com/balefire/balefire/proto"
)

// countRumors counts the rumors that a test node receives.
type countRumors struct{ heard atomic.Int64 }

func (c *countRumors) Valid(proto.PeerID, []byte) (uint64, bool) { return 0, true }
func (c *countRumors) Receive(proto.PeerID, []byte)              { c.heard.Add(1) }

// inMesh starts a member with all services enabled that admits these nodes.
func inMesh(t *testing.T, n byte, admits ...byte) (*testNode, *countRumors) {
	t.Helper()
	rumors := new(countRumors)
	return start(t, n, func(node *testNode, cfg *Config) {
		cfg.Topic, cfg.DHT = rumors, true
		cfg.Timing.Hello = 3 * time.Second
		cfg.Sync = func(context.Context, proto.PeerID, *proto.Message) (*proto.Message, error) {
			return &proto.Message{Type: proto.TypeSynced}, nil
		}
		node.gate.admit = func(_ *proto.Hello, p proto.PeerID) error {
			for _, a := range admits {
				if p == newTestKeys(a).Peer() {
					return nil
				}
			}
			return errStranger
		}
	}), rumors
}

func dhtProtocol() protocol.ID {
	return protocol.ID("/balefire/" + meshName("balefire") + "/kad/1.0.0")
}

// TestStrangerGetsNothing checks that a node without a certificate that dials, joins the
// DHT, subscribes and floods receives nothing, is in no routing table, and costs little
// memory.
func TestStrangerGetsNothing(t *testing.T) {
	a, _ := inMesh(t, 1, 2)
	b, heard := inMesh(t, 2, 1)
	link(t, a, b)
	eventually(t, "the two are in the topic", func() bool { return a.Discovery().TopicPeers == 1 && b.Discovery().TopicPeers == 1 })
	before := heap()

	h, err := libp2p.New(libp2p.ListenAddrStrings("/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/udp/0/quic-v1"), libp2p.DisableMetrics())
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	sub, topic := subscribeRaw(t, ctx, h)
	table, err := dht.New(h, dht.Mode(dht.ModeServer), dht.ProtocolPrefix(protocol.ID("/balefire/"+meshName("balefire"))), dht.DisableValues())
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	var wg sync.WaitGroup
	wg.Go(func() { flood(ctx, h, a, topic) })
	wg.Go(func() {
		for {
			m, err := sub.Next(ctx)
			if err != nil {
				return
			}
			if m.ReceivedFrom != h.ID() {
				t.Errorf("the stranger received %.100q", m.GetData())
			}
		}
	})
	wg.Go(func() {
		for ctx.Err() == nil {
			table.GetClosestPeers(ctx, string(a.host.ID()))
			table.FindPeer(ctx, b.host.ID())
			<-time.After(20 * time.Millisecond)
		}
	})
	secrets := 0
	for ctx.Err() == nil {
		if err := a.Publish(t.Context(), fmt.Appendf(nil, "secret %d", secrets)); err != nil {
			t.Error(err)
		}
		secrets++
		<-time.After(20 * time.Millisecond)
	}
	wg.Wait()
	for _, p := range table.RoutingTable().ListPeers() {
		if err := table.Ping(t.Context(), p); err == nil {
			t.Errorf("the stranger's DHT is answered by %s", p)
		}
	}
	for _, n := range []*testNode{a, b} {
		w := n.disc.dht.Load()
		if slices.Contains(w.dht.RoutingTable().ListPeers(), h.ID()) || slices.Contains(n.disc.topic.Load().topic.ListPeers(), h.ID()) {
			t.Error("the stranger is in a routing table")
		}
	}
	eventually(t, "the member receives all", func() bool { return heard.heard.Load() == int64(secrets) })
	grown := heap() - before
	t.Logf("%d secrets revealed, heap grew by %d KiB", secrets, grown>>10)
	if grown > 48<<20 { // includes the stranger's own host in this process
		t.Errorf("a stranger costs %d MiB", grown>>20)
	}
}

// subscribeRaw subscribes to the mesh's topic.
func subscribeRaw(t *testing.T, ctx context.Context, h host.Host) (*pubsub.Subscription, *pubsub.Topic) {
	t.Helper()
	ps, err := pubsub.NewGossipSub(ctx, h, pubsub.WithFloodPublish(true))
	if err != nil {
		t.Fatal(err)
	}
	topic, err := ps.Join("/balefire/gossip/" + meshName("balefire"))
	if err != nil {
		t.Fatal(err)
	}
	sub, err := topic.Subscribe(pubsub.WithBufferSize(4096)) // what does not fit is dropped
	if err != nil {
		t.Fatal(err)
	}
	return sub, topic
}

// flood connects repeatedly and sends garbage on every protocol.
func flood(ctx context.Context, h host.Host, victim *testNode, topic *pubsub.Topic) {
	junk := make([]byte, 60<<10)
	protocols := append([]protocol.ID{dhtProtocol(), streamSync, streamTask, streamLease, streamCtl, streamChunk}, pubsub.GossipSubDefaultProtocols...)
	for i := 0; ctx.Err() == nil; i++ {
		h.Peerstore().AddAddrs(victim.host.ID(), victim.host.Addrs(), time.Minute)
		binary.BigEndian.PutUint64(junk, uint64(i))
		topic.Publish(ctx, junk)
		c, err := h.Network().DialPeer(ctx, victim.host.ID())
		if err != nil {
			<-time.After(time.Millisecond)
			continue
		}
		s, err := c.NewStream(ctx)
		if err != nil {
			<-time.After(time.Millisecond)
			continue
		}
		s.SetDeadline(time.Now().Add(100 * time.Millisecond))
		msmux.NewMSSelect(s, protocols[i%len(protocols)]).Write(junk)
		if i%2 == 0 {
			s.Reset()
		}
	}
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// kad encodes a message of the DHT.
func kad(t *testing.T, m *pb.Message) []byte {
	t.Helper()
	b, err := pbuf.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return append(binary.AppendUvarint(nil, uint64(len(b))), b...)
}

// TestBadInputOfTheDHT is the bad-input family of the DHT: a member sends what no member
// sends; the other one continues, stores none of it and reveals nothing.
func TestBadInputOfTheDHT(t *testing.T) {
	victim, _ := inMesh(t, 1, 2, 3)
	honest, _ := inMesh(t, 2, 1)
	evil := start(t, 3, nil)
	link(t, honest, victim)
	link(t, evil, victim)
	eventually(t, "the honest one is in the table", func() bool { return victim.Discovery().TablePeers == 1 })
	key := victim.disc.dht.Load().key
	self, other := []byte(evil.host.ID()), []byte(honest.host.ID())
	addr := evil.host.Addrs()[0].Bytes()
	add := func(key, id []byte, addrs ...[]byte) *pb.Message {
		return &pb.Message{Type: pb.Message_ADD_PROVIDER, Key: key, ProviderPeers: []*pb.Message_Peer{{Id: id, Addrs: addrs}}}
	}
	many := make([][]byte, 2000)
	for i := range many {
		many[i] = addr
	}
	ask := func(typ pb.Message_MessageType, key []byte) *pb.Message { return &pb.Message{Type: typ, Key: key} }
	tests := []struct {
		name string
		send []byte
	}{
		{"a provider record for another peer", kad(t, add(key, other, addr))},
		{"a provider record without a peer", kad(t, add(key, nil, addr))},
		{"a provider record of garbage", kad(t, add(key, []byte("garbage"), addr))},
		{"an unknown key", kad(t, add([]byte("strange"), self, addr))},
		{"no key", kad(t, add(nil, self, addr))},
		{"a long key", kad(t, add(make([]byte, 81), self, addr))},
		{"a huge key", kad(t, add(make([]byte, 1<<20), self, addr))},
		{"no address", kad(t, add(key, self))},
		{"bad addresses", kad(t, add(key, self, []byte("not one"), nil, []byte{0xff, 0xff, 0xff}))},
		{"many addresses", kad(t, add(key, self, many...))},
		{"a value", kad(t, &pb.Message{Type: pb.Message_PUT_VALUE, Key: []byte("/pk/x")})},
		{"a query for a value", kad(t, ask(pb.Message_GET_VALUE, []byte("/pk/x")))},
		{"a query without a peer", kad(t, ask(pb.Message_FIND_NODE, nil))},
		{"a query about garbage", kad(t, ask(pb.Message_FIND_NODE, []byte(strings.Repeat("x", 5000))))},
		{"a query without a key", kad(t, ask(pb.Message_GET_PROVIDERS, nil))},
		{"an invalid type", kad(t, ask(99, key))},
		{"an excessive length", binary.AppendUvarint(nil, 1<<40)},
		{"a wrong length", binary.AppendUvarint(nil, 4<<20)},
		{"an endless length", []byte(strings.Repeat("\xff", 20))},
		{"not protobuf", append([]byte{20}, strings.Repeat("\xff", 20)...)},
		{"nothing", []byte{0}},
		{"http", []byte("GET / HTTP/1.1\r\n\r\n")},
	}
	before := heap()
	conn := evil.host.Network().ConnsToPeer(victim.host.ID())[0]
	for _, tt := range tests {
		s := openRaw(t, conn, dhtProtocol())
		if _, err := s.rw.Write(tt.send); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		s.CloseWrite()
		for buf := make([]byte, 4096); ; {
			if _, err := s.rw.Read(buf); err != nil {
				if isTimeout(err) {
					t.Errorf("%s: the stream stays open", tt.name)
				}
				break
			}
		}
		s.Reset()
	}
	if grown := heap() - before; grown > 16<<20 {
		t.Errorf("bad input costs %d MiB", grown>>20)
	}
	w := victim.disc.dht.Load()
	for _, id := range w.dht.RoutingTable().ListPeers() {
		if id == evil.host.ID() {
			t.Error("a non-participant is in the routing table")
		}
	}
	providers, err := w.dht.ProviderStore().GetProviders(t.Context(), []byte("strange"))
	if err != nil || len(providers) != 0 {
		t.Errorf("stored under an unknown key: %v, %v", providers, err)
	}
	providers, err = w.dht.ProviderStore().GetProviders(t.Context(), key)
	for _, p := range providers {
		if len(p.Addrs) > maxFound {
			t.Errorf("%d addresses of one peer are stored", len(p.Addrs))
		}
		if p.ID != evil.host.ID() && slices.ContainsFunc(p.Addrs, evil.host.Addrs()[0].Equal) {
			t.Errorf("the record that one member made for another, %s, is stored", p.ID)
		}
	}
	if err != nil {
		t.Error(err)
	}
	if addrs, err := honest.FindAddrs(t.Context(), victim.Peer()); err != nil || len(addrs) == 0 {
		t.Errorf("afterwards the honest node gets %v, %v", addrs, err)
	}
}

// TestForgedRumors checks that a member that forwards what no honest member does is
// ignored and loses its connection.
func TestForgedRumors(t *testing.T) {
	victim, heard := inMesh(t, 1, 3)
	evil := start(t, 3, nil)
	link(t, evil, victim)
	topic := "/balefire/gossip/" + meshName("balefire")
	message := func(from, number, data, signature []byte) []byte {
		return rpc(t, &pspb.RPC{Publish: []*pspb.Message{{From: from, Seqno: number, Data: data, Topic: &topic, Signature: signature}}})
	}
	self := []byte(evil.host.ID())
	gone := evil.connGone(evil.host.Network().ConnsToPeer(victim.host.ID())[0])
	for i := range 20 {
		for _, b := range [][]byte{
			message(self, number(uint64(i+1)), []byte("unsigned"), nil),
			message(self, number(uint64(i+1)), []byte("forged"), make([]byte, 64)),
			message([]byte("nobody"), number(1), []byte("no author"), make([]byte, 64)),
			message(nil, nil, nil, nil),
			rpc(t, &pspb.RPC{Publish: []*pspb.Message{{From: self, Data: make([]byte, maxRumor+2*rumorHead), Topic: &topic}}}),
			append([]byte{20}, strings.Repeat("\xff", 20)...),
		} {
			conns := evil.host.Network().ConnsToPeer(victim.host.ID())
			if len(conns) == 0 {
				break
			}
			if s, err := conns[0].NewStream(t.Context()); err == nil {
				mux := msmux.NewMSSelect(s, pubsub.GossipSubDefaultProtocols[0])
				mux.Write(b)
				s.CloseWrite()
			}
		}
		<-time.After(5 * time.Millisecond)
	}
	select {
	case <-gone:
	case <-time.After(patience):
		t.Error("a forger of rumors keeps its connection")
	}
	if n := heard.heard.Load(); n != 0 {
		t.Errorf("%d forged rumors were received", n)
	}
}

func rpc(t *testing.T, m *pspb.RPC) []byte {
	t.Helper()
	b, err := pbuf.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return append(binary.AppendUvarint(nil, uint64(len(b))), b...)
}
