//go:build e2e

package e2e

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/balefire/balefire/internal/lab/netfilter"
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

// TestRelayRestarts checks S40: a relay restarts five times, and a node behind a NAT
// has its reservation again within 5 s.
func TestRelayRestarts(t *testing.T) {
	f := newNATLab(t, plan{home: netfilter.Symmetric})
	f.b.start()
	relay := f.relays[0]
	f.b.until("it has a reservation at the relay", func() bool { return slices.Contains(f.b.reservations(), "relay1") })
	var all []time.Duration
	for range either(1, 5) {
		relay.kill()
		relay.start()
		began := time.Now()
		f.b.until("its reservation is back", func() bool {
			r, err := relay.NetCheck(context.Background())
			return err == nil && r.Relaying != nil && r.Relaying.Reservations > 0 && slices.Contains(f.b.reservations(), "relay1")
		})
		all = append(all, time.Since(began))
	}
	within(t, "the reservation is back", percentile(t, "the reservation at a relay is back", 100, all), 5*time.Second)
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
