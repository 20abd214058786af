package transport

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	ma "github.com/multiformats/go-multiaddr"
)

// A dial that times out is reported in plain words.
func TestDialTimeoutError(t *testing.T) {
	err := describeDialError(fmt.Errorf("dial: %w", context.DeadlineExceeded))
	if err.Error() != "no answer in time" || !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrUnreached) {
		t.Errorf("%v", err)
	}
}

// A dial that met this node itself, at an address that a peer also states, says so.
func TestDialToSelf(t *testing.T) {
	addr := ma.StringCast("/ip4/172.17.0.1/tcp/4001")
	err := describeDialError(fmt.Errorf("dial: %w", &swarm.DialError{DialErrors: []swarm.TransportError{{Address: addr, Cause: swarm.ErrDialToSelf}}}))
	if want := "no address answers: /ip4/172.17.0.1/tcp/4001: this node itself has that address"; err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

// A failure to listen is reported once, with the setting to change.
func TestListenErrors(t *testing.T) {
	for announced, want := range map[string]string{
		"bind: cannot assign requested address": "this machine does not have the address: set net.listen",
		"bind: address already in use":          "another program is using the port",
		"bind: permission denied":               "choose one above 1023",
		"something else":                        "something else",
	} {
		err := describeListenError([]string{"/ip4/192.0.2.1/tcp/1"}, fmt.Errorf("failed to listen on any addresses: [listen tcp4 192.0.2.1:1: %s listen udp4 192.0.2.1:1: %s]", announced, announced))
		if !strings.HasPrefix(err.Error(), "listen on /ip4/192.0.2.1/tcp/1: ") || !strings.Contains(err.Error(), want) || want != announced && strings.Contains(err.Error(), "bind") {
			t.Errorf("%s: %v", announced, err)
		}
	}
}
