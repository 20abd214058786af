//go:build e2e

package e2e

import (
	"os"
	"testing"
	"time"
)

// long selects the long form of the tests: the same tests with larger numbers, which also
// check durations. The short form checks only states, counts, order and digests, so that
// its result does not depend on the speed and load of the machine.
var long = os.Getenv("BALEFIRE_LONG") != ""

// either returns the number for the selected form of the tests.
func either[T any](short, longer T) T {
	if long {
		return longer
	}
	return short
}

// within logs a duration and, in the long form, checks its limit.
func within(t *testing.T, what string, took, limit time.Duration) {
	t.Helper()
	t.Logf("%s: %s, want at most %s", what, took.Round(time.Millisecond), limit)
	if long && took > limit {
		t.Errorf("%s took %s, want at most %s", what, took.Round(time.Millisecond), limit)
	}
}
