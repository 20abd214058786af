package node

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/transporttest"
	"github.com/balefire/balefire/wire"
)

// newInviter creates a mesh whose first node has a clock that is wrong by the stored value,
// and a ticket of it that is valid for half an hour.
func newInviter(t *testing.T, nodes int) (w *simMesh, by *atomic.Int64, ticket string) {
	by = new(atomic.Int64)
	w = newSimMeshWith(t, nodes, 1, transporttest.Link{Latency: 10 * time.Millisecond, Mbps: 100, Seed: 1}, func(s *simNode, cfg *Config) {
		quietMesh(s, cfg)
		if s.place == 0 {
			cfg.Clock = clock.WithOffset(clock.Runtime(), func() time.Duration { return time.Duration(by.Load()) })
		}
	})
	time.Sleep(5 * time.Second)
	inv, err := w.nodes[0].node.Pairing.Invite(t.Context(), wire.InviteOptions{TTL: wire.Duration(30 * time.Minute)})
	if err != nil {
		t.Fatal(err)
	}
	return w, by, inv.Ticket
}

// present shows a ticket for at most limit, and returns why the node was not admitted.
func (s *simNode) present(ticket string, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(s.mesh.t.Context(), limit)
	defer cancel()
	s.engine = s.engine.Reopen()
	_, err := Joiner(s.config()).WithTicket(ctx, ticket, s.name)
	return err
}

// I14: a ticket is neither deleted nor refused as expired while the clock of its node is
// doubted, even if the node starts with it: the joiner asks again until the clock is right.
func TestTicketsOutliveAWrongClock(t *testing.T) {
	t.Parallel()
	run := eachNth(t, 3)
	for _, off := range []time.Duration{time.Hour, 20 * year} {
		for _, restart := range []bool{false, true} {
			for _, lasts := range []time.Duration{4 * time.Second, clock.BelieveAfter + time.Minute} {
				run(fmt.Sprintf("%s ahead for %s, restart %v", off, lasts, restart), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						w, by, ticket := newInviter(t, 2)
						defer w.close()
						home := w.nodes[0]
						if restart {
							home.halt()
						}
						by.Store(int64(off))
						home.start()
						time.AfterFunc(lasts, func() { by.Store(0) })
						if restart && lasts > time.Minute {
							time.Sleep(2 * time.Second)
							if err := w.add().present(ticket, 30*time.Second); err == nil || !strings.Contains(err.Error(), "again later") {
								t.Errorf("refused with: %v", err)
							}
						}
						if err := w.add().present(ticket, lasts+time.Minute); err != nil {
							t.Error(err)
						}
					})
				})
			}
		}
	}
}

// A clock that stays wrong and that nobody contradicts is believed in the end: then the
// ticket has expired.
func TestTicketExpiresWhenTheClockIsBelieved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, by, ticket := newInviter(t, 1)
		defer w.close()
		w.nodes[0].halt()
		by.Store(int64(time.Hour))
		w.nodes[0].start()
		joiner := identity.NewKeys(nil, time.Now()).Peer()
		held, err := identity.ParseTicket(ticket)
		if err != nil {
			t.Fatal(err)
		}
		holds := func(secret [16]byte) bool {
			r := &proto.JoinRequest{TicketId: held.ID[:], Proof: identity.JoinProof(secret, joiner, held.Inviter)}
			return w.nodes[0].node.Pairing.HoldsTicket(joiner, r)
		}
		if !holds(held.Secret) || holds([16]byte{}) {
			t.Error("while the clock is doubted, a valid proof costs a join request, or a wrong one does not")
		}
		began := time.Now()
		err = w.add().present(ticket, time.Hour)
		if took := time.Since(began); err == nil || !strings.Contains(err.Error(), "has expired") || took < clock.BelieveAfter || took > clock.BelieveAfter+time.Minute {
			t.Errorf("after %s: %v", took, err)
		}
		if holds(held.Secret) {
			t.Error("an expired ticket costs no join request")
		}
	})
}
