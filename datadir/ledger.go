package datadir

import (
	"os"
	"path/filepath"

	"github.com/balefire/balefire/disk"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/ledger"
)

// ownLedger is the ledger of the boxes of this node alone, in [Ledger].
const ownLedger = "own"

// simulatedSegment is the size of a segment of a node whose store is in memory.
const simulatedSegment = 2 << 20

// HasLedger reports whether the node has a ledger of its mail.
func (d *Dir) HasLedger() bool {
	_, err := os.Stat(filepath.Join(d.path, Ledger, ownLedger))
	return err == nil
}

// OpenLedger opens the ledger of the node's mail, or makes it. It may be called once; Close
// closes it.
func (d *Dir) OpenLedger() (*ledger.Ledger, error) {
	dir := filepath.Join(d.path, Ledger)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := disk.SyncDir(d.path); err != nil {
		return nil, err
	}
	cfg := ledger.Config{Clock: d.cfg.Clock, Logger: d.cfg.Logger, Reserve: d.cfg.Reserve, Space: store.DiskSpace(d.path)}
	if d.cfg.Simulated != nil {
		cfg.Segment, cfg.Space = simulatedSegment, nil
	}
	l, err := ledger.Open(filepath.Join(dir, ownLedger), cfg)
	if err == nil {
		d.ledger = l
	}
	return l, err
}
