package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/blob"
)

// sweepEvery is the interval between two sweeps for bodies that no record refers to:
// those of tasks that were forgotten or purged, or never arrived.
const sweepEvery = 10 * time.Minute

// A bodyGC knows which bodies can be removed, and which must be kept although no
// record refers to them.
type bodyGC struct {
	unneeded chan string // names of bodies to remove
	refused  refusedPeers

	mu     sync.Mutex
	drafts map[string]bool // bodies whose record is being written
}

func newBodyGC() *bodyGC {
	return &bodyGC{unneeded: make(chan string, 1024), drafts: map[string]bool{}, refused: refusedPeers{peers: map[proto.PeerID]bool{}}}
}

// draft marks a body whose record is being written; with false the record is written,
// or never will be.
func (g *bodyGC) draft(name string, on bool) {
	if name == "" {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if on {
		g.drafts[name] = true
	} else {
		delete(g.drafts, name)
	}
}

func (g *bodyGC) isDraft(name string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.drafts[name]
}

// drop removes a body soon. If too many are dropped at once, the next sweep removes
// the rest.
func (g *bodyGC) drop(name string) {
	select {
	case g.unneeded <- name:
	default:
	}
}

// dropEnded drops the body of a task that ended as intended: only dead letters are
// redriven.
func (g *bodyGC) dropEnded(r *proto.Record) {
	s := r.GetState()
	if r.GetBodyBlob() != "" && r.GetMovesTo() == "" && (s == proto.Success || s == proto.Cancelled) {
		g.drop(r.GetBodyBlob())
	}
}

// runBodyGC removes unneeded bodies, and tells peers that were refused when there is
// space again.
func (n *Node) runBodyGC(ctx context.Context) error {
	t := time.NewTicker(sweepEvery)
	defer t.Stop()
	ready := time.NewTicker(readyEvery)
	defer ready.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case name := <-n.bodyGC.unneeded:
			if err := n.storage.Blobs.Delete(name); err != nil && !errors.Is(err, blob.ErrNotFound) {
				n.log.Warn("an unneeded body could not be removed", "blob", name, "err", err)
			}
		case <-ready.C:
			n.announceRoom()
		case <-t.C:
			if err := n.sweepBodies(ctx); err != nil && ctx.Err() == nil {
				n.log.Error("cannot sweep bodies; will retry", "err", err)
			}
		}
	}
}

// sweepBodies removes bodies that no record refers to, except recent ones: their
// record may be about to be written.
func (n *Node) sweepBodies(ctx context.Context) error {
	if u := n.storage.Blobs.Usage(); u.Blobs+u.Parts == 0 {
		return nil
	}
	used := map[string]bool{}
	if err := n.outbox.Blobs(func(name string) { used[name] = true }); err != nil {
		return err
	}
	awaited, err := n.dropOldProgress(ctx)
	if err != nil {
		return err
	}
	removed, err := n.storage.Blobs.Sweep(func(name string) bool {
		if origin, ok := n.inbox.OriginOf(name); ok {
			n.storage.Blobs.SetOwner(name, string(origin[:]))
		}
		return used[name] || awaited(name) || n.bodyGC.isDraft(name) || n.inbox.Holds(name) || n.bodyTransfer.inUse(name)
	})
	if err != nil {
		return fmt.Errorf("sweep bodies: %w", err)
	}
	if removed > 0 {
		n.log.Info("unreferenced bodies were removed", "count", removed)
	}
	return nil
}
