//go:build e2e

package e2e

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/balefire/balefire/wire"
)

// accepted submits a task to a peer and returns the time from begin until the peer has
// accepted it.
func (m *machine) accepted(to string, begin time.Time) time.Duration {
	m.t.Helper()
	s, err := m.Submit(context.Background(), wire.Request{Target: to, Kind: "sum"})
	if err != nil {
		m.t.Fatalf("submit at %s: %v", m.name, err)
	}
	m.until("the task is accepted by "+to, func() bool {
		task, err := m.Task(context.Background(), s.ID)
		return err == nil && slices.Contains(task.Receipts, "accepted")
	})
	return time.Since(begin)
}

// meets waits until m has a connection to the peer, and returns it.
func (m *machine) meets(peer string, like func(wire.Peer) bool) (p wire.Peer) {
	m.t.Helper()
	m.until("it is connected to "+peer, func() bool {
		var err error
		p, err = m.Peer(context.Background(), peer)
		return err == nil && p.State == "CONNECTED" && like(p)
	})
	return p
}

func anyhow(wire.Peer) bool { return true }

// percentile returns a percentile of all, and logs them all.
func percentile(t *testing.T, what string, percent int, all []time.Duration) time.Duration {
	t.Helper()
	if slices.Sort(all); len(all) == 0 {
		t.Fatal(what + ": nothing was measured")
	}
	t.Logf("%s, %d times: %v", what, len(all), all)
	return all[(len(all)*percent+99)/100-1]
}
