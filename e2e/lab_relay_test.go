//go:build e2e

package e2e

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/balefire/balefire/internal/lab/netfilter"
	"github.com/balefire/balefire/wire"
)

// reservations returns the relays through which a node can be reached.
func (m *machine) reservations() (names []string) {
	got, err := m.NetCheck(context.Background())
	if err != nil {
		return nil
	}
	for _, r := range got.Reservations {
		names = append(names, r.Relay)
	}
	return names
}

// TestRelayRestarts checks S40: one of two relays is down for a second, five times, and a
// node behind a NAT has its reservation there again within 3 s from the start of its process.
func TestRelayRestarts(t *testing.T) {
	f := newNATLab(t, plan{home: netfilter.Symmetric, relays: 2})
	f.b.start()
	relay := f.relays[0]
	f.b.until("it has reservations at both relays", func() bool { return len(f.b.reservations()) == 2 })
	var all []time.Duration
	for range either(1, 5) {
		before := f.b.reserved("relay1")
		relay.kill()
		pause(time.Second)
		began := time.Now()
		relay.start()
		f.b.until("its reservation is back", func() bool {
			return f.b.reserved("relay1") > before && slices.Contains(f.b.reservations(), "relay1")
		})
		all = append(all, time.Since(began))
	}
	within(t, "the reservation is back", percentile(t, "the reservation at a relay is back", 100, all), 3*time.Second)
}

// reserved counts the reservations that a relay has given this node so far.
func (m *machine) reserved(relay string) (count int) {
	m.t.Helper()
	page, err := m.EventPage(context.Background(), 0, 1000, 0)
	if err != nil {
		m.t.Fatal(err)
	}
	for _, e := range page.Items {
		if e.Kind == wire.EventRelayReserved && e.Peer == relay {
			count++
		}
	}
	return count
}

// TestRelayDies kills the relay between two nodes that cannot reach each other
// while tasks flow: another one takes over within 10 s, and nothing is lost.
func TestRelayDies(t *testing.T) {
	f := newNATLab(t, plan{office: netfilter.Symmetric, home: netfilter.Symmetric, relays: 2})
	both(func(m *machine) { m.start() }, f.a, f.b)
	f.b.until("it has two reservations", func() bool { return len(f.b.reservations()) == 2 })
	first := f.a.meets("b", relayed).Relay
	ctx, cancel := context.WithCancel(t.Context())
	var sending sync.WaitGroup
	var p *acknowledged
	sending.Go(func() { p = f.flowing(ctx, func(int) bool { return false }) })
	pause(time.Second)
	i := slices.IndexFunc(f.relays, func(m *machine) bool { return m.name == first })
	if i < 0 {
		t.Fatalf("the relay between a and b is %q", first)
	}
	f.relays[i].kill()
	took := f.a.accepted("b", time.Now())
	cancel()
	sending.Wait()
	within(t, "another relay takes over", took, 10*time.Second)
	p.checkAllEnd(t, f.a, "SUCCESS")
	p.checkMarks(t, f.b)
}
