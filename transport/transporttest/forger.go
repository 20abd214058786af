package transporttest

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p"
	pubsub "github.com/libp2p/go-libp2p-pubsub"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/peerstore"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/p2p/protocol/identify"
	identifypb "github.com/libp2p/go-libp2p/p2p/protocol/identify/pb"
	quic "github.com/libp2p/go-libp2p/p2p/transport/quic"
	"github.com/libp2p/go-libp2p/p2p/transport/quicreuse"
	"github.com/libp2p/go-msgio/pbio"
	ma "github.com/multiformats/go-multiaddr"
	msmux "github.com/multiformats/go-multistream"
	quiclib "github.com/quic-go/quic-go"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
)

// A Forger is an admitted member that runs no node. A test uses it to send any message,
// or any bytes, on any stream, and checks how the mesh's nodes react: what a hostile
// member could do with its own program. It shares no code with [transport.Transport]
// except the encoding of messages, and none of its checks.
//
//	f := transporttest.NewForger(t, root, "mallory")          // real sockets, on loopback
//	f := transporttest.NewForgerOn(t, root, "mallory", w, 7)  // node 7 of a simulated network; f.Close before the bubble ends
//	f.Connect(node.Peer(), node.Addrs())                      // hello: from now on the node considers it a member
//	f.Send(node.Peer(), proto.StreamTask, f.Frame(proto.TypeQueues, &proto.QueueStates{…}))
//	f.Send(node.Peer(), proto.StreamTask, f.Frame(proto.TypeRenew, m, Padding(70_000)...)) // with an unknown field
//	f.Send(node.Peer(), proto.StreamSync, []byte{…})          // not even a frame
//	reply, err := f.Ask(node.Peer(), proto.StreamSync, f.Frame(proto.TypeSync, &proto.SyncRequest{…}))
//	f.Publish(rumor)                                          // on the gossip topic
//
// Keys signs whatever a node with that identity could sign: envelopes, deeds, records,
// accusations. Received returns what nodes sent to it.
type Forger struct {
	Keys *identity.Keys
	Mesh identity.Mesh
	Cert *proto.Signed // by the root
	Boot uint64        // of its hellos
	ID   proto.BootID  // likewise

	t       testing.TB
	host    host.Host
	sockets io.Closer
	topic   *pubsub.Topic
	cancel  context.CancelFunc
	running sync.WaitGroup
	once    sync.Once

	mu       sync.Mutex
	ctl      map[proto.PeerID]*rawStream
	received []Received
}

// Received is a message that a node sent to a [Forger], on a ctl or task stream.
type Received struct {
	From    proto.PeerID
	Message *proto.Message
}

// maxReceived bounds the messages that a Forger keeps; later ones are read and dropped.
const maxReceived = 4096

// forgeTimeout limits a Forger's waits: it only catches hangs.
const forgeTimeout = time.Minute

// NewForger returns a member of the mesh of root on the machine's own network. It has
// these roles, by default those of every member, and is closed with the test.
func NewForger(t testing.TB, root *identity.Root, name string, roles ...string) *Forger {
	t.Helper()
	return newForger(t, root, name, roles, "/ip4/127.0.0.1/udp/0/quic-v1", nil)
}

// NewForgerOn is NewForger as node i of a simulated network. In a bubble it must be
// closed before the bubble ends.
func NewForgerOn(t testing.TB, root *identity.Root, name string, n *Network, i int, roles ...string) *Forger {
	t.Helper()
	return newForger(t, root, name, roles, n.Addr(i), n.sockets(i)(SendAll))
}

