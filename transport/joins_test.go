package transport_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/transport/admit"
	"github.com/balefire/balefire/transport/transporttest"
)

// acceptingJoiner answers each join request that is handled.
type acceptingJoiner struct{}

func (acceptingJoiner) Join(context.Context, proto.PeerID, *proto.JoinRequest) *proto.JoinReply {
	return &proto.JoinReply{Refusal: "read"}
}

// TestManyJoins checks that a node that asks when many of its address do waits for its
// turn, and receives a refusal when its time is over instead of being cut off.
func TestManyJoins(t *testing.T) {
	for _, c := range []struct {
		rate float64 // joins per second, after the first two
		wait time.Duration
		want string
	}{{1e-6, 4 * time.Second, "too many join requests"}, {.5, time.Minute, "read"}} {
		synctest.Test(t, func(t *testing.T) {
			m := newSimWith(t, 4, transporttest.Link{Latency: 10 * time.Millisecond, OneIP: true}, func(n *simNode, cfg *transport.Config) {
				n.knows, n.outsideMesh = []int{}, n.id > 0
				if n.id == 0 {
					cfg.Joiner, cfg.Limits.Joins = acceptingJoiner{}, admit.Rate{PerSecond: c.rate, Burst: 2}
				}
			})
			defer m.close()
			ask := func(i int, wait time.Duration, r *proto.JoinRequest, want string) {
				t.Helper()
				ctx, cancel := context.WithTimeout(t.Context(), wait)
				defer cancel()
				reply, err := m.nodes[i].RequestJoin(ctx, []string{m.Addr(0)}, m.nodes[0].Peer(), r)
				if err != nil || !strings.HasPrefix(reply.GetRefusal(), want) {
					t.Errorf("%v a second: %v, %v; want %q", c.rate, reply, err, want)
				}
			}
			ticket := &proto.JoinRequest{TicketId: make([]byte, 8)}
			ask(1, time.Minute, ticket, "read")
			ask(2, time.Minute, ticket, "read")
			ask(3, time.Minute, &proto.JoinRequest{}, "too many join requests") // at once: on the LAN all are asked again anyway
			ask(3, c.wait, ticket, c.want)
		})
	}
}

// slowJoiner answers each join request after a while.
type slowJoiner struct{}

func (slowJoiner) Join(ctx context.Context, _ proto.PeerID, _ *proto.JoinRequest) *proto.JoinReply {
	select {
	case <-time.After(3 * time.Second):
	case <-ctx.Done():
	}
	return &proto.JoinReply{Refusal: "read"}
}

// TestJoinWaitsForAPlace checks that a node with a ticket that is turned away because others at
// its address occupy the places for strangers tries again, as does one whose place is given to
// another. When its time is over it says why.
func TestJoinWaitsForAPlace(t *testing.T) {
	const places = 4
	for _, c := range []struct {
		name string
		r    *proto.JoinRequest
		wait time.Duration
		want error
	}{
		{"until there is one", &proto.JoinRequest{TicketId: make([]byte, 8)}, time.Minute, nil},
		{"until its time is over", &proto.JoinRequest{TicketId: make([]byte, 8)}, time.Second, transport.ErrNoPlace},
		{"not without a ticket", &proto.JoinRequest{}, time.Minute, transport.ErrNoPlace}, // on the LAN all are asked again anyway
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newSimWith(t, places+2, transporttest.Link{Latency: 10 * time.Millisecond, OneIP: true}, func(n *simNode, cfg *transport.Config) {
					n.knows, n.outsideMesh = []int{}, n.id > 0
					if n.id == 0 {
						cfg.Joiner = slowJoiner{}
					}
				})
				defer m.close()
				ask := func(i int, wait time.Duration, r *proto.JoinRequest) error {
					ctx, cancel := context.WithTimeout(t.Context(), wait)
					defer cancel()
					_, err := m.nodes[i].RequestJoin(ctx, []string{m.Addr(0)}, m.nodes[0].Peer(), r)
					return err
				}
				var others sync.WaitGroup
				for i := range places {
					others.Go(func() {
						if err := ask(1+i, time.Minute, &proto.JoinRequest{TicketId: make([]byte, 8)}); err != nil {
							t.Errorf("node %d: %v", 1+i, err)
						}
					})
				}
				time.Sleep(500 * time.Millisecond)
				if err := ask(1+places, c.wait, c.r); !errors.Is(err, c.want) || err != nil && strings.Contains(err.Error(), "0x") {
					t.Errorf("%v, want %v", err, c.want)
				}
				others.Wait()
			})
		})
	}
}
