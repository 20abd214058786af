//go:build linux || darwin

package client_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/balefire/balefire/audit"
	"github.com/balefire/balefire/wire"
)

// TestAuditNamesTheCaller checks that the audit log names the user who changed a setting
// over the socket.
func TestAuditNamesTheCaller(t *testing.T) {
	c, dir := real(t)
	if err := c.AddHandler(t.Context(), wire.HandlerSpec{Kind: "echo", Type: wire.TypeEcho, Allow: []string{"peer:here"}}); err != nil {
		t.Fatal(err)
	}
	var actors []string
	err := audit.Scan(filepath.Join(dir, "audit"), func(r audit.Record) error {
		if r.Action == "handler.add" {
			actors = append(actors, r.Actor)
		}
		return nil
	})
	if want := fmt.Sprintf("uid:%d", os.Getuid()); err != nil || !slices.Equal(actors, []string{want}) {
		t.Errorf("actors %q, want %q alone: %v", actors, want, err)
	}
}
