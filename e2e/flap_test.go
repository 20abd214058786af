//go:build e2e

package e2e

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/balefire/balefire/internal/lab"
	"github.com/balefire/balefire/wire"
)

// newLinkedPair returns two machines, a and b, in one network, and the host that a
// runs on.
func newLinkedPair(t *testing.T, engine string) (ha *lab.Host, a, b *machine) {
	t.Helper()
	n := lab.New(t).Net("wire", "10.9.0.0/24")
	ha, hb := n.Host("a", lab.Attachment{Addr: "10.9.0.1"}), n.Host("b", lab.Attachment{Addr: "10.9.0.2"})
	a, b = pairOf(t, place(ha, config{engine: engine}), place(hb, config{engine: engine}))
	return ha, a, b
}

// place moves a machine to a host of a lab.
func place(h *lab.Host, c config) config {
	c.within = h.Within()
	if c.listen == nil {
		c.listen = []string{"/ip4/0.0.0.0/udp/4001/quic-v1", "/ip4/0.0.0.0/tcp/4001"}
	}
	return c
}

// TestFlappingLinkAndDeaths checks S06: no task is lost or repeated when a link fails six
// times and both ends are killed while it carries 12 000 tasks. The short form sends 600.
func TestFlappingLinkAndDeaths(t *testing.T) {
	total := either(600, 12_000)
	for _, engine := range engines {
		t.Run(engine, func(t *testing.T) {
			ha, a, b := newLinkedPair(t, engine)
			p, marks := newAcknowledged(), newAcknowledged()
			ctx, cancel := context.WithCancel(t.Context())
			var sender sync.WaitGroup
			sender.Go(func() {
				for ctx.Err() == nil && p.count() < total {
					p.submit(ctx, a, 100, wire.Request{Target: "b", Kind: "sum", Body: make([]byte, 500)})
					marks.submit(ctx, a, 2, wire.Request{Target: "b", Kind: "mark"})
					pause(6 * time.Second * 100 / time.Duration(total)) // as long as the link flaps
				}
			})
			for range 6 {
				pause(300 * time.Millisecond)
				ha.Port.Cut()
				pause(700 * time.Millisecond)
				ha.Port.Heal()
			}
			for _, m := range []*machine{b, a} {
				pause(200 * time.Millisecond)
				m.kill()
				m.start()
			}
			sender.Wait()
			cancel()
			p.checkAllEnd(t, a, "SUCCESS")
			marks.checkAllEnd(t, a, "SUCCESS")
			marks.checkMarks(t, b)
		})
	}
}

// TestAcksAreLost checks S04: while no message from the owner reaches the home, the
// owner accepts and runs tasks from the home; each runs once, however often it is
// resent. The long form drops the acks for ten minutes.
func TestAcksAreLost(t *testing.T) {
	lost := either(20*time.Second, 10*time.Minute)
	ha, a, b := newLinkedPair(t, "nutsdb")
	linked(a, b)
	first := newAcknowledged() // open the stream before: the acks are dropped later
	first.submit(t.Context(), a, 1, wire.Request{Target: "b", Kind: "sum"})
	first.checkAllEnd(t, a, "SUCCESS")
	p := newAcknowledged()
	ha.Port.CutIn()
	p.submit(t.Context(), a, 50, wire.Request{Target: "b", Kind: "mark"})
	pause(lost)
	for _, id := range p.all() {
		if task, err := a.Task(t.Context(), id); err != nil || task.State != "PENDING" {
			t.Fatalf("%s is %s although no ack came back: %v", id, task.State, err)
		}
	}
	if len(b.readMarks()) == 0 {
		t.Error("no task has arrived: the test proves nothing")
	}
	ha.Port.Heal()
	p.checkAllEnd(t, a, "SUCCESS")
	if again := p.checkMarks(t, b); again > 0 {
		t.Errorf("I6: %d tasks ran twice", again)
	}
}
