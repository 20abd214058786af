package node

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/balefire/balefire/proto"
)

// Every log line has the name and the full id of a peer, with any handler.
func TestLogLinesNamePeers(t *testing.T) {
	known, unknown := proto.PeerID{1}, proto.PeerID{2}
	var out bytes.Buffer
	name := func(p proto.PeerID) string {
		if p == known {
			return "laptop"
		}
		return ""
	}
	for _, h := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
		out.Reset()
		slog.New(peerNamer{h, name}).With("by", known).WithGroup("g").Info("a line", "peer", unknown, "n", 1)
		if got := out.String(); !strings.Contains(got, "laptop "+known.String()) || !strings.Contains(got, unknown.String()) {
			t.Errorf("%s", got)
		}
		out.Reset()
		slog.New(h).Info("without a name", "peer", known)
		if got := out.String(); !strings.Contains(got, known.String()) {
			t.Errorf("%s", got)
		}
	}
}

// A node names itself, where it listens and its peers in its own log.
func TestNodeNamesPeersInItsLog(t *testing.T) {
	var out bytes.Buffer
	a, b := pair(t, func(name string, c *Config) {
		if name == "a" {
			c.Logger = slog.New(slog.NewTextHandler(&out, nil))
		}
	})
	eventually(t, func() bool { return a.net.Connected(b.keys.Peer()) }, func() string { return "not connected" })
	a.halt()
	for _, want := range []string{`peer="b ` + b.keys.Peer().String(), "name=a id=" + a.keys.Peer().String() + ` addrs="[/ip4/127.0.0.1/`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no line has %s:\n%s", want, &out)
		}
	}
}
