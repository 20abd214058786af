package node

import (
	"bytes"
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	quic "github.com/libp2p/go-libp2p/p2p/transport/quic"
	"github.com/libp2p/go-libp2p/p2p/transport/quicreuse"
	ma "github.com/multiformats/go-multiaddr"
	msmux "github.com/multiformats/go-multistream"
	quicgo "github.com/quic-go/quic-go"
	"go.uber.org/fx"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/transport/transporttest"
)

// A strangerFlood counts what a stranger achieved at a node.
type strangerFlood struct {
	conns, streams, refused int
	bytes                   atomic.Int64
	mu                      sync.Mutex
	replies                 map[protocol.ID]int
}

// guessedProtocols are names of protocols that a node serves to members.
var guessedProtocols = []protocol.ID{
	"/meshsub/1.2.0", "/floodsub/1.0.0", "/libp2p/circuit/relay/0.2.0/hop", "/libp2p/circuit/relay/0.2.0/stop", "/libp2p/dcutr",
	"/libp2p/autonat/2/dial-request", "/ipfs/id/1.0.0", "/ipfs/id/push/1.0.0", "/ipfs/ping/1.0.0", "/ipfs/kad/1.0.0",
	proto.StreamTask, proto.StreamLease, proto.StreamChunk, proto.StreamSync, proto.StreamEcho,
}

// attack lets a host that is not a member connect repeatedly, open streams of every
// protocol that it can guess, and write as much as it may.
func (f *strangerFlood) attack(ctx context.Context, h host.Host, target peer.AddrInfo, rounds int) {
	for range rounds {
		h.Peerstore().AddAddrs(target.ID, target.Addrs, time.Minute)
		c, err := h.Network().DialPeer(ctx, target.ID)
		if err != nil {
			f.refused++
			time.Sleep(time.Second)
			continue
		}
		f.conns++
		var all sync.WaitGroup
		for _, p := range guessedProtocols {
			s, err := c.NewStream(ctx)
			if err != nil {
				f.refused++
				continue
			}
			f.streams++
			all.Go(func() { f.stream(s, p) })
		}
		all.Wait()
		c.Close()
	}
}

// stream writes as much as it may and counts answers.
func (f *strangerFlood) stream(s network.Stream, p protocol.ID) {
	defer s.Reset()
	_ = s.SetDeadline(time.Now().Add(10 * time.Second))
	rw := msmux.NewMSSelect(s, p)
	payload := bytes.Repeat([]byte{0xff}, 64<<10)
	for range 16 {
		n, err := rw.Write(payload)
		f.bytes.Add(int64(n))
		if err != nil {
			break
		}
	}
	if n, _ := s.Read(make([]byte, 1024)); n > 0 { // any answer counts, even that the protocol is known
		f.mu.Lock()
		defer f.mu.Unlock()
		f.replies[p]++
	}
}

// heapInUse returns the size of the live heap.
func heapInUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestStrangersLeaveNothingBehind verifies S54 with complete nodes: strangers that dial,
// open the streams of the hash table, the topic and the relay, and flood them get no
// information and leave neither memory nor goroutines behind (I15), while the members
// keep working.
func TestStrangersLeaveNothingBehind(t *testing.T) {
	strangers, rounds := 6, 10
	if longRun {
		strangers, rounds = 8, 20
	}
	synctest.Test(t, func(t *testing.T) {
		w := newSimMesh(t, 3, 1, lanLink)
		defer w.close()
		w.await(time.Minute, "the first view", func() bool { return w.allAlive() && w.allConnected() })
		time.Sleep(time.Minute)
		victim := w.nodes[0]
		id, err := peer.Decode(victim.peer().String())
		if err != nil {
			t.Fatal(err)
		}
		target := peer.AddrInfo{ID: id, Addrs: []ma.Multiaddr{ma.StringCast(w.Addr(victim.at))}}
		before, routines := heapInUse(), runtime.NumGoroutine()
		all := strangerFlood{replies: map[protocol.ID]int{}}
		for i := range strangers {
			var cfg transport.Config
			w.Configure(50+i, &cfg)
			h, err := outsideHost(cfg)
			if err != nil {
				t.Fatal(err)
			}
			all.attack(t.Context(), h, target, rounds)
			h.Close()
		}
		w.nodes[1].submit(victim, 1)
		w.await(10*time.Second, "a task during the attack", func() bool { return w.checker.countOpen(w.nodes) == 0 })
		time.Sleep(3 * time.Minute)
		grown, left := heapInUse()-before, runtime.NumGoroutine()-routines
		t.Logf("%d strangers: %d connections, %d streams, %d refused, %d bytes written; %d KiB and %d goroutines remain",
			strangers, all.conns, all.streams, all.refused, all.bytes.Load(), grown>>10, left)
		if grown > 4<<20 || left > 30 {
			t.Errorf("%d KiB and %d goroutines remain", grown>>10, left)
		}
		if len(all.replies) > 0 {
			t.Errorf("a stranger was answered: %v", all.replies)
		}
		if all.conns == 0 || all.streams == 0 || all.bytes.Load() == 0 {
			t.Error("the attack was too small to prove anything")
		}
		if len(victim.get().Views.Members()) != 3 || !w.allAlive() {
			t.Error("the members of the mesh have changed")
		}
	})
}

// outsideHost returns a host without a mesh on the simulated network.
func outsideHost(cfg transport.Config) (host.Host, error) {
	return libp2p.New(libp2p.ListenAddrStrings(cfg.Listen...), libp2p.DisableMetrics(), libp2p.DisableIdentifyAddressDiscovery(),
		libp2p.Transport(quic.NewTransport), libp2p.QUICReuse(newConnManager, cfg.Sockets(transporttest.SendAll)...))
}

// newConnManager is libp2p's own constructor with its cleanup.
func newConnManager(l fx.Lifecycle, reset quicgo.StatelessResetKey, token quicgo.TokenGeneratorKey, o ...quicreuse.Option) (*quicreuse.ConnManager, error) {
	m, err := quicreuse.NewConnManager(reset, token, o...)
	if err == nil {
		l.Append(fx.StopHook(m.Close))
	}
	return m, err
}
