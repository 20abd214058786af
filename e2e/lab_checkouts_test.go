//go:build e2e

package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/balefire/balefire/wire"
)

// TestTwoCheckouts starts the meshes of two checkouts: both run, and the end of one leaves
// the other as it is.
func TestTwoCheckouts(t *testing.T) {
	script(t, "make", "mesh")
	root := t.TempDir()
	mesh := func(checkout string, args ...string) string {
		t.Helper()
		cmd := exec.Command(filepath.Join(root, checkout, "scripts/mesh"), args...)
		cmd.Env = append(os.Environ(), "COMPOSE_PROJECT_NAME=", "LAB_NUMBER=")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("this test needs docker with a running daemon, and docker-compose: %s: %s: %v\n%s", checkout, strings.Join(args, " "), err, out)
		}
		return strings.TrimSpace(string(out))
	}
	both := []string{"one", "two"}
	for _, checkout := range both {
		dir := filepath.Join(root, checkout)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		script(t, "cp", "-r", "--parents", "Dockerfile", ".dockerignore", "docker-compose.yml", "scripts", "dist/balefire-node", "dist/netlab", "dist/data", dir)
	}
	t.Cleanup(func() {
		for _, checkout := range both {
			mesh(checkout, "down")
		}
	})
	status := func(checkout string) (s wire.Status) {
		t.Helper()
		if err := json.Unmarshal([]byte(mesh(checkout, "node", "relay1", "status", "-o", "json")), &s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	for _, checkout := range both {
		mesh(checkout, "up", "relay1")
	}
	one, two := status("one"), status("two")
	if one.ID == "" || one.ID == two.ID || one.Mesh == two.Mesh {
		t.Errorf("two checkouts share a mesh: %s of %s, %s of %s", one.ID, one.Mesh, two.ID, two.Mesh)
	}
	mesh("one", "down")
	if got := status("two"); got.ID != two.ID || !got.Started.Equal(two.Started) {
		t.Errorf("the end of the first mesh has changed the second one: %s since %s, before %s since %s", got.ID, got.Started, two.ID, two.Started)
	}
}
