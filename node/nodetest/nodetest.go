// Package nodetest opens real nodes for tests of the packages above node. Each keeps its
// store in memory, so that it is open within milliseconds.
package nodetest

import (
	"context"
	"crypto/rand"
	"log/slog"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/balefire/balefire/node"
	"github.com/balefire/balefire/pairing"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/settings"
	"github.com/balefire/balefire/store/mem"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/wire"
)

// Open opens a node named here, the only member of its mesh, in a temporary folder. It
// does not run yet: see [Run]. change may change its configuration; it may be nil.
func Open(t testing.TB, change func(*node.Config)) *node.Node {
	t.Helper()
	cfg := config(t, change)
	if _, err := pairing.Init(pairing.InitOptions{Dir: cfg.Dir, Name: "here", NewMesh: true, Clock: cfg.Clock}); err != nil {
		t.Fatal(err)
	}
	return open(t, cfg)
}

func open(t testing.TB, cfg node.Config) *node.Node {
	t.Helper()
	n, err := node.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return n
}

func config(t testing.TB, change func(*node.Config)) node.Config {
	cfg := node.DefaultConfig(filepath.Join(t.TempDir(), "node"))
	cfg.Logger, cfg.Simulated.Engine = slog.New(slog.DiscardHandler), mem.New()
	cfg.Store.Reserve = 1
	cfg.Net = settings.Net{Listen: []string{"/ip4/127.0.0.1/tcp/0"}} // all else is off
	cfg.Mail.Keep = 0
	if change != nil {
		change(&cfg)
	}
	return cfg
}

// Run runs n until the test ends or stop is called.
func Run(t testing.TB, n *node.Node) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// Admit makes a machine with this name a member of the mesh of n, which runs. It is never
// connected again.
func Admit(t testing.TB, n *node.Node, name string) {
	t.Helper()
	admit(t, n, name, config(t, nil))
}

func admit(t testing.TB, n *node.Node, name string, cfg node.Config) {
	t.Helper()
	inv, err := n.Pairing.Invite(t.Context(), wire.InviteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := node.Joiner(cfg).WithTicket(t.Context(), inv.Ticket, name); err != nil {
		t.Fatal(err)
	}
}

// Join opens a node with this name, a member of the mesh of n, which runs. It does not run yet:
// see [Run]. change may change its configuration; it may be nil.
func Join(t testing.TB, n *node.Node, name string, change func(*node.Config)) *node.Node {
	t.Helper()
	cfg := config(t, change)
	admit(t, n, name, cfg)
	cfg.Simulated.Engine = cfg.Simulated.Engine.(*mem.Engine).Reopen() // the joiner has closed it
	return open(t, cfg)
}

// Happen makes count events happen at n, each of the kind lan.stranger.
func Happen(t testing.TB, n *node.Node, count int) {
	t.Helper()
	for range count {
		var p proto.PeerID
		rand.Read(p[:]) // never fails
		n.Pairing.StrangerSeen(transport.Stranger{Peer: p, Addrs: []string{"/ip4/192.0.2.7/tcp/4001"}})
	}
}

// AwaitRequests waits until the API of n is answering count requests.
func AwaitRequests(t testing.TB, n *node.Node, count int) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; runtime.Gosched() {
		all, err := n.Registry().Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range all {
			if m.GetName() == "balefire_http_requests_in_flight" && int(m.GetMetric()[0].GetGauge().GetValue()) == count {
				return
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("the API is not answering %d requests", count)
		}
	}
}
