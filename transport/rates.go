package transport

import (
	"errors"
	"log/slog"
	"sync"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/admit"
)

// rates bounds what peers may cost, by package admit, and bans those that violate the
// protocol. Nothing else is locked while mu is held.
type rates struct {
	clock      clock.Clock
	log        *slog.Logger
	met        *metrics
	disconnect func(proto.PeerID) // closes all connections to a peer

	mu       sync.Mutex
	byPeer   *admit.Ledger[proto.PeerID]
	byOrigin *admit.Ledger[string] // strangers, by originOf
}

func newRates(cfg Config, met *metrics, disconnect func(proto.PeerID)) *rates {
	return &rates{
		clock: cfg.Clock, log: cfg.Logger, met: met, disconnect: disconnect,
		byPeer: admit.NewLedger[proto.PeerID](cfg.Limits), byOrigin: admit.NewLedger[string](cfg.Limits),
	}
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

// offend counts an offense of p, which loses its connections when it is banned.
func (r *rates) offend(p proto.PeerID, stream string, err error) {
	r.mu.Lock()
	banned := r.byPeer.Offend(p, r.clock.Mono())
	r.mu.Unlock()
	r.met.offenses.WithLabelValues(stream).Inc()
	r.log.Warn("peer violated the protocol", "peer", p, "stream", stream, "why", err, "banned", banned)
	if banned {
		r.disconnect(p)
	}
}

// streamEnded handles the end of a stream of p. An error that no honest node causes
// counts as an offense.
func (r *rates) streamEnded(p proto.PeerID, stream string, err error) {
	switch {
	case isOffense(err):
		r.offend(p, stream, err)
	case !normalEnd(err):
		r.log.Debug("stream closed", "peer", p, "stream", stream, "why", err)
	}
}

// isOffense reports whether err is a protocol violation by the other side rather than an
// accident.
func isOffense(err error) bool {
	if errors.Is(err, ErrNoAck) {
		return false // it or its disk is slow
	}
	for _, e := range []error{ErrProtocol, ErrBadAck, errSlow, proto.ErrBadFrame, proto.ErrFrameTooLarge, proto.ErrMalformed, proto.ErrTooMany, proto.ErrTooLong, proto.ErrBadMail, proto.ErrBadLetter} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
