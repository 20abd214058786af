package transport

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p"
	pubsub "github.com/libp2p/go-libp2p-pubsub"
	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/p2p/host/eventbus"
	"github.com/libp2p/go-libp2p/p2p/protocol/autonatv2"
	circuitproto "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/proto"
	"github.com/libp2p/go-libp2p/p2p/protocol/holepunch"
	"github.com/libp2p/go-libp2p/p2p/protocol/identify"
	libping "github.com/libp2p/go-libp2p/p2p/protocol/ping"
	ma "github.com/multiformats/go-multiaddr"
	pbuf "google.golang.org/protobuf/proto"

	"github.com/balefire/balefire/proto"
)

// An outsider is a host outside the mesh that records every byte that a node sends it
// above the transports.
type outsider struct {
	host.Host
	t       *testing.T
	victim  *testNode
	at      []ma.Multiaddr // one
	mu      sync.Mutex
	streams int            // opened by the victim
	answer  []*proto.Hello // answers to the victim's hellos, in order
	heard   []*proto.Hello
	opened  atomic.Int64  // streams opened by ask
	done    chan struct{} // closed when the victim's ctl stream is closed
}

func newOutsider(t *testing.T, victim *testNode) *outsider {
	t.Helper()
	h, err := libp2p.New(libp2p.ListenAddrStrings("/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/udp/0/quic-v1"), libp2p.DisableMetrics())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	at := slices.DeleteFunc(victim.host.Network().ListenAddresses(), isCircuit)
	o := &outsider{Host: h, t: t, victim: victim, at: at[:1], done: make(chan struct{})}
	h.Network().SetStreamHandler(o.serve)
	return o
}

// connect dials the victim again, always at the same address.
func (o *outsider) connect() network.Conn {
	o.t.Helper()
	o.Network().ClosePeer(o.victim.host.ID())
	o.Peerstore().AddAddrs(o.victim.host.ID(), o.at, time.Hour)
	c, err := o.Network().DialPeer(o.t.Context(), o.victim.host.ID())
	if err != nil {
		o.t.Fatal(err)
	}
	return c
}

// multistreamNames encodes names as multistream does: each with its length.
func multistreamNames(all ...string) (b []byte) {
	for _, w := range all {
		b = append(binary.AppendUvarint(b, uint64(len(w)+1)), w+"\n"...)
	}
	return b
}

const multistream = "/multistream/1.0.0"

// ask opens a stream for name, sends and returns everything received until it closes.
func (o *outsider) ask(c network.Conn, name protocol.ID, send []byte) []byte {
	s, err := c.NewStream(o.t.Context())
	if err != nil {
		return nil
	}
	o.opened.Add(1)
	defer s.Reset()
	s.Write(append(multistreamNames(multistream, string(name)), send...))
	told, _ := io.ReadAll(s)
	return told
}

// serve handles a stream opened by the victim.
func (o *outsider) serve(s network.Stream) {
	defer s.Reset()
	o.mu.Lock()
	o.streams++
	first := o.streams == 1
	o.mu.Unlock()
	opening := multistreamNames(multistream, string(streamCtl))
	got := make([]byte, len(opening))
	if _, err := io.ReadFull(s, got); err != nil || !bytes.Equal(got, opening) {
		o.t.Errorf("the victim opens a stream of %q, %v", got, err)
		return
	}
	if first {
		defer close(o.done)
	}
	s.Write(opening)
	rd := proto.NewReader(s, proto.MaxControl)
	for i := 0; ; i++ {
		b, err := rd.NextRaw()
		if err != nil {
			return
		}
		o.heard = append(o.heard, o.decode(b))
		if i < len(o.answer) {
			s.Write(o.frame(o.answer[i]))
		}
	}
}

func (o *outsider) frame(h *proto.Hello) []byte {
	m, err := helloMessage(h)
	if err != nil {
		o.t.Error(err)
		return nil
	}
	b, err := proto.AppendFrame(nil, m)
	if err != nil {
		o.t.Error(err)
	}
	return b
}

func (o *outsider) decode(b []byte) *proto.Hello {
	var m proto.Message
	h := new(proto.Hello)
	if err := errors.Join(proto.Decode(b, &m), proto.Decode(m.GetPayload(), h)); err != nil {
		o.t.Error(err)
	}
	if want := (&proto.Message{Type: m.GetType(), Payload: m.GetPayload()}); !pbuf.Equal(&m, want) {
		o.t.Errorf("besides a hello the frame contains %v", &m)
	}
	return h
}

