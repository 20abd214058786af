package transport_test

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	ma "github.com/multiformats/go-multiaddr"

	"github.com/balefire/balefire/bodies"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/transport/transporttest"
)

// A receiver receives objects into a store, one stream for each, as a node does.
type receiver struct{ *bodies.Store }

func (r receiver) Offer(_ context.Context, _ proto.PeerID, _ *proto.Offer, object *bodies.Manifest) (transport.BodySink, *proto.OfferReply) {
	in, err := r.Receive(*object, bodies.Terms{})
	switch {
	case errors.Is(err, bodies.ErrExists):
		return nil, &proto.OfferReply{}
	case err != nil:
		return nil, &proto.OfferReply{Code: proto.CodeBusy, Detail: err.Error()}
	}
	return receiving{in}, &proto.OfferReply{Have: in.Have()}
}

type receiving struct{ *bodies.Incoming }

func (r receiving) End(whole bool) error {
	if whole {
		return r.Commit()
	}
	return r.Close()
}

func openStore(t *testing.T) *bodies.Store {
	t.Helper()
	s, err := bodies.Open(t.TempDir(), bodies.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// sealed returns the offer of a body of this size, and its chunks.
func sealed(t *testing.T, size int) (*proto.Offer, *bodies.Source) {
	t.Helper()
	s := openStore(t)
	ref, m, err := s.Seal(t.Context(), io.LimitReader(rand.NewChaCha8([32]byte{}), int64(size)), bodies.SealOptions{Suite: bodies.AES})
	if err != nil {
		t.Fatal(err)
	}
	src, err := s.Source(ref.Name.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { src.Close() })
	h := proto.Header{What: proto.WhatTask, Suite: 1, ID: proto.TaskID{1}, Created: 1, NotAfter: 2}
	h.SetObject(m.Name(), m.Size)
	return &proto.Offer{Envelope: &proto.Envelope{Header: h.Append(nil)}, Type: proto.TypeData, Manifest: m.Append(nil)}, src
}

// linkMbps is the rate of the link of a sender of bodies.
const linkMbps = 8

// senderLink is that link: two seconds of a body wait there.
var senderLink = transporttest.Both(transporttest.Direction{Mbps: linkMbps, Queue: 2 * linkMbps * 1_000_000 / 8})

// sending sends a body from node 0 to node 1, again and again until it is there, and returns
// whether it is. The caller must call stop.
func (m *reachSim) sending(size int) (sent func() bool, stop func()) {
	m.t.Helper()
	offer, body := sealed(m.t, size)
	ctx, cancel := context.WithCancel(m.t.Context())
	var there atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil && !there.Load() {
			err := m.nodes[0].SendBody(ctx, m.nodes[1].Peer(), offer, body)
			there.Store(err == nil)
			time.Sleep(500 * time.Millisecond)
		}
	})
	return there.Load, func() { cancel(); wg.Wait() }
}

// bodyMesh is a mesh in which node 1, reached directly, receives bodies.
func bodyMesh(t *testing.T, dialer int) *reachSim {
	t.Helper()
	m := newReachSimWith(t, 4, transporttest.Cone, transporttest.Link{Latency: 20 * time.Millisecond, Mbps: 100, Seed: 1}, func(n *simNode, cfg *transport.Config) {
		n.knows = []int{2, 3}
		if n.id == 1 {
			cfg.Bodies = receiver{openStore(t)}
		}
	})
	m.await(20*time.Second, "reservations", func() bool { return len(m.nodes[0].Reservations()) == 2 && len(m.nodes[1].Reservations()) == 2 })
	m.nodes[dialer].setKnown(nil)
	m.nodes[dialer].Want(m.nodes[1-dialer].Peer())
	m.await(20*time.Second, "a direct path", func() bool { return m.direct(0, 1) && m.direct(1, 0) })
	m.nodes[1-dialer].setKnown(nil)
	m.SetNodeLink(0, senderLink)
	time.Sleep(10 * time.Second)
	return m
}

