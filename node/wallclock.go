package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/pairing"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/wire"
)

// Intervals of the wall-clock guard.
const (
	clockCheckEvery = time.Second      // between checks of the clocks
	clockAskEvery   = 10 * time.Second // between queries to the peers while the clock is doubted
	clockTellEvery  = time.Minute      // between queries to all peers
	clockStampEvery = time.Minute      // between stamps on disk
	clockStep       = time.Second      // a jump of the time in use that the peers are told of at once
)

// clockKey is the key of the clock stamp in bucket Meta: see [clock.Guard.Stamp].
var clockKey = []byte("clock")

// resumeClock gives the guard the stamp of the previous run, before anything is
// timestamped.
func (n *Node) resumeClock() error {
	defer n.guard.Hold(false)
	stamp, err := readStamp(n.storage.Store)
	if err == nil && stamp != nil {
		err = n.guard.Resume(stamp)
	}
	if errors.Is(err, clock.ErrStamp) { // it will be written again; the stamp is only a safeguard
		n.log.Warn("ignoring an unreadable clock stamp", "err", err)
		return nil
	}
	return err
}

// readStamp reads the stamp of the previous run, nil if there is none.
func readStamp(s *store.Store) ([]byte, error) {
	stamp, err := s.Get(store.Meta, clockKey)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return nil, fmt.Errorf("read the clock stamp: %w", err)
	}
	return stamp, nil
}

// keepClock watches the wall clock: it exchanges times with the peers, at once after a
// jump and often while the clock is doubted, reports when a doubt begins and ends, and
// stores the stamp on disk.
func (n *Node) keepClock(ctx context.Context) {
	tick := n.cfg.Clock.Ticker(clockCheckEvery)
	defer tick.Stop()
	var doubted bool
	start := n.cfg.Clock.Boot()
	asked, stamped, offset := start-clockAskEvery, start-clockStampEvery, n.clockOffset()
	for {
		select {
		case <-ctx.Done():
			n.stampClock()
			return
		case <-tick.C:
		}
		n.guard.Extend(pairing.ValidUntil(n.book.Self().Member))
		now, s := n.cfg.Clock.Boot(), n.guard.State()
		if s.Doubted != doubted {
			doubted = s.Doubted
			n.reportClock(s)
		}
		if was := offset; (n.clockOffset() - was).Abs() >= clockStep {
			offset = n.clockOffset()
			n.net.BroadcastHello() // it tells the time by which this node dates its messages
		}
		if doubted && now-asked >= clockAskEvery || now-asked >= clockTellEvery {
			asked = now
			n.net.AskClocks()
		}
		if now-stamped >= clockStampEvery {
			stamped = now
			n.stampClock()
		}
	}
}

// clockOffset returns the difference between the time in use and the boot clock.
func (n *Node) clockOffset() time.Duration {
	return time.Duration(n.cfg.Clock.Now().UnixNano()) - n.cfg.Clock.Boot()
}

// stampClock stores the clock stamp. A missing stamp only costs some minutes of doubt at
// the next start, so nothing waits for it.
func (n *Node) stampClock() {
	var b store.Batch
	b.Put(store.Meta, clockKey, n.guard.Stamp())
	if err := n.storage.Store.Apply(context.Background(), &b); err != nil && n.storage.Store.Err() == nil {
		n.log.Debug("could not write the clock stamp", "err", err)
	}
}

func (n *Node) reportClock(s clock.State) {
	if !s.Doubted {
		n.log.Warn("the clock of this machine is trusted again")
		n.Events.Add(wire.EventClockTrusted, proto.PeerID{}, nil)
		return
	}
	n.log.Warn("the clock of this machine is doubted: nothing expires and nothing old is deleted", "off", s.Off, "since_stop", s.Stopped, "denied", s.Denied, "outside", s.Outside, "left", s.Left)
	n.Events.Add(wire.EventClockDoubted, proto.PeerID{}, map[string]string{"off": s.Off.Round(time.Second).String()})
}
