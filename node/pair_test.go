package node

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/balefire/balefire/pairing"
	"github.com/balefire/balefire/wire"
)

// testTimeout bounds each wait for an event of real nodes. It detects hangs and does not
// measure speed.
const testTimeout = 2 * time.Minute

// testListen restricts test nodes to the loopback interface.
var testListen = []string{"/ip4/127.0.0.1/udp/0/quic-v1", "/ip4/127.0.0.1/tcp/0"}

// A testNode is a running node in a test.
type testNode struct {
	*Node
	t    testing.TB
	cfg  Config
	stop context.CancelFunc
	done chan error
}

func testConfig(t testing.TB, dir string) Config {
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	if os.Getenv("BALEFIRE_TEST_LOG") != "" {
		log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})).With("node", filepath.Base(dir))
	}
	cfg := DefaultConfig(dir)
	cfg.Net.Listen, cfg.Net.MDNS = testListen, false // nodes of other tests are not met on the LAN
	cfg.Logger, cfg.Store.Reserve, cfg.Limits.MemoryLimit, cfg.Mail.Keep = log, 1, -1, 0
	return cfg
}

// start runs the node in cfg.Dir until the test ends or stop is called.
func start(t testing.TB, cfg Config) *testNode {
	t.Helper()
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	l := &testNode{Node: n, t: t, cfg: cfg, stop: cancel, done: make(chan error, 1)}
	go func() { l.done <- n.Run(ctx) }()
	t.Cleanup(func() { l.halt() })
	return l
}

// halt stops the node and waits until it has stopped completely.
func (l *testNode) halt() {
	l.t.Helper()
	if l.stop == nil {
		return
	}
	l.stop()
	l.stop = nil
	if err := <-l.done; err != nil && !errors.Is(err, context.Canceled) {
		l.t.Errorf("node %s: %v", l.Name(), err)
	}
}

// pair returns two running nodes of one mesh, in folders of their own.
func pair(t testing.TB, change func(name string, c *Config)) (a, b *testNode) {
	t.Helper()
	ca, cb := testConfig(t, filepath.Join(t.TempDir(), "a")), testConfig(t, filepath.Join(t.TempDir(), "b"))
	if change != nil {
		change("a", &ca)
		change("b", &cb)
	}
	if _, err := pairing.Init(pairing.InitOptions{Dir: ca.Dir, Name: "a", NewMesh: true}); err != nil {
		t.Fatal(err)
	}
	a = start(t, ca)
	join(t, a, cb, "b")
	return a, start(t, cb)
}

// join makes the stopped node of cfg a member with a ticket of inviter.
func join(t testing.TB, inviter *testNode, cfg Config, name string) {
	t.Helper()
	inv, err := inviter.Pairing.Invite(t.Context(), wire.InviteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	if _, err := Joiner(cfg).WithTicket(ctx, inv.Ticket, name); err != nil {
		t.Fatal(err)
	}
}

// withTimeout returns a context that ends after d, or with the test.
func withTimeout(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// allow returns a handler of a built-in type that any member with the role work may use.
func allow(kind, typ string) wire.HandlerSpec {
	return wire.HandlerSpec{Kind: kind, Type: typ, Allow: []string{"role:send"}}
}
