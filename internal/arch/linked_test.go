package arch

import (
	"os/exec"
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
