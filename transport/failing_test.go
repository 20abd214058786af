package transport

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	manet "github.com/multiformats/go-multiaddr/net"
	"go.uber.org/goleak"
)

var errSpoiled = errors.New("broken for a test")

// deafBus rejects subscriptions.
type deafBus struct{ event.Bus }

func (deafBus) Subscribe(any, ...event.SubscriptionOpt) (event.Subscription, error) {
	return nil, errSpoiled
}

// hostWithFullNetwork is a host without resources for services.
type hostWithFullNetwork struct{ host.Host }

func (h hostWithFullNetwork) Network() network.Network { return fullNetwork{h.Host.Network()} }

type fullNetwork struct{ network.Network }

func (fullNetwork) ResourceManager() network.ResourceManager { return noServices{} }

type noServices struct{ *network.NullResourceManager }

func (noServices) ViewService(string, func(network.ServiceScope) error) error { return errSpoiled }

// TestRunStopsWhatItStarted checks that whichever step of Run fails, everything started
// before it has stopped when Run returns, and the host is closed.
func TestRunStopsWhatItStarted(t *testing.T) {
	tests := []struct {
		name  string
		spoil func(*Transport)
		over  bool // the context is done before Run
		quiet bool // no gossip
		want  string
	}{
		{"gossip", func(tr *Transport) { tr.host.Peerstore().RemovePeer(tr.host.ID()) }, false, false, "transport: gossip: "},
		{"gossip, when its part of libp2p is running", func(*Transport) {}, true, false, "transport: gossip: "},
		{"the DHT", func(tr *Transport) { tr.disc.host.bus = deafBus{tr.disc.host.bus} }, false, true, "transport: DHT: "},
		{"the relay service", func(tr *Transport) { tr.host = hostWithFullNetwork{tr.host} }, false, false, "transport: relay service: "},
	}
	// gossipsub first creates an address book, and closes it together with what it starts
	// last: if it fails in between, the book and one goroutine remain.
	book := goleak.IgnoreTopFunction("github.com/libp2p/go-libp2p/p2p/host/peerstore/pstoremem.(*memoryAddrBook).background")
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := goleak.IgnoreCurrent()
			cfg := Config{Listen: []string{"/ip4/127.0.0.1/udp/0/quic-v1", "/ip4/127.0.0.1/tcp/0"}}
			cfg.DHT, cfg.MDNS, cfg.Relay = true, true, true
			if !tt.quiet {
				cfg.Topic = new(countRumors)
			}
			tr, err := New(newTestKeys(1), &testGate{boot: 1}, newTestReceiver(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			addr := ""
			for _, a := range tr.host.Network().ListenAddresses() {
				if isTCP(a) {
					if _, addr, err = manet.DialArgs(a); err != nil {
						t.Fatal(err)
					}
				}
			}
			tt.spoil(tr)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			found := tr.FindMeshes(ctx)
			running, end := context.WithCancel(ctx)
			defer end()
			if tt.over {
				end()
			}
			if err := tr.Run(running); err == nil || !strings.HasPrefix(err.Error(), tt.want) {
				t.Errorf("Run = %v, want %q", err, tt.want)
			}
			if c, err := net.Dial("tcp", addr); err == nil {
				c.Close()
				t.Error("it still listens")
			}
			if err := tr.Dial(ctx, newTestKeys(2).Peer(), []string{"/ip4/127.0.0.1/tcp/1"}); err == nil || ctx.Err() != nil {
				t.Errorf("a dial afterwards: %v", err)
			}
			select {
			case _, more := <-found:
				if more {
					t.Error("a mesh was found")
				}
			case <-ctx.Done():
				t.Error("FindMeshes is not closed at the end")
			}
			if tr.group.start(func(context.Context) {}) {
				t.Error("work is accepted but not done")
			}
			known := []goleak.Option{before}
			if tt.name == "gossip" {
				known = append(known, book)
			}
			if err := goleak.Find(known...); err != nil {
				t.Error(err)
			}
		})
	}
}
