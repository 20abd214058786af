//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
)

// maxExposure is the highest exposure that the service unit may have, with or without the
// drop-in for run_as.
const maxExposure = 2.5

var (
	measuredExposure = regexp.MustCompile(`Overall exposure level for balefire\.service: ([0-9.]+)`)
	statedExposure   = regexp.MustCompile(`with an exposure of ([0-9.]+) by`)
	raisedExposure   = regexp.MustCompile(`raises the exposure from ([0-9.]+) to ([0-9.]+)\.`)
)

// TestExposureOfTheUnit measures the exposure of the shipped service unit, alone and with the
// drop-in for run_as, by systemd-analyze: it is what docs/operations.md states.
func TestExposureOfTheUnit(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Fatalf("install systemd: %v", err)
	}
	page, err := os.ReadFile("../docs/operations.md")
	check(t, err)
	alone, raised := statedExposure.FindSubmatch(page), raisedExposure.FindSubmatch(page)
	if alone == nil || raised == nil {
		t.Fatal("docs/operations.md states no exposure")
	}
	if string(alone[1]) != string(raised[1]) {
		t.Errorf("docs/operations.md states an exposure of %s and of %s for the unit", alone[1], raised[1])
	}
	const unit, dropIn = "../packaging/systemd/balefire.service", "../packaging/systemd/run-as.conf"
	for what, tt := range map[string]struct {
		dropIns []string
		stated  []byte
	}{
		"the unit":                  {nil, alone[1]},
		"the unit with the drop-in": {[]string{dropIn}, raised[2]},
	} {
		measured := exposure(t, unit, tt.dropIns...)
		if measured != string(tt.stated) {
			t.Errorf("%s has an exposure of %s, docs/operations.md states %s", what, measured, tt.stated)
		}
		if f, err := strconv.ParseFloat(measured, 64); err != nil || f > maxExposure {
			t.Errorf("%s has an exposure of %s, the limit is %v: %v", what, measured, maxExposure, err)
		}
	}
}

// exposure returns the exposure of a unit with these drop-ins.
func exposure(t *testing.T, unit string, dropIns ...string) string {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, filepath.Base(unit))
	copyText := func(from, to string) {
		text, err := os.ReadFile(from)
		check(t, err)
		check(t, os.WriteFile(to, text, 0o644))
	}
	copyText(unit, path)
	check(t, os.Mkdir(path+".d", 0o755))
	for _, d := range dropIns {
		copyText(d, filepath.Join(path+".d", filepath.Base(d)))
	}
	out, err := exec.CommandContext(t.Context(), "systemd-analyze", "security", "--offline=true", "--no-pager", path).CombinedOutput()
	m := measuredExposure.FindSubmatch(out)
	if err != nil || m == nil {
		t.Fatalf("systemd-analyze: %v\n%s", err, out)
	}
	return string(m[1])
}
