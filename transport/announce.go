package transport

import (
	"context"
	"math/rand/v2"

	"github.com/libp2p/go-libp2p/core/event"
)

// announce watches this machine's own addresses. When they change (another
// Wi-Fi, a wake from sleep) the neighbours are told and whoever is lost is
// dialled anew, without waiting for the end of its pause (S42).
func (t *Transport) announce(ctx context.Context) {
	sub, err := t.host.EventBus().Subscribe(new(event.EvtLocalAddressesUpdated))
	if err != nil {
		t.log.Warn("address changes go unnoticed", "why", err)
		return
	}
	defer sub.Close()
	for {
		select {
		case <-ctx.Done():
			return
		case _, ok := <-sub.Out():
			if !ok {
				return
			}
			t.addressesChanged()
		}
	}
}

func (t *Transport) addressesChanged() {
	m, err := t.helloMessage(nil)
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.cfg.Clock.Mono()
	for _, n := range t.neighbours {
		for _, c := range n.conns {
			if err == nil {
				c.post(m)
			}
		}
		if len(n.conns) == 0 && !n.dial.busy && n.dial != (redial{}) {
			n.dial = t.cfg.Timing.first(now, rand.Float64())
		}
	}
	notify(t.redial)
}
