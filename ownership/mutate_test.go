package ownership

import (
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"testing"

	"github.com/balefire/balefire/internal/mutants"
)

// A mutant is the package with one rule left out.
type mutant struct {
	name  string
	seeds uint64 // how many may be needed until it is noticed; default 100
	edits []edit
}

// An edit is a [mutants.Edit] that a table can write without names of fields.
type edit struct{ File, Function, Old, New string }

// everyTime are the mutants of an ordinary run: each breaks another part, three of them that of
// an isolated home.
var everyTime = []string{
	"epoch check dropped", "lane advanced early", "permit not persisted", "generation not compared", "queue claimed without a deed", "ack before fsync", "parked task run again",
	"isolated home grants to another", "isolated home reclaims a lease", "isolated home does not grant to itself",
}

func TestMain(m *testing.M) { mutants.Main(m, hunt) }

// hunt searches for the seed at which the simulator notices a mutant.
func hunt(number int) string {
	debug.SetGCPercent(800)
	limit := uint64(100)
	if number > 0 && rules[number-1].seeds > 0 {
		limit = rules[number-1].seeds
	}
	if os.Getenv("BALEFIRE_LONG") != "" && number > 0 {
		limit *= 10
	}
	for seed := range limit {
		if w := simulate(1_000_000 + seed); w.failed != "" {
			return fmt.Sprintf("seed %d: %s", seed, w.failed)
		}
	}
	return ""
}

// TestEveryRuleIsMissed leaves out one rule of the core, or of its driver, at a time, among
// them those of I4, I7 and I16: the simulator must notice it. An ordinary run tries ten of them.
func TestEveryRuleIsMissed(t *testing.T) {
	all := make([]mutants.Mutant, len(rules))
	for i, m := range rules {
		all[i] = mutants.Mutant{Name: m.name, Rare: !slices.Contains(everyTime, m.name)}
		for _, e := range m.edits {
			all[i].Edits = append(all[i].Edits, mutants.Edit(e))
		}
	}
	mutants.Test(t, "ownership", all)
}