// hellos returns the hellos after the negotiation of ctl in told.
func (o *outsider) hellos(told []byte) (all []*proto.Hello) {
	rest, ok := bytes.CutPrefix(told, multistreamNames(multistream, string(streamCtl)))
	if !ok {
		o.t.Fatalf("ctl is answered with %q", told)
	}
	rd := proto.NewReader(bytes.NewReader(rest), proto.MaxControl)
	for {
		b, err := rd.NextRaw()
		if err != nil {
			return all
		}
		all = append(all, o.decode(b))
	}
}

// startSecretNode starts a member of a mesh of two with all services enabled.
func startSecretNode(t *testing.T) *testNode {
	t.Helper()
	tune := func(_ *testNode, cfg *Config) {
		cfg.Topic, cfg.DHT, cfg.Relay, cfg.MeshTag = new(countRumors), true, true, "the secret name of a mesh"
		cfg.Bodies, cfg.Announce = struct{ Bodies }{}, []string{"/ip4/192.0.2.77/tcp/4001"}
		cfg.Timing.Hello = 3 * time.Second
		cfg.Joiner = joinerFunc(func(proto.PeerID, *proto.JoinRequest) *proto.JoinReply { return &proto.JoinReply{Refusal: "no"} })
		cfg.Sync = func(context.Context, proto.PeerID, *proto.Message) (*proto.Message, error) { return nil, errStranger }
	}
	victim := start(t, 1, func(n *testNode, cfg *Config) {
		tune(n, cfg)
		n.gate.admit = func(_ *proto.Hello, p proto.PeerID) error {
			if p != newTestKeys(2).Peer() {
				return errStranger
			}
			return nil
		}
	})
	member := start(t, 2, tune)
	link(t, member, victim)
	eventually(t, "the mesh is whole", func() bool {
		d := victim.Discovery()
		return d.TopicPeers == 1 && d.TablePeers == 1
	})
	return victim
}

// identifications returns how often a peer other than the member was identified.
func identifications(t *testing.T, victim *testNode) func() int {
	t.Helper()
	sub, err := victim.host.EventBus().Subscribe(new(event.EvtPeerIdentificationCompleted), eventbus.BufSize(64))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sub.Close() })
	return func() (n int) {
		for {
			select {
			case e := <-sub.Out():
				if e.(event.EvtPeerIdentificationCompleted).Peer != toLibp2p(newTestKeys(2).Peer()) {
					n++
				}
			default:
				return n
			}
		}
	}
}

