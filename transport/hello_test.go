package transport

import (
	"runtime"
	"testing"
	"time"

	ma "github.com/multiformats/go-multiaddr"

	"github.com/balefire/balefire/proto"
)

// A dial that learns that the hello failed finds its error, however soon it looks for it.
func TestDialReturnsTheErrorOfTheHello(t *testing.T) {
	g, p := newSlotCase(nil), proto.PeerID{1}
	d := &dialer{timing: Timing{Hello: time.Minute}, peers: g.peers}
	g.peers.addDialing(p, 1)
	raw := &fakeConn{from: ma.StringCast("/ip4/192.0.2.1/tcp/1")}
	c := newConn(raw, p, g.cfg.Clock)
	c.hasCtl.Store(true)
	close(c.gone)
	g.peers.conns[raw] = c
	refused := &RefusedError{p, "it is blocked", true, 0}

	g.peers.mu.Lock() // the error cannot be set yet
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		g.greeter.endHello(c, nil, refused)
	}()
	for !c.greeting.done.Load() {
		runtime.Gosched()
	}
	for range 1000 {
		runtime.Gosched()
		select {
		case <-c.ready:
			t.Fatal("a dial would look for the error before it is set")
		default:
		}
	}
	g.peers.mu.Unlock()
	if err := d.awaitHello(t.Context(), p); err != refused {
		t.Errorf("the dial failed with %v, want %v", err, refused)
	}
	<-ended
}
