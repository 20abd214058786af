//go:build unix

package main

import (
	"os"
	"path/filepath"
	"testing"
)

// A new configuration can be read by its owner alone: env of a handler may hold secrets.
func TestNewConfigurationIsPrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "node", "config.yaml")
	if wrote, err := writeConfig(path, nil); err != nil || !wrote {
		t.Fatalf("wrote %v: %v", wrote, err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != 0o600 {
		t.Errorf("its mode is %v", got)
	}
}
