package pairing

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/wire"
)

// A ticket that a node with the same key created is refused with what to do.
func TestTicketOfTheSameKey(t *testing.T) {
	dir := t.TempDir()
	keys, _, err := ensureKeys(dir, clock.System())
	if err != nil {
		t.Fatal(err)
	}
	root, err := identity.CreateRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ticket := identity.NewTicket(root.Mesh(), keys.Peer(), []string{"/ip4/127.0.0.1/tcp/1"}, time.Now().Add(time.Hour))
	log := slog.New(slog.DiscardHandler)
	j := Joiner{
		Storage: datadir.Config{Dir: dir, Clock: clock.System(), Logger: log},
		Net:     transport.Config{Listen: []string{"/ip4/127.0.0.1/tcp/0"}, Clock: clock.System(), Logger: log},
	}
	if _, err := j.WithTicket(t.Context(), ticket.Encode(), "b"); !errors.Is(err, wire.ErrRefused) || !strings.Contains(err.Error(), "has the same key as this one") || !strings.Contains(err.Error(), "--dir") {
		t.Error(err)
	}
}

// A join that fails tells its cause, and of a ticket that expired by the clock of this machine
// only that: the inviter, which goes by its own clock, did not refuse it.
func TestJoinWithATicketThatExpiredHere(t *testing.T) {
	root, err := identity.CreateRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ticket := identity.NewTicket(root.Mesh(), identity.NewKeys(nil, time.Now()).Peer(), []string{"/ip4/127.0.0.1/tcp/1"}, time.Now().Add(-time.Hour))
	log := slog.New(slog.DiscardHandler)
	j := Joiner{
		Storage: datadir.Config{Dir: t.TempDir(), Clock: clock.System(), Logger: log},
		Net:     transport.Config{Listen: []string{"/ip4/127.0.0.1/tcp/0"}, Clock: clock.System(), Logger: log},
	}
	if _, err := j.WithTicket(t.Context(), ticket.Encode(), "b"); !errors.Is(err, transport.ErrUnreached) || errors.Is(err, wire.ErrRefused) || !strings.Contains(err.Error(), "by the clock of this machine the ticket expired at") {
		t.Error(err)
	}
}

// The inviter is told where the node will listen, not the ports of the join.
func TestJoinReportsListenPorts(t *testing.T) {
	at := []string{"/ip4/192.0.2.1/tcp/40000", "/ip4/192.0.2.1/udp/50000/quic-v1"}
	for _, tt := range []struct{ listen, want []string }{
		{nil, []string{"/ip4/192.0.2.1/tcp/4001", "/ip4/192.0.2.1/udp/4001/quic-v1"}},
		{[]string{"/ip4/0.0.0.0/tcp/7000"}, []string{"/ip4/192.0.2.1/tcp/7000"}},
		{[]string{"/ip4/0.0.0.0/tcp/0", "/ip4/0.0.0.0/udp/0/quic-v1"}, nil},
	} {
		if got := atPorts(at, tt.listen); !slices.Equal(got, tt.want) {
			t.Errorf("%v: %v, want %v", tt.listen, got, tt.want)
		}
	}
}
