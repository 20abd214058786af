package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// Intervals of the wall-clock guard.
const (
	clockCheckEvery = time.Second      // between checks of the clocks
	clockAskEvery   = 10 * time.Second // between queries to the peers while the clock is doubted
	clockStampEvery = time.Minute      // between stamps on disk
)

// clockKey is the key of the clock stamp in bucket Meta: see [clock.Guard.Stamp].
var clockKey = []byte("clock")

// resumeClock gives the guard the stamp of the previous run, before anything is
// timestamped.
func (n *Node) resumeClock() error {
	stamp, err := n.storage.Store.Get(store.Meta, clockKey)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err == nil {
		err = n.guard.Resume(stamp)
	}
	if errors.Is(err, clock.ErrStamp) { // it will be written again; the stamp is only a safeguard
		n.log.Warn("ignoring an unreadable clock stamp", "err", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the clock stamp: %w", err)
	}
	return nil
}

// keepClock watches the wall clock: it asks the peers for their time while the clock is
// doubted, reports when a doubt begins and ends, and stores the stamp on disk.
func (n *Node) keepClock(ctx context.Context) error {
	tick := time.NewTicker(clockCheckEvery)
	defer tick.Stop()
	var doubted bool
	asked, stamped := n.cfg.Clock.Boot()-clockAskEvery, n.cfg.Clock.Boot()
	for {
		select {
		case <-ctx.Done():
			n.stampClock()
			return nil
		case <-tick.C:
		}
		now, s := n.cfg.Clock.Boot(), n.guard.State()
		if s.Doubted != doubted {
			doubted = s.Doubted
			n.reportClock(s)
		}
		if doubted && now-asked >= clockAskEvery {
			asked = now
			n.net.AskClocks()
		}
		if now-stamped >= clockStampEvery {
			stamped = now
			n.stampClock()
		}
	}
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
	kind, text := "clock.believed", "the clock of this machine is trusted again"
	if s.Doubted {
		kind, text = "clock.doubted", doubtText(s)
	}
	n.log.Warn(text)
	n.addEvent(kind, proto.PeerID{}, text, nil)
}

// doubtText explains why the clock is doubted and what ends the doubt.
func doubtText(s clock.State) string {
	off, way := s.Off.Round(time.Second), "ahead of"
	if off < 0 {
		off, way = -off, "behind"
	}
	text := fmt.Sprintf("the clock of this machine is doubted: it is %s %s the time expected from the uptime of the machine", off, way)
	if s.Stopped {
		text = fmt.Sprintf("the clock of this machine is doubted: it is %s %s its time when this node stopped", off, way)
	}
	if s.Denied {
		text += ", and a connected peer disagrees"
	}
	return fmt.Sprintf("%s; until a connected peer agrees with it, or for %s, nothing expires and nothing old is deleted", text, s.Left.Round(time.Second))
}
