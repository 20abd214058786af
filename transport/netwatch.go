package transport

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/event"
	ma "github.com/multiformats/go-multiaddr"
)

// Timing of the network watch.
const (
	watchLocalEvery = time.Second
	sleepThreshold  = 5 * time.Second // of suspension that counts as sleep
)

// watchNetwork watches this machine's addresses and sleep. When they change (another
// Wi-Fi, a wake-up), peers are informed, every connection is probed, and lost peers are
// dialed without waiting for the end of their delay (S42).
func (t *Transport) watchNetwork(ctx context.Context) {
	sub, err := t.host.EventBus().Subscribe(new(event.EvtLocalAddressesUpdated))
	if err != nil {
		t.log.Warn("address changes will not be detected", "why", err)
		return
	}
	defer sub.Close()
	tick := t.cfg.Clock.Ticker(watchLocalEvery)
	defer tick.Stop()
	t.local.refresh()
	w := networkWatch{addrs: t.ownAddrs(), slept: t.asleep()}
	for {
		select {
		case <-ctx.Done():
			return
		case _, ok := <-sub.Out():
			if !ok {
				return
			}
			if w.addrsChanged(t.ownAddrs()) {
				t.addressesChanged()
			}
		case <-tick.C:
			moved := w.localChange(t.local.refresh(), t.asleep())
			if moved {
				t.addressesChanged()
				t.disc.announceAgain()
			}
			t.findRouter(moved)
		}
	}
}

// A networkWatch is the last observed state of this machine's network.
type networkWatch struct {
	addrs []ma.Multiaddr // without circuits
	slept time.Duration  // total suspended time
}

// addrsChanged reports whether the listen addresses have changed.
func (w *networkWatch) addrsChanged(addrs []ma.Multiaddr) bool {
	changed := !slices.EqualFunc(w.addrs, addrs, ma.Multiaddr.Equal)
	w.addrs = addrs
	return changed
}

// localChange reports whether the addresses of the interfaces have changed or the machine
// slept.
func (w *networkWatch) localChange(moved bool, asleep time.Duration) bool {
	slept := asleep-w.slept > sleepThreshold
	w.slept = asleep
	return moved || slept
}

// ownAddrs returns the addresses of this node that use no relay.
func (t *Transport) ownAddrs() []ma.Multiaddr { return slices.DeleteFunc(t.host.Addrs(), isCircuit) }

// asleep returns the total suspended time of the machine.
func (t *Transport) asleep() time.Duration { return t.cfg.Clock.Boot() - t.cfg.Clock.Mono() }

// addressesChanged reacts to a change of this machine's network.
func (t *Transport) addressesChanged() {
	t.log.Info("the network of this machine changed", "addrs", addrStrings(t.ownAddrs()))
	t.puncher.seen.networkChanged()
	t.dialer.names.forget()
	t.BroadcastHello()
	t.peers.mu.Lock()
	now := t.cfg.Clock.Mono()
	for _, n := range t.peers.byID {
		for _, c := range n.conns {
			t.group.start(func(ctx context.Context) { c.checkAlive(ctx, t.cfg.Timing.Busy) })
		}
		if len(n.conns) == 0 && !n.dial.busy && n.dial != (redialState{}) {
			missing := n.dial.missing
			n.dial = t.cfg.Timing.firstDial(now, rand.Float64())
			n.dial.missing = missing
		}
	}
	t.peers.mu.Unlock()
	notify(t.redialer.wake)
	t.reach.reserver.refresh()
	t.peers.wakeUpgrades()
}
