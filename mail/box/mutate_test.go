package box

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

// everyTime are the mutants of an ordinary run: each breaks another part.
var everyTime = []string{
	"lapse spends nothing", "nack of an old delivery", "lane opened early", "class not inherited", "end without bounce", "clock read in Apply",
	"number of a producer not noted", "highest number of a producer alone",
	"suspect leased to a session that has mail", "mail leased with a suspect",
	"nobody is told of what is done", "another receipt for a mail", "attempts stay at the old home", "dedupe keys stay at the old home",
}

func TestMain(m *testing.M) { mutants.Main(m, hunt) }

// hunt searches for the seed at which the model notices a mutant.
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
		if err := history(1_000_000 + seed); err != nil {
			return fmt.Sprintf("seed %d: %v", seed, err)
		}
	}
	return ""
}

// TestEveryRuleIsMissed leaves out one rule of I23 at a time: the model must notice it. An
// ordinary run tries some of them.
func TestEveryRuleIsMissed(t *testing.T) {
	all := make([]mutants.Mutant, len(rules))
	for i, m := range rules {
		all[i] = mutants.Mutant{Name: m.name, Rare: !slices.Contains(everyTime, m.name)}
		for _, e := range m.edits {
			all[i].Edits = append(all[i].Edits, mutants.Edit(e))
		}
	}
	mutants.Test(t, "box", all)
}
