package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/balefire/balefire/agent/command"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/blob"
)

// sweepEvery is the pause between two looks for bodies that no record refers to,
// of tasks that were forgotten or purged, or that never came.
const sweepEvery = 10 * time.Minute

// A bodyGC knows which bodies may go and which must not, although no record tells.
type bodyGC struct {
	unneeded chan string // names of bodies that may go
	refused  refusedPeers

	mu     sync.Mutex
	drafts map[string]bool // bodies whose record is being made
}

func newBodyGC() *bodyGC {
	return &bodyGC{unneeded: make(chan string, 1024), drafts: map[string]bool{}, refused: refusedPeers{peers: map[proto.PeerID]bool{}}}
}

// draft notes that the record of a body is being made, or with false that it is
// written, or will not be.
func (h *bodyGC) draft(name string, on bool) {
	if name == "" {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if on {
		h.drafts[name] = true
	} else {
		delete(h.drafts, name)
	}
}

func (h *bodyGC) isDraft(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.drafts[name]
}

// drop lets a body go soon. When there are too many at once the next sweep takes
// the others.
func (h *bodyGC) drop(name string) {
	select {
	case h.unneeded <- name:
	default:
	}
}

// dropEnded lets the body of a task go that ended as somebody wanted: only dead
// letters are made anew.
func (h *bodyGC) dropEnded(r *proto.Record) {
	s := r.GetState()
	if r.GetBodyBlob() != "" && r.GetMovesTo() == "" && (s == proto.Success || s == proto.Cancelled) {
		h.drop(r.GetBodyBlob())
	}
}

// runBodyGC removes bodies that nobody needs any more, and tells peers that were
// turned away when there is room.
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
			if err := n.storage.blobs.Delete(name); err != nil && !errors.Is(err, blob.ErrNotFound) {
				n.log.Warn("a body that nobody needs could not be removed", "blob", name, "err", err)
			}
		case <-ready.C:
			n.announceRoom()
		case <-t.C:
			if err := n.sweepBodies(ctx); err != nil && ctx.Err() == nil {
				n.log.Error("cannot sweep bodies; it is tried again", "err", err)
			}
		}
	}
}

// sweepFiles removes, at the start, what runs left behind and bodies that no
// record refers to.
func (n *Node) sweepFiles() error {
	runs := filepath.Join(n.cfg.Dir, runDir)
	left, err := os.ReadDir(runs)
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	for _, e := range left {
		err = errors.Join(err, command.RemoveAll(filepath.Join(runs, e.Name())))
	}
	if err != nil {
		return fmt.Errorf("sweep the folders of runs: %w", err)
	}
	return n.sweepBodies(context.Background())
}

// sweepBodies removes bodies that no record refers to, unless they were written
// of late: their record may be on its way.
func (n *Node) sweepBodies(ctx context.Context) error {
	if u := n.storage.blobs.Usage(); u.Blobs+u.Parts == 0 {
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
	removed, err := n.storage.blobs.Sweep(func(name string) bool {
		if origin, ok := n.inbox.OriginOf(name); ok {
			n.storage.blobs.SetOwner(name, string(origin[:]))
		}
		return used[name] || awaited(name) || n.bodyGC.isDraft(name) || n.inbox.Holds(name) || n.bodyTransfer.inUse(name)
	})
	if err != nil {
		return fmt.Errorf("sweep bodies: %w", err)
	}
	if removed > 0 {
		n.log.Info("bodies that nothing refers to were removed", "count", removed)
	}
	return nil
}