// TestNewAddressWithinABody gives the sender of a body another address while two seconds of it
// are in the queue of its link: the body goes on at once when the sender has noticed it,
// whichever side has dialed, and the receiver leaves the dead path.
func TestNewAddressWithinABody(t *testing.T) {
	for _, dialer := range []int{0, 1} {
		t.Run([]string{"dialed by the sender", "dialed by the receiver"}[dialer], func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const size = 8_000_000
				m := bodyMesh(t, dialer)
				defer m.close()
				sent, stop := m.sending(size)
				defer stop()
				began := m.clock.Mono()
				time.Sleep(4 * time.Second)
				m.Readdress(0)
				time.Sleep(time.Second) // the addresses of interfaces are read once a second
				m.nodes[0].AddressesChanged()
				left := m.await(20*time.Second, "the dead path is left", func() bool { return !m.direct(1, 0) })
				m.await(time.Minute, "the body", sent)
				line := time.Duration(size*8/linkMbps) * time.Microsecond
				took := m.clock.Mono() - began
				t.Logf("the body took %v, %v at the rate of the line; the receiver left the dead path after %v", took, line, left)
				if took > line+8*time.Second {
					t.Errorf("the body took %v, want at most 8s more than %v", took, line)
				}
				if left > 10*time.Second {
					t.Errorf("the receiver left the dead path after %v, want at most 10s", left)
				}
			})
		})
	}
}

// TestBytesOnTheirWayAreNoAnswer checks that a connection that is dead in both directions is
// closed by a check, although two seconds of a body were on their way when it began.
func TestBytesOnTheirWayAreNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := bodyMesh(t, 0)
		defer m.close()
		_, stop := m.sending(8_000_000)
		defer stop()
		time.Sleep(4 * time.Second)
		m.Partition([]int{1, 2, 3}, []int{0})
		m.nodes[1].AddressesChanged()
		took := m.await(time.Minute, "the dead path is left", func() bool { return !m.direct(1, 0) })
		t.Logf("left after %v", took)
		if took > 15*time.Second {
			t.Errorf("the dead path was left after %v, want at most 15s", took)
		}
	})
}

// TestDirectAgainAtANewAddress checks that a pair behind NATs is direct again soon after one of
// them has got another address, although its connections to the relays live on.
func TestDirectAgainAtANewAddress(t *testing.T) {
	for _, dialer := range []int{0, 1} {
		t.Run([]string{"dialed by the one that moves", "dialed by the other one"}[dialer], func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := bodyMesh(t, dialer)
				defer m.close()
				for i := range 3 {
					m.Readdress(0)
					time.Sleep(time.Second) // the addresses of interfaces are read once a second
					m.nodes[0].AddressesChanged()
					left := m.await(time.Minute, "the dead path is left", func() bool { return !m.direct(1, 0) || !m.direct(0, 1) })
					took := m.await(time.Hour, "a direct path", func() bool { return m.direct(0, 1) && m.direct(1, 0) })
					t.Logf("change %d: the dead path was left after %v, direct again %v later", i, left, took)
					if took > 30*time.Second {
						t.Errorf("direct again after %v, want at most 30s: %+v %+v", took, m.nodes[0].Paths(m.nodes[1].Peer()).Punches, m.nodes[0].Reach().Observed)
					}
				}
			})
		})
	}
}

// TestPeersLearnANewAddress checks that a node that gets another address tells its peers within five
// seconds, and the old one no more.
func TestPeersLearnANewAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const before, after = "/ip4/10.1.1.1/udp/4001/quic-v1", "/ip4/10.2.2.2/udp/4001/quic-v1"
		var now atomic.Pointer[string]
		now.Store(new("/ip4/10.1.1.1"))
		m := makeSim(t, 2, wan)
		m.nodes[0].interfaces = func() ([]ma.Multiaddr, error) { return []ma.Multiaddr{ma.StringCast(*now.Load())}, nil }
		m.startAll()
		defer m.close()
		told := func(addr string) bool {
			m.nodes[1].mu.Lock()
			defer m.nodes[1].mu.Unlock()
			return slices.Contains(m.nodes[1].toldAddrs, addr)
		}
		m.await(time.Minute, "the first address", func() bool { return m.connected() && told(before) })
		now.Store(new("/ip4/10.2.2.2"))
		took := m.await(5*time.Second, "the new address", func() bool { return told(after) })
		t.Logf("told after %v", took)
		if told(before) {
			t.Error("the old address is told too")
		}
	})
}
