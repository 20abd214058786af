//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"testing"
)

// TestTenVirtualHours runs the mesh of package node in virtual time for as long
// as a CI run gives it: see TestVirtualHours there.
func TestTenVirtualHours(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-v", "-timeout", "20m", "-run", "^TestVirtualHours$", "../node")
	cmd.Env = append(os.Environ(), "BALEFIRE_VIRTUAL_HOURS=10")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out[max(0, len(out)-8000):])
	}
}

// TestFourVirtualHoursOfWeather compares whole nodes with and without the rules of
// Lifeguard for as long as a CI run gives it: see TestLifeguardWithWholeNodes in
// package node.
func TestFourVirtualHoursOfWeather(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-v", "-timeout", "20m", "-run", "^TestLifeguardWithWholeNodes$", "../node")
	cmd.Env = append(os.Environ(), "BALEFIRE_VIRTUAL_HOURS=4")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out[max(0, len(out)-8000):])
	}
}

// TestTenThousandStatements is the burst of S43 in full: see
// TestABurstIsMendedByComparison in package node.
func TestTenThousandStatements(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-v", "-timeout", "10m", "-run", "^TestABurstIsMendedByComparison$", "../node")
	cmd.Env = append(os.Environ(), "BALEFIRE_VIRTUAL_HOURS=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out[max(0, len(out)-8000):])
	}
}
