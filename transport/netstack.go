package transport

import (
	"context"
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
	"net"
	"reflect"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/sec"
	coretransport "github.com/libp2p/go-libp2p/core/transport"
	"github.com/libp2p/go-libp2p/p2p/host/peerstore/pstoremem"
	"github.com/libp2p/go-libp2p/p2p/muxer/yamux"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	"github.com/libp2p/go-libp2p/p2p/net/upgrader"
	"github.com/libp2p/go-libp2p/p2p/security/noise"
	quic "github.com/libp2p/go-libp2p/p2p/transport/quic"
	"github.com/libp2p/go-libp2p/p2p/transport/quicreuse"
	"github.com/libp2p/go-libp2p/p2p/transport/tcp"
	"github.com/prometheus/client_golang/prometheus"
	quicgo "github.com/quic-go/quic-go"
)

// A netStack is a swarm with its transports.
type netStack struct {
	swarm    *swarm.Swarm
	upgrader coretransport.Upgrader
	quic     *quicreuse.ConnManager
}

func (b netStack) close() error {
	return errors.Join(b.swarm.Close(), b.quic.Close(), b.swarm.Peerstore().Close())
}

// netStack returns a swarm that uses QUIC, and TCP unless the sockets are simulated.
func (p hostBuilder) netStack(key crypto.PrivKey, bus event.Bus, m prometheus.Registerer, opts ...swarm.Option) (b netStack, err error) {
	id, err := peer.IDFromPrivateKey(key)
	if err != nil {
		return b, err
	}
	book, err := pstoremem.NewPeerstore()
	if err != nil {
		return b, err
	}
	if err := errors.Join(book.AddPrivKey(id, key), book.AddPubKey(id, key.GetPublic())); err != nil {
		return b, err
	}
	if b.quic, err = p.newQUIC(key, m); err != nil {
		return b, err
	}
	if b.upgrader, err = p.newUpgrader(key); err != nil {
		return b, err
	}
	opts = append(opts, swarm.WithConnectionGater(p.gater), swarm.WithResourceManager(p.limits),
		swarm.WithUDPBlackHoleSuccessCounter(nil), swarm.WithIPv6BlackHoleSuccessCounter(nil))
	if p.names != nil {
		opts = append(opts, swarm.WithMultiaddrResolver(p.names))
	}
	if b.swarm, err = swarm.NewSwarm(id, book, bus, opts...); err != nil {
		return b, err
	}
	if err := p.addTransports(key, b); err != nil {
		return b, errors.Join(err, b.close())
	}
	return b, nil
}

func (p hostBuilder) addTransports(key crypto.PrivKey, b netStack) error {
	cert, err := quicCertificate()
	if err != nil {
		return err
	}
	q, err := quic.NewTransport(key, b.quic, nil, p.gater, p.limits, cert)
	if err != nil {
		return err
	}
	if err := b.swarm.AddTransport(q); err != nil || p.sockets != nil {
		return err
	}
	t, err := tcp.NewTCPTransport(b.upgrader, p.limits, nil)
	if err != nil {
		return err
	}
	return b.swarm.AddTransport(t)
}

// newUpgrader returns an upgrader that secures and multiplexes connections: TLS before
// Noise, then yamux. QUIC needs it only for circuits.
func (p hostBuilder) newUpgrader(key crypto.PrivKey) (coretransport.Upgrader, error) {
	muxers := []upgrader.StreamMuxer{{ID: yamux.ID, Muxer: fastCloseMuxer{yamux.DefaultTransport}}}
	t, err := newTLS(key, muxers)
	if err != nil {
		return nil, err
	}
	n, err := noise.New(noise.ID, key, muxers)
	if err != nil {
		return nil, err
	}
	return upgrader.New([]sec.SecureTransport{fastCloseSecurity{t}, fastCloseSecurity{n}}, muxers, nil, p.limits, p.gater)
}

// newQUIC opens the QUIC sockets. A connection counts against the limits from its first
// packet.
func (p hostBuilder) newQUIC(key crypto.PrivKey, m prometheus.Registerer) (*quicreuse.ConnManager, error) {
	reset, token, err := quicKeys(key)
	if err != nil {
		return nil, err
	}
	var opts []quicreuse.Option
	if p.sockets != nil {
		opts = p.sockets(p.thinner.drops)
	} else {
		opts = []quicreuse.Option{
			quicreuse.OverrideListenUDP(p.thinner.listen),
			quicreuse.ConnContext(p.openScope),
			quicreuse.VerifySourceAddress(func(a net.Addr) bool { return p.limits.VerifySourceAddress(a) }),
		}
		if m != nil {
			opts = append(opts, quicreuse.EnableMetrics(m))
		}
	}
	q, err := quicreuse.NewConnManager(reset, token, opts...)
	if err != nil {
		return nil, err
	}
	q.ClientConfig().InitialPacketSize = initialPacketSize
	return q, setServerPacketSize(q)
}

// initialPacketSize is the UDP payload in bytes of the first packets of a QUIC
// connection: the size that every path usable by QUIC carries (RFC 9000, section 14), and
// that fits through a tunnel. Larger sizes are probed later (RFC 8899). quic-go starts
// with 1280, which with headers exceeds the minimum IPv6 MTU of 1280.
const initialPacketSize = 1200

// setServerPacketSize sets this size for inbound connections. libp2p gives no access to
// this half of its configuration.
func setServerPacketSize(q *quicreuse.ConnManager) error {
	f := reflect.ValueOf(q).Elem().FieldByName("serverConfig")
	if !f.IsValid() || f.Type() != reflect.TypeFor[*quicgo.Config]() {
		return errors.New("transport: this version of libp2p stores the configuration of QUIC listeners elsewhere")
	}
	(*quicgo.Config)(f.UnsafePointer()).InitialPacketSize = initialPacketSize
	return nil
}

// openScope opens the resource scope of a new inbound connection.
func (p hostBuilder) openScope(ctx context.Context, c *quicgo.ClientInfo) (context.Context, error) {
	addr, err := quicreuse.ToQuicMultiaddr(c.RemoteAddr, quicgo.Version1)
	if err != nil {
		addr = nil // the limits still apply
	}
	scope, err := p.limits.OpenConnection(network.DirInbound, false, addr)
	if err != nil {
		return ctx, err
	}
	ctx = network.WithConnManagementScope(ctx, scope)
	context.AfterFunc(ctx, scope.Done)
	return ctx, nil
}

// quicKeys derives keys from the node's key, so that they survive a restart. The purposes
// are libp2p's.
func quicKeys(key crypto.PrivKey) (reset quicgo.StatelessResetKey, token quicgo.TokenGeneratorKey, err error) {
	raw, err := key.Raw()
	if err != nil {
		return reset, token, err
	}
	derive := func(purpose string) []byte {
		k, e := hkdf.Key(sha256.New, raw, nil, purpose, 32)
		err = errors.Join(err, e)
		return k
	}
	copy(reset[:], derive("libp2p quic stateless reset key"))
	copy(token[:], derive("libp2p quic token generator key"))
	return reset, token, err
}
