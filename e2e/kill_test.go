//go:build e2e

package e2e

import (
	"context"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/balefire/balefire/wire"
)

// engines are the storage engines.
var engines = []string{"nutsdb", "pebble"}

// rounds returns the number of rounds, unless the environment overrides it.
func rounds(short, longer int) int {
	if k, err := strconv.Atoi(os.Getenv("BALEFIRE_ROUNDS")); err == nil {
		return k
	}
	return either(short, longer)
}

// TestKillAtRandomMoments checks I1, I6, I8 and I20 under kill -9: each of 200 rounds
// per store (10 in the short form) kills the home, the owner or both while tasks are
// submitted, sent, run and answered. No acknowledged task is lost, none runs twice unless
// its node died during the run, and each node restarts without intervention.
func TestKillAtRandomMoments(t *testing.T) {
	for _, engine := range engines {
		t.Run(engine, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, uint64(len(engine))))
			a, b := pair(t, config{engine: engine})
			p := newAcknowledged()
			for range rounds(10, 200) {
				killRound(rng, p, a, b)
			}
			p.checkAllEnd(t, a, "SUCCESS")
			a.waitIdle()
			p.checkMarks(t, b)
			before := len(b.readMarks())
			both(func(m *machine) { m.stop(); m.start() }, a, b)
			pause(2 * time.Second)
			if after := len(b.readMarks()); after != before {
				t.Errorf("I6: %d new marks after all tasks had ended", after-before)
			}
		})
	}
}

// killRound submits for a moment, kills, and restarts.
func killRound(rng *rand.Rand, p *acknowledged, a, b *machine) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	size := 1 + rng.IntN(8)
	go func() {
		defer close(done)
		for range 5 {
			if p.submit(ctx, a, size, wire.Request{Target: "b", Kind: "mark", Body: make([]byte, size*100)}) != nil {
				return
			}
		}
	}()
	pause(time.Duration(rng.IntN(80_000)) * time.Microsecond)
	var dead []*machine
	switch rng.IntN(5) {
	case 0, 1:
		dead = []*machine{a}
	case 2, 3:
		dead = []*machine{b}
	case 4:
		dead = []*machine{a, b}
	}
	both((*machine).kill, dead...)
	cancel()
	<-done
	both(func(m *machine) { m.start() }, dead...)
}