func newForger(t testing.TB, root *identity.Root, name string, roles []string, at string, sockets []quicreuse.Option) *Forger {
	t.Helper()
	now := time.Now()
	f := &Forger{Keys: identity.NewKeys(nil, now), Mesh: root.Mesh(), Boot: uint64(now.Unix()), t: t, ctl: map[proto.PeerID]*rawStream{}}
	rand.Read(f.ID[:])
	cert, err := root.IssueMember(identity.Member{Peer: f.Keys.Peer(), Name: name, Roles: roles}, now)
	if err != nil {
		t.Fatal(err)
	}
	f.Cert = cert
	key, err := crypto.UnmarshalEd25519PrivateKey(f.Keys.PrivateKey())
	if err != nil {
		t.Fatal(err)
	}
	f.host, err = libp2p.New(libp2p.ListenAddrStrings(at), libp2p.Identity(key), libp2p.Transport(quic.NewTransport), libp2p.DisableMetrics(), libp2p.DisableRelay(),
		libp2p.ResourceManager(&network.NullResourceManager{}), libp2p.DisableIdentifyAddressDiscovery(),
		libp2p.QUICReuse(func(r quiclib.StatelessResetKey, k quiclib.TokenGeneratorKey) (*quicreuse.ConnManager, error) {
			m, err := quicreuse.NewConnManager(r, k, sockets...)
			f.sockets = m
			return m, err
		}))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	f.cancel = cancel
	t.Cleanup(f.Close)
	f.host.SetStreamHandler(proto.StreamTask, f.serveTask)
	if err := f.joinTopic(ctx); err != nil {
		t.Fatal(err)
	}
	return f
}

// joinTopic subscribes to the gossip topic; nodes send nothing to non-subscribers.
func (f *Forger) joinTopic(ctx context.Context) error {
	ps, err := pubsub.NewGossipSub(ctx, f.host, pubsub.WithMessageSignaturePolicy(pubsub.StrictSign), pubsub.WithFloodPublish(true))
	if err != nil {
		return err
	}
	if f.topic, err = ps.Join(transport.TopicName(f.Mesh.ID.String())); err != nil {
		return err
	}
	sub, err := f.topic.Subscribe()
	if err != nil {
		return err
	}
	f.running.Go(func() {
		for err == nil {
			_, err = sub.Next(ctx)
		}
	})
	return nil
}

// Close closes the Forger. It may be called more than once.
func (f *Forger) Close() {
	f.once.Do(func() {
		f.cancel()
		f.host.Close()
		f.sockets.Close()
		f.running.Wait()
	})
}

// Peer returns its id.
func (f *Forger) Peer() proto.PeerID { return f.Keys.Peer() }

// Addrs returns its addresses.
func (f *Forger) Addrs() (all []string) {
	for _, a := range f.host.Addrs() {
		all = append(all, a.String())
	}
	return all
}

// Sign signs any details, of any size, in the domain of this name: deed, node,
// accusation, revocation, member.
func (f *Forger) Sign(domain string, details []byte) *proto.Signed {
	sum := sha256.Sum256(details)
	key := f.Keys.PrivateKey()
	return &proto.Signed{
		Details: details, Signature: ed25519.Sign(key, append([]byte("balefire/v1/"+domain+"\x00"), sum[:]...)),
		Signer: key.Public().(ed25519.PublicKey),
	}
}

// Connect dials a node and sends a hello. The Forger must be the dialing side.
func (f *Forger) Connect(p proto.PeerID, addrs []string) {
	f.t.Helper()
	if err := f.TryConnect(p, addrs); err != nil {
		f.t.Fatal(err)
	}
}

// TryConnect is Connect for a node that may refuse.
func (f *Forger) TryConnect(p proto.PeerID, addrs []string) error {
	return f.SendHello(p, addrs, &proto.Hello{
		Version: proto.Version, Certificate: f.Cert, KeyRecord: f.Keys.KeyRecord(), Boot: f.Boot, BootId: f.ID[:], Addrs: f.Addrs(),
	})
}

