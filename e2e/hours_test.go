//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestTenVirtualHours runs the mesh of package node in virtual time for as long
// as a CI run gives it: see TestVirtualHours there.
func TestTenVirtualHours(t *testing.T) {
	virtual(t, "TestVirtualHours", 10)
}

// TestFourVirtualHoursOfWeather compares whole nodes with and without the rules of
// Lifeguard for as long as a CI run gives it: see TestLifeguardWithWholeNodes in
// package node.
func TestFourVirtualHoursOfWeather(t *testing.T) {
	virtual(t, "TestLifeguardWithWholeNodes", 4)
}

// TestTenThousandStatements is the burst of S43 in full: see
// TestABurstIsMendedByComparison in package node.
func TestTenThousandStatements(t *testing.T) {
	virtual(t, "TestABurstIsMendedByComparison", 1)
}

// virtual runs a test of package node for so many virtual hours. A name that is no
// test passes nothing.
func virtual(t *testing.T, name string, hours int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-v", "-timeout", "20m", "-run", "^"+name+"$", "../node")
	cmd.Env = append(os.Environ(), fmt.Sprintf("BALEFIRE_VIRTUAL_HOURS=%d", hours))
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+name+" ") {
		t.Errorf("%v\n%s", err, out[max(0, len(out)-8000):])
	}
}