// TestStrangerLearnsNothing checks, to the byte, what a node sends to a stranger that
// dials it: that it supports ctl, join and AutoNAT dial-back, why a hello is refused, and
// the proof for a challenge. No other protocol is answered, whether it is supported or
// not.
func TestStrangerLearnsNothing(t *testing.T) {
	t.Parallel()
	victim := startSecretNode(t)
	identified := identifications(t, victim)
	o := newOutsider(t, victim)

	served := victim.host.(interface{ Mux() protocol.Switch }).Mux().Protocols()
	names := slices.Concat(pubsub.GossipSubDefaultProtocols, []protocol.ID{
		streamTask, streamLease, streamChunk, streamSync, streamEcho, identify.ID, identify.IDPush, libping.ID, circuitproto.ProtoIDv2Hop,
		circuitproto.ProtoIDv2Stop, holepunch.Protocol, autonatv2.DialProtocol, "/nobody/serves/this",
		protocol.ID("/balefire/" + meshName("the secret name of a mesh") + "/kad/1.0.0"),
	})
	for _, p := range served {
		if !slices.Contains(names, p) && !slices.Contains(preHelloProtocols, p) {
			t.Errorf("%s is served but was not requested", p)
		}
	}
	for some := range slices.Chunk(names, maxWaiting) { // no more wait for a hello
		for !o.unanswered(some) { // a slow machine closed the connection first
		}
	}

	hello := &proto.Hello{Certificate: &proto.Signed{Details: []byte("x")}, Boot: 1, BootId: make([]byte, 16)}
	join, err := proto.AppendFrame(nil, &proto.Message{Type: proto.TypeJoin})
	if err != nil {
		t.Fatal(err)
	}
	asked := []struct {
		name protocol.ID
		send []byte
		told []byte
	}{
		{name: streamCtl, send: o.frame(hello)},
		{name: streamCtl, send: o.frame(&proto.Hello{Challenge: bytes.Repeat([]byte{0}, proofSize)})},
		{name: streamCtl, send: o.frame(&proto.Hello{Challenge: bytes.Repeat([]byte{1}, proofSize)})},
		{name: streamJoin, send: join},
		{name: autonatv2.DialBackProtocol},
	}
	var all sync.WaitGroup
	strangers := []*outsider{o}
	for i := range asked { // one connection each: one without a hello is closed only after a while
		stranger := newOutsider(t, victim)
		strangers = append(strangers, stranger)
		c := stranger.connect()
		all.Go(func() { asked[i].told = stranger.ask(c, asked[i].name, asked[i].send) })
	}
	all.Wait()
	refusal := &proto.Hello{Version: proto.Version, Refusal: errStranger.Error()}
	if told := o.hellos(asked[0].told); len(told) != 1 || !pbuf.Equal(told[0], refusal) {
		t.Errorf("a hello is answered with %v", told)
	}
	o.proofs(asked[1].told, asked[2].told)
	if want := append(multistreamNames(multistream, string(streamJoin)), joined(t, "no")...); !bytes.Equal(asked[3].told, want) {
		t.Errorf("a join is answered with %q, want %q", asked[3].told, want)
	}
	if told := asked[4].told; !bytes.Equal(told, multistreamNames(multistream, autonatv2.DialBackProtocol)) {
		t.Errorf("AutoNAT's answer is answered with %q", told)
	}
	for _, s := range strangers {
		s.learnedNothing()
	}
	if n := identified(); n != 0 {
		t.Errorf("the victim identified strangers %d times", n)
	}
}

// unanswered checks that no protocol of names is answered while the victim gets a new
// service. It reports whether all were requested before the connection was closed.
func (o *outsider) unanswered(names []protocol.ID) bool {
	o.t.Helper()
	c := o.connect()
	defer c.Close()
	o.opened.Store(0)
	var all sync.WaitGroup
	for _, p := range names {
		all.Go(func() {
			if told := o.ask(c, p, []byte("\x10sixteen bytes ..")); len(told) > 0 {
				o.t.Errorf("%s is answered with %q", p, told)
			}
		})
	}
	h := o.victim.host
	eventually(o.t, "the connection is there", func() bool { return c.IsClosed() || len(h.Network().ConnsToPeer(o.ID())) > 0 })
	h.SetStreamHandler("/a/service/that/begins", func(s network.Stream) { s.Reset() }) // libp2p pushes the change
	all.Wait()
	h.RemoveStreamHandler("/a/service/that/begins")
	return int(o.opened.Load()) == len(names)
}

