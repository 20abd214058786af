package arch

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// forbiddenDeps are packages that the program must not link: libp2p's own constructor links
// every transport of libp2p, 5 MB of unused code.
var forbiddenDeps = []string{
	"github.com/libp2p/go-libp2p",
	"github.com/libp2p/go-libp2p/config",
	"github.com/libp2p/go-libp2p/p2p/transport/webrtc",
	"github.com/libp2p/go-libp2p/p2p/transport/websocket",
	"github.com/libp2p/go-libp2p/p2p/transport/webtransport",
}

func TestProgramLinksNoUnusedTransport(t *testing.T) {
	list := exec.Command("go", "list", "-deps", "./cmd/balefire-node")
	list.Dir = "../.."
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := strings.Fields(string(out))
	if !slices.Contains(deps, "github.com/libp2p/go-libp2p/p2p/transport/quic") {
		t.Fatalf("not even QUIC is among %d packages: the list is broken", len(deps))
	}
	for _, d := range deps {
		if slices.Contains(forbiddenDeps, d) || strings.HasPrefix(d, "github.com/pion/") {
			t.Errorf("cmd/balefire-node links %s: build the host from its parts (transport/hostbuilder.go)", d)
		}
	}
}

// TestAClientLinksLittle checks that a program that only talks to a node stays small: its
// packages besides the standard library were 3 when this was written, and its size 6 MB
// stripped.
func TestAClientLinksLittle(t *testing.T) {
	const maxDeps, maxBytes = 60, 10e6
	main := filepath.Join(t.TempDir(), "main.go")
	program := "package main\n\nimport (\n\"context\"\n\"" + module + "/api/client\"\n)\n\n" +
		"func main() { _, _ = client.New(\"node.sock\").Status(context.Background()) }\n"
	if err := os.WriteFile(main, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	list := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", main)
	list.Dir = "../.."
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := strings.Fields(string(out))
	if len(deps) < 2 || len(deps) > maxDeps {
		t.Errorf("a program with api/client links %d packages besides the standard library, the limit is %d: %q", len(deps), maxDeps, deps)
	}
	bin := filepath.Join(t.TempDir(), "client")
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", bin, main)
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	info, err := os.Stat(bin)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d packages besides the standard library, %.1f MB", len(deps), float64(info.Size())/1e6)
	if info.Size() > maxBytes {
		t.Errorf("a program with api/client has %d bytes, the limit is %.0f", info.Size(), maxBytes)
	}
}
