package node

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/transport/transporttest"
	"github.com/balefire/balefire/wire"
)

// TestJoinWithAWrongClock checks what clock a node may join with: one that is behind, by
// however much, or up to 90 days ahead. Otherwise it is told to compare the clocks.
func TestJoinWithAWrongClock(t *testing.T) {
	const days = 24 * time.Hour
	for off, joins := range map[time.Duration]bool{-20 * year: true, -10 * days: true, 10 * days: true, 89 * days: true, 91 * days: false, 2 * year: false, 20 * year: false} {
		synctest.Test(t, func(t *testing.T) {
			link := transporttest.Link{Latency: 10 * time.Millisecond, Mbps: 100, Seed: 1}
			w := newSimMeshWith(t, 1, 1, link, func(s *simNode, cfg *Config) {
				quietMesh(s, cfg)
				if s.place == 1 {
					cfg.Clock = clock.WithOffset(clock.Runtime(), func() time.Duration { return off })
				}
			})
			defer w.close()
			time.Sleep(5 * time.Second)
			inv, err := w.nodes[0].node.Pairing.Invite(t.Context(), wire.InviteOptions{})
			if err != nil {
				t.Fatal(err)
			}
			err = w.add().present(inv.Ticket, 5*time.Minute)
			if joins && err != nil || !joins && (err == nil || !strings.Contains(err.Error(), "compare the clocks")) {
				t.Errorf("%s ahead: %v, want it to join: %v", off, err, joins)
			}
		})
	}
}
