package transport

import (
	"net"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/balefire/balefire/proto"
)

// Two concurrent dials of a peer each have their own relay.
func TestDialTargetsOfTwoDials(t *testing.T) {
	p, r1, r2, r3 := newTestKeys(1).Peer(), newTestKeys(2).Peer(), newTestKeys(3).Peer(), newTestKeys(4).Peer()
	var a dialTargets
	allowed := func() (all [3]bool) {
		for i, r := range []proto.PeerID{r1, r2, r3} {
			all[i], _ = a.allow(p, r)
		}
		return all
	}
	first, second := a.set(p, dialTarget{relay: r1}), a.set(p, dialTarget{relay: r2, additional: true})
	if got := allowed(); got != [3]bool{true, true, false} {
		t.Errorf("while both are running: %v", got)
	}
	first()
	if got := allowed(); got != [3]bool{false, true, false} {
		t.Errorf("when the first has ended: %v", got)
	}
	if _, beside := a.allow(p, r2); !beside {
		t.Error("the end of one dial removed the other's permission to add a connection")
	}
	second()
	if got := allowed(); got != [3]bool{true, true, true} || len(a.byPeer) != 0 {
		t.Errorf("when both have ended: %v, %d are left", got, len(a.byPeer))
	}
}

// An observed address that arrives after hole punching was stopped does not start it
// again, as nothing would stop it.
func TestNoPunchingAfterStop(t *testing.T) {
	a := start(t, 1, nil)
	a.puncher.stop()
	if err := a.puncher.start(ma.StringCast("/ip4/192.0.2.1/udp/4001/quic-v1")); err != nil {
		t.Fatal(err)
	}
	if s := a.puncher.service; s != nil {
		s.Close()
		t.Error("hole punching started after it was stopped")
	}
}

// The other side of a punch cannot make this node dial itself.
func TestPunchRejectsLocalAddresses(t *testing.T) {
	a := start(t, 1, func(_ *testNode, c *Config) { c.Announce = []string{"/ip4/192.0.2.1/udp/4001/quic-v1"} })
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dials := make(chan net.Conn, 16)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			c.Close()
			dials <- c
		}
	}()
	at, err := manet.FromNetAddr(listener.Addr())
	if err != nil {
		t.Fatal(err)
	}
	ctx := network.WithSimultaneousConnect(t.Context(), true, "test")
	h := &punchHost{guardedHost{a.host, a.guards.onlyMembers}, a.puncher}
	if err := h.Connect(ctx, peer.AddrInfo{ID: toLibp2p(newTestKeys(2).Peer()), Addrs: []ma.Multiaddr{at}}); err == nil {
		t.Error("connected")
	}
	listener.Close()
	<-done
	if len(dials) > 0 {
		t.Error("a punch was aimed at this machine")
	}
}

// A moving link closes when no answer is pending, even if an unanswered message was still
// to be written.
func TestMovedLinkClosesAfterPost(t *testing.T) {
	b := start(t, 2, nil)
	a := start(t, 1, nil)
	l := link(t, a, b)
	l.mu.Lock() // the message waits for a busy writer
	var err error
	if l.out, err = proto.AppendFrame(l.out, renewal("1")); err != nil {
		t.Fatal(err)
	}
	l.mu.Unlock()
	l.move()
	l.mu.Lock()
	l.moveTimer.Reset(2 * patience) // the link must close because of the write, not the time limit
	l.mu.Unlock()
	notify(l.dirty)
	select {
	case <-l.Done():
	case <-time.After(patience):
		t.Error("it waits for an answer that never arrives")
	}
}
