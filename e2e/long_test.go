//go:build e2e

package e2e

import (
	"os"
	"testing"
	"time"
)

// long selects the long form of the tests: the same tests with larger numbers, which
// also judge how long things take. The short form judges states, counts, order and
// digests alone, so its verdict does not depend on how fast or busy the machine is.
var long = os.Getenv("BALEFIRE_LONG") != ""

// either returns the number for the form of the tests that runs.
func either[T any](short, longer T) T {
	if long {
		return longer
	}
	return short
}

// within logs how long something took and, in the long form, judges it.
func within(t *testing.T, what string, took, limit time.Duration) {
	t.Helper()
	t.Logf("%s: %s, at most %s is wanted", what, took.Round(time.Millisecond), limit)
	if long && took > limit {
		t.Errorf("%s took %s, want at most %s", what, took.Round(time.Millisecond), limit)
	}
}
