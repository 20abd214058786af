package node

import (
	"context"
	"crypto/rand"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	quic "github.com/libp2p/go-libp2p/p2p/transport/quic"
	"github.com/libp2p/go-libp2p/p2p/transport/quicreuse"
	ma "github.com/multiformats/go-multiaddr"
	msmux "github.com/multiformats/go-multistream"
	quicgo "github.com/quic-go/quic-go"
	"go.uber.org/fx"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/transport/transporttest"
	"github.com/balefire/balefire/wire"
)

// A joinFlood is what strangers with one address do at the node that has issued a ticket: each
// connects with a new key, and says nothing, begins a request to join, or sends one with a wrong
// ticket. Then it waits until the node closes the connection, and connects again.
type joinFlood struct {
	t        *testing.T
	target   peer.AddrInfo
	host     host.Host // has the socket of all
	sockets  *quicreuse.ConnManager
	conns    atomic.Int64
	requests atomic.Int64 // whole ones, with a wrong ticket
	closed   atomic.Int64 // by the node
}

// newJoinFlood returns a flood of node 50 of the network.
func newJoinFlood(t *testing.T, w *simMesh, target *simNode) *joinFlood {
	t.Helper()
	id, err := peer.Decode(target.peer().String())
	if err != nil {
		t.Fatal(err)
	}
	j := &joinFlood{t: t, target: peer.AddrInfo{ID: id, Addrs: []ma.Multiaddr{ma.StringCast(w.Addr(target.at))}}}
	var cfg transport.Config
	w.Configure(50, &cfg)
	j.host, err = libp2p.New(libp2p.ListenAddrStrings(cfg.Listen...), libp2p.DisableMetrics(), libp2p.DisableIdentifyAddressDiscovery(), libp2p.Transport(quic.NewTransport),
		libp2p.QUICReuse(func(l fx.Lifecycle, reset quicgo.StatelessResetKey, token quicgo.TokenGeneratorKey, o ...quicreuse.Option) (*quicreuse.ConnManager, error) {
			m, err := newConnManager(l, reset, token, o...)
			j.sockets = m
			return m, err
		}, cfg.Sockets(transporttest.SendAll)...))
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// run floods as one stranger until ctx ends.
func (j *joinFlood) run(ctx context.Context, kind int) {
	for ctx.Err() == nil {
		key, _, err := crypto.GenerateEd25519Key(rand.Reader)
		if err != nil {
			j.t.Error(err)
			return
		}
		stranger, err := quic.NewTransport(key, j.sockets, nil, nil, &network.NullResourceManager{})
		if err != nil {
			j.t.Error(err)
			return
		}
		if c, err := stranger.Dial(ctx, j.target.Addrs[0], j.target.ID); err == nil {
			j.conns.Add(1)
			j.hold(ctx, c, kind)
			_ = c.Close() // the node may have closed it
		}
		pauseIn(ctx, 100*time.Millisecond)
	}
}

// A muxedConn is a connection of a stranger, below libp2p's host.
type muxedConn interface {
	OpenStream(ctx context.Context) (network.MuxedStream, error)
	IsClosed() bool
}

// hold says on a connection what a stranger of this kind says, and keeps it for 10 s if the node
// does.
func (j *joinFlood) hold(ctx context.Context, c muxedConn, kind int) {
	request := &proto.JoinRequest{TicketId: make([]byte, 8), Proof: make([]byte, 32), Name: "mallory", KeyRecord: identity.NewKeys(nil, time.Now()).KeyRecord()}
	payload, err := proto.Encode(nil, request)
	if err != nil {
		j.t.Error(err)
		return
	}
	frame := transporttest.FrameOf(proto.TypeJoin, payload, nil)
	if kind == 1 { // the others are silent
		frame = frame[:len(frame)/2]
	}
	if kind < 2 {
		s, err := c.OpenStream(ctx)
		if err != nil {
			return
		}
		defer s.Reset()
		if _, err := msmux.NewMSSelect(s, proto.StreamJoin).Write(frame); err == nil && kind == 0 {
			j.requests.Add(1)
		}
	}
	for range 100 {
		pauseIn(ctx, 100*time.Millisecond)
		if c.IsClosed() {
			j.closed.Add(1)
			return
		}
	}
}

// pauseIn waits for d, or until ctx ends.
func pauseIn(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// While strangers of one address, with ever new keys, flood the node that has issued tickets,
// whoever comes from another address joins with a ticket, which the node checks. The members stay
// connected.
func TestJoinsWhileAnAddressFloods(t *testing.T) {
	const strangers, joiners = 40, 3
	synctest.Test(t, func(t *testing.T) {
		w := newSimMeshWith(t, 2, 1, transporttest.Link{Latency: 10 * time.Millisecond, Mbps: 100, Seed: 1}, quietMesh)
		defer w.close()
		time.Sleep(time.Minute)
		n0 := w.nodes[0]
		flood := newJoinFlood(t, w, n0)
		defer flood.host.Close()
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		defer all.Wait()
		defer cancel()
		for i := range strangers {
			all.Go(func() { flood.run(ctx, i%10) })
		}
		for range joiners {
			time.Sleep(2300 * time.Millisecond) // not when the hellos of all are due
			inv, err := n0.node.Pairing.Invite(t.Context(), wire.InviteOptions{TTL: wire.Duration(10 * time.Minute)})
			if err != nil {
				t.Fatal(err)
			}
			s := w.add()
			began := time.Now()
			if err := s.present(inv.Ticket, 10*time.Second); err != nil {
				t.Errorf("%s does not join with its ticket: %v", s.name, err)
			}
			t.Logf("%s asked for %s", s.name, time.Since(began))
		}
		t.Logf("%d connections, %d of them closed by the node; %d wrong tickets", flood.conns.Load(), flood.closed.Load(), flood.requests.Load())
		if flood.closed.Load() < 2*strangers || flood.requests.Load() < 5 {
			t.Error("that is no flood")
		}
		if !n0.node.net.Connected(w.nodes[1].peer()) {
			t.Error("a member is not connected any more")
		}
		if members := n0.node.Views.Members(); len(members) != 2+joiners {
			t.Errorf("%d members, want %d", len(members), 2+joiners)
		}
	})
}