// SendHello dials a node, sends this hello and then reads what the node sends.
func (f *Forger) SendHello(p proto.PeerID, addrs []string, hello *proto.Hello) error {
	ctx, cancel := context.WithTimeout(context.Background(), forgeTimeout)
	defer cancel()
	id, err := peer.Decode(p.String())
	if err != nil {
		return err
	}
	for _, a := range addrs {
		m, err := ma.NewMultiaddr(a)
		if err != nil {
			return err
		}
		f.host.Peerstore().AddAddr(id, m, peerstore.PermanentAddrTTL)
	}
	if _, err := f.host.Network().DialPeer(ctx, id); err != nil {
		return err
	}
	c, err := f.open(ctx, p, proto.StreamCtl)
	if err != nil {
		return err
	}
	if _, err := c.Write(f.Frame(proto.TypeHello, hello)); err != nil {
		return err
	}
	m, answer := new(proto.Message), new(proto.Hello)
	if err := errors.Join(c.rd.Next(m), proto.DecodeKnown(m.GetPayload(), answer)); err != nil {
		return err
	}
	if answer.GetRefusal() != "" {
		return fmt.Errorf("refused: %s", answer.GetRefusal())
	}
	f.mu.Lock()
	f.ctl[p] = c
	f.mu.Unlock()
	f.running.Go(func() { f.serveCtl(p, c) })
	return nil
}

// serveCtl answers a node's heartbeats, and keeps its other messages.
func (f *Forger) serveCtl(p proto.PeerID, c *rawStream) {
	for {
		m := new(proto.Message)
		if err := c.rd.Next(m); err != nil {
			return
		}
		if m.GetType() != proto.TypePing {
			f.record(p, m)
			continue
		}
		m.Type = proto.TypePong
		b, err := proto.AppendFrame(nil, m)
		if err != nil {
			return
		}
		if _, err := c.Write(b); err != nil {
			return
		}
	}
}

// serveTask keeps what a node sends on a task stream. It acknowledges nothing.
func (f *Forger) serveTask(s network.Stream) {
	defer s.Reset()
	p, err := proto.ParsePeerID(s.Conn().RemotePeer().String())
	if err != nil {
		return
	}
	rd := proto.NewReader(s, proto.MaxFrame)
	for {
		m := new(proto.Message)
		if err := rd.Next(m); err != nil {
			return
		}
		f.record(p, m)
	}
}

func (f *Forger) record(p proto.PeerID, m *proto.Message) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.received) < maxReceived {
		f.received = append(f.received, Received{p, m})
	}
}

// Received returns what nodes have sent since the last call, without heartbeats.
func (f *Forger) Received() []Received {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := f.received
	f.received = nil
	return all
}

// Frame encodes a frame with a message of this type. Its payload is body, followed by
// more, which may be anything: see [Padding].
func (f *Forger) Frame(t proto.MessageType, body proto.Body, more ...byte) []byte {
	f.t.Helper()
	payload, err := proto.Encode(nil, body)
	if err != nil {
		f.t.Fatal(err)
	}
	return FrameOf(t, append(payload, more...), nil)
}

// FrameOf encodes a frame with a message of this type, payload and signature, of any
// size.
func FrameOf(t proto.MessageType, payload, signature []byte) []byte {
	m := append([]byte{2 << 3}, binary.AppendUvarint(nil, uint64(t))...)
	m = appendBytes(m, 3, payload)
	if len(signature) > 0 {
		m = appendBytes(m, 6, signature)
	}
	return append(binary.AppendUvarint(nil, uint64(len(m))), m...)
}

// Padding returns n bytes of a field that no version of any message has. Appended to an
// encoded message it becomes an unknown field of that message.
func Padding(n int) []byte { return appendBytes(nil, 1000, make([]byte, n)) }

func appendBytes(dst []byte, field uint64, b []byte) []byte {
	dst = binary.AppendUvarint(dst, field<<3|2)
	return append(binary.AppendUvarint(dst, uint64(len(b))), b...)
}

// Send sends frames to a node on a new stream of this protocol and closes it. It returns
// after the node has closed it too: everything was read, unless something was refused.
// The node's answers are discarded: see [Forger.Ask]. A new task stream closes the
// previous one.
func (f *Forger) Send(p proto.PeerID, stream string, frames ...[]byte) {
	f.t.Helper()
	_, err := f.exchange(p, stream, frames, func(s *rawStream) (*proto.Message, error) {
		s.CloseWrite()
		io.Copy(io.Discard, s.rw)
		return nil, nil
	})
	if err != nil {
		f.t.Error(err)
	}
}

