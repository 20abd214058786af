package transport

import (
	"sync"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/admit"
)

// rates bounds what peers may cost, by package admit. Nothing else is locked while mu is held.
type rates struct {
	clock clock.Clock

	mu       sync.Mutex
	byPeer   *admit.Ledger[proto.PeerID]
	byOrigin *admit.Ledger[string] // strangers, by originOf
}

func newRates(l admit.Limits, clk clock.Clock) *rates {
	return &rates{clock: clk, byPeer: admit.NewLedger[proto.PeerID](l), byOrigin: admit.NewLedger[string](l)}
}

// allow spends a token of p.
func (r *rates) allow(p proto.PeerID, w admit.Kind) bool { return r.allowMany(p, w, 1) }

// allowMany spends n tokens at once.
func (r *rates) allowMany(p proto.PeerID, w admit.Kind, n int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byPeer.AllowMany(p, w, n, r.clock.Mono())
}

// allowAddress spends a join token of the address of c.
func (r *rates) allowAddress(c *conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byOrigin.Allow(originOf(c.raw.RemoteMultiaddr()), admit.Join, r.clock.Mono())
}

// banned reports whether p is banned because of its offenses.
func (r *rates) banned(p proto.PeerID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byPeer.Banned(p, r.clock.Mono())
}

// offend counts an offense of p and reports whether it is banned from now on.
func (r *rates) offend(p proto.PeerID) (banned bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byPeer.Offend(p, r.clock.Mono())
}
