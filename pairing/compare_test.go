package pairing

import (
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
)

// A restored node looks for an admin for five minutes in which it runs: a machine that was
// suspended meanwhile has met nobody.
func TestSuspendedTimeDoesNotEndTheComparison(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var slept atomic.Int64
		clk := clock.WithSuspend(clock.Runtime(), func() time.Duration { return time.Duration(slept.Load()) })
		st := openStore(t)
		book, err := addressbook.Open(st, identity.Mesh{}, identity.NewKeys(nil, clk.Now()), nil, clk, transport.Multiaddrs{})
		if err != nil {
			t.Fatal(err)
		}
		p := &Pairing{Parts: Parts{Book: book, Store: st, Clock: clk, Logger: slog.New(slog.DiscardHandler), Event: func(string, proto.PeerID, map[string]string) {}}}
		p.comparing.Store(true)
		done := make(chan error, 1)
		go func() { done <- p.compare(t.Context()) }()
		time.Sleep(time.Minute)
		slept.Store(int64(time.Hour))
		time.Sleep(CompareFor - time.Minute - 2*compareEvery)
		synctest.Wait()
		if !p.Comparing() {
			t.Error("it admits all members after a suspend")
		}
		time.Sleep(3 * compareEvery)
		synctest.Wait()
		if p.Comparing() {
			t.Error("it still admits only admins")
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