// Ask sends frames to a node on a new stream of this protocol and returns the first
// message received, or how the stream closed without one.
func (f *Forger) Ask(p proto.PeerID, stream string, frames ...[]byte) (*proto.Message, error) {
	return f.exchange(p, stream, frames, func(s *rawStream) (*proto.Message, error) {
		m := new(proto.Message)
		return m, proto.NewReader(s.rw, proto.MaxFrame).Next(m)
	})
}

// exchange sends frames on a new stream and calls after. It fails if the node is not
// connected, or does nothing for a long time.
func (f *Forger) exchange(p proto.PeerID, stream string, frames [][]byte, after func(*rawStream) (*proto.Message, error)) (*proto.Message, error) {
	ctx, cancel := context.WithTimeout(context.Background(), forgeTimeout)
	defer cancel()
	s, err := f.open(ctx, p, stream)
	if err != nil {
		return nil, err
	}
	defer s.Reset()
	defer context.AfterFunc(ctx, func() { s.Reset() })()
	for _, b := range frames {
		if _, err := s.Write(b); err != nil {
			break // the node has read enough
		}
	}
	m, err := after(s)
	return m, cmp.Or(ctx.Err(), err)
}

// Protocols returns the protocols that a node says it serves.
func (f *Forger) Protocols(p proto.PeerID) ([]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), forgeTimeout)
	defer cancel()
	s, err := f.open(ctx, p, identify.ID)
	if err != nil {
		return nil, err
	}
	defer s.Reset()
	defer context.AfterFunc(ctx, func() { s.Reset() })()
	rd, all := pbio.NewDelimitedReader(s.rw, proto.MaxFrame), []string(nil)
	for {
		m := new(identifypb.Identify)
		if err := rd.ReadMsg(m); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		all = append(all, m.GetProtocols()...)
	}
}

// SendCtl sends bytes on the ctl stream, of which a node serves one. It does not wait.
func (f *Forger) SendCtl(p proto.PeerID, b []byte) error {
	f.mu.Lock()
	c := f.ctl[p]
	f.mu.Unlock()
	if c == nil {
		return fmt.Errorf("there is no ctl stream to %s", p)
	}
	_, err := c.Write(b)
	return err
}

// Publish sends data on the gossip topic, signed by the Forger as its author.
func (f *Forger) Publish(data []byte) error { return f.topic.Publish(context.Background(), data) }

// Listeners returns the number of nodes that it publishes to.
func (f *Forger) Listeners() int { return len(f.topic.ListPeers()) }

// Disconnect closes all connections to a node.
func (f *Forger) Disconnect(p proto.PeerID) {
	if id, err := peer.Decode(p.String()); err == nil {
		_ = f.host.Network().ClosePeer(id) // whatever the other side has done meanwhile
	}
}

// Connected reports whether a node keeps its connection open.
func (f *Forger) Connected(p proto.PeerID) bool {
	id, err := peer.Decode(p.String())
	return err == nil && f.host.Network().Connectedness(id) == network.Connected
}

// A rawStream is one stream of a Forger.
type rawStream struct {
	network.Stream
	mu sync.Mutex
	rw msmux.LazyConn
	rd *proto.Reader
}

func (f *Forger) open(ctx context.Context, p proto.PeerID, stream string) (*rawStream, error) {
	id, err := peer.Decode(p.String())
	if err != nil {
		return nil, err
	}
	conns := f.host.Network().ConnsToPeer(id)
	if len(conns) == 0 {
		return nil, fmt.Errorf("%s is not connected", p)
	}
	s, err := conns[0].NewStream(ctx)
	if err != nil {
		return nil, err
	}
	c := &rawStream{Stream: s, rw: msmux.NewMSSelect(s, protocol.ID(stream))}
	c.rd = proto.NewReader(c.rw, proto.MaxFrame)
	return c, nil
}

// Write sends bytes unchanged.
func (c *rawStream) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rw.Write(b)
}
