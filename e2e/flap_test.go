//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/balefire/balefire/node"
)

// A wire joins two networks, one for each machine of a test. What passes to a
// machine is decided by rules of nftables in its network.
type wire struct {
	t     *testing.T
	names [2]string
}

// newWire makes the two networks, 10.9.0.1 and 10.9.0.2.
func newWire(t *testing.T) *wire {
	t.Helper()
	id := strings.TrimPrefix(filepath.Base(shortDir(t)), "e2e")
	id = id[max(0, len(id)-6):]
	w := &wire{t, [2]string{"bf-a" + id, "bf-b" + id}}
	for _, name := range w.names {
		w.must("ip", "netns", "add", name)
		t.Cleanup(func() { w.must("ip", "netns", "del", name) })
	}
	w.must("ip", "link", "add", w.names[0], "netns", w.names[0], "type", "veth", "peer", "name", w.names[1], "netns", w.names[1])
	for i, name := range w.names {
		w.inside(i, "ip", "addr", "add", fmt.Sprintf("10.9.0.%d/24", i+1), "dev", name)
		w.inside(i, "ip", "link", "set", name, "up")
		w.inside(i, "ip", "link", "set", "lo", "up")
	}
	return w
}

// within returns what a program runs under to be in a network.
func (w *wire) within(i int) []string { return []string{"ip", "netns", "exec", w.names[i]} }

func (w *wire) inside(i int, argv ...string) {
	w.t.Helper()
	w.must(append(w.within(i), argv...)...)
}

func (w *wire) must(argv ...string) {
	w.t.Helper()
	if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
		w.t.Fatalf("this test needs root, ip and nft: %s: %v\n%s", strings.Join(argv, " "), err, out)
	}
}

// deaf lets nothing reach the i-th machine, until heal.
func (w *wire) deaf(i int) {
	w.t.Helper()
	w.inside(i, "nft", "add table inet cut; add chain inet cut in { type filter hook input priority 0; policy drop; }")
}

// heal lets everything reach it again.
func (w *wire) heal(i int) { w.t.Helper(); w.inside(i, "nft", "delete table inet cut") }

// wired returns two machines, a and b, at the ends of a wire.
func wired(t *testing.T, engine string) (w *wire, a, b *machine) {
	t.Helper()
	w = newWire(t)
	at := func(i int) config {
		ip := fmt.Sprintf("10.9.0.%d", i+1)
		return config{engine: engine, within: w.within(i), listen: []string{"/ip4/" + ip + "/udp/4001/quic-v1", "/ip4/" + ip + "/tcp/4001"}}
	}
	a, b = pairOf(t, at(0), at(1))
	return w, a, b
}

// TestFlappingLinkAndDeaths holds S06: a link that breaks six times while 12 000
// tasks go over it and both ends are killed loses and repeats none. The short
// form sends 3000; BALEFIRE_LONG=1 all of them.
func TestFlappingLinkAndDeaths(t *testing.T) {
	total := 3000
	if os.Getenv("BALEFIRE_LONG") != "" {
		total = 12_000
	}
	for _, engine := range engines {
		t.Run(engine, func(t *testing.T) {
			w, a, b := wired(t, engine)
			p, marks := newPromises(), newPromises()
			ctx, cancel := context.WithCancel(t.Context())
			var sender sync.WaitGroup
			sender.Go(func() {
				for ctx.Err() == nil && len(p.all()) < total {
					p.submit(ctx, a, 100, node.Request{Target: "b", Kind: "sum", Body: make([]byte, 500)})
					marks.submit(ctx, a, 2, node.Request{Target: "b", Kind: "mark"})
					pause(6 * time.Second * 100 / time.Duration(total)) // as long as the link flaps
				}
			})
			for range 6 {
				pause(300 * time.Millisecond)
				w.deaf(0)
				w.deaf(1)
				pause(700 * time.Millisecond)
				w.heal(0)
				w.heal(1)
			}
			for _, m := range []*machine{b, a} {
				pause(200 * time.Millisecond)
				m.kill()
				m.start()
			}
			sender.Wait()
			cancel()
			p.kept(t, a, "SUCCESS")
			marks.kept(t, a, "SUCCESS")
			marks.once(t, b)
		})
	}
}

// TestAcksAreLost holds S04: while nothing that the owner says reaches the home,
// what the home sends is taken and run; it is run once, however often it is sent
// again. BALEFIRE_LONG=1 loses the acks for ten minutes.
func TestAcksAreLost(t *testing.T) {
	lost := 20 * time.Second
	if os.Getenv("BALEFIRE_LONG") != "" {
		lost = 10 * time.Minute
	}
	w, a, b := wired(t, "nutsdb")
	linked(a, b)
	p := newPromises()
	w.deaf(0)
	p.submit(t.Context(), a, 50, node.Request{Target: "b", Kind: "mark"})
	pause(lost)
	for _, id := range p.all() {
		if task, err := a.Task(t.Context(), id); err != nil || task.State != "PENDING" {
			t.Fatalf("%s is %s although nothing came back: %v", id, task.State, err)
		}
	}
	if len(b.left()) == 0 {
		t.Error("nothing of what was sent has arrived: the test proves nothing")
	}
	w.heal(0)
	p.kept(t, a, "SUCCESS")
	if again := p.once(t, b); again > 0 {
		t.Errorf("I6: %d tasks ran twice", again)
	}
}
