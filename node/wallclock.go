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

// Times of the guard of the wall clock.
const (
	clockLook  = time.Second      // between two looks at the clocks
	clockAsk   = 10 * time.Second // between two questions to the peers while it is doubted
	clockStamp = time.Minute      // between two stamps on disk
)

// clockKey holds, in Meta, the stamp of the clock: see [clock.Guard.Stamp].
var clockKey = []byte("clock")

// resumeClock tells the guard what was believed when the node ran last, before
// anything is stamped with its time.
func (n *Node) resumeClock() error {
	stamp, err := n.storage.store.Get(store.Meta, clockKey)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err == nil {
		err = n.guard.Resume(stamp)
	}
	if errors.Is(err, clock.ErrStamp) { // it is written again; the rule is only a guard
		n.log.Warn("the stamp of the clock cannot be read and is ignored", "err", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the stamp of the clock: %w", err)
	}
	return nil
}

// keepClock looks at the wall clock: it asks the peers about one that is doubted,
// tells when that begins and ends, and keeps what is believed on disk.
func (n *Node) keepClock(ctx context.Context) error {
	tick := time.NewTicker(clockLook)
	defer tick.Stop()
	var doubted bool
	asked, stamped := n.cfg.Clock.Boot()-clockAsk, n.cfg.Clock.Boot()
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
		if doubted && now-asked >= clockAsk {
			asked = now
			n.net.AskClocks()
		}
		if now-stamped >= clockStamp {
			stamped = now
			n.stampClock()
		}
	}
}

// stampClock writes what is believed. A stamp that is missing costs some minutes
// of doubt at the next start, so nobody waits for it.
func (n *Node) stampClock() {
	var b store.Batch
	b.Put(store.Meta, clockKey, n.guard.Stamp())
	if err := n.storage.store.Apply(context.Background(), &b); err != nil && n.storage.store.Err() == nil {
		n.log.Debug("the stamp of the clock could not be written", "err", err)
	}
}

func (n *Node) reportClock(s clock.State) {
	kind, text := "clock.believed", "the clock of this machine is believed again"
	if s.Doubted {
		kind, text = "clock.doubted", doubtText(s)
	}
	n.log.Warn(text)
	n.addEvent(kind, proto.PeerID{}, text, nil)
}

// doubtText says of a doubted clock why, and what ends that.
func doubtText(s clock.State) string {
	off, way := s.Off.Round(time.Second), "ahead of"
	if off < 0 {
		off, way = -off, "behind"
	}
	text := fmt.Sprintf("the clock of this machine is doubted: it is %s %s what it should be by the time that the machine has run", off, way)
	if s.Stopped {
		text = fmt.Sprintf("the clock of this machine is doubted: it is %s %s where it was when this node stopped", off, way)
	}
	if s.Denied {
		text += ", and a connected peer has another time"
	}
	return fmt.Sprintf("%s; until a connected peer agrees with it, or for %s, nothing expires and nothing old is deleted", text, s.Left.Round(time.Second))
}

const doubtFix = "look at the clock of this machine (date) and at what sets it; it needs no other help"
