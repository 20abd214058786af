package transport

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/balefire/balefire/proto"
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

// A circuit that this node does not use, such as one through itself, is no cause.
func TestUnusedCircuitsAreNoCause(t *testing.T) {
	circuit := ma.StringCast("/ip4/192.0.2.2/udp/1/quic-v1/p2p/12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN/p2p-circuit")
	direct := ma.StringCast("/ip4/192.0.2.1/tcp/1")
	err := describeDialError(fmt.Errorf("dial: %w", &swarm.DialError{DialErrors: []swarm.TransportError{{Address: circuit, Cause: swarm.ErrGaterDisallowedConnection}, {Address: direct, Cause: syscall.ECONNREFUSED}}}))
	if want := "no address answers: /ip4/192.0.2.1/tcp/1: nothing listens there"; err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

// A node does not dial a peer at a circuit through itself, which that peer announces.
func TestOwnCircuitIsNotDialed(t *testing.T) {
	a := start(t, 1, nil)
	a.peers.addDialing(proto.PeerID{3}, 1)
	for relay, want := range map[proto.PeerID]bool{a.Peer(): false, {2}: true} {
		if got := a.dialer.mayDialCircuit(proto.PeerID{3}, through(relay, nil)); got != want {
			t.Errorf("through %s: %v, want %v", relay, got, want)
		}
	}
}

// A library that dials a peer makes no circuit: the relays are this node's to choose.
func TestLibrariesMakeNoCircuits(t *testing.T) {
	a := start(t, 1, nil)
	p, circuit := proto.PeerID{3}, through(proto.PeerID{2}, nil)
	for _, dialing := range []int{0, 1, 0} {
		if got := a.dialer.mayDialCircuit(p, circuit); got != (dialing > 0) {
			t.Errorf("while %d callers wait for a connection a circuit may be dialed: %v", dialing, got)
		}
		a.peers.addDialing(p, 1-2*dialing)
	}
	defer a.dialer.targets.set(p, dialTarget{relay: proto.PeerID{2}, additional: true})()
	if !a.dialer.mayDialCircuit(p, circuit) {
		t.Error("no circuit may be dialed for a comparison")
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

// Only a refusal by the dialed peer, or of it, counts as one: what happened at a relay on
// the way to it does not.
func TestRefusalByARelay(t *testing.T) {
	peer, relay := proto.PeerID{1}, proto.PeerID{2}
	gated := &network.ConnError{Remote: true, ErrorCode: network.ConnGated}
	dial := func(addr string, err error) error {
		return describeDialError(fmt.Errorf("dial: %w", &swarm.DialError{DialErrors: []swarm.TransportError{{Address: ma.StringCast(addr), Cause: err}}}))
	}
	const direct, circuit = "/ip4/192.0.2.1/udp/1/quic-v1", "/ip4/192.0.2.2/udp/1/quic-v1/p2p/12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN/p2p-circuit"
	for _, tt := range []struct {
		name string
		err  error
		want *RefusedError
	}{
		{"by the peer", errors.Join(errors.New("no route"), fmt.Errorf("hello: %w", &RefusedError{peer, "no", true, 0})), &RefusedError{peer, "no", true, 0}},
		{"by its relay", fmt.Errorf("hello: %w", &RefusedError{relay, "no", true, 0}), nil},
		{"by its relay and by the peer", errors.Join(&RefusedError{relay, "no", true, 0}, &RefusedError{peer, "no", false, 0}), &RefusedError{peer, "no", false, 0}},
		{"by the gater of the peer", dial(direct, gated), &RefusedError{peer, reasonGated, true, 0}},
		{"by the gater of its relay", dial(circuit, fmt.Errorf("open a stream to the relay: %w", gated)), nil},
		{"by nobody", dial(direct, errors.New("no route")), nil},
	} {
		if got := asRefusal(peer, tt.err); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("refused %s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

// A relay that has revoked this node says nothing about the peers behind it.
func TestRefusalByANewRelay(t *testing.T) {
	a, peer := start(t, 1, nil), newTestKeys(3).Peer()
	relay := start(t, 2, func(n *testNode, _ *Config) {
		n.gate.admit = func(*proto.Hello, proto.PeerID) error { return errors.New("its certificate was revoked") }
	})
	if err := a.Dial(t.Context(), relay.Peer(), relay.Addrs()); asRefusal(relay.Peer(), err) == nil {
		t.Errorf("%v is no refusal by the relay", err)
	}
	a.peers.addDialing(relay.Peer(), 1)
	err := a.dialer.dialViaNewRelay(t.Context(), peer, relay.Peer(), relay.Addrs())
	if _, is := errors.AsType[*RefusedError](err); is || err == nil || !strings.Contains(err.Error(), "was revoked") {
		t.Errorf("%v, want an error that is no refusal", err)
	}
}

// Whatever libp2p says of a failed dial, users read one line in the words of this program.
func TestDialErrorsAreInOurWords(t *testing.T) {
	const addr = "/ip4/192.0.2.1/tcp/1"
	for said, want := range map[string]string{
		"all dials failed\n  * [/ip4/192.0.2.1/tcp/1] gater disallows connection to peer":            "the connection failed; the log at level debug says how",
		"failed to negotiate security protocol: remote error: tls: bad certificate":                  "the encrypted handshake failed",
		"CRYPTO_ERROR 0x12a (local): certificate verification failed: x509: certificate has expired": "the encrypted handshake failed",
		"error opening relay circuit: NO_RESERVATION (204)":                                          "it has no place at the relay",
		"error opening relay circuit: CONNECTION_FAILED (203)":                                       "the relay does not reach it",
		"error opening hop stream to relay: stream reset":                                            "the relay does not answer",
		"stream reset (remote): code: 0x0":                                                           "the connection was closed",
		"dial to peer: peer id mismatch: expected a, but remote key matches b":                       "another node answers there",
	} {
		err := describeDialError(&swarm.DialError{DialErrors: []swarm.TransportError{{Address: ma.StringCast(addr), Cause: errors.New(said)}}})
		if err.Error() != "no address answers: "+addr+": "+want {
			t.Errorf("%q becomes %q, want %q", said, err, want)
		}
	}
	if got := joinDialErrors([]error{errors.New("a"), errors.New("b")}); got.Error() != "a; b" {
		t.Errorf("%v", got)
	}
	lost := fmt.Errorf("read hello: %w", &network.StreamError{ErrorCode: 0, Remote: true})
	if got := describeHelloError(lost); got.Error() != "no hello was received: the connection was closed" || !errors.Is(got, lost) {
		t.Errorf("%v", got)
	}
	refused := &RefusedError{proto.PeerID{1}, "no", true, 0}
	if got := describeHelloError(refused); got != error(refused) {
		t.Errorf("%v", got)
	}
}
