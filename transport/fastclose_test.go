package transport

import (
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/network"
	libtransport "github.com/libp2p/go-libp2p/core/transport"
	ma "github.com/multiformats/go-multiaddr"
)

// A fakePath is one side of a plain connection. When it is dead, writes to it block.
type fakePath struct {
	net.Conn // a pipe
	hole     net.Conn
	mu       sync.Mutex
	dead     bool
	closed   int
}

func newFakePaths() [2]*fakePath {
	a, b := net.Pipe()
	from, _ := net.Pipe()
	to, _ := net.Pipe()
	return [2]*fakePath{{Conn: a, hole: from}, {Conn: b, hole: to}}
}

func (p *fakePath) die() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dead = true
}

func (p *fakePath) Write(b []byte) (int, error) {
	p.mu.Lock()
	c := p.Conn
	if p.dead {
		c = p.hole
	}
	p.mu.Unlock()
	return c.Write(b)
}

func (p *fakePath) SetWriteDeadline(t time.Time) error {
	p.hole.SetWriteDeadline(t)
	return p.Conn.SetWriteDeadline(t)
}

func (p *fakePath) Close() error {
	p.mu.Lock()
	p.closed++
	p.mu.Unlock()
	p.hole.Close()
	return p.Conn.Close()
}

func (*fakePath) LocalMultiaddr() ma.Multiaddr { return ma.StringCast("/ip4/1.0.0.1/udp/4001/quic-v1") }
func (*fakePath) RemoteMultiaddr() ma.Multiaddr {
	return ma.StringCast("/ip4/1.0.0.2/udp/4001/quic-v1")
}

// newUpgraded upgrades both sides of a plain connection to a secure, multiplexed one. The
// first side dials.
func newUpgraded(t *testing.T, paths [2]*fakePath) (conns [2]libtransport.CapableConn) {
	var sides sync.WaitGroup
	p := hostBuilder{limits: &network.NullResourceManager{}, gater: openGater()}
	for i, side := range paths {
		key, err := crypto.UnmarshalEd25519PrivateKey(newTestKeys(byte(i)).PrivateKey())
		if err != nil {
			t.Fatal(err)
		}
		up, err := p.newUpgrader(key)
		if err != nil {
			t.Fatal(err)
		}
		dir, to := network.DirOutbound, toLibp2p(newTestKeys(1).Peer())
		if i == 1 {
			dir, to = network.DirInbound, ""
		}
		sides.Go(func() {
			if conns[i], err = up.Upgrade(t.Context(), nil, side, dir, to, &network.NullScope{}); err != nil {
				t.Error(err)
			}
		})
	}
	sides.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return conns
}

// TestConnectionClosesImmediately checks that closing a connection over a dead path does
// not wait for it, since libp2p holds locks meanwhile.
func TestConnectionClosesImmediately(t *testing.T) {
	tests := []struct {
		name   string
		writes bool                  // a write is pending when the path dies
		after  time.Duration         // time from the path's death to Close
		why    network.ConnErrorCode // the reason for the close
	}{
		{name: "quiet"},
		{name: "quiet, with a reason", why: network.ConnRateLimited},
		{name: "writing", writes: true},
		{name: "writing, with a reason", writes: true, why: network.ConnRateLimited},
		{name: "closed by yamux", writes: true, after: 12 * time.Second}, // 10 s after the write
	}
	for _, tt := range tests {
		for side, name := range []string{"the dialer's", "the listener's"} {
			t.Run(name+" "+tt.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					paths := newFakePaths()
					conns := newUpgraded(t, paths)
					end, other := conns[side], conns[1-side]
					defer other.Close()
					synctest.Wait()
					paths[side].die()
					if tt.writes {
						if _, err := end.OpenStream(t.Context()); err != nil {
							t.Fatal(err)
						}
					}
					time.Sleep(tt.after)
					began := time.Now()
					if err := end.CloseWithError(tt.why); err != nil {
						t.Error(err)
					}
					if took := time.Since(began); took > 0 || !end.IsClosed() {
						t.Errorf("closed %v, it took %v", end.IsClosed(), took)
					}
					synctest.Wait()
					if n := paths[side].closed; n != 1 || !other.IsClosed() {
						t.Errorf("the layer below is closed %d times, the other side %v", n, other.IsClosed())
					}
				})
			})
		}
	}
}