// learnedNothing checks what libp2p itself recorded about the victim.
func (o *outsider) learnedNothing() {
	id := o.victim.host.ID()
	if p, _ := o.Peerstore().GetProtocols(id); len(p) > 0 {
		o.t.Errorf("protocols: %v", p)
	}
	if agent, err := o.Peerstore().Get(id, "AgentVersion"); err == nil {
		o.t.Errorf("software: %v", agent)
	}
	if got := o.Peerstore().Addrs(id); len(got) != 1 {
		o.t.Errorf("addresses: %v", got)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.streams != 0 {
		o.t.Errorf("the victim opened %d streams", o.streams)
	}
}

// proofs checks that an answer to a challenge is exactly 32 bytes, and differs each time.
func (o *outsider) proofs(answers ...[]byte) {
	seen := make(map[string]bool)
	for _, answer := range answers {
		told := o.hellos(answer)
		if len(told) != 1 || !pbuf.Equal(told[0], &proto.Hello{Version: proto.Version, Proof: told[0].GetProof()}) || len(told[0].GetProof()) != proofSize {
			o.t.Errorf("a challenge is answered with %v", told)
			continue
		}
		seen[string(told[0].GetProof())] = true
	}
	if len(seen) != len(answers) {
		o.t.Error("all challenges have the same answer")
	}
}

func joined(t *testing.T, refusal string) []byte {
	t.Helper()
	b, err := proto.Encode(nil, &proto.JoinReply{Refusal: refusal})
	if err != nil {
		t.Fatal(err)
	}
	if b, err = proto.AppendFrame(nil, &proto.Message{Type: proto.TypeJoined, Payload: b}); err != nil {
		t.Fatal(err)
	}
	return b
}

// TestDialedStrangerLearnsNothing checks that a node that dials an unknown peer, such as
// one seen on the LAN, sends 32 random bytes and nothing else to a peer that does not
// prove that it belongs to the mesh.
func TestDialedStrangerLearnsNothing(t *testing.T) {
	t.Parallel()
	zero := make([]byte, proofSize)
	tests := []struct {
		name   string
		answer *proto.Hello
		last   *proto.Hello // what the victim sends then; nil: nothing
	}{
		{"a guess", &proto.Hello{Proof: zero}, &proto.Hello{Version: proto.Version, Refusal: reasonNoProof}},
		{"a hello", &proto.Hello{Certificate: &proto.Signed{Details: []byte("x")}}, &proto.Hello{Version: proto.Version, Refusal: reasonNoProof}},
		{"a challenge", &proto.Hello{Challenge: zero}, &proto.Hello{Version: proto.Version, Refusal: reasonNoProof}},
		{"a refusal", &proto.Hello{Refusal: "no"}, nil},
	}
	victim := startSecretNode(t)
	identified := identifications(t, victim)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := newOutsider(t, victim)
			o.answer = []*proto.Hello{tt.answer}
			p, err := fromLibp2p(o.ID())
			if err != nil {
				t.Fatal(err)
			}
			err = victim.disc.found.tryHello(t.Context(), p, addrStrings(o.Addrs()[:1])) // given two, it may dial both
			if _, ok := errors.AsType[*RefusedError](err); !ok {
				t.Errorf("connected to a stranger: %v", err)
			}
			<-o.done
			want := []*proto.Hello{{Version: proto.Version, Challenge: o.heard[0].GetChallenge()}}
			if tt.last != nil {
				want = append(want, tt.last)
			}
			if !slices.EqualFunc(o.heard, want, func(a, b *proto.Hello) bool { return pbuf.Equal(a, b) }) || len(o.heard[0].GetChallenge()) != proofSize {
				t.Errorf("the stranger received %v", o.heard)
			}
			if known, _ := o.Peerstore().GetProtocols(victim.host.ID()); len(known) > 0 || o.streams != 1 {
				t.Errorf("the stranger knows %v, and %d streams to it were opened", known, o.streams)
			}
		})
	}
	if n := identified(); n != 0 {
		t.Errorf("%d strangers were identified", n)
	}
}

// TestUnknownMembersConnect checks that two members of one mesh that do not know each
// other connect, whoever dials, and two of different meshes do not.
func TestUnknownMembersConnect(t *testing.T) {
	of := func(tag string) func(*testNode, *Config) {
		return func(_ *testNode, cfg *Config) { cfg.MeshTag = tag }
	}
	a, b, other := start(t, 1, of("one")), start(t, 2, of("one")), start(t, 3, of("another"))
	if err := a.disc.found.tryHello(t.Context(), b.Peer(), b.Addrs()); err != nil || !a.Connected(b.Peer()) {
		t.Errorf("two of one mesh: %v", err)
	}
	err := a.disc.found.tryHello(t.Context(), other.Peer(), other.Addrs())
	if r, ok := errors.AsType[*RefusedError](err); !ok || r.Theirs || r.Reason != reasonNoProof {
		t.Errorf("two of different meshes: %v", err)
	}
	other.gate.mu.Lock()
	defer other.gate.mu.Unlock()
	if len(other.gate.hellos) > 0 {
		t.Errorf("a node of another mesh received %v", other.gate.hellos)
	}
}

// TestProofIsBoundToConnection checks that a proof is invalid for another dialer, dialed
// node, challenge or mesh.
func TestProofIsBoundToConnection(t *testing.T) {
	a, b := newTestKeys(1).Peer(), newTestKeys(2).Peer()
	one := prove("mesh", a, b, []byte("challenge"))
	for _, other := range [][]byte{
		prove("mesh", b, a, []byte("challenge")), prove("mesh", a, a, []byte("challenge")),
		prove("mesh", a, b, []byte("Challenge")), prove("hsem", a, b, []byte("challenge")),
	} {
		if bytes.Equal(one, other) {
			t.Error("one proof for two")
		}
	}
}
