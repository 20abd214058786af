package transport

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/balefire/balefire/proto"
)

// badNames is a resolver that knows no name, does not answer to some, and believes that others are
// names of these addresses.
type badNames struct {
	network.MultiaddrDNSResolver
	other []string
}

func (b badNames) ResolveDNSComponent(ctx context.Context, a ma.Multiaddr, _ int) ([]ma.Multiaddr, error) {
	if strings.Contains(a.String(), "other") {
		return multiaddrs(b.other...), nil
	}
	if strings.Contains(a.String(), "silent") {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return nil, errors.New("no such host")
}

// A name server that does not answer leaves time for the other addresses of a peer, and the error of a
// dial says which names are wrong, for as long as they are not asked for again.
func TestWrongNamesTakeLittleTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newNameResolver(badNames{})
		addrs := multiaddrs("/dns4/silent.example/udp/4001/quic-v1", "/dns4/silent.example/tcp/4001", "/dns4/wrong.example/tcp/4001", "/ip4/192.0.2.1/tcp/4001")
		for began := range 2 {
			at := time.Now()
			for _, a := range addrs[:3] {
				if _, err := r.ResolveDNSComponent(t.Context(), a, 9); err == nil {
					t.Errorf("%s is resolved", a)
				}
			}
			if want := []time.Duration{nameTime, 0}[began]; time.Since(at) != want {
				t.Errorf("it took %v, want %v", time.Since(at), want)
			}
		}
		const want = "not reached; /dns4/silent.example/udp/4001/quic-v1: the name server does not answer in time; " +
			"/dns4/silent.example/tcp/4001: the name server does not answer in time; /dns4/wrong.example/tcp/4001: the name cannot be resolved"
		if err := r.explain(errors.New("not reached"), addrs); err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
		if r.explain(nil, addrs) != nil {
			t.Error("a dial that succeeds has an error")
		}
		time.Sleep(nameAgain)
		for _, want := range []time.Duration{2 * nameTime, 4 * nameTime, maxNameTime, maxNameTime} { // it may be the second one of the system
			at := time.Now()
			if _, err := r.ResolveDNSComponent(t.Context(), addrs[0], 9); err == nil || time.Since(at) != want {
				t.Errorf("it took %v, want %v; %v", time.Since(at), want, err)
			}
			time.Sleep(nameAgain)
		}
		r.forget()
		if r.failure(addrs[0]) != "" || r.timeFor(addrs[0]) != nameTime {
			t.Error("after a change of the network a name is not asked for at once")
		}
		if err := r.explain(errors.New("not reached"), addrs); err.Error() != "not reached" {
			t.Errorf("later: %v", err)
		}
	})
}

// A peer with a wrong name is dialed at its other addresses, and where there is none the error names it.
func TestDialWithAWrongName(t *testing.T) {
	a, b := start(t, 1, nil), start(t, 2, nil)
	a.dialer.names.MultiaddrDNSResolver = badNames{}
	const wrong, silent = "/dns4/wrong.example/tcp/4001", "/dns4/silent.example/tcp/4001"
	if err := a.Dial(t.Context(), b.Peer(), []string{wrong}); err == nil || !strings.Contains(err.Error(), wrong) {
		t.Errorf("an error that does not name the address: %v", err)
	}
	if err := a.Dial(t.Context(), b.Peer(), append([]string{wrong, silent}, b.Addrs()...)); err != nil {
		t.Error(err)
	}
}

// Names that cannot be resolved, or that resolve to the addresses of another node or of none, do not
// keep a node from a peer whose address its address book has.
func TestContactWithAWrongName(t *testing.T) {
	b, other := start(t, 2, nil), start(t, 3, nil)
	addrs := append([]string{"/dns4/wrong.example/tcp/4001", "/dns4/silent.example/tcp/4001", "/dns4/other.example/tcp/4001", "/dns4/other.example/udp/4001/quic-v1"}, b.Addrs()...)
	a := start(t, 1, func(n *testNode, cfg *Config) {
		cfg.Directory = contactsOf{{Peer: b.Peer(), Addrs: addrs}}
		n.tune = func(tr *Transport) {
			tr.dialer.names.MultiaddrDNSResolver = badNames{other: append(other.Addrs(), "/ip4/127.0.0.1/tcp/1")}
		}
	})
	eventually(t, "a is connected with b", func() bool { return a.Connected(b.Peer()) })
	if a.Connected(other.Peer()) {
		t.Error("a is connected with the node that a wrong name names")
	}
}

// contactsOf is a Directory of these contacts.
type contactsOf []proto.Contact

func (c contactsOf) Contacts() []proto.Contact { return c }
