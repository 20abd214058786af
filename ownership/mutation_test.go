package ownership

import (
	"os"
	"testing"
)

// mutationSeeds is the number of seeds until a mutation is noticed, if a hundred are not
// enough.
var mutationSeeds = map[mutation]uint64{expiredEarly: 500, cancelLost: 500, cancelForgotten: 500, adoptStarts: 500, abandonSpends: 500}

// TestEveryRuleIsMissed leaves out one rule of the core, or of its driver, at a time: the
// simulator must notice it.
func TestEveryRuleIsMissed(t *testing.T) {
	for mut := epochUnchecked; mut < mutationCount; mut++ {
		t.Run(mut.String(), func(t *testing.T) {
			t.Parallel()
			limit := mutationSeeds[mut]
			if limit == 0 {
				limit = 100
			}
			if os.Getenv("BALEFIRE_LONG") != "" {
				limit *= 10
			}
			for seed := range limit {
				if w := simulate(1_000_000+seed, mut); w.failed != "" {
					t.Logf("missed at seed %d: %.160s", seed, w.failed)
					return
				}
			}
			t.Errorf("%d seeds, and nothing was missed", limit)
		})
	}
}
