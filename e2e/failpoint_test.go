//go:build e2e

package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/node"
)

// points are the moments at which a node can be made to die, with the side of a
// task that passes them: before and after every commit that a task needs.
var points = []struct {
	name string
	home bool
}{
	{node.PointSealed, true},
	{node.PointStored, true},
	{node.PointReceive, true}, // a result
	{node.PointAccepted, true},
	{node.PointReceive, false}, // a task
	{node.PointAccepted, false},
	{inbox.PointAccept, false},
	{inbox.PointAccepted, false},
	{inbox.PointStart, false},
	{inbox.PointStarted, false},
	{inbox.PointFinish, false},
	{node.PointResult, false},
	{inbox.PointFinished, false},
	{inbox.PointSettle, false},
	{inbox.PointSettled, false},
}

// TestKillAtNamedPoints holds I1, I6, I8 and S01 at every step between two
// commits: the process dies at its n-th visit of the point, and what was
// acknowledged is done, once.
func TestKillAtNamedPoints(t *testing.T) {
	for _, engine := range engines {
		t.Run(engine, func(t *testing.T) {
			a, b := pair(t, config{engine: engine})
			for _, pt := range points {
				side, who := b, "owner"
				if pt.home {
					side, who = a, "home"
				}
				for _, visit := range []int{1, 4} {
					t.Run(fmt.Sprintf("%s %s %d", who, pt.name, visit), func(t *testing.T) { dieAt(t, a, b, side, pt.name, visit) })
				}
			}
		})
	}
}

func dieAt(t *testing.T, a, b, side *machine, point string, visit int) {
	p := newPromises()
	before := p.once(t, b)
	side.stop()
	side.start(fmt.Sprintf("BALEFIRE_FAILPOINT=%s:%d", point, visit))
	for i, began := 0, time.Now(); side.alive() && time.Since(began) < patience; i++ {
		p.submit(t.Context(), a, 1+i%3, node.Request{Target: "b", Kind: "mark"})
		if i%10 == 9 { // what was sent may come to rest, so that marks are due
			a.until("the tasks end or the point is met", func() bool { return !side.alive() || a.rests() })
			pause(150 * time.Millisecond)
		}
	}
	side.until("it dies at the point", func() bool { return !side.alive() })
	side.died()
	side.start()
	p.kept(t, a, "SUCCESS")
	a.idle()
	if again := p.once(t, b); side == a && again > before {
		t.Errorf("I6: %d tasks ran twice although their owner lived", again-before)
	}
}
