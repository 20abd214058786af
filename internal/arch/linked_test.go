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

// replacedModules are modules of which the program needs little: third_party/README.md.
var replacedModules = []string{
	"github.com/decred/dcrd/dcrec/secp256k1/v4",
	"github.com/libp2p/go-libp2p-asn-util",
}

// TestReplacedModules checks that the program does not link 2.3 MB of tables that it does not
// need, after an update of libp2p either, and runs the tests of the modules without them.
func TestReplacedModules(t *testing.T) {
	for _, m := range replacedModules {
		list := exec.Command("go", "list", "-m", "-f", "{{with .Replace}}{{.Path}}{{end}}", m)
		list.Dir, list.Env = "../..", append(os.Environ(), "GOWORK=off") // go.mod counts, no workspace
		out, err := list.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if !strings.HasPrefix(string(out), "./third_party/") {
			t.Errorf("go.mod does not replace %s in the required version: third_party/README.md", m)
		}
		test := exec.Command("go", "test", m+"/...")
		test.Dir, test.Env = list.Dir, list.Env
		if out, err := test.CombinedOutput(); err != nil {
			t.Errorf("test of %s: %v: %s", m, err, out)
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
