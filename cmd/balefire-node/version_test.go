package main

import (
	"runtime/debug"
	"strings"
	"testing"
)

// TestABinaryKnowsItsVersion checks that a binary reports its source however it was built: by
// make, by go install of a version, by go build in a clone, or from files without a repository.
func TestABinaryKnowsItsVersion(t *testing.T) {
	info := func(version string, settings ...string) *debug.BuildInfo {
		b := &debug.BuildInfo{Main: debug.Module{Version: version}}
		for _, s := range settings {
			k, v, _ := strings.Cut(s, "=")
			b.Settings = append(b.Settings, debug.BuildSetting{Key: k, Value: v})
		}
		return b
	}
	const commit = "vcs.revision=820d362ffffffffffffffffffffffffffffffff0"
	for _, tt := range []struct {
		name, linked string
		info         *debug.BuildInfo
		want         string
	}{
		{"make build", "v1.2.3-4-g820d362", info("v1.2.4-0.20261122063939-820d362fffff", commit), "v1.2.3-4-g820d362"},
		{"go install of a version", "", info("v1.2.3"), "v1.2.3"},
		{"go build in a clone", "", info("v0.0.0-20261122063939-820d362fffff+dirty", commit), "v0.0.0-20261122063939-820d362fffff+dirty"},
		{"an older go build in a clone", "", info("(devel)", commit), "dev-820d362fffff"},
		{"with changes", "", info("(devel)", commit, "vcs.modified=true"), "dev-820d362fffff-dirty"},
		{"from bare files", "", info("(devel)"), "dev"},
		{"a test", "", info(""), "dev"},
		{"nothing is known", "", nil, "dev"},
	} {
		if got := buildOf(tt.linked, tt.info); got.Version != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got.Version, tt.want)
		}
	}
}
