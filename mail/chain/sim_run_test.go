package chain

import (
	"maps"
	"os"
	"slices"
	"testing"
)

// simSteps is the length of a run.
const simSteps = 600

// TestSimulator checks I22 over 300 runs, or a million steps with BALEFIRE_LONG.
func TestSimulator(t *testing.T) {
	runs := 300
	if os.Getenv("BALEFIRE_LONG") != "" {
		runs = 1_000_000/simSteps + 1
	}
	all := map[string]int{}
	for seed := range uint64(runs) {
		s := simulate(seed, simSteps)
		for k, v := range s.counts {
			all[k] += v
		}
		if s.failed != "" {
			t.Errorf("seed %d: %s", seed, s.failed)
		}
	}
	for _, what := range []string{
		"taken", "accepted", "refused", "expired", "unheard", "cancelled", "in the chain of its key", "origin started", "home started",
		"origin put back", "home put back", "handed over", "seized", "copied again", "added to notes that were kept",
	} {
		if all[what] == 0 {
			t.Errorf("in %d runs %q never happened: the simulator has gone blind", runs, what)
		}
	}
	t.Logf("counted: %d runs of %d steps", runs, simSteps)
	for _, k := range slices.Sorted(maps.Keys(all)) {
		t.Logf("%-28s %d", k, all[k])
	}
}
